//! The node: CRI-O with crun, and kubelet on it. Both are started by the first test and stay.

use std::sync::Once;

use serde_json::json;

use crate::real::kubelet::frame;
use crate::real::program;
use crate::support::*;

/// The image of every container: folders and links, into which pods mount the node's `/usr`.
pub const IMAGE: &str = "127.0.0.1:5000/node:latest";
/// crun as CRI-O calls it. The node's own is older than 1.22, which takes kubelet's quota of -1 for one of 1 % (crun#1794).
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

/// As distributions have it, as far as it matters here.
const CRIO_UNIT: &str = "[Service]\nType=notify\nExecStart=/job/real/crio --config=/run/real/crio.conf\n\
    Environment=PATH=/usr/sbin:/usr/bin\nKillMode=process\nDelegate=yes\nTasksMax=infinity\n";
const REGISTRY_UNIT: &str = "[Service]\nExecStart=/usr/bin/python3 /run/real/registry.py 5000\n";

/// Start the node, once in a job.
pub fn start() {
    static INIT: Once = Once::new();
    INIT.call_once(|| {
        for name in ["crio", "conmon", "crun", "pinns"] {
            program(name);
        }
        for (path, text) in [
            ("/run/real/registry.py", include_str!("registry.py")),
            ("/run/real/crio.conf", CRIO),
            ("/etc/containers/registries.conf", REGISTRIES),
            ("/etc/containers/policy.json", POLICY),
            ("/run/systemd/system/registry.service", REGISTRY_UNIT),
            ("/run/systemd/system/crio.service", CRIO_UNIT),
        ] {
            put_new(path, text);
        }
        run("modprobe overlay");
        run("systemctl daemon-reload");
        run("systemctl start registry");
        run("systemctl start crio");
        let settings = json!({
            "containerRuntimeEndpoint": "unix:///run/crio/crio.sock",
            "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
            "resolvConf": "",
            // The node's disk is small.
            "evictionHard": {"memory.available": "50Mi"},
        });
        frame::start(&settings, "");
        device_plugin::wait_registered(frame::kubelet_journal);
    });
}
