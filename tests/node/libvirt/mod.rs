//! VMs that libvirt starts and changes, in containers of the shape of KubeVirt's: `launcher` beside this file.

mod verbs;

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;
use stelia_cpus::CpuSet;

use crate::support::*;

/// libvirt's own folders, one for each pod: containers see the node's files.
const FOLDERS: &str = "/job/libvirt";
/// As KubeVirt has it: what libvirt would do with cgroups, users and labels is the pod's business.
const QEMU_CONF: &str = r#"
user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
cgroup_controllers = []
namespaces = []
"#;
/// The VM's name, as KubeVirt makes it of namespace and VM.
const VM: &str = "default_vm";
pub const RULE: &str = "[[adopt]]\nuse = \"libvirt\"\n";

/// A VM as its XML has it. It has no disk, and one I/O thread.
struct Domain {
    vcpus: usize,
    /// That many may be plugged in all.
    most: usize,
    /// The CPU of each vCPU from the first on, also of those that are not plugged.
    pins: Vec<u32>,
    /// The CPU of QEMU's other threads.
    emulator: Option<u32>,
    /// A Linux, from which a vCPU can be taken; else the firmware, which looks for something to boot.
    is_linux: bool,
}

impl Domain {
    fn pinned(pins: &[u32]) -> Self {
        Self {
            vcpus: pins.len(),
            most: pins.len(),
            pins: pins.to_vec(),
            emulator: None,
            is_linux: false,
        }
    }

    fn xml(&self) -> String {
        let Self { vcpus, most, .. } = self;
        let pins = self.pins.iter().enumerate();
        let pins: String = pins
            .map(|(vcpu, cpu)| format!("<vcpupin vcpu='{vcpu}' cpuset='{cpu}'/>"))
            .collect();
        let emulator = self.emulator.map(|cpu| format!("<emulatorpin cpuset='{cpu}'/>"));
        let emulator = emulator.unwrap_or_default();
        let linux = || {
            let initrd = initramfs();
            format!("<kernel>{KERNEL}</kernel><initrd>{initrd}</initrd><cmdline>{KERNEL_WORDS}</cmdline>")
        };
        let (memory, boot) = if self.is_linux {
            (256, linux())
        } else {
            (64, String::new())
        };
        format!(
            "<domain type='kvm'>
  <name>{VM}</name>
  <uuid>6f1bd4ae-3f4a-4c58-9c17-2b1f0f3f7a10</uuid>
  <memory unit='MiB'>{memory}</memory>
  <vcpu placement='static' current='{vcpus}'>{most}</vcpu>
  <iothreads>1</iothreads>
  <cputune>{pins}{emulator}</cputune>
  <os><type arch='x86_64' machine='q35'>hvm</type>{boot}</os>
  <features><acpi/><apic/></features>
  <cpu mode='host-passthrough'/>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <serial type='file'><source path='/run/serial'/></serial>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
  </devices>
</domain>
"
        )
    }
}

/// A pod in which libvirt runs.
struct Launcher {
    pod: Pod,
    folder: String,
}

impl Launcher {
    fn start(name: &str, cpus: u32) -> Self {
        let folder = format!("{FOLDERS}/{name}");
        for below in ["etc", "lib", "log", "sock"] {
            fs::create_dir_all(format!("{folder}/{below}")).expect("a folder");
        }
        // What libvirt learnt of this QEMU counts for all of them.
        fs::create_dir_all(format!("{FOLDERS}/cache")).expect("a folder");
        // Two with the same host's id would not migrate to each other.
        let id = read("/proc/sys/kernel/random/uuid");
        let conf = format!("unix_sock_dir = \"{folder}/sock\"\nauth_unix_rw = \"none\"\nhost_uuid = \"{id}\"\n");
        put(format!("{folder}/etc/libvirtd.conf"), conf);
        put(format!("{folder}/etc/qemu.conf"), QEMU_CONF);
        let mounts = [
            format!("{folder}/etc:/etc/libvirt"),
            format!("{folder}/lib:/var/lib/libvirt"),
            format!("{folder}/log:/var/log/libvirt"),
            format!("{FOLDERS}/cache:/var/cache/libvirt"),
        ];
        let count = cpus.to_string();
        let options = ["--container", "compute", "--runtime", "runc", "--cpus", &count];
        let mounts: Vec<&str> = mounts.iter().flat_map(|mount| ["--mount", mount]).collect();
        let options = [&options[..], Accel::Kvm.device(), &mounts].concat();
        let name = format!("virt-launcher-{name}");
        let pod = Pod::start(&name, &options, &["sh", "/job/libvirt-launcher"]);
        let launcher = Self { pod, folder };
        let logs = || format!("; its container says:\n{}", launcher.pod.logs());
        wait_until_or("libvirt answers", logs, || launcher.virsh(&["version"]).is_ok());
        launcher
    }

    fn address(&self) -> String {
        format!("qemu+unix:///system?socket={}/sock/libvirt-sock", self.folder)
    }

    /// `virsh` in the container: what it prints, or its error.
    fn virsh(&self, words: &[&str]) -> Result<String, String> {
        let address = self.address();
        let out = self.pod.try_exec(&[&["virsh", "--connect", &address], words].concat());
        let text = |bytes: &[u8]| utf8(bytes).trim().to_owned();
        let is_done = out.status.success();
        is_done.then(|| text(&out.stdout)).ok_or_else(|| text(&out.stderr))
    }

    fn does(&self, words: &[&str]) -> String {
        self.virsh(words).unwrap_or_else(|e| panic!("virsh {words:?}: {e}"))
    }

