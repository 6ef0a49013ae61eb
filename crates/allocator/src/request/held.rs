//! Whose company an exclusive policy avoids, and what nobody knows.

use stelia_cpus::CpuSet;

use crate::{CpuExclusivePolicy, InUse, Usage};

/// What instances hold, as far as the pools do not tell.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Held {
    /// CPUs held with the exclusive policy PCPULevel.
    pub pcpu_level: CpuSet,
    /// CPUs held with the exclusive policy NUMANodeLevel.
    pub numa_node_level: CpuSet,
    /// A scope whose record cannot be read, with the reason: nobody knows which CPUs it has.
    pub unreadable: Option<(String, String)>,
}

impl Held {
    /// As the allocator regards it. What is held with no such policy is nobody's to avoid, and the pools leave it out.
    pub(super) fn usage(&self) -> Usage {
        let with = |cpus: &CpuSet, exclusive| InUse {
            cpus: cpus.clone(),
            refs: 1,
            exclusive,
        };
        Usage::exclusive(vec![
            with(&self.pcpu_level, CpuExclusivePolicy::PcpuLevel),
            with(&self.numa_node_level, CpuExclusivePolicy::NumaNodeLevel),
        ])
    }
}
