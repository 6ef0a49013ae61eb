//! kubelet, its folder, the bus and the plugin come and go.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use super::bus::Daemon;
use super::kubelet::Kubelet;
use super::{Node, healthy, one, registered};

#[tokio::test]
async fn the_plugin_registers_again_with_every_kubelet() {
    let mut node = Node::new();
    let _daemon = Daemon::start(&node.bus, "").await;
    // kubelet comes later than the plugin, which has no socket until then.
    node.start_plugin(|_| {});
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(node.plugin_sockets().is_empty());
    let mut kubelet = Kubelet::start(&node.path("plugins"));
    kubelet.list(|list| healthy(list) == 2).await;
    assert_eq!(fs::metadata(node.plugin_socket()).unwrap().mode() & 0o777, 0o600);
    for registrations in 2..5 {
        let before = node.plugin_socket();
        kubelet.restart();
        kubelet.list(|list| healthy(list) == 2).await;
        assert_eq!(kubelet.registrations(), registrations);
        assert_ne!(node.plugin_socket(), before);
        kubelet.plugin().allocate(one("vm-0")).await.unwrap();
    }
    // Only its socket is removed.
    fs::remove_file(node.plugin_socket()).unwrap();
    kubelet.list(|list| healthy(list) == 2).await;
}

#[tokio::test]
async fn a_kubelet_that_crashes_or_refuses_is_tried_again() {
    let mut node = Node::new();
    let _daemon = Daemon::start(&node.bus, "").await;
    let mut kubelet = Kubelet::start(&node.path("plugins"));
    kubelet.refuse(1);
    node.start_plugin(|_| {});
    kubelet.list(|list| healthy(list) == 2).await;
    assert_eq!(kubelet.registrations(), 2);
    kubelet.crash();
    tokio::time::sleep(Duration::from_millis(300)).await;
    kubelet.start_again();
    kubelet.list(|list| healthy(list) == 2).await;
}

#[tokio::test]
async fn the_folder_may_be_made_after_the_plugin_and_made_anew() {
    let mut node = Node::new();
    let _daemon = Daemon::start(&node.bus, "").await;
    let folder = node.path("plugins");
    fs::remove_dir(&folder).unwrap();
    node.start_plugin(|_| {});
    tokio::time::sleep(Duration::from_millis(100)).await;
    for _ in 0..2 {
        fs::create_dir(&folder).unwrap();
        let mut kubelet = Kubelet::start(&folder);
        kubelet.list(|list| healthy(list) == 2).await;
        drop(kubelet);
        fs::remove_dir_all(&folder).unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn sockets_that_an_ended_plugin_left_are_removed_and_other_files_stay() {
    let mut node = Node::new();
    let _daemon = Daemon::start(&node.bus, "").await;
    let [left, foreign, others] =
        ["stelia.io_vm-1.sock", "stelia.io_vm-2.sock", "example.com.sock"].map(|name| node.path("plugins").join(name));
    for socket in [&left, &others] {
        drop(std::os::unix::net::UnixListener::bind(socket).unwrap());
    }
    fs::write(&foreign, "somebody's").unwrap();
    let mut kubelet = Kubelet::start(&node.path("plugins"));
    node.start_plugin(|_| {});
    kubelet.list(|list| healthy(list) == 2).await;
    assert!(!left.exists() && others.exists());
    assert_eq!(fs::read_to_string(&foreign).unwrap(), "somebody's");
}

#[tokio::test]
async fn the_socket_is_removed_when_the_plugin_ends() {
    let (mut node, _daemon, mut kubelet) = registered(|_| {}, 2).await;
    node.stop_plugin().await;
    assert!(node.plugin_sockets().is_empty());
    node.start_plugin(|settings| settings.vms = Some(1));
    kubelet.list(|list| healthy(list) == 1).await;
}

#[tokio::test]
async fn without_the_bus_no_vm_is_admitted_and_what_was_known_before_is_not_believed() {
    let (mut node, daemon, mut kubelet) = registered(|_| {}, 2).await;
    node.bus.stop();
    let unhealthy = kubelet.list(|list| healthy(list) == 0);
    tokio::time::timeout(Duration::from_secs(5), unhealthy)
        .await
        .expect("unhealthy within 5 s");
    let refused = kubelet.plugin().allocate(one("vm-0")).await.unwrap_err();
    assert!(refused.message().contains("over the system bus"), "{refused:?}");
    // The daemon that comes back admits none.
    drop(daemon);
    node.bus.start_again();
    let daemon = Daemon::start(&node.bus, "kubelet's state file was not read yet").await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(kubelet.lists_until_now(), 0);
    daemon.set_problem("").await;
    kubelet.list(|list| healthy(list) == 2).await;
}
