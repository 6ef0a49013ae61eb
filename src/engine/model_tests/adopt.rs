//! VMs that did not register themselves.

use stelia_model as model;
use stelia_settings::{AdoptPlacement, AdoptRule, ReadyMade, TreeChoice};

use super::crash::killed;
use super::*;
use crate::adoption;

pub(super) fn rule() -> AdoptRule {
    AdoptRule::ready_made(ReadyMade::Libvirt).unwrap()
}

impl Node {
    /// A daemon with these rules.
    pub(super) async fn adopting(rules: Vec<AdoptRule>) -> Self {
        let mut node = Self::new();
        node.settings.policies.adopt = rules;
        node.restart().await;
        node.adopt();
        node
    }

    /// Have it look for VMs: no kernel tells it of those of the model.
    pub(super) async fn look(&self) {
        self.handle.reload(self.settings.clone()).await.unwrap();
    }

    pub(super) fn adopt(&self) {
        tokio::spawn(adoption::run(self.handle.clone(), self.cancel.clone()));
    }

    /// A launcher with QEMU, as its vCPUs are pinned.
    pub(super) fn launched(&mut self, number: u32, list: &str, pins: &[u32]) -> (Pod, Qemu) {
        let pod = self.pod(number, list);
        self.name(&pod, &format!("vm-{number}"));
        let qemu = self.qemu(&pod, pins);
        (pod, qemu)
    }

    pub(super) fn qemu(&self, pod: &Pod, pins: &[u32]) -> Qemu {
        let qemu = self.model.add_qemu(pod.other, pins.len() as u32).unwrap();
        let count = pins.len().to_string();
        self.model
            .exec(qemu.pid, &["/usr/bin/qemu-system-x86_64", "-smp", &count])
            .unwrap();
        for (tid, cpu) in qemu.vcpus.iter().zip(pins) {
            self.model.pin(*tid, &CpuSet::from_iter([*cpu])).unwrap();
        }
        qemu
    }

    pub(super) fn known(&self, pod: &Pod) -> Option<Arc<model::Instance>> {
        self.handle.view().instances.get(&pod.uid).cloned()
    }

    pub(super) async fn until_adopted(&self, pod: &Pod) {
        self.look().await;
        self.until("the VM is adopted", |node| node.phase(pod) == Some("isolated"))
            .await;
        let known = self.known(pod).unwrap();
        assert_eq!(known.adopted_by.as_deref(), Some("libvirt"));
        self.until("it is not shown as refused any more", |node| {
            node.unadopted(pod).is_none()
        })
        .await;
    }

    pub(super) fn unadopted(&self, pod: &Pod) -> Option<model::Unadopted> {
        let view = self.handle.view();
        view.unadopted.iter().find(|one| one.pod == pod.uid).cloned()
    }

    pub(super) fn pins(&self, qemu: &Qemu) -> Vec<String> {
        let affinity = |tid: &i32| self.model.affinity(*tid).unwrap().to_string();
        qemu.vcpus.iter().map(affinity).collect()
    }
}

#[tokio::test]
async fn a_vm_that_runs_already_is_adopted_in_place_where_it_was_pinned_and_given_back_so() {
    let mut node = Node::adopting(vec![rule()]).await;
    let (pod, qemu) = node.launched(1, "2-3", &[3, 2]);
    node.until_adopted(&pod).await;
    assert!(!node.model.exists(&scope(&pod)));
    assert_eq!(node.pins(&qemu), ["3", "2"]);
    assert_eq!(node.known(&pod).unwrap().placement, AdoptPlacement::Keep);
    node.check().await;
    // A daemon that starts anew knows it by its record, and a rule that is gone is no reason to let go of it.
    node.settings.policies.adopt.clear();
    node.restart().await;
    node.until_adopted(&pod).await;
    node.deregister(&pod).await;
    assert_eq!(node.model.children(&pod.origin).unwrap(), Vec::<String>::new());
    assert_eq!(node.pins(&qemu), ["3", "2"]);
    node.check().await;
}

#[tokio::test]
async fn a_pin_that_is_changed_within_the_vms_cpus_is_kept_and_one_outside_is_put_right() {
    let mut node = Node::adopting(vec![rule()]).await;
    let (pod, qemu) = node.launched(1, "2-3", &[2, 3]);
    node.until_adopted(&pod).await;
    let drift = node.handle.view().counters.drift_found;
    for (vcpu, cpu) in qemu.vcpus.iter().zip(["3", "2"]) {
        node.model.pin(*vcpu, &cpus(cpu)).unwrap();
    }
    node.catch_up().await;
    assert_eq!(node.pins(&qemu), ["3", "2"]);
    assert_eq!(node.handle.view().counters.drift_found, drift, "no drift");
    let known = node.known(&pod).unwrap();
    assert_eq!(known.vcpus[0].thread.cpu, Some(3));
    // Two on one CPU.
    node.model.pin(qemu.vcpus[1], &cpus("3")).unwrap();
    node.catch_up().await;
    assert_eq!(node.pins(&qemu), ["3", "2"]);
    node.check().await;
}

