//! Koordinator's annotations, each a JSON text (types: `apis/extension/node.go` of Koordinator), and one of steliad's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stelia_cpus::{Cpu, CpuSet, Topology};
use stelia_kubelet::PodName;

use super::Facts;

/// [`CpuManagerPolicy`].
pub(crate) const CPU_MANAGER_POLICY: &str = "kubelet.koordinator.sh/cpu-manager-policy";
/// [`CpuDetails`].
pub(crate) const CPU_TOPOLOGY: &str = "node.koordinator.sh/cpu-topology";
/// A list of [`PodCpuAlloc`].
pub(crate) const POD_CPU_ALLOCS: &str = "node.koordinator.sh/pod-cpu-allocs";
/// A list of [`CpuSharedPool`].
pub(crate) const CPU_SHARED_POOLS: &str = "node.koordinator.sh/cpu-shared-pools";

/// steliad's own: a list of texts, what is wrong with this description ([`Facts::warnings`]); only where something is.
pub(crate) const WARNINGS: &str = "isolation.stelia.io/warnings";

/// steliad's own: [`Allocator`](super::Allocator), where steliad allocates the CPUs.
pub(crate) const ALLOCATOR: &str = "isolation.stelia.io/allocator";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CpuManagerPolicy {
    pub(crate) policy: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) options: BTreeMap<String, String>,
    #[serde(rename = "reservedCPUs", default, skip_serializing_if = "CpuSet::is_empty")]
    pub(crate) reserved: CpuSet,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CpuDetails {
    pub(crate) detail: Vec<CpuInfo>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CpuInfo {
    pub(crate) id: u32,
    /// Its core, counted over the whole host as lscpu(1) counts: the kernel's `core_id` names one only together with the socket.
    pub(crate) core: u32,
    pub(crate) socket: u32,
    pub(crate) node: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PodCpuAlloc {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) namespace: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) name: String,
    pub(crate) uid: String,
    /// A CPU list. Whoever reads it must bound the CPUs of all lists together.
    pub(crate) cpuset: String,
    #[serde(rename = "managedByKubelet", default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) managed_by_kubelet: bool,
}

/// A NUMA node's part of the shared pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CpuSharedPool {
    /// Socket of the node's first CPU.
    pub(crate) socket: u32,
    pub(crate) node: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) cpuset: String,
}

/// What is wrong with the description, if anything is.
pub(super) fn warnings(facts: &Facts) -> BTreeMap<String, String> {
    let warnings = facts.warnings();
    let some = (!warnings.is_empty()).then(|| text(WARNINGS, &warnings));
    some.into_iter().collect()
}

/// All annotations of the node.
pub(super) fn of(facts: &Facts) -> BTreeMap<String, String> {
    let kubelet = &facts.kubelet;
    let policy = CpuManagerPolicy {
        policy: kubelet.cpu_policy.clone(),
        options: kubelet.cpu_options.clone(),
        reserved: kubelet.reserved.clone(),
    };
    let own = |text: Option<&str>| text.unwrap_or_default().to_owned();
    let allocations = facts.allocations.iter().map(|allocation| PodCpuAlloc {
        namespace: own(allocation.name.as_ref().map(PodName::namespace)),
        name: own(allocation.name.as_ref().map(PodName::name)),
        uid: allocation.pod.to_string(),
        cpuset: allocation.cpus.to_string(),
        managed_by_kubelet: allocation.by_kubelet,
    });
    let mut all = BTreeMap::from([
        text(CPU_MANAGER_POLICY, &policy),
        text(CPU_TOPOLOGY, &CpuDetails { detail: detail(facts) }),
        text(POD_CPU_ALLOCS, &allocations.collect::<Vec<_>>()),
        text(CPU_SHARED_POOLS, &shared_pools(facts)),
    ]);
    all.extend(facts.allocator.as_ref().map(|state| text(ALLOCATOR, state)));
    all.extend(warnings(facts));
    all
}

fn text(name: &str, value: &impl Serialize) -> (String, String) {
    // It can fail only where a map's keys are not strings.
    (name.to_owned(), serde_json::to_string(value).unwrap_or_default())
}

/// The topology with its cores counted over the whole host.
pub(crate) fn ranked(topology: &Topology) -> Topology {
    let cpus = &topology.cpus;
    let mut cores: Vec<(u32, u32)> = cpus.values().map(|cpu| (cpu.package, cpu.core)).collect();
    cores.sort_unstable();
    cores.dedup();
    let ranks: BTreeMap<(u32, u32), u32> = cores.into_iter().zip(0..).collect();
    let rank = |cpu: &Cpu| Cpu {
        core: ranks.get(&(cpu.package, cpu.core)).copied().unwrap_or_default(),
        ..*cpu
    };
    Topology {
        cpus: cpus.iter().map(|(id, cpu)| (*id, rank(cpu))).collect(),
    }
}

fn detail(facts: &Facts) -> Vec<CpuInfo> {
    let cpus = ranked(&facts.topology).cpus.into_iter();
    let info = |(id, cpu): (u32, Cpu)| CpuInfo {
        id,
        core: cpu.core,
        socket: cpu.package,
        node: cpu.node,
    };
    cpus.map(info).collect()
}

fn shared_pools(facts: &Facts) -> Vec<CpuSharedPool> {
    let mut nodes: BTreeMap<u32, (u32, CpuSet)> = BTreeMap::new();
    for (number, cpu) in &facts.topology.cpus {
        let (_, shared) = nodes.entry(cpu.node).or_insert((cpu.package, CpuSet::new()));
        if facts.shared.contains(*number) {
            shared.insert(*number);
        }
    }
    let pools = nodes.into_iter().map(|(node, (socket, shared))| CpuSharedPool {
        socket,
        node,
        cpuset: shared.to_string(),
    });
    pools.collect()
}
