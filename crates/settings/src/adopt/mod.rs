//! Which VMs are adopted that do not register themselves: the rules of `[[adopt]]`, and those that are ready-made.

mod keys;
mod pattern;
mod raw;
mod ready_made;

use std::fmt;

use stelia_cpus::text::excerpt::excerpt;
use stelia_cpus::text::{json_string, named};

use crate::{Isolation, PlacementPolicy, TreeChoice};

pub use keys::is_name;
pub(crate) use keys::{RULE_KEYS, effective_keys};
pub use pattern::{MAX_THREAD_NAME_BYTES, Pattern, ThreadName};
pub(crate) use raw::{Raw, USE, merged, tables};
pub use ready_made::ReadyMade;

/// VMs, or containers, that are adopted. Nothing is without a rule. The default is an empty rule, which matches nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdoptRule {
    /// What it is called where a VM or a refusal is shown.
    pub name: String,
    /// The pod's namespace is one of these; so with all lists.
    pub namespaces: Vec<Pattern>,
    pub pods: Vec<Pattern>,
    pub containers: Vec<Pattern>,
    pub kind: AdoptKind,
    /// The VMM's program: the last part of its `argv[0]`, and its name (`comm`), which the kernel cuts after 15 bytes. Empty in a rule of kind
    /// [`AdoptKind::Container`].
    pub vmm: Vec<Pattern>,
    /// The names of its vCPU threads; empty likewise.
    pub threads: ThreadName,
    pub placement: AdoptPlacement,
    /// `STELIA_ADOPT=no` in the container's environment is heeded.
    pub container_may_refuse: bool,
    pub tree: TreeChoice,
    pub partition: AdoptPartition,
    pub isolation: Isolation,
}

named! {
    /// What of a container a rule adopts.
    #[derive(Default)]
    pub enum AdoptKind {
        /// The VM in it.
        #[default]
        Vm = "vm",
        /// The container with everything in it, if it has exclusive CPUs. No VM is searched for.
        Container = "container",
    }
}

/// How an adopted VM's vCPUs are placed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AdoptPlacement {
    /// Each on the one CPU that its affinity has, as libvirt's `vcpupin` makes it; where a vCPU has no such CPU, as `Auto`.
    Keep,
    /// By the setting `placement`.
    #[default]
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

impl fmt::Display for AdoptPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

json_string!(AdoptPlacement, |text: &str| {
    AdoptPlacement::parse(text).ok_or_else(|| format!("no placement is called {:?}", excerpt(text)))
});

named! {
    /// Whether an adopted VM's vCPUs get a cpuset partition.
    #[derive(Default)]
    pub enum AdoptPartition {
        /// By the setting `partition`.
        #[default]
        Auto = "auto",
        /// None, whatever the setting says.
        Member = "member",
    }
}

/// The keys and values of a file.
impl serde::Serialize for AdoptRule {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(keys::keys_of(self.kind).map(|key| (key.name, (key.get)(self))))
    }
}

impl AdoptRule {
    /// A ready-made rule, none of its keys changed.
    pub fn ready_made(which: ReadyMade) -> Option<Self> {
        keys::rule(&|key| which.value(key).or_else(|| keys::default(key))).ok()
    }
}
