//! kubelet's side against a plugin in the same process.

#![allow(clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use stelia_device_plugin::api::transport::{Channel, serve_plugin};
use stelia_device_plugin::api::v1beta1::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse, Device, DevicePluginOptions, DeviceSpec, Empty,
    ListAndWatchResponse, Mount, RegisterRequest,
};
use stelia_device_plugin::api::{
    self, BoxStream, DevicePlugin, HEALTHY, KUBELET_SOCKET, Response, Status, UNHEALTHY, VERSION, async_trait,
};
use test_kubelet_devices::control::{self, Request};
use test_kubelet_devices::kubelet::Kubelet;
use test_kubelet_devices::unusual_calls;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

const VM: &str = "stelia.io/vm";

/// Two devices, whose health the test sets.
struct Plugin(watch::Receiver<&'static str>);

#[async_trait]
impl DevicePlugin for Plugin {
    async fn get_device_plugin_options(&self, _: api::Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    async fn list_and_watch(
        &self,
        _: api::Request<Empty>,
    ) -> Result<Response<BoxStream<ListAndWatchResponse>>, Status> {
        let mut health = self.0.clone();
        health.mark_changed();
        let lists = stream::unfold(health, |mut health| async move {
            health.changed().await.ok()?;
            let now = *health.borrow_and_update();
            let device = |number: u8| Device {
                id: format!("vm-{number}"),
                health: now.to_owned(),
                topology: None,
            };
            let devices = [0, 1].map(device).to_vec();
            Some((Ok(ListAndWatchResponse { devices }), health))
        })
        .fuse();
        Ok(Response::new(Box::pin(lists)))
    }

    async fn allocate(&self, request: api::Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let [container] = request.get_ref().container_requests.as_slice() else {
            return Err(Status::invalid_argument("one container at a time"));
        };
        if container.devices_ids != ["vm-0"] && container.devices_ids != ["vm-1"] {
            return Err(Status::failed_precondition("the daemon admits no VM"));
        }
        let response = ContainerAllocateResponse {
            envs: BTreeMap::from([("STELIA_RUNNER".to_owned(), "/usr/bin/stelia-runner".to_owned())]),
            mounts: vec![Mount {
                container_path: "/run/stelia/runner".to_owned(),
                host_path: "/run/stelia/runner".to_owned(),
                read_only: true,
            }],
            devices: vec![DeviceSpec {
                container_path: "/dev/kvm".to_owned(),
                host_path: "/dev/kvm".to_owned(),
                permissions: "rw".to_owned(),
            }],
            ..ContainerAllocateResponse::default()
        };
        Ok(Response::new(AllocateResponse {
            container_responses: vec![response],
        }))
    }
}

fn start_plugin(folder: &Path, health: watch::Receiver<&'static str>) -> JoinHandle<()> {
    let listener = UnixListener::bind(folder.join("vm.sock")).expect("a socket");
    let plugin = Arc::new(Plugin(health));
    tokio::spawn(async move {
        // Dropped with this task, the connections end as those of a process that ended.
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(serve_plugin(stream, plugin.clone()));
        }
    })
}

fn request(resource: &str, version: &str, endpoint: &str) -> RegisterRequest {
    RegisterRequest {
        version: version.to_owned(),
        endpoint: endpoint.to_owned(),
        resource_name: resource.to_owned(),
        options: None,
    }
}

async fn register(folder: &Path, request: RegisterRequest) -> Result<(), Status> {
    let socket = folder.join(KUBELET_SOCKET);
    let channel = loop {
        match Channel::connect(&socket).await {
            Ok(channel) => break channel,
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
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

fn healthy(now: &serde_json::Value) -> usize {
    now["resources"][VM]["healthy"].as_array().map_or(0, Vec::len)
}

#[tokio::test]
async fn a_plugin_registers_gives_devices_and_is_forgotten_by_no_restart() {
    let above = tempfile::tempdir().expect("a folder");
    let (folder, control) = (above.path().join("plugins"), above.path().join("control"));
    let kubelet = start_kubelet(&folder, &control);
    let (health, watched) = watch::channel(HEALTHY);
    let plugin = start_plugin(&folder, watched.clone());
    register(&folder, request(VM, VERSION, "vm.sock"))
        .await
        .expect("registered");
    show_when(&control, |now| healthy(now) == 2).await;

    let answer = allocate(&control, "a", 1).await.expect("a device");
    assert_eq!(answer["ids"][0], "vm-0");
    assert_eq!(answer["envs"]["STELIA_RUNNER"], "/usr/bin/stelia-runner");
    assert_eq!(answer["mounts"][0]["read_only"], true);
    assert_eq!(answer["devices"][0]["permissions"], "rw");
    assert!(
        answer["bytes"].as_array().is_some_and(|bytes| bytes.len() > 50),
        "{answer}"
    );
    assert_eq!(allocate(&control, "a", 1).await.expect("the same"), answer);

    health.send(UNHEALTHY).expect("a stream");
    show_when(&control, |now| healthy(now) == 0).await;
    let refused = allocate(&control, "b", 1).await.expect_err("none is healthy");
    assert!(refused.to_string().contains("no healthy devices present"), "{refused}");
    health.send(HEALTHY).expect("a stream");
    show_when(&control, |now| healthy(now) == 2).await;
    // Two for one container is what this plugin refuses.
    let free = Request::Free { pod: "a".to_owned() };
    control::ask(&control, &free).await.expect("freed");
    let refused = allocate(&control, "b", 2).await.expect_err("refused");
    assert_eq!(
        refused.to_string(),
        "rpc error: code = FailedPrecondition desc = the daemon admits no VM"
    );
    allocate(&control, "b", 1).await.expect("a device");

    // kubelet starts anew: the plugin's socket is gone, its allocation is not.
    kubelet.abort();
    let kubelet = start_kubelet(&folder, &control);
    let now = show_when(&control, |_| true).await;
    assert_eq!(
        (healthy(&now), &now["allocations"][0]["pod"]),
        (0, &serde_json::json!("b"))
    );
    assert!(!folder.join("vm.sock").exists());
    plugin.abort();
    let plugin = start_plugin(&folder, watched);
    register(&folder, request(VM, VERSION, "vm.sock"))
        .await
        .expect("registered");
    show_when(&control, |now| healthy(now) == 2).await;
    let answer = allocate(&control, "c", 1).await.expect("a device");
    assert_eq!(answer["ids"][0], "vm-1");

    // The plugin ends: its devices are unhealthy at once.
    plugin.abort();
    show_when(&control, |now| {
        now["resources"][VM]["connected"] == false && healthy(now) == 0
    })
    .await;
    kubelet.abort();
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
        let refused = register(&folder, request(resource, version, endpoint))
            .await
            .expect_err(reason);
        assert!(refused.message().contains(reason), "{refused:?}");
    }
    let now = show_when(&control, |_| true).await;
    assert_eq!(now["registrations"], 0);
    let refused = allocate(&control, "a", 1).await.expect_err("nobody registered");
    assert!(refused.to_string().contains("unregistered"), "{refused}");
}

#[tokio::test]
async fn unusual_calls_reach_the_plugin() {
    let above = tempfile::tempdir().expect("a folder");
    let (_health, watched) = watch::channel(HEALTHY);
    let _plugin = start_plugin(above.path(), watched);
    let socket = above.path().join("vm.sock");
    let id = |id: &str| vec![id.to_owned()];
    let answers = unusual_calls::allocate(&socket, &[id("vm-0")]).await.expect("a device");
    assert_eq!(answers.len(), 1);
    let refused = unusual_calls::allocate(&socket, &[id("vm-0"), id("vm-1")])
        .await
        .expect_err("two containers");
    assert!(refused.to_string().contains("InvalidArgument"), "{refused}");
    unusual_calls::long_id(&socket, 1 << 20)
        .await
        .expect_err("longer than a message may be");
    let unread = unusual_calls::open(&socket, 3, 2).await;
    assert_eq!((unread.connections, unread.streams), (3, 6), "{:?}", unread.refusal);
}
