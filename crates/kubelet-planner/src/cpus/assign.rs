//! One request for CPUs, and kubelet's answer to it.

use stelia_cpus::CpuSet;

use super::distributed::{Distribution, distributed};
use super::options::{CpuOptions, Kubelet};
use super::packed::{Packing, packed};
use super::refusal::CpuRefusal;
use super::topology::{CpuGroups, Level};
use crate::merge::NodeMask;

/// The CPUs that kubelet assigns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignedCpus {
    /// As many as were requested, and all of them free, unless there is a fault.
    pub cpus: CpuSet,
    /// Faults of kubelet in this answer; empty in a correct one.
    pub faults: Vec<Fault>,
}

/// A fault of kubelet in an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// These CPUs were not free: another container has them, or they are reserved.
    #[error("kubelet hands out CPUs that are not free: {0}")]
    NotFree(CpuSet),
    /// The number of CPUs is not the requested one.
    #[error("kubelet hands out {got} CPUs where {wanted} are wanted")]
    OtherCount {
        /// CPUs wanted.
        wanted: usize,
        /// CPUs handed out.
        got: usize,
    },
    /// The CPUs are not on the NUMA nodes that kubelet's own rule chose.
    #[error("kubelet does not use the NUMA nodes that it chose")]
    Overwritten,
}

impl AssignedCpus {
    /// Whether the CPUs are free, and as many as requested.
    pub fn is_safe(&self) -> bool {
        self.faults.iter().all(|fault| *fault == Fault::Overwritten)
    }

    fn new(taken: Taken, free: &CpuSet, wanted: usize) -> Self {
        let (not_free, got) = (taken.cpus.difference(free), taken.cpus.len());
        let faults = [
            (!not_free.is_empty()).then_some(Fault::NotFree(not_free)),
            (got != wanted).then_some(Fault::OtherCount { wanted, got }),
            taken.overwritten.then_some(Fault::Overwritten),
        ];
        Self {
            cpus: taken.cpus,
            faults: faults.into_iter().flatten().collect(),
        }
    }
}

/// A request for exclusive CPUs: see [`allocate`].
#[derive(Debug, Clone, Copy)]
pub struct ExclusiveRequest<'a> {
    /// The shared pool without the reserved CPUs.
    pub available: &'a CpuSet,
    /// CPUs of the same pod's finished init containers.
    pub reusable: &'a CpuSet,
    /// CPUs wanted.
    pub count: usize,
    /// The Topology Manager's NUMA nodes; `None` where it gives none.
    pub affinity: Option<NodeMask>,
}

/// Takes `count` of the available CPUs: kubelet's `takeByTopology`.
///
/// # Errors
/// There are too few, or kubelet fails or hangs.
pub fn take(
    topology: &CpuGroups,
    options: CpuOptions,
    kubelet: Kubelet,
    available: &CpuSet,
    count: usize,
) -> Result<AssignedCpus, CpuRefusal> {
    let taken = take_from(topology, options, kubelet, available, (count, 0))?;
    Ok(AssignedCpus::new(taken, available, count))
}

/// Takes CPUs of the affinity's NUMA nodes (with align-by-socket: of their sockets), and the rest from anywhere:
/// kubelet's `allocateCPUs`. Too few CPUs in the affinity are not an error.
///
/// # Errors
/// There are too few, or kubelet fails or hangs.
pub fn allocate(
    topology: &CpuGroups,
    options: CpuOptions,
    kubelet: Kubelet,
    request: &ExclusiveRequest<'_>,
) -> Result<AssignedCpus, CpuRefusal> {
    let free = request.available.union(request.reusable);
    let mut taken = Taken::default();
    if let Some(mask) = request.affinity {
        let near = topology.in_nodes(mask);
        let near = if options.align_by_socket {
            topology.spanned(Level::Socket, &near)
        } else {
            near
        };
        let near = free.intersection(&near);
        let least = if kubelet.affinity_is_least {
            mask.len() as usize
        } else {
            0
        };
        taken = take_from(
            topology,
            options,
            kubelet,
            &near,
            (request.count.min(near.len()), least),
        )?;
    }
    // Kubelet's number goes below zero where the first run took too many: nothing more is taken then.
    let missing = request.count.saturating_sub(taken.cpus.len());
    let more = take_from(topology, options, kubelet, &free.difference(&taken.cpus), (missing, 0))?;
    let taken = Taken {
        cpus: taken.cpus.union(&more.cpus),
        overwritten: taken.overwritten || more.overwritten,
    };
    Ok(AssignedCpus::new(taken, &free, request.count))
}

#[derive(Debug, Default)]
struct Taken {
    cpus: CpuSet,
    overwritten: bool,
}

/// `least`: the number of NUMA nodes to use at least, if CPUs are distributed over them.
fn take_from(
    topology: &CpuGroups,
    options: CpuOptions,
    kubelet: Kubelet,
    available: &CpuSet,
    (count, least): (usize, usize),
) -> Result<Taken, CpuRefusal> {
    let positions = topology.positions(available);
    if count > positions.len() {
        return Err(CpuRefusal::NotEnough {
            requested: count,
            available: available.len(),
        });
    }
    let packing = Packing {
        spread: options.distribute_cpus_across_cores,
        caches: options.prefer_align_cpus_by_uncorecache && !options.distribute_cpus_across_numa,
    };
    let how = Distribution {
        group: if options.full_pcpus_only {
            topology.cpus_per_core().max(1)
        } else {
            1
        },
        packing,
        copied: kubelet.combinations_copied,
        least,
    };
    let (cpus, overwritten) = if options.distribute_cpus_across_numa {
        distributed(topology, &positions, count, how)?
    } else {
        (packed(topology, &positions, count, packing)?, false)
    };
    Ok(Taken {
        cpus: topology.set(&cpus),
        overwritten,
    })
}