    fn refuses(&self, words: &[&str], expected: &str) {
        let error = self.virsh(words).expect_err("an error");
        assert!(error.contains(expected), "virsh {words:?}: {error}");
    }

    fn pin(&self, vcpu: usize, cpu: u32) {
        self.does(&["vcpupin", VM, &vcpu.to_string(), &cpu.to_string()]);
    }

    fn xml(&self, domain: &Domain) -> String {
        let path = format!("{}/vm.xml", self.folder);
        put(&path, domain.xml());
        path
    }

    /// Its VM, started and isolated where it is pinned.
    fn create(&self, domain: &Domain) {
        self.does(&["create", &self.xml(domain)]);
        self.until_isolated(&domain.pins[..domain.vcpus]);
    }

    /// The CPUs of the container, in order.
    fn cpus<const N: usize>(&self) -> [u32; N] {
        let cpus: Vec<u32> = self.pod.exclusive().iter().collect();
        cpus.try_into().expect("as many as were asked for")
    }

    /// The daemon says that the VM is isolated and each vCPU on this CPU, and so does the kernel.
    fn until_isolated(&self, pins: &[u32]) {
        let pod = &self.pod;
        let expected: BTreeMap<u32, u32> = (0..).zip(pins.iter().copied()).collect();
        let seen = || format!(": {:?} {:#?}", recorded_pins(pod), pod.threads());
        wait_until_or(&format!("isolated on {pins:?}"), seen, || {
            let is_isolated = pod.is("isolated");
            is_isolated && recorded_pins(pod) == expected && pod.vcpu().exists()
        });
        pod.wait_settled();
        self.assert_isolated(pins);
    }

    /// The vCPUs are alone on these CPUs, and whatever else is in the container floats.
    fn assert_isolated(&self, pins: &[u32]) {
        let pod = &self.pod;
        assert_alone(pod, pins);
        for other in &pod.threads().others {
            // In a scope its first process stays behind, as the anchor.
            let place = if other.tid == pod.pid && !pod.is_in_place() {
                pod.origin()
            } else {
                pod.float()
            };
            assert_eq!(other.cgroup, place, "{other:?}");
        }
        assert_eq!(pod.float_cpus(), self.floats_on(pins));
    }

    /// The CPUs of the container that are no vCPU's; in a scope the shared pool, too.
    fn floats_on(&self, pins: &[u32]) -> CpuSet {
        let spare = self.pod.exclusive().difference(&pins.iter().copied().collect());
        if self.pod.is_in_place() && !spare.is_empty() {
            spare
        } else {
            near_pool(&self.pod).union(&spare)
        }
    }

    /// The VM has ended, its container has not, and is an ordinary one.
    fn until_given_back(&self) {
        let pod = &self.pod;
        until_adoption_ended(pod);
        for thread in all_threads(container_of(pod.pid)) {
            thread.assert_in(&pod.origin(), &pod.exclusive());
        }
    }
}

/// Each vCPU is on its CPU of these, which are a partition, and no other thread of the container may run there.
pub fn assert_alone(pod: &Pod, pins: &[u32]) {
    let threads = pod.threads();
    let used: CpuSet = pins.iter().copied().collect();
    let expected: BTreeMap<u32, u32> = (0..).zip(pins.iter().copied()).collect();
    assert_eq!(seats(pod), expected, "{threads:#?}");
    assert_seated(pod, &threads.vcpus);
    for other in &threads.others {
        assert!(other.allowed.is_disjoint(&used), "{other:?}");
    }
    assert_eq!(pod.partition(), kind());
    assert_eq!(pod.effective(), used);
    assert!(used.is_subset(&pod.exclusive()) && used.is_subset(&partitioned()));
}

/// The CPU of each vCPU as the daemon has it.
pub fn recorded_pins(pod: &Pod) -> BTreeMap<u32, u32> {
    let vcpus = pod.described()["vcpus"].as_array().cloned();
    let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
    let pin = |vcpu: &Value| Some((number(&vcpu["index"])?, number(&vcpu["cpu"])?));
    vcpus.unwrap_or_default().iter().filter_map(pin).collect()
}

#[test]
fn a_vm_stays_where_libvirt_pins_it_and_its_cpus_are_given_back_when_it_is_destroyed() {
    configured_on_kvm(&format!("audit-interval-s = 3600\n{RULE}"), || {
        let launcher = Launcher::start("pinned", 3);
        let [one, two, three] = launcher.cpus();
        // Not as steliad would place it.
        launcher.create(&Domain::pinned(&[three, one]));
        let pod = &launcher.pod;
        assert_eq!(pod.is_in_place(), is_sid());
        for part in [
            "virt-launcher",
            "virtlogd",
            "virtqemud",
            "qemu-system-x86",
            "IO iothread1",
        ] {
            pod.threads().one(part);
        }
        let list = run("steliactl list -o json");
        assert!(list.contains("libvirt"), "{list}");
        // libvirt is the pod's alone: nothing of its packages runs as a unit of the node's.
        let active =
            "systemctl list-units --state=active --plain --no-legend libvirt* virt* systemd-machined* machine*";
        assert_eq!(run(active), "");

        // The two change places. No audit comes in between, at which both have the same CPU.
        let counted = counters();
        for (vcpu, cpu) in [(0, one), (1, three)] {
            launcher.pin(vcpu, cpu);
        }
        reconcile();
        launcher.until_isolated(&[one, three]);
        assert_eq!(counters(), counted, "where libvirt pins a vCPU is no drift");

        launcher.does(&["destroy", VM]);
        launcher.until_given_back();
        launcher.create(&Domain::pinned(&[two, three]));
        assert_eq!(told_of(ADOPTED, pod).len(), 2);
    });
}
