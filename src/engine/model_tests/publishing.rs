//! What the cluster's publisher is told beside the engine: of a VM's life, of refusals, across a restart; and that nobody is hurt where it
//! cannot be written.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use stelia_api::publication::{FILE, Publication};
use stelia_kubelet::PodName;
use stelia_settings::Publish;

use super::*;
use crate::kubelet_config::KubeletConfigReader;
use crate::publishing::{self, Directory, Folder};

/// A folder that may be full.
struct Disk {
    directory: Directory,
    full: AtomicBool,
    writes: AtomicU32,
}

impl Disk {
    fn check(&self) -> Result<(), String> {
        if self.full.load(Ordering::SeqCst) {
            Err("write /run/stelia/publish/.node.json.new: No space left on device".to_owned())
        } else {
            Ok(())
        }
    }
}

impl Folder for Disk {
    fn read(&self) -> Option<Vec<u8>> {
        self.directory.read()
    }

    fn write(&self, bytes: &[u8]) -> Result<(), String> {
        self.check()?;
        self.writes.fetch_add(1, Ordering::SeqCst);
        self.directory.write(bytes)
    }

    fn hold(&self) -> Result<(), String> {
        self.directory.hold()
    }

    fn remove(&self) -> Result<(), String> {
        self.directory.remove()
    }
}

/// The publishing task beside a node's daemon.
struct Published {
    path: PathBuf,
    disk: Arc<Disk>,
    cancel: CancellationToken,
    running: JoinHandle<()>,
}

impl Published {
    fn text(&self) -> Option<Publication> {
        let bytes = std::fs::read(self.path.join(FILE)).ok()?;
        Publication::parse(&bytes).ok()
    }

    fn writes(&self) -> u32 {
        self.disk.writes.load(Ordering::SeqCst)
    }

    /// By pod's name, `REASON×COUNT` for each event.
    fn events(&self) -> Vec<(String, String)> {
        let events = self.text().map(|told| told.events).unwrap_or_default().into_iter();
        events
            .map(|event| (event.name, format!("{}×{}", event.reason, event.count)))
            .collect()
    }

    fn says(&self, is: impl Fn(&Publication) -> bool) -> bool {
        self.text().as_ref().is_some_and(is)
    }

    async fn end(self) {
        self.cancel.cancel();
        self.running.await.unwrap();
    }
}

impl Node {
    async fn publishing() -> Self {
        let mut node = Self::new();
        node.settings.publish = Publish::Nrt;
        node.restart().await;
        node.reconcile().await;
        node
    }

    fn publish(&self) -> Published {
        let path = self.directory.path().join("publish");
        let disk = Arc::new(Disk {
            directory: Directory::new(&path),
            full: AtomicBool::new(false),
            writes: AtomicU32::new(0),
        });
        let cancel = CancellationToken::new();
        let kubelet = KubeletConfigReader::new(self.handle.system().root().to_owned());
        Published {
            running: tokio::spawn(publishing::run(
                self.handle.clone(),
                kubelet,
                disk.clone(),
                cancel.clone(),
            )),
            path,
            disk,
            cancel,
        }
    }

    fn named(&mut self, number: u32, list: &str) -> Pod {
        let pod = self.pod(number, list);
        self.name(&pod, &format!("vm-{number}"));
        pod
    }

    async fn named_isolated(&mut self, number: u32, list: &str) -> (Pod, Qemu) {
        let pod = self.named(number, list);
        self.register(&pod).await.unwrap();
        let qemu = self.started(&pod, cpus(list).len() as u32).await;
        (pod, qemu)
    }
}

fn of(name: &str, event: &str) -> (String, String) {
    (name.to_owned(), event.to_owned())
}

