//! The whole plugin between a kubelet and a steliad that are played here, on a bus and in a folder of their own.

mod bus;
mod hostile;
mod kubelet;
mod restarts;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use stelia_device_plugin_api::messages::{AllocateRequest, ContainerAllocateRequest, ListAndWatchResponse};
use stelia_device_plugin_api::{Code, HEALTHY};
use stelia_settings::DevicePluginSettings;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::plugin::{Configuration, run};
use bus::{Bus, Daemon};
use kubelet::Kubelet;

/// Everything that the plugin needs.
struct Node {
    root: TempDir,
    bus: Bus,
    plugin: Option<JoinHandle<()>>,
}

impl Node {
    /// A node with a bus and nothing else.
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        for folder in ["plugins", "sockets", "cdi"] {
            fs::create_dir(root.path().join(folder)).unwrap();
        }
        fs::write(root.path().join("runner"), "").unwrap();
        let bus = Bus::start(root.path());
        Self {
            root,
            bus,
            plugin: None,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn start_plugin(&mut self, change: impl FnOnce(&mut DevicePluginSettings)) {
        let devices = ["/dev/null", "/dev/no-such-device"].map(PathBuf::from).into();
        let mut settings = DevicePluginSettings {
            vms: Some(2),
            device_nodes: devices,
            cdi: false,
        };
        change(&mut settings);
        let configuration = Configuration {
            folder: self.path("plugins"),
            settings,
            bus: Some(self.bus.address.clone()),
            runner: self.path("runner"),
            socket_folder: self.path("sockets"),
            cdi_folder: self.path("cdi"),
        };
        self.plugin = Some(tokio::spawn(async move {
            let _ = run(configuration).await;
        }));
    }

    async fn stop_plugin(&mut self) {
        let plugin = self.plugin.take().unwrap();
        plugin.abort();
        let _ = plugin.await;
    }

    fn plugin_socket(&self) -> PathBuf {
        self.path("plugins").join(crate::registration::SOCKET)
    }
}

fn healthy(list: &ListAndWatchResponse) -> usize {
    list.devices.iter().filter(|device| device.health == HEALTHY).count()
}

fn one(id: &str) -> AllocateRequest {
    AllocateRequest {
        container_requests: vec![ContainerAllocateRequest {
            devices_ids: vec![id.into()],
        }],
    }
}

/// Limit of what takes moments, on a busy machine.
const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn devices_are_healthy_exactly_while_the_daemon_admits_vms() {
    let mut node = Node::new();
    let daemon = Daemon::start(&node.bus, "").await;
    let mut kubelet = Kubelet::start(&node.path("plugins"));
    node.start_plugin(|_| {});
    let list = kubelet.list(|list| healthy(list) == 2).await;
    assert_eq!(list.devices[1].id, "vm-1");

    let given = kubelet.plugin().allocate(one("vm-1")).await.unwrap();
    let container = &given.container_responses[0];
    assert_eq!(
        container.envs["STELIA_RUNNER"],
        node.path("runner").display().to_string()
    );
    assert_eq!(
        container
            .devices
            .iter()
            .map(|device| device.host_path.as_str())
            .collect::<Vec<_>>(),
        ["/dev/null"]
    );
    assert_eq!(container.mounts.len(), 2);

    daemon.set_problem("systemd (PID 1) does not answer").await;
    kubelet.list(|list| healthy(list) == 0).await;
    let refused = kubelet.plugin().allocate(one("vm-0")).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(
        refused.message(),
        "steliad admits no VM at present: systemd (PID 1) does not answer"
    );
    // Another reason sends no list.
    daemon.set_problem("kubelet's shared pool is empty").await;
    daemon.set_problem("").await;
    kubelet.list(|list| healthy(list) == 2).await;
    assert_eq!(kubelet.lists_until_now(), 0);

    // The daemon ends, as by systemctl stop, and no call of the plugin starts one.
    daemon.stop().await;
    let unhealthy = kubelet.list(|list| healthy(list) == 0);
    let list = tokio::time::timeout(Duration::from_secs(5), unhealthy)
        .await
        .expect("unhealthy within 5 s");
    assert_eq!(list.devices.len(), 2);
    let refused = kubelet.plugin().allocate(one("vm-0")).await.unwrap_err();
    assert_eq!(
        refused.message(),
        "steliad admits no VM at present: steliad does not run"
    );
    let _daemon = Daemon::start(&node.bus, "").await;
    kubelet.list(|list| healthy(list) == 2).await;
}

#[tokio::test]
async fn a_daemon_that_hangs_admits_no_vm_within_5_s() {
    let mut node = Node::new();
    let daemon = Daemon::start(&node.bus, "").await;
    let mut kubelet = Kubelet::start(&node.path("plugins"));
    node.start_plugin(|_| {});
    kubelet.list(|list| healthy(list) == 2).await;
    daemon.hang(true);
    let unhealthy = kubelet.list(|list| healthy(list) == 0);
    tokio::time::timeout(Duration::from_secs(5), unhealthy)
        .await
        .expect("unhealthy within 5 s");
    let refused = kubelet.plugin().allocate(one("vm-0")).await.unwrap_err();
    assert!(
        refused.message().contains("steliad did not answer within"),
        "{refused:?}"
    );
    daemon.hang(false);
    kubelet.list(|list| healthy(list) == 2).await;
}

#[tokio::test]
async fn without_the_setting_there_are_as_many_devices_as_the_node_has_room_for() {
    let mut node = Node::new();
    let daemon = Daemon::start(&node.bus, "").await;
    let mut kubelet = Kubelet::start(&node.path("plugins"));
    node.start_plugin(|settings| settings.vms = None);
    let list = kubelet.list(|list| healthy(list) > 0).await;
    assert_eq!(list.devices.len(), bus::CPUS - 1);
    // kubelet reserves more CPUs after its restart.
    daemon.reserve("0-1");
    kubelet.restart();
    kubelet.list(|list| healthy(list) == bus::CPUS - 2).await;
}

#[tokio::test]
async fn the_cdi_name_is_given_with_the_file_that_explains_it() {
    let mut node = Node::new();
    let _daemon = Daemon::start(&node.bus, "").await;
    let mut kubelet = Kubelet::start(&node.path("plugins"));
    node.start_plugin(|settings| settings.cdi = true);
    kubelet.list(|list| healthy(list) == 2).await;
    let given = kubelet.plugin().allocate(one("vm-0")).await.unwrap();
    let name = &given.container_responses[0].cdi_devices[0].name;
    assert_eq!(name, "stelia.io/vm=devices");
    let file = fs::read_to_string(node.path("cdi/stelia.io-vm.json")).unwrap();
    assert!(file.contains("/dev/null") && !file.contains("no-such-device"), "{file}");
}

#[tokio::test]
async fn a_missing_runner_is_a_reason_that_the_pods_event_shows() {
    let mut node = Node::new();
    let _daemon = Daemon::start(&node.bus, "").await;
    let mut kubelet = Kubelet::start(&node.path("plugins"));
    node.start_plugin(|_| {});
    kubelet.list(|list| healthy(list) == 2).await;
    fs::remove_file(node.path("runner")).unwrap();
    let refused = kubelet.plugin().allocate(one("vm-0")).await.unwrap_err();
    let runner = node.path("runner");
    assert_eq!(
        refused.message(),
        format!(
            "a VM cannot start on this node: {} does not exist on the node",
            runner.display()
        )
    );
}
