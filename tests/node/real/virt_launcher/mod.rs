//! steliad beside virt-launcher itself, in a container of the shape of KubeVirt's: synced, its CPUs and volumes plugged before and after its VM
//! is adopted, and ended. This plays virt-handler.

mod rpc;
mod vmi;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use stelia_cpus::CpuSet;

use crate::libvirt::recorded_pins;
use crate::real::program;
use crate::support::*;
use rpc::Socket;
use vmi::{DOMAIN, MOST, NAME, UID, VOLUME, Vmi};

const RULE: &str = "audit-interval-s = 3600\n[[adopt]]\nuse = \"kubevirt\"\n";
/// The container's own folders of libvirt, and the script it begins with: containers see the node's files.
const FOLDER: &str = "/job/virt-launcher";
/// What the pod's volumes are, and virt-launcher with the arguments that virt-controller gives it.
const START: &str = r#"
private=/run/kubevirt-private
mkdir -p /run/kubevirt/sockets /run/kubevirt/container-disks /run/kubevirt/hotplug-disks /run/kubevirt-ephemeral-disks $private/vmi-disks/root /run/libvirt /run/lock
truncate -s 1M $private/vmi-disks/root/disk.img /run/kubevirt/hotplug-disks/VOLUME.img
chown -R qemu:qemu $private /run/kubevirt/hotplug-disks
exec virt-launcher-monitor --qemu-timeout 319s --name NAME --uid UID --namespace default --kubevirt-share-dir /var/run/kubevirt \
  --ephemeral-disk-dir /var/run/kubevirt-ephemeral-disks --container-disk-dir /var/run/kubevirt/container-disks \
  --grace-period-seconds 5 --hook-sidecars 0 --ovmf-path /usr/share/OVMF
"#;
/// As KubeVirt's image has it, but for VNC. The user is no system's: `make_files`.
const QEMU_CONF: &str = r#"
stdio_handler = "logd"
user = "qemu"
group = "qemu"
dynamic_ownership = 1
remember_owner = 0
namespaces = []
cgroup_controllers = []
"#;
const VIRTQEMUD_CONF: &str = "listen_tls = 0\nlisten_tcp = 0\nlog_outputs = \"1:stderr\"\n";

/// A launcher's container and its command socket, and what virt-handler has told it.
struct Launched {
    pod: Pod,
    socket: Socket,
}

impl Launched {
    /// Its pod has the CPUs of the most vCPUs, as the one has to which KubeVirt migrates a VM whose CPUs it plugs.
    fn start() -> Self {
        make_files();
        let mounts = ["etc", "lib", "log", "cache"].map(|folder| {
            let target = match folder {
                "etc" => "/etc/libvirt".to_owned(),
                other => format!("/var/{other}/libvirt"),
            };
            format!("{FOLDER}/{folder}:{target}")
        });
        let mounts: Vec<&str> = mounts.iter().flat_map(|mount| ["--mount", mount]).collect();
        // As virt-controller asks for it: without SYS_NICE libvirt may not pin the threads of another user's QEMU.
        let options = format!("--container compute --runtime runc --cpus {MOST} --cap SYS_NICE");
        let options = [&words(&options)[..], Accel::Kvm.device(), &mounts].concat();
        let name = format!("virt-launcher-{NAME}-x7k2p");
        let pod = Pod::start(&name, &options, &["sh", &format!("{FOLDER}/start")]);
        let socket = Socket(pod.inside("/run/kubevirt/sockets/launcher-sock"));
        let launched = Self { pod, socket };
        let logs = || launched.last_logs();
        wait_until_or("virt-launcher is ready", logs, || launched.socket.is_there());
        launched
    }

    fn last_logs(&self) -> String {
        let logs = self.pod.logs();
        let lines: Vec<&str> = logs.lines().collect();
        let last = lines[lines.len().saturating_sub(60)..].join("\n");
        format!("; its container says:\n{last}")
    }

    fn call(&self, method: &str, vmi: Vmi) {
        let answer = self.socket.call(method, vmi.request());
        answer.unwrap_or_else(|error| panic!("{method} of {vmi:?}: {error}{}", self.last_logs()));
    }

    fn sync(&self, vmi: Vmi) {
        self.call("SyncVirtualMachine", vmi);
    }

    /// The CPU of each vCPU, of which none has another's.
    fn pins(&self, vcpus: usize) -> BTreeMap<u32, u32> {
        let threads = self.pod.threads().vcpus;
        let is_pinned = |thread: &Thread| thread.allowed.len() == 1 && thread.allowed.is_subset(&self.pod.exclusive());
        assert!(threads.iter().all(is_pinned), "{threads:#?}");
        assert_eq!(threads.len(), vcpus, "{threads:#?}");
        let pins = seats(&self.pod);
        let used: CpuSet = pins.values().copied().collect();
        assert_eq!(used.len(), vcpus, "{pins:?}");
        pins
    }

    fn assert_sync_changes_nothing(&self, when: &str, vmi: Vmi) {
        let before = self.pins(vmi.vcpus);
        for _ in 0..2 {
            self.sync(vmi);
        }
        // It pins them anew, as it plans from the CPUs that the container reads.
        self.call("SyncVirtualMachineCPUs", vmi);
        assert_eq!(self.pins(vmi.vcpus), before, "{when}");
    }

    fn plug_cpu(&self, vmi: Vmi) -> Vmi {
        let before = self.pins(vmi.vcpus);
        let plugged = Vmi {
            vcpus: vmi.vcpus + 1,
            ..vmi
        };
        self.call("SyncVirtualMachineCPUs", plugged);
        let now = self.pins(plugged.vcpus);
        let is_kept = before.iter().all(|pin| now.get(pin.0) == Some(pin.1));
        assert!(is_kept, "{before:?}, then {now:?}");
        plugged
    }

