//! Which VMs are adopted that do not register themselves: the rules of `[[adopt]]`, and those that are ready-made.

mod keys;
mod pattern;
mod raw;

use stelia_text::{Named, named};

use crate::PlacementPolicy;

pub(crate) use keys::RULE_KEYS;
pub use keys::is_name;
pub use pattern::{MAX_THREAD_NAME_BYTES, Pattern, ThreadName};
pub(crate) use raw::{Raw, merged, tables};

/// VMs that are adopted. Nothing is without a rule.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(into = "RuleJson")]
pub struct AdoptRule {
    /// What it is called where a VM or a refusal is shown.
    pub name: String,
    /// The pod's namespace is one of these; so with all lists.
    pub namespaces: Vec<Pattern>,
    pub pods: Vec<Pattern>,
    pub containers: Vec<Pattern>,
    /// The VMM's program: the last part of its `argv[0]`, and its name (`comm`), which the kernel cuts after 15 bytes.
    pub vmm: Vec<Pattern>,
    /// The names of its vCPU threads.
    pub threads: ThreadName,
    pub placement: AdoptPlacement,
    /// `STELIA_ADOPT=no` in the container's environment is heeded.
    pub container_may_refuse: bool,
    pub tree: AdoptTree,
    pub partition: AdoptPartition,
}

/// How an adopted VM's vCPUs are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdoptPlacement {
    /// Each on the one CPU that its affinity has, as libvirt's `vcpupin` makes it; where a vCPU has no such CPU, as `Auto`.
    Keep,
    /// By the setting `placement`.
    Auto,
    By(PlacementPolicy),
}

impl AdoptPlacement {
    pub fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Auto => "auto",
            Self::By(policy) => policy.name(),
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "keep" => Some(Self::Keep),
            "auto" => Some(Self::Auto),
            name => PlacementPolicy::parse(name).map(Self::By),
        }
    }
}

impl Named for AdoptPlacement {
    fn name(self) -> &'static str {
        Self::name(self)
    }

    fn parse(text: &str) -> Option<Self> {
        Self::parse(text)
    }
}

/// Where an adopted VM's cgroups are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdoptTree {
    /// In the container's own cgroup where its runtime copes with that, else in `stelia.slice`.
    Auto,
    /// In the container's own cgroup, or the VM is not adopted.
    InPlace,
    /// In `stelia.slice`, as a registered VM's.
    Slice,
}

named!(AdoptTree {
    Auto = "auto",
    InPlace = "in-place",
    Slice = "slice"
});

/// Whether an adopted VM's vCPUs get a cpuset partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdoptPartition {
    /// By the setting `partition`.
    Auto,
    /// None, whatever the setting says: a partition takes its CPUs out of `cpuset.cpus.effective` of the container's cgroup, and the
    /// VM's own management reads that file.
    Member,
}

named!(AdoptPartition {
    Auto = "auto",
    Member = "member"
});

/// The rules that can be asked for by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadyMade {
    KubeVirt,
    Libvirt,
    Qemu,
    CloudHypervisor,
    Firecracker,
    Crosvm,
}

named!(ReadyMade {
    KubeVirt = "kubevirt",
    Libvirt = "libvirt",
    Qemu = "qemu",
    CloudHypervisor = "cloud-hypervisor",
    Firecracker = "firecracker",
    Crosvm = "crosvm"
});

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
            // virt-launcher plans pins from the container's cpuset.cpus.effective at every sync.
            ("partition", Self::KubeVirt) => AdoptPartition::Member.name().into(),
            _ => return None,
        })
    }
}

/// As JSON: the keys and values of a file.
#[derive(serde::Serialize)]
#[serde(transparent)]
struct RuleJson(toml::Table);

impl From<AdoptRule> for RuleJson {
    fn from(rule: AdoptRule) -> Self {
        let pairs = RULE_KEYS.iter().map(|key| (key.name.to_owned(), (key.get)(&rule)));
        Self(pairs.collect())
    }
}

impl AdoptRule {
    /// A ready-made rule, none of its keys changed.
    pub fn ready_made(which: ReadyMade) -> Option<Self> {
        keys::rule(&|key| which.value(key).or_else(|| keys::default(key))).ok()
    }
}
