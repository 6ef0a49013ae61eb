//! What kubelet's side refuses. What it does with a plugin is seen with the real one, in tests/node/device_plugin.rs.

#![allow(clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stelia_device_plugin::api::transport::Channel;
use stelia_device_plugin::api::v1beta1::RegisterRequest;
use stelia_device_plugin::api::{KUBELET_SOCKET, Status, VERSION};
use test_kubelet_devices::control::{self, Request};
use test_kubelet_devices::kubelet::Kubelet;
use tokio::task::JoinHandle;

const VM: &str = "stelia.io/vm";

async fn register(folder: &Path, resource: &str, version: &str, endpoint: &str) -> Result<(), Status> {
    let socket = folder.join(KUBELET_SOCKET);
    let channel = loop {
        match Channel::connect(&socket).await {
            Ok(channel) => break channel,
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    let request = RegisterRequest {
        version: version.to_owned(),
        endpoint: endpoint.to_owned(),
        resource_name: resource.to_owned(),
        options: None,
    };
    channel.kubelet().register(request).await.map(|_| ())
}

fn start_kubelet(folder: &Path, control: &Path) -> JoinHandle<()> {
    let state = control.with_file_name("devices.json");
    let kubelet = Kubelet::start(folder, &state).expect("a start");
    let control = control.to_owned();
    tokio::spawn(async move {
        tokio::select! {
            ended = Arc::clone(&kubelet).serve() => panic!("{ended:?}"),
            ended = control::serve(kubelet, &control) => panic!("{ended:?}"),
        }
    })
}

async fn show_when(control: &Path, is_so: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
    let waited = tokio::time::timeout(Duration::from_secs(10), async {
        loop {
            if let Ok(now) = control::ask(control, &Request::Show).await
                && is_so(&now)
            {
                break now;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    waited.await.expect("in time")
}

async fn allocate(control: &Path, pod: &str, count: usize) -> anyhow::Result<serde_json::Value> {
    let request = Request::Allocate {
        pod: pod.to_owned(),
        container: "instance".to_owned(),
        resource: VM.to_owned(),
        count,
    };
    control::ask(control, &request).await
}

#[tokio::test]
async fn what_kubelet_refuses_is_refused() {
    let above = tempfile::tempdir().expect("a folder");
    let (folder, control) = (above.path().join("plugins"), above.path().join("control"));
    let _kubelet = start_kubelet(&folder, &control);
    for (resource, version, endpoint, reason) in [
        (VM, "v1alpha", "vm.sock", "v1alpha"),
        ("cpu", VERSION, "vm.sock", "invalid"),
        ("kubernetes.io/vm", VERSION, "vm.sock", "invalid"),
        (VM, VERSION, "absent.sock", "absent.sock"),
    ] {
        let refused = register(&folder, resource, version, endpoint).await.expect_err(reason);
        assert!(refused.message().contains(reason), "{refused:?}");
    }
    let now = show_when(&control, |_| true).await;
    assert_eq!(now["registrations"], 0);
    let refused = allocate(&control, "a", 1).await.expect_err("nobody registered");
    assert!(refused.to_string().contains("unregistered"), "{refused}");
}
