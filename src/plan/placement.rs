//! Which vCPU goes on which of the instance's CPUs.

use std::collections::BTreeMap;

use crate::cpuset::CpuSet;
use crate::topology::Topology;

/// How vCPUs are laid on the exclusive CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Ascending vCPU index on ascending CPU number.
    #[default]
    Linear,
}

impl Policy {
    /// The name used in configuration and on D-Bus.
    pub fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
        }
    }
}

/// A vCPU as QEMU describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vcpu {
    /// `cpu-index`.
    pub index: u32,
    /// `props` of `query-cpus-fast`: `socket-id`, `core-id`, `thread-id`, `node-id` and the like.
    pub props: BTreeMap<String, i64>,
}

/// More vCPUs than CPUs: no vCPU can have one of its own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{vcpus} vCPUs do not fit on {cpus} exclusive CPUs: each needs one of its own")]
pub struct TooManyVcpus {
    /// How many vCPUs were handed over.
    pub vcpus: usize,
    /// How many CPUs the instance has.
    pub cpus: usize,
}

/// Choose a CPU for every vCPU: distinct, within `cpus`. The answer is in ascending vCPU index and depends on nothing but
/// the arguments' values.
///
/// # Errors
/// [`TooManyVcpus`].
pub fn place(
    policy: Policy,
    vcpus: &[Vcpu],
    cpus: &CpuSet,
    _topology: &Topology,
) -> Result<Vec<(u32, u32)>, TooManyVcpus> {
    if vcpus.len() > cpus.len() {
        return Err(TooManyVcpus {
            vcpus: vcpus.len(),
            cpus: cpus.len(),
        });
    }
    let mut indexes: Vec<u32> = vcpus.iter().map(|vcpu| vcpu.index).collect();
    indexes.sort_unstable();
    match policy {
        Policy::Linear => Ok(indexes.into_iter().zip(cpus.iter()).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn vcpus(count: u32) -> Vec<Vcpu> {
        (0..count)
            .map(|index| Vcpu {
                index,
                props: BTreeMap::new(),
            })
            .collect()
    }

    #[test]
    fn linear_is_the_articles_order() {
        let cpus = "1-2,65-66".parse().unwrap();
        let placed = place(Policy::Linear, &vcpus(4), &cpus, &Topology::default()).unwrap();
        assert_eq!(placed, [(0, 1), (1, 2), (2, 65), (3, 66)]);
    }

    #[test]
    fn more_vcpus_than_cpus_is_refused_with_both_numbers() {
        let error = place(Policy::Linear, &vcpus(3), &"4-5".parse().unwrap(), &Topology::default()).unwrap_err();
        assert_eq!(error, TooManyVcpus { vcpus: 3, cpus: 2 });
    }

    proptest! {
        #[test]
        fn every_vcpu_has_a_cpu_of_its_own_within_the_set(
            cpus in proptest::collection::btree_set(0u32..1024, 1..64), spare in 0usize..8,
        ) {
            let cpus: CpuSet = cpus.into_iter().collect();
            let list = vcpus(cpus.len().saturating_sub(spare) as u32);
            let mut reversed = list.clone();
            reversed.reverse();
            let placed = place(Policy::Linear, &list, &cpus, &Topology::default()).unwrap();
            prop_assert_eq!(&placed, &place(Policy::Linear, &reversed, &cpus, &Topology::default()).unwrap());
            let used: CpuSet = placed.iter().map(|(_, cpu)| *cpu).collect();
            prop_assert_eq!(used.len(), list.len());
            prop_assert!(used.is_subset(&cpus));
        }
    }
}