#[tokio::test]
async fn of_a_vms_life_each_state_is_told_and_the_object_follows() {
    let mut node = Node::publishing().await;
    let published = node.publish();
    node.until("the node is told", |_| published.says(|told| told.ready.status))
        .await;
    let before = published.text().unwrap();
    assert_eq!((before.pods.len(), before.events.len()), (0, 0));
    let (pod, _) = node.named_isolated(1, "2-3").await;
    node.until("it is told isolated", |_| {
        published.says(|told| told.pods.iter().any(|pod| pod.isolated))
    })
    .await;
    let told = published.text().unwrap();
    assert_eq!(published.events(), [of("vm-1", "Isolated×1")]);
    assert_eq!(told.pods[0].uid, pod.uid.to_string());
    assert_ne!(told.object, before.object, "it has CPUs of its own");
    node.handle.deregister(pod.uid.clone()).await.unwrap();
    node.checkpoint.release(&pod.uid).unwrap();
    node.until("it is released", |_| published.says(|told| told.pods.is_empty()))
        .await;
    assert_eq!(published.events().last(), Some(&of("vm-1", "Released×1")));
    // The pod's container is still there, so the pods' fingerprint is not what it was.
    let zones = |told: &Publication| told.object.as_ref().map(|object| object["zones"].clone());
    node.until("its CPUs are free", |_| {
        published.says(|told| zones(told) == zones(&before))
    })
    .await;
    published.end().await;
}

