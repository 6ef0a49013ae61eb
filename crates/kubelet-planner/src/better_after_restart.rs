//! Which running pods kubelet would give better CPUs if they were started anew.
//!
//! Allocations do not move by themselves: a pod keeps CPUs of two NUMA nodes although one has room by now. Here a pod is
//! removed from the node and admitted again with the same request.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use stelia_cpus::CpuSet;
use stelia_cpus::quantity::bytes::to_bytes;

use super::admission::admit;
use super::node::Node;
use super::pod::{Amounts, Container, ContainerKind, Pod, Resources};

/// How far a pod's resources are apart.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Spread {
    /// Its exclusive CPUs.
    pub cpus: CpuSet,
    /// Their NUMA nodes.
    #[serde(rename = "numa_nodes")]
    pub nodes: CpuSet,
    /// How many sockets they are on.
    pub sockets: usize,
    /// The number of cores of which it has only a part.
    pub partial_cores: usize,
    /// The NUMA nodes of its memory, as the memory manager has them; empty where it does not bind memory.
    #[serde(rename = "memory_numa_nodes")]
    pub memory: CpuSet,
}

/// What a restart of a pod changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restart {
    /// The pod's UID.
    pub pod: String,
    /// What it has now.
    pub before: Spread,
    /// What kubelet would give it.
    pub after: Spread,
    /// It gains nothing itself: the next pod of the list needs the CPUs that it leaves.
    pub makes_room: bool,
}

/// Why a pod's request cannot be told from kubelet's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoRequest {
    /// It has no entry.
    #[error("kubelet's CPU manager has no CPUs of it")]
    NoCpus,
    /// It has CPUs as a pod.
    #[error("it has pod-level resources: kubelet's files do not say what its containers request of them")]
    PodLevel,
    /// A finished init container keeps its entry.
    #[error("its containers have CPUs in common: kubelet's files do not say which of them are init containers")]
    InitContainers,
}

/// Limit of the pairs of restarts that are tried at a time.
const MAX_RESTART_PAIRS: usize = 4096;

/// By how much each number falls: NUMA nodes in all, those with its memory or devices and without its CPUs, those with its CPUs, sockets,
/// partial cores. An earlier number counts more.
type Gain = [i64; 5];

/// What a running pod requests, from what kubelet's managers hold for it. Containers that have neither CPUs, memory nor
/// devices of their own are left out: nothing is allocated to them.
///
/// # Errors
/// The files do not say it.
pub fn request(node: &Node, pod: &str) -> Result<Pod, NoRequest> {
    let state = node.state();
    let cpus = state.cpus.entries.get(pod).ok_or(NoRequest::NoCpus)?;
    if state.cpus.pods.contains_key(pod) || state.memory.pods.contains_key(pod) {
        return Err(NoRequest::PodLevel);
    }
    let held: usize = cpus.values().map(CpuSet::len).sum();
    if held != all(cpus.values()).len() {
        return Err(NoRequest::InitContainers);
    }
    let memory = state.memory.entries.get(pod);
    let devices = state.devices.entries.get(pod);
    let mut names: BTreeSet<&String> = cpus.keys().collect();
    names.extend(memory.into_iter().flatten().map(|(name, _)| name));
    names.extend(devices.into_iter().flatten().map(|(name, _)| name));
    let containers = names.into_iter().map(|name| {
        let milli = |cpus: &CpuSet| u64::try_from(cpus.len()).unwrap_or(u64::MAX).saturating_mul(1000);
        let mut amounts = Amounts {
            // A fraction, which runs on the shared pool: a Guaranteed pod's container requests some.
            milli_cpus: Some(cpus.get(name).map_or(1, milli)),
            ..Amounts::default()
        };
        for block in memory.and_then(|own| own.get(name)).into_iter().flatten() {
            match block.kind.strip_prefix("hugepages-").and_then(to_bytes) {
                Some(page) => *amounts.huge_pages.entry(page).or_default() += block.size,
                None => *amounts.memory.get_or_insert(0) += block.size,
            }
        }
        // Without the memory manager no file has it, and how much it is does not matter.
        amounts.memory.get_or_insert(1);
        for (resource, ids) in devices.and_then(|own| own.get(name)).into_iter().flatten() {
            let count = u64::try_from(ids.len()).unwrap_or(u64::MAX);
            amounts.devices.insert(resource.clone(), count);
        }
        Container::new(name, ContainerKind::App, Resources::guaranteed(amounts))
    });
    Ok(Pod {
        uid: pod.to_owned(),
        resources: None,
        containers: containers.collect(),
    })
}

