//! The node: CRI-O with crun, and kubelet on it. Both are started by the first test and stay.

use std::fs;
use std::path::Path;
use std::sync::Once;

use crate::real::common::image::write;
use crate::real::common::remove_stand_in_state;
use crate::real::program;
use crate::support::device_plugin::RESOURCE;
use crate::support::*;

/// The image of every container: folders and links, into which pods mount the node's `/usr`.
pub const IMAGE: &str = "127.0.0.1:5000/node:latest";
/// kubelet's static pods.
pub const MANIFESTS: &str = "/run/real/manifests";
/// Where CRI-O has a container's folder.
pub const CONTAINERS: &str = "/run/containers/storage/overlay-containers";
/// crun as CRI-O calls it. Not the node's own: crun before 1.22 takes the quota -1, which kubelet gives containers with exclusive CPUs, for one
/// of 1 % (crun#1794).
pub const CRUN: [&str; 3] = ["/job/real/crun", "--root", "/run/crun"];

/// As on OpenShift's nodes: conmon is in the pod's slice, and pods have no infra container.
const CRIO: &str = r#"
[crio]
storage_driver = "overlay"
[crio.runtime]
cgroup_manager = "systemd"
default_runtime = "crun"
drop_infra_ctr = true
# The node has neither iptables nor nft.
disable_hostport_mapping = true
pinns_path = "/job/real/pinns"
# The node has no apparmor_parser.
apparmor_profile = "unconfined"
device_ownership_from_security_context = true
[crio.runtime.runtimes.crun]
runtime_path = "/job/real/crun"
runtime_root = "/run/crun"
monitor_path = "/job/real/conmon"
monitor_cgroup = "pod"
[crio.image]
pause_image = "127.0.0.1:5000/node:latest"
"#;
const REGISTRIES: &str = "[[registry]]\nlocation = \"127.0.0.1:5000\"\ninsecure = true\n";
const POLICY: &str = r#"{"default": [{"type": "insecureAcceptAnything"}]}"#;

const KUBELET: &str = r#"
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: /run/real/manifests
containerRuntimeEndpoint: unix:///run/crio/crio.sock
readOnlyPort: 10255
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: systemd
cpuManagerPolicy: static
cpuManagerPolicyOptions: {full-pcpus-only: "true"}
reservedSystemCPUs: "0-1"
failSwapOn: false
makeIPTablesUtilChains: false
resolvConf: ""
# The node's disk is small.
evictionHard: {memory.available: 50Mi}
"#;

/// Units as distributions have them, as far as it matters here.
const UNITS: [(&str, &str); 3] = [
    ("registry", "ExecStart=/usr/bin/python3 /run/real/registry.py 5000\n"),
    (
        "crio",
        "Type=notify\nExecStart=/job/real/crio --config=/run/real/crio.conf\nEnvironment=PATH=/usr/sbin:/usr/bin\n\
         KillMode=process\nDelegate=yes\nTasksMax=infinity\n",
    ),
    (
        "kubelet",
        "ExecStart=/job/real/kubelet --config=/run/real/kubelet.yaml --hostname-override=node\n\
         Environment=PATH=/usr/sbin:/usr/bin\nKillMode=process\n",
    ),
];

/// Start the node, once in a job.
pub fn start() {
    static INIT: Once = Once::new();
    INIT.call_once(|| {
        for name in ["crio", "conmon", "crun", "kubelet", "pinns"] {
            program(name);
        }
        write_files();
        run("modprobe overlay");
        run("systemctl daemon-reload");
        run("systemctl start registry");
        run("systemctl start crio");
        remove_stand_in_state();
        run("systemctl start kubelet");
        wait_until_or("kubelet knows of the device plugin", last_logs, || {
            let checkpoint = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint";
            read_if_there(checkpoint).contains(RESOURCE)
        });
    });
}

fn write_files() {
    let files = [
        ("/run/real/registry.py", include_str!("registry.py").to_owned()),
        ("/run/real/crio.conf", CRIO.to_owned()),
        ("/run/real/kubelet.yaml", KUBELET.to_owned()),
        ("/etc/containers/registries.conf", REGISTRIES.to_owned()),
        ("/etc/containers/policy.json", POLICY.to_owned()),
    ];
    let file = |name| format!("/run/systemd/system/{name}.service");
    let units = UNITS.map(|(name, text)| (file(name), format!("[Service]\n{text}")));
    let files = files.map(|(path, text)| (path.to_owned(), text));
    fs::create_dir_all(MANIFESTS).expect(MANIFESTS);
    for (path, text) in files.into_iter().chain(units) {
        write(Path::new(&path), &text);
    }
}

/// The end of what CRI-O and kubelet say.
pub fn last_logs() -> String {
    journal_of(&["crio", "kubelet"])
}
