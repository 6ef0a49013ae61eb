//! The node in one attribute of our own: what a scheduler needs that places VMs on whole cores, in less than 2 kB at 256
//! CPUs and 32 VMs, where Koordinator's annotations need some 17 kB.
//!
//! The value is JSON. `v` is the version: it is raised when a field changes its meaning, and whoever reads ignores fields
//! that it does not know. A set of CPUs is a list (`0-3,8`), or where that is long `x` and a mask as in `/proc`.

mod managers;
mod owners;
mod runs;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use crate::allocator::{
    AllocatorPolicies, CpuBindPolicy, CpuExclusivePolicy, CpuSource, HeldCpus, NumaAllocateStrategy,
    NumaTopologyAlignmentPolicy, Qos, RequiredBind,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use stelia_cpus::text::excerpt;
use stelia_cpus::{CpuSet, Topology};
use stelia_kubelet::{PodUid, Uid};

use crate::report::numa::KernelNumaNode;
use crate::report::{Alignment, Allocator, Facts, Kubelet, Managers, annotations};

/// The attribute's name.
pub const ATTRIBUTE: &str = "isolation.stelia.io/node";
/// The version that is written, and the only one that is read.
pub const VERSION: u32 = 1;
/// The longest value that is read, in bytes.
pub const MAX_BYTES: usize = 1 << 18;

/// What the attribute says of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compact {
    /// The online CPUs. Cores are counted over the whole host, as lscpu(1) counts.
    pub topology: Topology,
    /// CPUs that are never allocated.
    pub reserved: CpuSet,
    /// CPUs that are neither reserved nor a pod's own.
    pub free: CpuSet,
    /// CPUs that are reserved and a pod's own all the same.
    pub held: CpuSet,
    /// kubelet's `cpuManagerPolicy`.
    pub cpu_policy: String,
    /// kubelet's `cpuManagerPolicyOptions`.
    pub cpu_options: BTreeMap<String, String>,
    /// What its managers decide by besides.
    pub managers: Managers,
    /// Where steliad chooses the CPUs.
    pub choice: Option<Choice>,
    /// The pods that have CPUs of their own.
    pub pods: BTreeSet<PodUid>,
    /// Their CPUs, as far as they are known.
    pub owners: BTreeMap<PodUid, CpuSet>,
    /// Those of the pods whose instance is a container without a VM.
    pub containers: BTreeSet<PodUid>,
}

/// How steliad's allocator chooses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Its policies; see [`crate::allocator::AllocatorPolicies`].
    pub policies: Policies,
    /// CPUs of LSR instances, where BE may run.
    pub lsr: CpuSet,
    /// CPUs held with the exclusive policy PCPULevel.
    pub pcpu_level: CpuSet,
    /// CPUs held with the exclusive policy NUMANodeLevel.
    pub numa_node_level: CpuSet,
    /// CPUs that kubelet assigned; it does not know which ones steliad did.
    pub kubelets: CpuSet,
    /// kubelet's `reservedSystemCPUs`, where its static policy is beside the allocator.
    pub kubelet_reserved: CpuSet,
    /// An instance's record cannot be read: until it can be, nothing is allocated.
    pub blocked: bool,
}

/// The class, what the bind policy Default means, the bind policy required of all, what the exclusive policy Default means,
/// the strategy and the alignment of requests that name none.
pub type Policies = (
    Qos,
    CpuBindPolicy,
    RequiredBind,
    CpuExclusivePolicy,
    NumaAllocateStrategy,
    NumaTopologyAlignmentPolicy,
);

/// Why a value cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompactError {
    #[error("the value has {0} bytes, more than {MAX_BYTES}")]
    TooLarge(usize),
    #[error("not a value of {ATTRIBUTE}: {0}")]
    Text(String),
    #[error("version {0} of {ATTRIBUTE} is not known, only {VERSION} is")]
    Version(u64),
    #[error("{place} is {found:?}: {why}")]
    Value {
        place: &'static str,
        /// The value, or the beginning of a long one.
        found: String,
        why: &'static str,
    },
}

fn wrong(place: &'static str, found: &str, why: &'static str) -> CompactError {
    CompactError::Value {
        place,
        found: excerpt::excerpt(found),
        why,
    }
}

/// The value's fields.
#[derive(Serialize, Deserialize)]
struct Fields {
    v: u64,
    topology: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reserved: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    free: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    held: String,
    policy: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    options: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kubelet: Option<managers::Fields>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    allocator: Option<Policies>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    lsr: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pcpu: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    numa: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    kubelets: String,
    #[serde(default, rename = "kubelet-reserved", skip_serializing_if = "String::is_empty")]
    kubelet_reserved: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    blocked: bool,
    /// UIDs with blanks between them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pods: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    owners: String,
    /// Places in `pods`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    containers: Vec<usize>,
}

