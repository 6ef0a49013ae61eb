//! Admission by the Topology Manager: hints, merge and allocation, for each container or for the pod as a whole.

mod managers;
mod rejection;
#[cfg(test)]
mod tests;

pub(crate) use rejection::Cause;
pub use rejection::Rejection;

use std::collections::BTreeMap;

use stelia_cpus::CpuSet;
use stelia_kubelet::memory::MemoryBlock;

use super::cpus::{Bound, Fault};
use super::merge::{Hint, Merged, Policy, Scope};
use super::node::{Node, NodeState};
use super::pod::Pod;
use crate::devices::{Chosen, DeviceManager, DeviceRefusal};
use managers::{Managers, NO_HINT};

/// A pod that kubelet admits.
#[derive(Debug, Clone, PartialEq)]
pub struct Admission {
    /// What each container gets, in kubelet's order.
    pub containers: Vec<ContainerAllocation>,
    /// The merges and their outcomes. Empty with the Topology Manager's policy `none`.
    pub merges: Vec<Merge>,
    /// Faults in the assigned CPUs, each with its container; `None`: the pod as a whole.
    pub faults: Vec<(Option<String>, Fault)>,
    /// The node afterwards.
    pub node: Node,
}

/// What a container gets.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ContainerAllocation {
    /// Its name.
    pub container: String,
    /// The Topology Manager's hint for it. With policy `none` this names no NUMA nodes and is not preferred.
    pub hint: Merged,
    /// Its CPUs.
    #[serde(flatten)]
    pub cpus: Cpus,
    /// Its memory; empty where it is not bound to NUMA nodes.
    pub memory: Vec<MemoryBlock>,
    /// Its devices by resource.
    pub devices: BTreeMap<String, Chosen>,
}

/// Where a container runs.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "pool", content = "cpus", rename_all = "kebab-case")]
pub enum Cpus {
    /// On the node's shared pool.
    Shared,
    /// On its pod's shared pool.
    PodShared(CpuSet),
    /// On exclusive CPUs.
    Exclusive(CpuSet),
}

/// One merge of the Topology Manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merge {
    /// The container; `None`: the pod as a whole.
    pub container: Option<String>,
    /// The hints by resource, in the order in which kubelet asks. Resources without a preference are left out.
    pub hints: Vec<(String, Vec<Hint>)>,
    /// The outcome.
    pub merged: Merged,
    /// What binds the container's CPUs; `None` where nothing does.
    pub bound: Option<Bound>,
    /// Whether memory would be preferred on fewer NUMA nodes if none of them served a pod together with others.
    pub is_grouped: bool,
    /// Resources of which the hints are not known, and which are not in `hints` therefore.
    pub unplaced: Vec<String>,
}

/// Whether kubelet admits the pod, which must be as [`Pod::with_defaults`] returns it, and what it allocates.
///
/// ```
/// use std::collections::BTreeMap;
/// use kubelet_planner::cpus::{CpuGroups, CpuOptions};
/// use kubelet_planner::merge::Policy;
/// use kubelet_planner::{
///     Amounts, Container, CpuManager, Cpus, ContainerKind, Machine, Node, NumaNode, Pod, Resources, Settings, NodeState, admit,
/// };
/// use stelia_cpus::{Cpu, Topology};
///
/// // Two NUMA nodes of four CPUs, CPU 0 reserved.
/// let cpu = |cpu: u32| (cpu, Cpu { package: cpu / 4, core: cpu / 2, node: cpu / 4 });
/// let topology = Topology { cpus: (0..8).map(cpu).collect() };
/// let numa = NumaNode { memory: 16 << 30, ..NumaNode::default() };
/// let machine = Machine {
///     cpus: CpuGroups::new(&topology, &BTreeMap::new()),
///     numa: [(0, numa.clone()), (1, numa)].into(),
/// };
/// let settings = Settings {
///     cpu_manager: CpuManager::reserving(CpuOptions::default(), "0".parse()?),
///     topology_policy: Policy::SingleNumaNode,
///     ..Settings::default()
/// };
/// let mut node = Node::start(machine, settings, NodeState::default())?;
///
/// let amounts = Amounts { milli_cpus: Some(2000), memory: Some(1 << 30), ..Amounts::default() };
/// let containers = vec![Container::new("vm", ContainerKind::App, Resources::guaranteed(amounts))];
/// let mut pod = Pod { containers, ..Pod::default() };
/// let mut until_full = Vec::new();
/// let rejection = loop {
///     pod.uid = format!("pod{}", until_full.len());
///     match admit(&node, &pod) {
///         Ok(admission) => {
///             until_full.push(admission.containers[0].cpus.clone());
///             node = admission.node;
///         }
///         Err(rejection) => break rejection,
///     }
/// };
/// assert_eq!(until_full, ["2-3", "4-5", "6-7"].map(|cpus| Cpus::Exclusive(cpus.parse().unwrap())));
/// assert_eq!(rejection.reason(), Some("TopologyAffinityError"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// kubelet rejects the pod, or never answers. The node is unchanged; what a rejected pod leaves in kubelet's state
/// until the next clean-up is not modelled.
pub fn admit(node: &Node, pod: &Pod) -> Result<Admission, Box<Rejection>> {
    let answer = answer(node, pod);
    let assumed = DeviceManager::wanted_among(&node.state.devices.assumed, pod, None);
    let Some(resource) = assumed.into_iter().next() else {
        return answer;
    };
    let state = NodeState {
        devices: node.state.devices.without_assumed_nodes(),
        ..node.state.clone()
    };
    let verdict =
        |answer: &Result<_, Box<Rejection>>| answer.as_ref().map(drop).map_err(|refused| refused.is_unknown());
    if verdict(&answer) == verdict(&self::answer(&node.with_state(state), pod)) {
        return answer;
    }
    Err(Box::new(Rejection {
        cause: DeviceRefusal::Unreported(resource.clone()).into(),
        container: None,
        resource: Some(resource),
        merges: answer.map_or_else(|refused| refused.merges, |admission| admission.merges),
    }))
}

/// The answer where the NUMA nodes of devices are as the state says.
fn answer(node: &Node, pod: &Pod) -> Result<Admission, Box<Rejection>> {
    let mut managers = Managers::new(node, pod);
    let policy = node.settings.topology_policy;
    match (policy, node.settings.topology_scope) {
        (Policy::None, _) => managers.each_container(Some(NO_HINT))?,
        (_, Scope::Container) => {
            let done = managers.each_container(None);
            done.map_err(|rejection| managers.unless_unplaced(rejection))?;
        }
        (_, Scope::Pod) => managers.pod_as_a_whole()?,
    }
    managers.check_unknown_hints()?;
    Ok(managers.admission())
}

impl Merge {
    /// The first resource that has no hint, or else the first without a preferred hint that the policy accepts.
    fn lacking(&self, policy: Policy) -> Option<&str> {
        let without = self.hints.iter().find(|(_, hints)| hints.is_empty());
        let single = |hint: &Hint| hint.nodes.is_none_or(|nodes| nodes.len() == 1);
        let good = |hint: &Hint| hint.preferred && (policy != Policy::SingleNumaNode || single(hint));
        let without_good = || self.hints.iter().find(|(_, hints)| !hints.iter().any(good));
        without.or_else(without_good).map(|(name, _)| name.as_str())
    }
}
