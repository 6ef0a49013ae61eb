//! Cores: whether kubelet sees those that there are, and whether containers have whole ones.

use std::collections::{BTreeMap, BTreeSet};

use stelia_cpus::{CpuSet, Topology};
use stelia_kubelet::KubeletConfig;

use super::Facts;
use super::checks::{Finding, failed, ok, unknown, warning};
use crate::shared::output::counted;

fn by_core(topology: &Topology) -> BTreeMap<(u32, u32), CpuSet> {
    let mut cores: BTreeMap<(u32, u32), CpuSet> = BTreeMap::new();
    for (number, cpu) in &topology.cpus {
        cores.entry((cpu.package, cpu.core)).or_default().insert(*number);
    }
    cores
}

/// How many there are, and whether kubelet can keep them whole.
pub(super) fn check(facts: &Facts) -> Finding {
    let topology = match &facts.topology {
        Ok(topology) => topology,
        Err(error) => return failed(error, "/sys/devices/system/cpu cannot be read"),
    };
    let cores = by_core(topology);
    let smt = cores.values().any(|cpus| cpus.len() > 1);
    let nodes: BTreeSet<u32> = topology.cpus.values().map(|cpu| cpu.node).collect();
    let found = format!(
        "{}, {}, {}",
        counted(topology.cpus.len() as u64, "CPU"),
        counted(cores.len() as u64, "core"),
        counted(nodes.len() as u64, "NUMA node")
    );
    // kubelet takes the siblings on each NUMA node for a core.
    let kubelets: BTreeSet<(u32, u32, u32)> = topology
        .cpus
        .values()
        .map(|cpu| (cpu.node, cpu.package, cpu.core))
        .collect();
    if kubelets.len() > cores.len() {
        return warning(
            format!(
                "{found}; siblings of one core are on different NUMA nodes, so kubelet sees {}",
                counted(kubelets.len() as u64, "core")
            ),
            "full-pcpus-only does not keep these cores whole: correct the NUMA topology in the firmware, or in the hypervisor that this node is a \
             VM of",
        );
    }
    let splits =
        |kubelet: &KubeletConfig| kubelet.cpu_manager_policy == "static" && !kubelet.cpu_option("full-pcpus-only");
    if smt && facts.kubelet.as_ref().is_ok_and(splits) {
        return warning(
            format!("{found}; SMT siblings without full-pcpus-only"),
            "set cpuManagerPolicyOptions: {full-pcpus-only: \"true\"}: otherwise a VM's CPU can share its core with another pod",
        );
    }
    ok(found)
}

/// Whether the containers with exclusive CPUs have whole cores.
pub(super) fn whole(facts: &Facts) -> Finding {
    let (Ok(state), Ok(topology)) = (&facts.state, &facts.topology) else {
        return unknown("kubelet's state file or the CPUs cannot be read");
    };
    let cores = by_core(topology);
    let mut split = Vec::new();
    for (pod, containers) in &state.entries {
        for (container, cpus) in containers {
            let shared: CpuSet = cores
                .values()
                .filter(|core| !core.is_disjoint(cpus) && !core.is_subset(cpus))
                .flat_map(|core| core.difference(cpus).iter().collect::<Vec<_>>())
                .collect();
            if !shared.is_empty() {
                split.push(format!(
                    "{pod}/{container} has {cpus}, siblings {shared} belong to others"
                ));
            }
        }
    }
    if split.is_empty() {
        return ok(format!("{} pods with CPUs of their own", state.entries.len()));
    }
    warning(
        split.join("; "),
        "full-pcpus-only keeps cores whole for new pods; delete and recreate the pods named",
    )
}