impl Compact {
    /// What the attribute says of this node.
    pub fn of(facts: &Facts) -> Self {
        let by_kubelet = facts.allocations.iter().filter(|one| one.by_kubelet);
        let by_kubelet: CpuSet = by_kubelet.flat_map(|one| one.cpus.iter()).collect();
        let choice = |allocator: &Allocator| Choice {
            policies: (
                allocator.policies.qos,
                allocator.policies.bind,
                allocator.policies.required,
                allocator.policies.exclusive,
                allocator.policies.strategy,
                allocator.policies.alignment,
            ),
            lsr: allocator.lsr.clone(),
            pcpu_level: allocator.held.pcpu_level.clone(),
            numa_node_level: allocator.held.numa_node_level.clone(),
            kubelets: by_kubelet.clone(),
            kubelet_reserved: match facts.kubelet.cpu_policy.as_str() {
                "static" => facts.kubelet.reserved.clone(),
                _ => CpuSet::new(),
            },
            blocked: allocator.held.unreadable.is_some(),
        };
        let online = facts.topology.online();
        let mut owners: BTreeMap<PodUid, CpuSet> = BTreeMap::new();
        for one in &facts.allocations {
            owners.entry(one.pod.clone()).or_default().union_with(&one.cpus);
        }
        Self {
            topology: annotations::ranked(&facts.topology),
            reserved: facts.reserved.clone(),
            free: online.difference(&facts.reserved).difference(&facts.exclusive),
            held: facts.exclusive.intersection(&facts.reserved),
            cpu_policy: facts.kubelet.cpu_policy.clone(),
            cpu_options: facts.kubelet.cpu_options.clone(),
            managers: facts.kubelet.managers.clone(),
            choice: facts.allocator.as_ref().map(choice),
            pods: owners.keys().cloned().collect(),
            containers: owners::known(&facts.containers, &owners),
            owners,
        }
    }

    /// The node as the allocator and kubelet's planner take it, as far as the attribute tells it: which CPUs are taken, not by
    /// whom.
    pub fn facts(self, name: String, alignment: Option<Alignment>, numa: BTreeMap<u32, KernelNumaNode>) -> Facts {
        let online = self.topology.online();
        let exclusive = self.taken();
        let allocator = self.choice.map(|choice| {
            let (qos, bind, required, exclusive, strategy, alignment) = choice.policies;
            let unreadable = ("an instance's scope".to_owned(), "its record cannot be read".to_owned());
            Allocator {
                policies: AllocatorPolicies {
                    source: CpuSource::Steliad,
                    reserved: self.reserved.clone(),
                    qos,
                    bind,
                    required,
                    exclusive,
                    strategy,
                    alignment,
                },
                held: HeldCpus {
                    pcpu_level: choice.pcpu_level,
                    numa_node_level: choice.numa_node_level,
                    unreadable: choice.blocked.then_some(unreadable),
                },
                lsr: choice.lsr,
            }
        });
        Facts {
            name,
            numa,
            shared: online.difference(&exclusive),
            reserved: self.reserved,
            exclusive,
            allocations: Vec::new(),
            containers: self.containers,
            kubelet: Kubelet {
                cpu_policy: self.cpu_policy,
                cpu_options: self.cpu_options,
                reserved: CpuSet::new(),
                alignment,
                max_numa_nodes: None,
                managers: self.managers,
            },
            allocator,
            pods: None,
            devices: BTreeMap::new(),
            problems: Vec::new(),
            topology: self.topology,
        }
    }

    /// The attribute's value.
    pub fn text(&self) -> String {
        let choice = self.choice.as_ref();
        let set_of = |set: fn(&Choice) -> &CpuSet| choice.map(|choice| set_text(set(choice))).unwrap_or_default();
        let pods: Vec<String> = self.pods.iter().map(pod_text).collect();
        let fields = Fields {
            v: VERSION.into(),
            topology: runs::write(&self.topology),
            reserved: set_text(&self.reserved),
            free: set_text(&self.free),
            held: set_text(&self.held),
            policy: self.cpu_policy.clone(),
            options: self.cpu_options.clone(),
            kubelet: managers::Fields::of(&self.managers),
            allocator: choice.map(|choice| choice.policies),
            lsr: set_of(|choice| &choice.lsr),
            pcpu: set_of(|choice| &choice.pcpu_level),
            numa: set_of(|choice| &choice.numa_node_level),
            kubelets: set_of(|choice| &choice.kubelets),
            kubelet_reserved: set_of(|choice| &choice.kubelet_reserved),
            blocked: choice.is_some_and(|choice| choice.blocked),
            pods: pods.join(" "),
            owners: owners::write(self.pods.iter(), &self.owners, &self.taken()),
            containers: owners::places(&self.pods, &self.containers),
        };
        // It can fail only where a map's keys are not strings.
        serde_json::to_string(&fields).unwrap_or_default()
    }