#[tokio::test]
async fn a_vcpu_that_is_plugged_is_pinned_and_one_that_is_unplugged_is_forgotten() {
    let mut node = Node::adopting(vec![AdoptRule {
        placement: AdoptPlacement::Auto,
        ..rule()
    }])
    .await;
    let (pod, qemu) = node.launched(1, "2-5", &[2, 3]);
    node.model
        .exec(qemu.pid, &["/usr/bin/qemu-system-x86_64", "-smp", "2,maxcpus=4"])
        .unwrap();
    node.until_adopted(&pod).await;
    let third = node.model.spawn_thread(qemu.pid, "CPU 2/KVM").unwrap();
    node.look().await;
    node.until("the third is attached", |node| {
        node.known(&pod).unwrap().vcpus.len() == 3 && node.phase(&pod) == Some("isolated")
    })
    .await;
    node.quiet().await;
    assert_eq!(node.model.affinity(third).unwrap().len(), 1);
    node.check().await;
    node.model.end(third).unwrap();
    node.look().await;
    node.until("it is forgotten", |node| {
        let known = node.known(&pod).unwrap();
        known.vcpus.len() == 2 && known.degraded.is_empty()
    })
    .await;
    node.check().await;
}

#[tokio::test]
async fn a_vm_that_ends_gives_its_cpus_back_and_the_next_one_in_the_container_is_adopted() {
    let mut node = Node::adopting(vec![rule()]).await;
    let (pod, qemu) = node.launched(1, "2-3", &[2, 3]);
    node.until_adopted(&pod).await;
    node.model.end(qemu.pid).unwrap();
    node.reconcile().await;
    node.until("it is given back", |node| node.known(&pod).is_none()).await;
    assert_eq!(node.model.children(&pod.origin).unwrap(), Vec::<String>::new());
    let again = node.qemu(&pod, &[3, 2]);
    node.until_adopted(&pod).await;
    assert_eq!(node.pins(&again), ["3", "2"]);
    node.check().await;
}

#[tokio::test]
async fn what_is_refused_is_shown_by_its_reason_and_adopted_once_that_is_gone() {
    let in_place = AdoptRule {
        tree: TreeChoice::InPlace,
        ..rule()
    };
    let mut node = Node::adopting(vec![in_place]).await;
    node.model.set_copes(false);
    let (pod, qemu) = node.launched(1, "2-3", &[2, 3]);
    node.look().await;
    node.until("it is refused", |node| node.unadopted(&pod).is_some()).await;
    let refused = node.unadopted(&pod).unwrap();
    assert_eq!((refused.reason.as_str(), refused.rule.as_str()), ("Failed", "libvirt"));
    assert!(refused.text.contains("does not cope"), "{}", refused.text);
    assert_eq!(node.model.children(&pod.origin).unwrap(), Vec::<String>::new());
    // To a pod nothing of it is told.
    let own = node.handle.on_behalf_of(&pod.uid);
    assert!(own.view().unadopted.is_empty());
    // Where the rule allows it, it is moved.
    node.settings.policies.adopt = vec![rule()];
    node.until_adopted(&pod).await;
    assert_eq!(node.model.cgroup(qemu.pid).unwrap(), float(&pod));
    assert_eq!(
        node.model.cgroup(pod.init).unwrap(),
        pod.origin,
        "the first process stays"
    );
    node.check().await;
}

#[tokio::test]
async fn a_pod_that_registers_itself_is_its_own_affair() {
    let mut node = Node::adopting(vec![rule()]).await;
    let (pod, _) = node.launched(1, "2-3", &[2, 3]);
    let own = node.pod(2, "4-5");
    node.name(&own, "own");
    node.register(&own).await.unwrap();
    let qemu = node.model.add_qemu(own.other, 2).unwrap();
    node.model
        .exec(qemu.pid, &["/usr/bin/qemu-system-x86_64", "-smp", "2"])
        .unwrap();
    node.until_adopted(&pod).await;
    node.look().await;
    node.quiet().await;
    assert_eq!(node.known(&own).unwrap().adopted_by, None);
    assert_eq!(node.phase(&own), Some("waiting"));
    node.attach(&own, &qemu).await.unwrap();
    // One that was adopted and registers itself then is not adopted any more, now or after a restart.
    node.register(&pod).await.unwrap();
    node.until("it is its own", |node| node.known(&pod).unwrap().adopted_by.is_none())
        .await;
    node.restart().await;
    node.adopt();
    node.look().await;
    node.quiet().await;
    assert_eq!(node.known(&pod).unwrap().adopted_by, None);
    assert_eq!(node.phase(&pod), Some("isolated"));
    node.check().await;
}

#[test]
fn a_daemon_that_died_anywhere_between_goes_on_with_the_same_pins() {
    // Each in a runtime of its own: what is left of a daemon that was killed ends with it.
    let whole = |changes| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(cut_off_after(changes))
    };
    let took = (0..).find(|changes| whole(*changes)).unwrap();
    assert!(took > 20, "all of it in {took} changes");
}

/// Whether the VM was adopted within so many changes.
async fn cut_off_after(changes: u32) -> bool {
    let mut node = Node::adopting(vec![rule()]).await;
    let (pod, qemu) = node.launched(1, "2-3", &[3, 2]);
    let (handle, settings, uid) = (node.handle.clone(), node.settings.clone(), pod.uid.clone());
    let call = async move {
        handle.reload(settings).await?;
        let isolated = || {
            handle
                .view()
                .instances
                .get(&uid)
                .is_some_and(|known| known.state == State::Isolated)
        };
        while !isolated() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    };
    let done = killed(&mut node, changes, call).await;
    node.adopt();
    node.until_adopted(&pod).await;
    assert_eq!(node.pins(&qemu), ["3", "2"], "cut off after {changes}");
    node.check().await;
    done
}
