//! Checks of containers with exclusive CPUs: quotas, and where their memory and devices are.

use std::path::Path;

use stelia_kernel::cgroup::{CgroupError, CgroupPath, Cgroups, File, KernelCgroups, read_cpus};
use stelia_kernel::containers::{container_levels, least_limit_milli, pod_containers};
use stelia_kernel::locality::{Locality, NodeMemory, size};
use stelia_kubelet::{ContainerCgroup, CpuManagerState};

use super::{CheckResult, NUMA_BALANCING, Observed, STATE, first_few, note, pass, warn};
use crate::shared::daemon::{Pod, Pods};
use crate::shared::output::counted;

/// From this much memory on a VM counts as large, in bytes.
const LARGE_VM_BYTES: u64 = 32 << 30;

/// Automatic NUMA balancing unmaps pages to see who uses them, which KVM has to follow for each range of a guest's memory.
pub(super) fn numa_balancing(seen: &Observed) -> CheckResult {
    let vms = seen.described.iter().flat_map(|told| told.locality.instances.values());
    // It has something to do with those that have CPUs of several nodes, or so much memory that looking through it is felt.
    let memory = |vm: &Locality| vm.memory.values().map(NodeMemory::counted).sum::<u64>();
    let large = vms
        .filter(|vm| vm.nodes.len() > 1 || memory(vm) >= LARGE_VM_BYTES)
        .count() as u64;
    if matches!(seen.text(NUMA_BALANCING), "" | "0") || large == 0 {
        return pass("off, or no VM is large");
    }
    let fact = format!("on, with {} of many NUMA nodes or much memory", counted(large, "VM"));
    let fix = "sysctl -w kernel.numa_balancing=0, and set it in /etc/sysctl.d";
    warn(fact, "each scan stops their guests", fix)
}

/// The containers that kubelet gave exclusive CPUs and whose CPU quota is below these; `root` is `/`. A container is found by the
/// `cpuset.cpus` of its cgroup: an entry has the container's name, which only root reads.
///
/// # Errors
/// Why a quota is not known.
pub(super) fn low_quotas(root: &Path, state: Option<&CpuManagerState>) -> Result<Vec<String>, String> {
    let cgroups = KernelCgroups::new(root.join("sys/fs/cgroup"));
    let text = |error: CgroupError| error.to_string();
    let mut low = Vec::new();
    for (pod, entries) in state.iter().flat_map(|state| &state.entries) {
        for (whole, _) in pod_containers(&cgroups, pod).map_err(text)? {
            let own = read_cpus(&cgroups, &whole, File::Cpus).unwrap_or_default();
            if own.is_empty() || !entries.values().any(|cpus| *cpus == own) {
                continue;
            }
            // With crun a quota is written to the container's cgroup and to its subgroup.
            let subgroup = whole.child(ContainerCgroup::SUBGROUP);
            let cgroup = if cgroups.exists(&subgroup) { subgroup } else { whole };
            let milli = least_limit_milli(&cgroups, container_levels(&cgroup)).map_err(text)?;
            if let Some(milli) = milli.filter(|milli| *milli < own.len() as u64 * 1000) {
                let cpus = counted(own.len() as u64, "CPU");
                low.push(format!("{cgroup} has {cpus} and a quota of {} % of a CPU", milli / 10));
            }
        }
    }
    Ok(low)
}

/// As crun before 1.22 writes a quota where kubelet sets none.
pub(super) fn quotas(seen: &Observed) -> CheckResult {
    // Without it the exclusive CPUs are not known.
    seen.files.cpus.as_ref().map_err(|_| STATE)?;
    match &seen.low_quotas {
        Err(why) => note(format!("cannot read the CPU quotas of containers: {why}"), "", ""),
        Ok(low) if low.is_empty() => pass("no CPU quota is below the exclusive CPUs of its container"),
        Ok(low) => warn(
            first_few(low),
            "the kernel throttles these containers",
            "recreate their pods (kubectl delete pod -n NAMESPACE NAME); if the quota is 1 %, first install crun 1.22 or newer, or use runc \
             (containers/crun issue 1794)",
        ),
    }
}

/// How much memory of VMs is in `stelia.slice`, outside their pods' cgroups, where kubelet does not count it.
pub(super) fn memory(seen: &Observed) -> CheckResult {
    let told = seen.description()?;
    let (slice, vms) = (CgroupPath::slice(), told.node.instances.iter());
    let outside = vms.filter(|(_, one)| one.scope.is_within(&slice));
    let usage = outside.filter_map(|(pod, _)| told.usage.get(pod));
    let bytes = usage.map(|usage| usage.memory_bytes).sum();
    if bytes == 0 {
        return pass("no VM's memory is outside its pod's cgroup");
    }
    note(
        format!("{} of VMs are in stelia.slice", size(bytes)),
        "kubectl top, the limit of kubepods and kubelet's evictions do not count it",
        "set tree = \"auto\" in /etc/stelia/steliad.toml for new VMs (in-place.md), or reserve the memory in systemReserved",
    )
}

/// The VMs with remote memory or devices.
pub(super) fn locality(seen: &Observed) -> CheckResult {
    let told = seen.description()?;
    let (pods, vms) = (Pods::of(told), &told.locality.instances);
    let remote = vms.iter().filter_map(|(pod, vm)| {
        let problems: Vec<String> = vm.memory_problem().into_iter().chain(vm.devices_problem()).collect();
        (!problems.is_empty()).then(|| (pods.get(pod), problems.join(", and ")))
    });
    let remote: Vec<(Pod, String)> = remote.collect();
    match (remote.first(), &told.locality.devices_unknown) {
        (Some((first, _)), _) => {
            let remote: Vec<String> = remote.iter().map(|(pod, what)| format!("{pod}: {what}")).collect();
            let fix = format!("steliactl why {first}");
            warn(first_few(&remote), "its vCPUs wait longer for them", fix)
        }
        (None, Some(why)) => warn(
            format!("cannot read where devices are: {why}"),
            "",
            "run steliactl doctor as root; if the checksum is wrong, drain the node, remove the file, restart kubelet",
        ),
        (None, None) => {
            let count = counted(vms.len() as u64, "VM");
            pass(format!("{count}, none with remote memory or devices"))
        }
    }
}