    /// Reads a value.
    ///
    /// # Errors
    /// The error says what is wrong. The value may come from anyone.
    pub fn parse(text: &str) -> Result<Self, CompactError> {
        #[derive(Deserialize)]
        struct Versioned {
            v: u64,
        }
        if text.len() > MAX_BYTES {
            return Err(CompactError::TooLarge(text.len()));
        }
        let told = |cause: serde_json::Error| CompactError::Text(excerpt::cause(&cause));
        let Versioned { v } = serde_json::from_str(text).map_err(told)?;
        if v != u64::from(VERSION) {
            return Err(CompactError::Version(v));
        }
        let fields: Fields = serde_json::from_str(text).map_err(told)?;
        let choice = |policies| -> Result<Choice, CompactError> {
            Ok(Choice {
                policies,
                lsr: set("lsr", &fields.lsr)?,
                pcpu_level: set("pcpu", &fields.pcpu)?,
                numa_node_level: set("numa", &fields.numa)?,
                kubelets: set("kubelets", &fields.kubelets)?,
                kubelet_reserved: set("kubelet-reserved", &fields.kubelet_reserved)?,
                blocked: fields.blocked,
            })
        };
        let topology = runs::read(&fields.topology)?;
        let free = set("free", &fields.free)?;
        if !free.is_subset(&topology.online()) {
            return Err(wrong("free", &fields.free, "not all of these CPUs are in the topology"));
        }
        let pods = fields.pods.split(' ').filter(|pod| !pod.is_empty());
        let pods: Vec<PodUid> = pods.map(pod).collect::<Result<_, _>>()?;
        let read = Self {
            topology,
            reserved: set("reserved", &fields.reserved)?,
            free,
            held: set("held", &fields.held)?,
            managers: fields
                .kubelet
                .map(managers::Fields::read)
                .transpose()?
                .unwrap_or_default(),
            choice: fields.allocator.map(choice).transpose()?,
            cpu_policy: fields.policy,
            cpu_options: fields.options,
            pods: pods.iter().cloned().collect(),
            owners: BTreeMap::new(),
            containers: owners::at(&fields.containers, &pods)?,
        };
        Ok(Self {
            owners: owners::read(&fields.owners, &pods, &read.taken())?,
            ..read
        })
    }

    /// The CPUs that are not free, without those that are only reserved.
    pub fn taken(&self) -> CpuSet {
        let reserved = self.reserved.difference(&self.held);
        self.topology.online().difference(&self.free).difference(&reserved)
    }
}

/// A list of at least this many bytes is written as a mask if that is shorter. A short list is easier to read.
const MIN_MASK_LIST_BYTES: usize = 32;

fn set_text(cpus: &CpuSet) -> String {
    let list = cpus.to_string();
    let mask = format!("x{}", cpus.to_mask());
    match list.len() {
        long if long > MIN_MASK_LIST_BYTES && long > mask.len() => mask,
        _ => list,
    }
}

fn set(place: &'static str, text: &str) -> Result<CpuSet, CompactError> {
    let cpus = match text.strip_prefix('x') {
        Some(mask) => CpuSet::from_mask(mask),
        None => text.parse().ok(),
    };
    cpus.ok_or_else(|| wrong(place, text, "not a set of CPUs"))
}

/// The 16 bytes of a UUID in base64 (22 characters); the UID of a static pod, which has no dashes, as it is.
fn pod_text(pod: &PodUid) -> String {
    let digits = pod.as_str().replace('-', "");
    let number = u128::from_str_radix(&digits, 16).ok();
    match number.filter(|_| digits.len() != pod.as_str().len()) {
        Some(number) => URL_SAFE_NO_PAD.encode(number.to_be_bytes()),
        None => pod.as_str().to_owned(),
    }
}

fn pod(text: &str) -> Result<PodUid, CompactError> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok();
    let number = bytes.and_then(|bytes| bytes.try_into().ok()).map(u128::from_be_bytes);
    let dashed = number.map(|number| Uid(number).to_string());
    PodUid::parse(dashed.as_deref().unwrap_or(text)).map_err(|_| wrong("pods", text, "not a pod UID"))
}