    fn virsh(&self, command: &str) -> String {
        self.pod
            .exec(&["virsh", "--connect", "qemu:///system", command, DOMAIN])
    }

    fn has_volume(&self) -> bool {
        let disks = self.virsh("domblklist");
        assert!(disks.contains("vmi-disks/root/disk.img"), "{disks}");
        disks.contains(&format!("hotplug-disks/{VOLUME}.img"))
    }

    fn plug_and_unplug_volume(&self, when: &str, vmi: Vmi) {
        for has_volume in [true, false] {
            self.sync(Vmi { has_volume, ..vmi });
            let what = format!("{when}: a volume, {has_volume}");
            wait_until(&what, || self.has_volume() == has_volume);
        }
    }

    /// The container is a partition, where nothing was moved, and steliad has the pins that libvirt made, which a sync leaves.
    fn until_adopted(&self, when: &str, vmi: Vmi) {
        until_partition(&self.pod, when);
        let (pod, pins) = (&self.pod, self.pins(vmi.vcpus));
        // A plugged vCPU is recorded by an audit that finds its thread settled.
        let seen = || {
            let show = utf8(&output(&["steliactl", "show", &pod.uid]).stdout);
            format!(": {:?}, not {pins:?}; {:?}\n{show}", recorded_pins(pod), refused(pod))
        };
        wait_until_or(&format!("{when}: recorded"), seen, || {
            let is_recorded = recorded_pins(pod) == pins;
            if !is_recorded {
                reconcile();
            }
            is_recorded
        });
        self.assert_sync_changes_nothing(when, vmi);
    }

    /// A guest without a system does not hear its power button, so virt-handler kills the VM.
    fn end(&self, vmi: Vmi) {
        self.call("ShutdownVirtualMachine", vmi);
        self.call("KillVirtualMachine", vmi);
        wait_until("no vCPU thread", || self.pod.threads().vcpus.is_empty());
        reconcile();
        let seen = || format!(": {:?}", self.pod.state());
        wait_until_or("its CPUs are given back", seen, || is_given_back(&self.pod));
        assert!(self.pod.exclusive().is_disjoint(&partitioned()));
    }
}

/// What KubeVirt's image has and the node has not: a user, the programs' names, and libvirt's files.
fn make_files() {
    let launcher = program("virt-launcher");
    let monitor = program("virt-launcher-monitor");
    let links = [
        ("/usr/bin/virt-launcher", launcher.as_path()),
        ("/usr/bin/virt-launcher-monitor", monitor.as_path()),
        ("/usr/sbin/virtqemud", Path::new("/usr/sbin/libvirtd")),
    ];
    for (link, program) in links {
        if !Path::new(link).exists() {
            symlink(program, link).expect(link);
        }
    }
    if !output("id qemu").status.success() {
        run("useradd --system --user-group qemu");
    }
    // What another launcher left there is not this one's.
    let _ = fs::remove_dir_all(FOLDER);
    for folder in ["etc", "lib", "log", "cache"] {
        fs::create_dir_all(format!("{FOLDER}/{folder}")).expect(folder);
    }
    let replaced = [("NAME", NAME), ("UID", UID), ("VOLUME", VOLUME)];
    let replace = |text: String, (name, value): &(&str, &str)| text.replace(name, value);
    let start = replaced.iter().fold(START.to_owned(), replace);
    let files = [
        ("etc/qemu.conf", QEMU_CONF),
        ("etc/virtqemud.conf", VIRTQEMUD_CONF),
        ("etc/virtlogd.conf", ""),
        ("start", &start),
    ];
    for (file, text) in files {
        put(format!("{FOLDER}/{file}"), text);
    }
}

#[test]
fn its_cpus_and_volumes_are_plugged_before_and_after_adoption() {
    on_kvm_node(|| {
        let launched = Launched::start();
        let vmi = Vmi::new(2);
        launched.sync(Vmi {
            is_running: false,
            ..vmi
        });
        launched.assert_sync_changes_nothing("before", vmi);
        let vmi = launched.plug_cpu(vmi);
        launched.plug_and_unplug_volume("before", vmi);

        configure(RULE);
        launched.until_adopted("adopted", vmi);
        let counted = counters();
        launched.assert_sync_changes_nothing("adopted", vmi);
        launched.plug_and_unplug_volume("adopted", vmi);
        let vmi = launched.plug_cpu(vmi);
        launched.until_adopted("with one more CPU", vmi);
        assert_eq!(counters(), counted, "drift was found");
        for method in ["PauseVirtualMachine", "UnpauseVirtualMachine"] {
            launched.call(method, vmi);
        }
        restart("steliad");
        launched.until_adopted("after a restart", vmi);
        launched.end(vmi);
    });
}

#[test]
fn with_isolate_emulator_thread_its_guest_is_resumed_and_then_adopted() {
    // The rule is there before the guest, which virt-launcher starts paused and resumes at the next sync.
    configured_on_kvm(RULE, || {
        let launched = Launched::start();
        let vmi = Vmi {
            isolate: true,
            ..Vmi::new(2)
        };
        launched.sync(Vmi {
            is_running: false,
            ..vmi
        });
        reconcile();
        assert_eq!(launched.virsh("domstate"), "paused");
        assert_eq!(launched.pod.state(), None, "its guest has not run");
        launched.sync(vmi);
        assert_eq!(launched.virsh("domstate"), "running");
        launched.until_adopted("adopted", vmi);
        let vmi = launched.plug_cpu(vmi);
        launched.until_adopted("with one more CPU", vmi);
        launched.end(vmi);
    });
}