#[tokio::test]
async fn what_did_not_change_is_not_written_and_what_somebody_changed_is_mended() {
    let mut node = Node::publishing().await;
    let published = node.publish();
    node.named_isolated(1, "2-3").await;
    node.until("it is told", |_| published.says(|told| !told.events.is_empty()))
        .await;
    node.quiet().await;
    let before = published.writes();
    for _ in 0..3 {
        node.reconcile().await;
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    assert_eq!(published.writes(), before);
    std::fs::write(published.path.join(FILE), "{}").unwrap();
    node.reconcile().await;
    node.until("it is mended", |_| published.writes() > before).await;
    assert!(published.says(|told| told.pods.len() == 1));
    published.end().await;
}

#[tokio::test]
async fn many_starts_in_a_row_are_few_writes() {
    let mut node = Node::publishing().await;
    let published = node.publish();
    node.until("the node is told", |_| published.text().is_some()).await;
    let (before, began) = (published.writes(), std::time::Instant::now());
    for number in 1..=6 {
        node.named_isolated(number, &(number + 1).to_string()).await;
    }
    node.until("all are told", |_| {
        published.says(|told| told.pods.iter().filter(|pod| pod.isolated).count() == 6)
    })
    .await;
    // One at once, then one for each tenth of a second at most.
    let most = began.elapsed().as_millis() / 100 + 2;
    assert!(
        u128::from(published.writes() - before) <= most,
        "{} writes, {most}",
        published.writes() - before
    );
    published.end().await;
}

#[tokio::test]
async fn a_refused_pod_is_told_by_name_and_in_its_own_terms_and_pushes_out_nobody() {
    let mut node = Node::publishing().await;
    let published = node.publish();
    node.named_isolated(1, "2-3").await;
    node.until("it is told", |_| published.says(|told| !told.events.is_empty()))
        .await;
    let rude = node.named(2, "4-5");
    let handle = node.handle.on_behalf_of(&rude.uid);
    let name = PodName::new("team-a", "rude").unwrap();
    for number in 0..500 {
        let own = ErrorKind::NotGuaranteed.because(format!("no {number}"));
        handle.note_refusal("registration refused", &own, || Some(name.clone()));
    }
    let foreign = ErrorKind::Failed.because("write to the cgroup of pod 1").of(&uid(1));
    handle.note_refusal("vCPUs not attached", &foreign, || Some(name.clone()));
    node.until("it is told what it may read", |_| {
        published.says(|told| {
            told.events
                .iter()
                .any(|event| event.message.starts_with("vCPUs not attached: Failed: "))
        })
    })
    .await;
    let told = published.text().unwrap();
    assert!(
        told.events.iter().all(|event| !event.message.contains("pod 1")),
        "{told:?}"
    );
    assert_eq!(published.events()[0], of("vm-1", "Isolated×1"));
    assert!(told.events.len() <= 9, "{}", told.events.len());
    published.end().await;
}

#[tokio::test]
async fn numbers_go_on_over_a_restart_and_what_happened_meanwhile_is_told() {
    let mut node = Node::publishing().await;
    let published = node.publish();
    let (gone, _) = node.named_isolated(1, "2-3").await;
    node.named_isolated(2, "4-5").await;
    node.until("both are told", |_| published.events().len() == 2).await;
    let before = published.text().unwrap();
    published.end().await;
    node.stop().await;
    node.model.kill_pod(&gone).unwrap();
    node.start();
    node.reconcile().await;
    let published = node.publish();
    node.until("it is told of the one that ended", |_| {
        published.events().last() == Some(&of("vm-1", "Released×1"))
    })
    .await;
    let now = published.text().unwrap();
    assert_eq!(now.events[..2], before.events, "nothing happened to the other");
    assert!(now.events[2].number > now.events[1].number);
    assert_eq!(now.pods[..], before.pods[1..], "and it is since then as it is");
    published.end().await;
    // A file that cannot be read: anew, with numbers that were not given before.
    std::fs::write(node.directory.path().join("publish").join(FILE), "{").unwrap();
    let published = node.publish();
    node.until("the other one is told", |_| published.says(|told| told.pods.len() == 1))
        .await;
    assert!(published.text().unwrap().events[0].number > now.events[2].number);
    published.end().await;
}

#[tokio::test]
async fn while_kubelets_file_is_broken_there_is_no_object_and_no_vm_is_said_to_be_broken() {
    let mut node = Node::publishing().await;
    let published = node.publish();
    node.named_isolated(1, "2-3").await;
    node.until("it is told", |_| {
        published.says(|told| told.object.is_some() && told.pods.len() == 1)
    })
    .await;
    node.checkpoint.write_bytes(b"{").unwrap();
    node.until("the node is not ready", |_| published.says(|told| !told.ready.status))
        .await;
    let told = published.text().unwrap();
    assert_eq!(
        (told.ready.reason.as_str(), told.object.is_none()),
        ("KubeletStateUnusable", true)
    );
    assert!(!told.ready.message.is_empty() && told.pods[0].isolated, "{told:?}");
    node.checkpoint.write().unwrap();
    node.until("it is again", |_| {
        published.says(|told| told.ready.status && told.object.is_some())
    })
    .await;
    assert_eq!(published.events(), [of("vm-1", "Isolated×1")]);
    published.end().await;
}

#[tokio::test]
async fn a_full_disk_is_said_hurts_no_vm_and_loses_no_event() {
    let mut node = Node::publishing().await;
    let published = node.publish();
    node.until("the node is told", |_| published.text().is_some()).await;
    published.disk.full.store(true, Ordering::SeqCst);
    let problem = |node: &Node| node.handle.view().publishing.problem.clone();
    let (pod, _) = node.named_isolated(1, "2-3").await;
    node.until("it is said", |node| problem(node).is_some()).await;
    assert!(problem(&node).unwrap().ends_with("No space left on device"));
    assert_eq!(node.phase(&pod), Some("isolated"));
    node.check().await;
    published.disk.full.store(false, Ordering::SeqCst);
    node.reconcile().await;
    node.until("it is written", |node| problem(node).is_none()).await;
    assert_eq!(published.events(), [of("vm-1", "Isolated×1")]);
    assert!(node.handle.view().publishing.written_us > 0);
    published.end().await;
}

#[tokio::test]
async fn switched_off_nothing_is_written_and_a_reload_switches_it() {
    let mut node = Node::new();
    let path = node.directory.path().join("publish");
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join(FILE), "{}").unwrap();
    let published = node.publish();
    node.until("what the daemon before left is gone", |_| !exists(&path))
        .await;
    node.named_isolated(1, "2-3").await;
    node.reconcile().await;
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert!(!exists(&path) && published.writes() == 0);
    node.settings.publish = Publish::Stelia;
    node.handle.reload(node.settings.clone()).await.unwrap();
    node.until("it is switched on", |node| {
        exists(&path) && node.handle.view().publishing.profile.as_deref() == Some("stelia")
    })
    .await;
    assert!(published.says(|told| {
        told.object
            .as_ref()
            .unwrap()
            .to_string()
            .contains("isolation.stelia.io/node")
    }));
    node.settings.publish = Publish::Off;
    node.handle.reload(node.settings.clone()).await.unwrap();
    node.until("it is switched off", |node| {
        !exists(&path) && node.handle.view().publishing.profile.is_none()
    })
    .await;
    published.end().await;
}

fn exists(path: &Path) -> bool {
    path.join(FILE).exists()
}
