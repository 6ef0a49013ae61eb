//! The node: k3s as a service, as its installer makes it. It is started by the first test and stays.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Once;
use std::time::Duration;

use crate::real::common::image::{make_image, write};
use crate::real::common::remove_stand_in_state;
use crate::real::kubelet::frame::{MANIFESTS, get};
use crate::real::program;
use crate::support::device_plugin::{FOLDER, RESOURCE};
use crate::support::host::{journal_of, run, wait_within};

/// k3s's data directory.
pub const DATA: &str = "/var/lib/rancher/k3s";
const UNIT: &str = "k3s";
const PROGRAM: &str = "/usr/local/bin/k3s";
/// An emulated node takes minutes to start a control plane.
const PATIENCE: Duration = Duration::from_secs(420);

/// kubelet has a port without TLS and authorization, as in the other jobs. What needs a network or missing images is off.
const CONFIG: &str = r#"
node-name: node
pause-image: localhost/node:1
flannel-backend: none
egress-selector-mode: disabled
disable-network-policy: true
disable-kube-proxy: true
disable-cloud-controller: true
disable-helm-controller: true
disable: [coredns, servicelb, traefik, local-storage, metrics-server]
kubelet-arg:
- cpu-manager-policy=static
- reserved-cpus=0-1
- read-only-port=10255
- make-iptables-util-chains=false
- eviction-hard=memory.available<50Mi
"#;

/// The service that `install.sh` writes. Under systemd k3s has kubelet and its containerd use the systemd cgroup driver.
const SERVICE: &str = "[Service]\nType=notify\nKillMode=process\nDelegate=yes\nUser=root\nLimitNOFILE=1048576\nLimitNPROC=infinity\n\
    LimitCORE=infinity\nTasksMax=infinity\nTimeoutStartSec=0\nRestart=always\nRestartSec=5s\nExecStartPre=-/sbin/modprobe overlay\n\
    ExecStart=/usr/local/bin/k3s server\n";

/// k3s takes the node's address from the default route. Its documentation has this one for nodes without a network.
const ROUTE: [&str; 4] = [
    "link add dummy0 type dummy",
    "link set dummy0 up",
    "addr add 203.0.113.254/31 dev dummy0",
    "route add default via 203.0.113.255 dev dummy0 metric 1000",
];

/// Start the node, once in a job.
pub fn start() {
    static INIT: Once = Once::new();
    INIT.call_once(|| {
        let k3s = program("k3s").to_string_lossy().into_owned();
        println!("  {}", run(&[&k3s, "--version"]));
        symlink(&k3s, PROGRAM).expect(PROGRAM);
        run(&["modprobe", "dummy"]);
        for words in ROUTE {
            run(&[&["ip"], &words.split(' ').collect::<Vec<_>>()[..]].concat());
        }
        write_files();
        run(&["systemctl", "daemon-reload"]);
        run(&["systemctl", "start", "--no-block", UNIT]);
        wait_ready();
    });
}

fn write_files() {
    write(Path::new("/etc/rancher/k3s/config.yaml"), CONFIG);
    write(Path::new("/run/systemd/system/k3s.service"), SERVICE);
    // k3s imports what it finds there.
    let images = Path::new(DATA).join("agent/images");
    fs::create_dir_all(&images).expect("a folder");
    fs::copy(make_image(), images.join("node.tar")).expect("an image");
    // The folder of static pods, where the helpers of the other jobs write them.
    let manifests = Path::new(DATA).join("agent/pod-manifests");
    fs::create_dir_all(&manifests).expect("a folder");
    symlink(&manifests, MANIFESTS).expect(MANIFESTS);
    remove_stand_in_state();
}

fn wait_ready() {
    wait_within(
        PATIENCE,
        "k3s's kubelet answers and knows the device plugin",
        last_logs,
        || {
            let known = fs::read_to_string(format!("{FOLDER}/kubelet_internal_checkpoint"))
                .is_ok_and(|text| text.contains(RESOURCE));
            (known && get("/pods").is_some()).then_some(())
        },
    );
}

/// The process that is the server, kubelet among it.
pub fn server() -> String {
    run(&["systemctl", "show", "-P", "MainPID", UNIT])
}

/// k3s, its containerd with it, is another process afterwards.
pub fn restart() {
    let before = server();
    run(&["systemctl", "restart", "--no-block", UNIT]);
    wait_within(PATIENCE, "another k3s", last_logs, || {
        let now = server();
        (now != before && now != "0").then_some(())
    });
    wait_ready();
}

/// The end of what k3s and steliad say.
pub fn last_logs() -> String {
    journal_of(&[UNIT, "stelia*"])
}
