//! Clients on the plugin's socket that are not kubelet.

use std::time::Duration;

use crate::api::Code;
use crate::api::transport::Channel;
use crate::api::v1beta1::{
    AllocateRequest, ContainerAllocateRequest, Empty, PreStartContainerRequest, PreferredAllocationRequest,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::bus::Daemon;
use super::kubelet::Kubelet;
use super::{healthy, one, registered};

/// kubelet is served as before.
async fn kubelet_is_served(daemon: &Daemon, kubelet: &mut Kubelet) {
    daemon.set_problem("a problem").await;
    kubelet.list(|list| healthy(list) == 0).await;
    daemon.set_problem("").await;
    kubelet.list(|list| healthy(list) == 2).await;
    kubelet.plugin().allocate(one("vm-0")).await.unwrap();
    assert_eq!(kubelet.registrations(), 1);
}

#[tokio::test]
async fn what_is_not_http2_ends_that_connection_only() {
    let (node, daemon, mut kubelet) = registered(|_| {}, 2).await;
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x00\x00\x00\x00\x00\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x04\x01\x04\0\0\0\x01\xff\xff\xff\xff",
    ] {
        let mut client = UnixStream::connect(node.plugin_socket()).await.unwrap();
        client.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(20), client.read_to_end(&mut answer)).await;
        assert!(ended.is_ok(), "{bytes:?}");
    }
    kubelet_is_served(&daemon, &mut kubelet).await;
}

#[tokio::test]
async fn wrong_calls_are_answered_with_errors() {
    let (node, daemon, mut kubelet) = registered(|_| {}, 2).await;
    let mut client = Channel::connect(&node.plugin_socket()).await.unwrap().plugin();
    let unimplemented = client
        .get_preferred_allocation(PreferredAllocationRequest::default())
        .await
        .unwrap_err();
    assert_eq!(unimplemented.code(), Code::Unimplemented);
    let unimplemented = client
        .pre_start_container(PreStartContainerRequest::default())
        .await
        .unwrap_err();
    assert_eq!(unimplemented.code(), Code::Unimplemented);
    let options = client.get_device_plugin_options(Empty {}).await.unwrap();
    assert!(!options.get_ref().get_preferred_allocation_available);
    let containers = |count: usize, ids: Vec<String>| AllocateRequest {
        container_requests: vec![ContainerAllocateRequest { devices_ids: ids }; count],
    };
    for (request, code) in [
        (containers(0, Vec::new()), Code::InvalidArgument),
        (containers(1, Vec::new()), Code::InvalidArgument),
        (containers(1, vec!["vm-0".into(), "vm-1".into()]), Code::InvalidArgument),
        (containers(2, vec!["vm-0".into()]), Code::InvalidArgument),
        (containers(1, vec!["vm-2".into()]), Code::NotFound),
        (containers(1, vec!["x\n".repeat(9000)]), Code::NotFound),
        (containers(1, vec!["x".repeat(1 << 20)]), Code::OutOfRange),
        (containers(30_000, Vec::new()), Code::InvalidArgument),
    ] {
        let refused = client.allocate(request).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused:?}");
        assert!(refused.message().len() < 400, "{refused:?}");
    }
    kubelet_is_served(&daemon, &mut kubelet).await;
}

/// These clients are of the same process as the kubelet here, so the plugin takes them for kubelet's: `connections.rs` tests which connection is closed.
#[tokio::test]
async fn many_streams_that_nobody_reads_neither_delay_kubelets_nor_end_it() {
    let (node, daemon, mut kubelet) = registered(|_| {}, 2).await;
    let mut open = Vec::new();
    for _ in 0..5 {
        let mut client = Channel::connect(&node.plugin_socket()).await.unwrap().plugin();
        for _ in 0..6 {
            open.push(client.list_and_watch(Empty {}).await.unwrap());
        }
    }
    for number in 0..50 {
        daemon.set_problem(if number % 2 == 0 { "a problem" } else { "" }).await;
    }
    kubelet_is_served(&daemon, &mut kubelet).await;
    drop(open);
    kubelet_is_served(&daemon, &mut kubelet).await;
}

#[tokio::test]
async fn connections_beyond_the_limit_end_the_oldest() {
    let (node, daemon, mut kubelet) = registered(|_| {}, 2).await;
    let silent = UnixStream::connect(node.plugin_socket()).await.unwrap();
    let mut later = Vec::new();
    for _ in 0..6 {
        later.push(UnixStream::connect(node.plugin_socket()).await.unwrap());
    }
    kubelet_is_served(&daemon, &mut kubelet).await;
    // kubelet's is the oldest here, where all are of one process: it registers again after a second.
    later.push(UnixStream::connect(node.plugin_socket()).await.unwrap());
    kubelet.list(|list| healthy(list) == 2).await;
    assert!(kubelet.registrations() >= 2);
    drop(silent);
}
