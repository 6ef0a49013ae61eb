//! The whole plugin between a kubelet and a steliad that are played here, on a bus and in a folder of their own.

mod bus;
mod hostile;
mod kubelet;
mod restarts;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::api::v1beta1::{AllocateRequest, ContainerAllocateRequest, ListAndWatchResponse};
use crate::api::{Code, HEALTHY};
use stelia_settings::DevicePluginSettings;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::offer::RESTART_PERIOD;
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

    /// The plugin's sockets. It has at most one.
    fn plugin_sockets(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.path("plugins")).unwrap().flatten();
        let paths = files.map(|file| file.path());
        paths
            .filter(|path| path.to_str().unwrap().contains("stelia.io_vm-"))
            .collect()
    }

    fn plugin_socket(&self) -> PathBuf {
        let sockets = self.plugin_sockets();
        assert_eq!(sockets.len(), 1, "{sockets:?}");
        sockets.into_iter().next().unwrap()
    }
}

/// A node whose plugin is registered, with so many healthy devices.
async fn registered(change: impl FnOnce(&mut DevicePluginSettings), devices: usize) -> (Node, Daemon, Kubelet) {
    let mut node = Node::new();
    let daemon = Daemon::start(&node.bus, "").await;
    let mut kubelet = Kubelet::start(&node.path("plugins"));
    node.start_plugin(change);
    kubelet.list(|list| healthy(list) == devices).await;
    (node, daemon, kubelet)
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

/// Waits until this holds.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, wait)
        .await
        .unwrap_or_else(|_| panic!("{what} in time"));
}

#[tokio::test]
async fn devices_are_healthy_exactly_while_the_daemon_admits_vms() {
    let mut node = Node::new();
    let daemon = Daemon::start(&node.bus, "").await;
    let mut kubelet = Kubelet::start(&node.path("plugins"));
    node.start_plugin(|_| {});
    let list = kubelet.list(|list| healthy(list) == 2).await;
    assert_eq!(list.devices[1].id, "vm-1");

    let given = kubelet.plugin().allocate(one("vm-1")).await.unwrap();
    let container = &given.get_ref().container_responses[0];
    assert_eq!(
        container.envs["STELIA_RUNNER"],
        node.path("runner").display().to_string()
    );
    let devices: Vec<&str> = container.devices.iter().map(|one| one.host_path.as_str()).collect();
    assert_eq!(devices, ["/dev/null"]);
    assert_eq!(container.mounts.len(), 2);

    daemon.set_problem("systemd (PID 1) does not answer").await;
    kubelet.list(|list| healthy(list) == 0).await;
    let refused = kubelet.plugin().allocate(one("vm-0")).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().ends_with("systemd (PID 1) does not answer"));
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
    assert!(refused.message().ends_with("steliad does not run"));
    let _daemon = Daemon::start(&node.bus, "").await;
    kubelet.list(|list| healthy(list) == 2).await;
}

#[tokio::test]
async fn a_daemon_that_hangs_admits_no_vm() {
    let (_node, daemon, mut kubelet) = registered(|_| {}, 2).await;
    daemon.hang(true);
    kubelet.list(|list| healthy(list) == 0).await;
    let refused = kubelet.plugin().allocate(one("vm-0")).await.unwrap_err();
    assert!(refused.message().contains("did not answer"), "{refused:?}");
    daemon.hang(false);
    kubelet.list(|list| healthy(list) == 2).await;
}

#[tokio::test]
async fn a_daemon_that_is_restarted_changes_nothing_and_allocate_waits_for_it() {
    let (node, daemon, mut kubelet) = registered(|_| {}, 2).await;
    daemon.stop().await;
    // The bus tells the plugin meanwhile.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut plugin = kubelet.plugin();
    let allocate = tokio::spawn(async move { plugin.allocate(one("vm-0")).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!allocate.is_finished());
    let _daemon = Daemon::start(&node.bus, "").await;
    allocate.await.unwrap().unwrap();
    tokio::time::sleep(RESTART_PERIOD).await;
    assert_eq!(kubelet.lists_until_now(), 0);
}

#[tokio::test]
async fn without_the_setting_there_are_as_many_devices_as_the_node_has_room_for() {
    let (_node, daemon, mut kubelet) = registered(|settings| settings.vms = None, 3).await;
    daemon.set_capacity(2).await;
    kubelet.list(|list| healthy(list) == 2).await;
    // kubelet ended, so that its configuration is not known.
    daemon.set_capacity(0).await;
    kubelet.restart();
    kubelet.list(|list| healthy(list) == 2).await;
}

#[tokio::test]
async fn kubelet_gets_no_list_while_the_number_is_not_known() {
    let mut node = Node::new();
    let daemon = Daemon::start(&node.bus, "").await;
    daemon.set_capacity(0).await;
    let mut kubelet = Kubelet::start(&node.path("plugins"));
    node.start_plugin(|settings| settings.vms = None);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!((kubelet.registrations(), kubelet.lists_until_now()), (1, 0));
    daemon.set_capacity(5).await;
    kubelet.list(|list| healthy(list) == 5).await;
}

#[tokio::test]
async fn the_cdi_name_is_given_with_the_file_that_explains_it() {
    let (node, _daemon, kubelet) = registered(|settings| settings.cdi = true, 2).await;
    let given = kubelet.plugin().allocate(one("vm-0")).await.unwrap();
    let container = &given.get_ref().container_responses[0];
    assert_eq!(container.cdi_devices[0].name, "stelia.io/vm=devices");
    assert_eq!((container.devices.len(), container.mounts.len()), (1, 2));
    let file = fs::read_to_string(node.path("cdi/stelia.io-vm.json")).unwrap();
    assert!(file.contains("/dev/null") && !file.contains("no-such-device"), "{file}");
}

#[tokio::test]
async fn the_file_that_explains_the_cdi_name_is_there_before_kubelet_asks_whatever_the_setting_says() {
    let mut node = Node::new();
    node.start_plugin(|_| {});
    let file = node.path("cdi/stelia.io-vm.json");
    until("the file", || file.exists()).await;
    fs::remove_file(&file).unwrap();
    until("the file", || file.exists()).await;
}

#[tokio::test]
async fn without_a_file_that_vms_need_no_device_is_healthy_and_the_pods_event_shows_which() {
    let mut node = Node::new();
    let _daemon = Daemon::start(&node.bus, "").await;
    let mut kubelet = Kubelet::start(&node.path("plugins"));
    fs::remove_file(node.path("runner")).unwrap();
    node.start_plugin(|_| {});
    let list = kubelet.list(|_| true).await;
    assert_eq!((list.devices.len(), healthy(&list)), (2, 0));
    fs::write(node.path("runner"), "").unwrap();
    kubelet.list(|list| healthy(list) == 2).await;
    fs::remove_file(node.path("runner")).unwrap();
    let refused = kubelet.plugin().allocate(one("vm-0")).await.unwrap_err();
    let missing = format!("{} does not exist", node.path("runner").display());
    assert!(refused.message().ends_with(&missing), "{refused:?}");
    kubelet.list(|list| healthy(list) == 0).await;
}
