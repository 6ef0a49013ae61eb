//! The rules that are ready-made.
//!
//! The names of vCPU threads stand also in `crates/runner/src/vmm/thread_names.rs` and `testing/vmm/src/shape.rs`.

use stelia_cpus::text::named;

use super::AdoptPlacement;
use crate::Isolation;

named! {
    /// The rules that can be asked for by name.
    pub enum ReadyMade {
        KubeVirt = "kubevirt",
        Libvirt = "libvirt",
        Qemu = "qemu",
        CloudHypervisor = "cloud-hypervisor",
        Firecracker = "firecracker",
        Crosvm = "crosvm",
    }
}

/// QEMU's programs: Debian's and others' by architecture, Red Hat's and KubeVirt's.
const QEMU: [&str; 2] = ["qemu-system-*", "qemu-kvm"];

impl ReadyMade {
    /// The rule's values, as in a file: `None` for a key that has its default.
    pub(crate) fn value(self, key: &str) -> Option<toml::Value> {
        let list = |words: &[&str]| toml::Value::from(words.to_vec());
        let qemu = matches!(self, Self::KubeVirt | Self::Libvirt | Self::Qemu);
        Some(match (key, self) {
            ("name", one) => one.name().into(),
            ("pods", Self::KubeVirt) => list(&["virt-launcher-*"]),
            ("containers", Self::KubeVirt) => list(&["compute"]),
            ("vmm", _) if qemu => list(&QEMU),
            // Released binaries have version and architecture in their names, as firecracker-v1.16.1-x86_64.
            ("vmm", one) => list(&[&format!("{}*", one.name())]),
            // Where `-name …,debug-threads=on` is given, as libvirt does.
            ("threads", _) if qemu => "CPU {n}/KVM".into(),
            ("threads", Self::CloudHypervisor) => "vcpu{n}".into(),
            ("threads", Self::Firecracker) => "fc_vcpu {n}".into(),
            ("threads", Self::Crosvm) => "crosvm_vcpu{n}".into(),
            ("placement", Self::KubeVirt | Self::Libvirt) => AdoptPlacement::Keep.name().into(),
            // virt-launcher plans pins from the container's cpuset.cpus.effective at every sync: a partition below the container would take
            // its CPUs out of that file.
            ("isolation", Self::KubeVirt) => Isolation::Container.name().into(),
            _ => return None,
        })
    }
    /// Whether it restricts the containers, not only describes their VM.
    pub(crate) fn names_containers(self) -> bool {
        ["namespaces", "pods", "containers"]
            .iter()
            .any(|key| self.value(key).is_some())
    }
}
