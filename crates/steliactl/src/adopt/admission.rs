//! What registration would refuse, as far as it can be told from files: the daemon asks the same when it adopts. Its own answer
//! counts; it also knows the other instances.

use std::collections::BTreeMap;

use stelia_adopt::{Movable, Vm};
use stelia_api::ErrorKind;
use stelia_cpus::CpuSet;
use stelia_kubelet::checkpoint::{Schema, Use};
use stelia_kubelet::{ContainerCgroup, CpuManagerState};
use stelia_node::containers::{LiveContainer, entry_uses};
use stelia_node::oci::Coping;
use stelia_record::IN_PLACE;
use stelia_settings::{AdoptPartition, AdoptTree};

/// KubeVirt's cgroup for all threads of a VM but its vCPUs (`isolateEmulatorThread`).
pub(super) const HOUSEKEEPING: &str = IN_PLACE[0];

/// A container with what registration would check.
#[derive(Debug)]
pub(super) struct AdoptionCandidate<'a> {
    pub(super) cgroup: &'a ContainerCgroup,
    /// It itself, by name where the runtime tells it.
    pub(super) own: LiveContainer,
    /// The pod's other containers that have processes.
    pub(super) others: Vec<LiveContainer>,
    /// The pod, or this container, is an instance.
    pub(super) is_instance: bool,
    /// Names of the cgroups in it that have processes.
    pub(super) children: Vec<String>,
    /// The number of each of its processes in every PID namespace.
    pub(super) numbers: Vec<Vec<i32>>,
}

/// The name of a reason, and the sentence.
pub(super) type Refusal = (String, String);

fn refusal(kind: ErrorKind, text: String) -> Refusal {
    (kind.name().to_owned(), text)
}

/// What of the node decides where an adopted VM's cgroups are made.
#[derive(Debug)]
pub(super) struct HomeFacts {
    /// Why no VM gets a partition, whatever its rule says.
    pub(super) no_partition: Option<&'static str>,
    /// What is known of the container's OCI runtime.
    pub(super) coping: Coping,
}

/// Why the VM is not admitted because of where its cgroups would be made.
pub(super) fn homeless(
    looked: &AdoptionCandidate<'_>,
    vm: &Vm<'_>,
    cpus: &CpuSet,
    facts: &HomeFacts,
) -> Option<Refusal> {
    let kept: Option<CpuSet> = vm.pinned_cpus.as_ref().map(|pins| pins.values().copied().collect());
    let movable = Movable {
        rule: vm.rule,
        housekeeping: looked.children.iter().any(|name| name == HOUSEKEEPING),
        spare: kept.map(|kept| cpus.difference(&kept)).unwrap_or_default(),
        has_anchor: looked.first().is_some_and(|first| first != vm.process.id),
    };
    let by_rule = vm.rule.partition == AdoptPartition::Member;
    let contained = facts
        .no_partition
        .or((by_rule && movable.spare.is_empty()).then_some("rule"));
    let contained = contained.map(|why| format!("it would get no partition ({why})"));
    let moved = match (vm.rule.tree, contained.as_deref(), &facts.coping) {
        (AdoptTree::Slice, ..) => movable.in_slice(None),
        (_, Some(reason), _) => movable.in_slice(Some(reason)),
        (_, None, Coping::No(reason)) => movable.in_slice(Some(reason)),
        (_, None, Coping::Copes) => Ok(()),
        (_, None, Coping::Untried(runtime)) if movable.only_in_place() => {
            let text = format!(
                "not known before {} was tried, when the first VM is adopted: it can be adopted in place only, where the runtime copes \
                 with threaded cgroups",
                runtime.binary.display()
            );
            return Some(("Untried".to_owned(), text));
        }
        (_, None, Coping::Untried(_)) => Ok(()),
    };
    moved.err().map(|(kind, text)| refusal(kind, text))
}

