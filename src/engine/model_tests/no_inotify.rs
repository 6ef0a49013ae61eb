//! No inotify instance is left: any process of the host's root can take all of root's (`fs.inotify.max_user_instances` counts per uid).

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;

use super::*;

const AGAIN: &str = "STELIA_TEST_NO_INOTIFY";
/// A user of whom nothing else runs here.
const UID: u32 = 65_533;

/// Run this test again as a user of its own, all of whose instances it can take. Returns whether this is that run.
fn is_users_own(name: &str) -> bool {
    if std::env::var_os(AGAIN).is_some() {
        return true;
    }
    assert!(
        rustix::process::geteuid().is_root(),
        "needs root, to become another user"
    );
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("test");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    for path in [directory.path(), &program] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = module_path!().split_once("::").unwrap().1;
    let mut again = std::process::Command::new(&program);
    again.args(["--exact", "--nocapture", &format!("{path}::{name}")]);
    again.env(AGAIN, "1").env("TMPDIR", "/tmp").uid(UID).gid(UID);
    assert!(again.status().unwrap().success());
    false
}

fn take_all() -> Vec<inotify::Inotify> {
    std::iter::from_fn(|| inotify::Inotify::init().ok()).collect()
}

#[tokio::test]
async fn without_inotify_the_daemon_audits_says_so_and_watches_again_once_it_can() {
    if !is_users_own("without_inotify_the_daemon_audits_says_so_and_watches_again_once_it_can") {
        return;
    }
    // Those of an earlier run may be released only now.
    let mut taken = take_all();
    while inotify::Inotify::init().map(|one| taken.push(one)).is_ok() {}
    let mut node = Node::new();
    node.settings.audit_interval = Duration::from_secs(3600);
    node.restart().await;
    taken.extend(take_all());
    let (pod, _) = node.isolated(1, "2-3").await;
    let degraded = |node: &Node| node.handle.view().instances[&pod.uid].degraded.clone();
    node.until("it is said of the node", |node| {
        let problems = node.handle.view().problems();
        problems.iter().any(|reason| reason.code == ReasonCode::NotWatched)
    })
    .await;
    let problem = node.handle.view().watch_problem.clone().unwrap();
    assert!(
        problem.contains("not watched") && problem.contains("Too many open files"),
        "{problem}"
    );
    // No event reports these.
    let audits = node.handle.audits();
    node.model.meddle(&vcpu(&pod), File::Partition, "member").unwrap();
    node.until("drift is repaired", |node| {
        node.read(&vcpu(&pod), File::Partition) == "isolated"
    })
    .await;
    node.checkpoint.admit(&uid(7), "web", &cpus("7")).unwrap();
    node.until("kubelet's file is followed", |node| {
        node.read(&float(&pod), File::Cpus) == "0-1,4-6"
    })
    .await;
    node.model.meddle(&pod.origin, File::MemoryMax, "1073741824").unwrap();
    node.until("limits are followed", |node| {
        node.read(&scope(&pod), File::MemoryMax) == "1073741824"
    })
    .await;
    drop(taken);
    node.until("it is watched again", |node| {
        node.handle.view().watch_problem.is_none() && degraded(node).is_empty()
    })
    .await;
    node.quiet().await;
    // Not every look is an audit for those who record.
    assert!(!audits.has_changed().unwrap());
    node.checkpoint.admit(&uid(6), "web", &cpus("6")).unwrap();
    node.until("events are heard", |node| {
        node.read(&float(&pod), File::Cpus) == "0-1,4-5"
    })
    .await;
    node.check().await;
}

#[tokio::test]
async fn a_place_that_could_not_be_watched_is_read_again_once_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let (file, gone) = (directory.path().join("file"), directory.path().join("gone"));
    std::fs::write(&file, "").unwrap();
    let mut watcher = super::super::watch::Watcher::start();
    let place = super::super::watch::Place::Limits(uid(1));
    // A name that is too long is an error, as a watch too many is.
    let long = directory.path().join("x".repeat(300));
    assert!(watcher.watch(place.clone(), &[file.clone(), long]).is_err());
    assert!(watcher.take().is_empty());
    watcher.watch(place.clone(), &[file, gone.clone()]).unwrap();
    assert_eq!(watcher.take(), [super::super::watch::Event::Limits(uid(1))].into());
    // A file that is made anew is watched anew.
    for _ in 0..2 {
        std::fs::create_dir(&gone).unwrap();
        let own = super::super::watch::Place::Slice;
        watcher.watch(own.clone(), std::slice::from_ref(&gone)).unwrap();
        std::fs::remove_dir(&gone).unwrap();
        let mut happened = watcher.take();
        while happened.is_empty() {
            watcher.changed().await;
            happened = watcher.take();
        }
        assert_eq!(happened, [super::super::watch::Event::Slice].into());
    }
}

/// A container in place can make files in its `vcpu` all the time.
#[tokio::test]
async fn events_that_the_kernel_drops_all_the_time_cost_a_look_a_second() {
    let mut node = Node::new();
    node.settings.audit_interval = Duration::from_secs(3600);
    node.restart().await;
    node.isolated(1, "2-3").await;
    node.quiet().await;
    let queued = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let queued: usize = queued.trim().parse().unwrap();
    let file = node.settings.kubelet_root.join("file");
    node.model.record_calls(true);
    let began = std::time::Instant::now();
    for _ in 0..5 {
        // Nothing else runs meanwhile. Each time there is an event of its beginning and one of its end.
        for _ in 0..queued {
            std::fs::write(&file, "").unwrap();
            std::fs::remove_file(&file).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let listed = |node: &Node| {
        node.model
            .calls()
            .iter()
            .filter(|call| *call == "list /stelia.slice")
            .count()
    };
    node.until("it is looked at", |node| listed(node) > 0).await;
    node.quiet().await;
    let (looks, seconds) = (listed(&node), began.elapsed().as_secs());
    assert!(looks as u64 <= seconds + 2, "{looks} looks in {seconds} s");
    node.check().await;
}
