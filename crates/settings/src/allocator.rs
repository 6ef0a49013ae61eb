//! The keys of steliad's own allocator.

use stelia_allocator::{
    AllocatorPolicies, CpuBindPolicy, CpuExclusivePolicy, CpuSource, NumaAllocateStrategy, NumaTopologyAlignmentPolicy,
    Qos, RequiredBind,
};

use super::{ConfigError, Fragment, allowed};

/// Check every value.
///
/// # Errors
/// [`ConfigError::Value`] for the first value that is not allowed.
pub(super) fn check(fragment: &Fragment) -> Result<AllocatorPolicies, ConfigError> {
    let mut node = AllocatorPolicies::default();
    if let Some(text) = &fragment.cpu_source {
        node.source = allowed("cpu-source", text, CpuSource::parse(text), "kubelet or steliad")?;
    }
    if let Some(text) = &fragment.reserved_cpus {
        node.reserved = allowed(
            "reserved-cpus",
            text,
            text.parse().ok(),
            "a CPU list, such as \"0-1,8\"",
        )?;
    }
    if let Some(text) = &fragment.qos {
        node.qos = allowed("qos", text, Qos::parse(text), "LSE, LSR, LS or BE")?;
    }
    if let Some(text) = &fragment.cpu_bind_policy {
        let bind = |bind: &CpuBindPolicy| matches!(bind, CpuBindPolicy::FullPcpus | CpuBindPolicy::SpreadByPcpus);
        let bind = CpuBindPolicy::parse(text).filter(bind);
        node.bind = allowed("cpu-bind-policy", text, bind, "FullPCPUs or SpreadByPCPUs")?;
    }
    if let Some(text) = &fragment.required_cpu_bind_policy {
        let names = "None, FullPCPUsOnly or SpreadByPCPUs";
        node.required = allowed("required-cpu-bind-policy", text, RequiredBind::parse(text), names)?;
    }
    if let Some(text) = &fragment.cpu_exclusive_policy {
        let policy = CpuExclusivePolicy::parse(text).filter(|policy| *policy != CpuExclusivePolicy::Default);
        node.exclusive = allowed("cpu-exclusive-policy", text, policy, "None, PCPULevel or NUMANodeLevel")?;
    }
    if let Some(text) = &fragment.numa_allocate_strategy {
        let names = "MostAllocated, LeastAllocated or DistributeEvenly";
        node.strategy = allowed("numa-allocate-strategy", text, NumaAllocateStrategy::parse(text), names)?;
    }
    if let Some(text) = &fragment.numa_topology_alignment_policy {
        let policy = NumaTopologyAlignmentPolicy::parse(text);
        let names = "None, BestEffort, Restricted or SingleNUMANode";
        node.alignment = allowed("numa-topology-alignment-policy", text, policy, names)?;
    }
    Ok(node)
}