impl AdoptionCandidate<'_> {
    /// The first process of the container's PID namespace, as this one numbers it.
    fn first(&self) -> Option<i32> {
        let depth = self.numbers.iter().map(Vec::len).min()?;
        let mut first = self.numbers.iter();
        let first = first.find(|numbers| numbers.len() == depth && numbers.last() == Some(&1))?;
        first.first().copied()
    }
}

/// Why it is not admitted, whatever its CPUs.
pub(super) fn refused(looked: &AdoptionCandidate<'_>) -> Option<Refusal> {
    if looked.is_instance {
        return Some(refusal(ErrorKind::InstanceExists, "it is an instance already".into()));
    }
    let housekeeping = |name: &&String| *name == HOUSEKEEPING;
    if let Some(child) = looked.children.iter().find(|name| !housekeeping(name)) {
        let text = format!("it has processes in a cgroup of its own, {child}");
        return Some(refusal(ErrorKind::InvalidArgument, text));
    }
    // As in admission: its own first process, and only one.
    let depth = looked.numbers.iter().map(Vec::len).min().unwrap_or_default();
    let first = |numbers: &&Vec<i32>| numbers.len() == depth && numbers.last() == Some(&1);
    let is_private = depth >= 2 && looked.numbers.iter().filter(first).count() == 1;
    let text = "it has no PID namespace of its own (hostPID or shareProcessNamespace)";
    (!is_private).then(|| refusal(ErrorKind::SharedPidNamespace, text.into()))
}

/// The container's exclusive CPUs by kubelet's file.
///
/// # Errors
/// It has none, or they cannot be determined.
pub(super) fn exclusive(
    looked: &AdoptionCandidate<'_>,
    state: &Result<CpuManagerState, String>,
) -> Result<CpuSet, Refusal> {
    let state = state
        .as_ref()
        .map_err(|why| refusal(ErrorKind::KubeletStateUnusable, why.clone()))?;
    let (pod, own) = (&looked.cgroup.pod, &looked.own);
    let none = || {
        let text = "kubelet gave it no exclusive CPUs: it must be a Guaranteed pod with whole CPUs, and the CPU manager's policy static";
        refusal(ErrorKind::NotGuaranteed, text.into())
    };
    let nothing = BTreeMap::new();
    let (entry, entries) = match state.schema {
        Schema::V0 | Schema::V1 => (state.container_entries.get(&own.id), &nothing),
        Schema::V2 | Schema::V3 | Schema::V4 => {
            let entries = state.entries.get(pod).ok_or_else(none)?;
            (own.name.as_ref().and_then(|name| entries.get(name)), entries)
        }
    };
    let entry = entry.ok_or_else(none)?;
    if *entry != own.cpus {
        let text = format!(
            "its cpuset.cpus is {:?}, and kubelet gave it {entry}",
            own.cpus.to_string()
        );
        return Err(refusal(ErrorKind::CpusetMismatch, text));
    }
    let running: Vec<LiveContainer> = std::iter::once(own).chain(&looked.others).cloned().collect();
    let shared = own
        .name
        .as_ref()
        .and_then(|name| entry_uses(state, pod, &running).remove(name));
    if shared == Some(Use::Shared) {
        let text = format!("{entry} is its pod's shared pool, not its own CPUs");
        return Err(refusal(ErrorKind::NotGuaranteed, text));
    }
    let of_others = looked
        .others
        .iter()
        .filter(|other| other.name != own.name)
        .filter_map(|other| {
            let named = other.name.as_ref().and_then(|name| entries.get(name));
            named.or_else(|| state.container_entries.get(&other.id))
        });
    let exclusive = entry.difference(&of_others.flat_map(CpuSet::iter).collect());
    if exclusive.is_empty() {
        let text = format!("the pod's other containers run on its CPUs {entry}");
        return Err(refusal(ErrorKind::CpusetConflict, text));
    }
    if state.shared_pool().difference(&exclusive).is_empty() {
        let text = "kubelet's shared pool is empty: there is nowhere to float";
        return Err(refusal(ErrorKind::KubeletStateUnusable, text.into()));
    }
    Ok(exclusive)
}