/// Restarts, one after the other, of which each gives its pod better CPUs, or makes room for the next one that does. Each
/// pod is restarted at most once; of several restarts the one that gains most comes first. Empty if none gains.
///
/// The pods are those that may be restarted, as [`request`] returns them. kubelet decides anew at each restart: what
/// starts or ends in between changes what follows.
pub fn restarts(node: &Node, pods: &[Pod]) -> Vec<Restart> {
    let mut node = node.clone();
    let mut left: Vec<&Pod> = pods.iter().collect();
    let mut all = Vec::new();
    loop {
        let steps = next(&node, &left);
        let Some(last) = steps.last() else {
            return all;
        };
        node = last.node.clone();
        left.retain(|pod| steps.iter().all(|step| step.restart.pod != pod.uid));
        all.extend(steps.into_iter().map(|step| step.restart));
    }
}

/// A restart, and the node after it.
#[derive(Clone)]
struct Step {
    restart: Restart,
    node: Node,
    gain: Gain,
}

impl Step {
    /// `None`: kubelet would reject the pod, or assign CPUs that are not free.
    fn new(node: &Node, pod: &Pod) -> Option<Self> {
        let admission = admit(&node.without(&pod.uid), pod).ok()?;
        if !admission.faults.is_empty() {
            return None;
        }
        let (before, after) = (Spread::new(node, &pod.uid), Spread::new(&admission.node, &pod.uid));
        // Its devices are taken to stay: of those that are free, kubelet's files do not have the NUMA nodes.
        let devices = devices(node, &pod.uid);
        let (was, will_be) = (before.ranked(&devices), after.ranked(&devices));
        Some(Self {
            gain: std::array::from_fn(|at| was[at] - will_be[at]),
            restart: Restart {
                pod: pod.uid.clone(),
                before,
                after,
                makes_room: false,
            },
            node: admission.node,
        })
    }

    fn gains(&self) -> bool {
        self.gain > [0; 5]
    }

    /// Whether the pod gets other CPUs that are as good.
    fn is_even(&self) -> bool {
        self.gain == [0; 5] && self.restart.before.cpus != self.restart.after.cpus
    }
}

/// The restart that gains most; if none gains, the best pair of one that costs nothing and one that gains then.
fn next(node: &Node, pods: &[&Pod]) -> Vec<Step> {
    let steps: Vec<Step> = pods.iter().filter_map(|pod| Step::new(node, pod)).collect();
    // The first of several that are equal.
    if let Some(best) = steps
        .iter()
        .filter(|step| step.gains())
        .min_by_key(|step| Reverse(step.gain))
    {
        return vec![best.clone()];
    }
    let even = steps.iter().filter(|step| step.is_even());
    let pairs = even.flat_map(|first| {
        let others = pods.iter().filter(|pod| pod.uid != first.restart.pod);
        others.map(move |pod| (first, *pod))
    });
    let pairs = pairs.take(MAX_RESTART_PAIRS).filter_map(|(first, pod)| {
        let second = Step::new(&first.node, pod).filter(Step::gains)?;
        Some((first, second))
    });
    let best = pairs.min_by_key(|(_, second)| Reverse(second.gain));
    best.into_iter()
        .flat_map(|(first, second)| {
            let mut first = first.clone();
            first.restart.makes_room = true;
            [first, second]
        })
        .collect()
}

impl Spread {
    /// Computed from what the pod has on this node.
    fn new(node: &Node, pod: &str) -> Self {
        let (topology, state) = (&node.machine().cpus, node.state());
        let cpus = all(state.cpus.entries.get(pod).into_iter().flat_map(|own| own.values()));
        let missing = topology.siblings(&cpus).difference(&cpus);
        let cores: BTreeSet<u32> = missing.iter().filter_map(|cpu| topology.core(cpu)).collect();
        let blocks = state.memory.entries.get(pod).into_iter().flat_map(|own| own.values());
        Self {
            nodes: topology.nodes_of(&cpus),
            sockets: topology.sockets_of(&cpus),
            partial_cores: cores.len(),
            memory: blocks.flatten().flat_map(|block| block.nodes.iter().copied()).collect(),
            cpus,
        }
    }

    /// Less is better.
    fn ranked(&self, devices: &CpuSet) -> Gain {
        let others = self.memory.union(devices).difference(&self.nodes);
        let nodes = self.nodes.len();
        [
            nodes + others.len(),
            others.len(),
            nodes,
            self.sockets,
            self.partial_cores,
        ]
        .map(|count| i64::try_from(count).unwrap_or(i64::MAX))
    }
}

/// The NUMA nodes of a pod's devices, as far as they are known.
fn devices(node: &Node, pod: &str) -> CpuSet {
    let state = &node.state().devices;
    let given = state.entries.get(pod).into_iter().flat_map(|own| own.values());
    let ids = given
        .flatten()
        .flat_map(|(resource, ids)| ids.iter().map(move |id| (resource, id)));
    ids.filter_map(|(resource, id)| state.nodes(resource, id))
        .flatten()
        .copied()
        .collect()
}

fn all<'a>(sets: impl Iterator<Item = &'a CpuSet>) -> CpuSet {
    sets.fold(CpuSet::new(), |all, cpus| all.union(cpus))
}
