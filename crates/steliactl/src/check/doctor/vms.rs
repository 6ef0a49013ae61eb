//! Checks of the containers with exclusive CPUs: cores, quotas, and the NUMA nodes of memory and devices.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use stelia_cpus::{CpuSet, Topology};
use stelia_kernel::cgroup::{Cgroups, File, KernelCgroups, read_cpus};
use stelia_kernel::containers::{container_levels, least_limit_milli, pod_containers};
use stelia_kernel::locality::{Locality, NodeMemory, size};
use stelia_kernel::proc::allowed;
use stelia_kubelet::{ContainerCgroup, CpuManagerState};

use super::{CPUS, DAEMON, Facts, Finding, note, pass, skip, warn, warn_of};
use crate::shared::kernel::numbered;
use crate::shared::output::counted;

/// From this much memory on a VM counts as large, in bytes.
const LARGE_VM_BYTES: u64 = 32 << 30;

/// The siblings of a set's CPUs that are not in it.
fn siblings_of_others(topology: &Topology, cpus: &CpuSet) -> CpuSet {
    let cores = cpus.iter().map(|cpu| topology.siblings(cpu));
    cores.fold(CpuSet::new(), |all, core| all.union(&core.difference(cpus)))
}

pub(super) fn whole_cores(facts: &Facts, state: &CpuManagerState) -> Finding {
    let Ok(topology) = &facts.topology else {
        return skip(CPUS);
    };
    let containers = state.entries.iter();
    let containers = containers.flat_map(|(pod, own)| own.iter().map(move |(name, cpus)| (pod, name, cpus)));
    let split = containers.filter_map(|(pod, name, cpus)| {
        let others = siblings_of_others(topology, cpus);
        (!others.is_empty()).then(|| format!("{pod}/{name} has {cpus}, siblings {others} belong to others"))
    });
    let fix = "set full-pcpus-only, then delete and recreate the pods named";
    let pods = counted(state.entries.len() as u64, "pod");
    warn_of(split, fix, format!("{pods} with CPUs of their own"))
}

/// Processes of Cloud Hypervisor with core scheduling, its default, and the CPUs that their vCPUs may run on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CloudHypervisors {
    /// Whether the kernel knows core scheduling (CONFIG_SCHED_CORE); `None`: unknown.
    pub(super) in_kernel: Option<bool>,
    pub(super) vcpus: BTreeMap<i32, CpuSet>,
}

impl CloudHypervisors {
    /// The kernel's configuration is what a distribution keeps beside it.
    pub(super) fn read(root: &Path, kernel: &str) -> Self {
        let places = [format!("boot/config-{kernel}"), format!("lib/modules/{kernel}/config")];
        let config = places
            .iter()
            .find_map(|place| fs::read_to_string(root.join(place)).ok());
        let processes = numbered(&root.join("proc")).filter(|(_, path)| has_cookie(path));
        let vcpus = processes.map(|(pid, path)| (pid, vcpus_allowed(&path)));
        Self {
            in_kernel: config.map(|text| text.lines().any(|line| line == "CONFIG_SCHED_CORE=y")),
            vcpus: vcpus.filter(|(_, cpus)| !cpus.is_empty()).collect(),
        }
    }
}

/// Cloud Hypervisor gives each VM a cookie of its own unless it is told not to (`--cpus core_scheduling=off`).
fn has_cookie(process: &Path) -> bool {
    let comm = fs::read_to_string(process.join("comm")).unwrap_or_default();
    let command = fs::read(process.join("cmdline")).unwrap_or_default();
    let command = String::from_utf8_lossy(&command);
    let is_off = |argument: &str| argument.split(',').any(|word| word == "core_scheduling=off");
    comm.starts_with("cloud-hyperviso") && !command.split('\0').any(is_off)
}

fn vcpus_allowed(process: &Path) -> CpuSet {
    let vcpus = numbered(&process.join("task")).filter(|(_, thread)| {
        let comm = fs::read_to_string(thread.join("comm")).unwrap_or_default();
        let number = comm.trim().strip_prefix("vcpu").unwrap_or_default();
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    });
    let allowed = vcpus.filter_map(|(_, thread)| allowed(&fs::read_to_string(thread.join("status")).ok()?));
    allowed.fold(CpuSet::new(), |all, some| all.union(&some))
}

/// With a cookie a vCPU shares its core with nobody else: while it runs, a sibling that has another task stands idle, and the other
/// way round. Where a VM has whole cores that costs nothing.
pub(super) fn core_scheduling(facts: &Facts, topology: &Topology) -> Finding {
    if facts.hypervisors.in_kernel == Some(false) {
        return pass("this kernel has none");
    }
    let split = facts.hypervisors.vcpus.iter().filter_map(|(pid, cpus)| {
        let others = siblings_of_others(topology, cpus);
        let found = || format!("Cloud Hypervisor, process {pid}, on {cpus} forces siblings {others} idle");
        (!others.is_empty()).then(found)
    });
    let fix = "give such VMs whole cores (full-pcpus-only, FullPCPUs), or start them with --cpus core_scheduling=off";
    warn_of(split, fix, "no VM of Cloud Hypervisor is without whole cores")
}

/// Whether the kernel balances tasks and memory between NUMA nodes; `proc` is `/proc`.
pub(crate) fn numa_balances(proc: &Path) -> bool {
    let setting = fs::read_to_string(proc.join("sys/kernel/numa_balancing")).unwrap_or_default();
    !matches!(setting.trim(), "" | "0")
}

/// Whether the kernel's balancing between NUMA nodes has something to do with a VM: it has CPUs of several, or so much memory
/// that looking through it is felt.
pub(crate) fn is_large(locality: &Locality) -> bool {
    let memory = locality.memory.values().map(NodeMemory::counted).sum::<u64>();
    locality.nodes.len() > 1 || memory >= LARGE_VM_BYTES
}

/// Automatic NUMA balancing unmaps pages to see who uses them, which KVM has to follow for each range of a guest's memory.
pub(super) fn numa_balancing(facts: &Facts) -> Finding {
    if !facts.numa_balancing {
        return pass("off");
    }
    let cpus = facts.topology.iter().flat_map(|topology| topology.cpus.values());
    if cpus.map(|cpu| cpu.node).collect::<BTreeSet<u32>>().len() < 2 {
        return pass("on; this host has one NUMA node");
    }
    let vms = facts.described.iter().flat_map(|told| &told.locality.instances);
    let large = vms.filter(|(_, vm)| is_large(vm));
    let large = large.map(|(pod, _)| format!("on, and stops the guest of the large VM {pod} at each scan"));
    let fix = "sysctl -w kernel.numa_balancing=0, and set it in /etc/sysctl.d";
    let limit = size(LARGE_VM_BYTES);
    warn_of(
        large,
        fix,
        format!("on; no VM has CPUs of several NUMA nodes, or {limit} of memory"),
    )
}

/// A container with exclusive CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Quota {
    pub(super) cgroup: String,
    /// How many exclusive CPUs it has.
    pub(super) cpus: u64,
    /// What its `cpu.max` allows, thousandths of a CPU; `None` without a limit.
    pub(super) milli: Option<u64>,
}

/// The quotas of the containers that kubelet gave exclusive CPUs; `root` is `/`. A container is found by the `cpuset.cpus` of its cgroup: an entry
/// has the container's name, which only root reads.
///
/// # Errors
/// Why a quota is not known.
pub(super) fn read_quotas(root: &Path, state: &CpuManagerState) -> Result<Vec<Quota>, String> {
    let cgroups = KernelCgroups::new(root.join("sys/fs/cgroup"));
    let mut quotas = Vec::new();
    for (pod, entries) in &state.entries {
        for (whole, _) in pod_containers(&cgroups, pod).map_err(|error| error.to_string())? {
            let own = read_cpus(&cgroups, &whole, File::Cpus).unwrap_or_default();
            let Some(cpus) = entries.values().find(|cpus| !cpus.is_empty() && **cpus == own) else {
                continue;
            };
            // With crun a quota is written to both.
            let subgroup = whole.child(ContainerCgroup::SUBGROUP);
            let cgroup = if cgroups.exists(&subgroup) { subgroup } else { whole };
            let levels = container_levels(&cgroup);
            let (cpus, cgroup) = (cpus.len() as u64, cgroup.to_string());
            let milli = least_limit_milli(&cgroups, levels).map_err(|error| error.to_string())?;
            quotas.push(Quota { cgroup, cpus, milli });
        }
    }
    Ok(quotas)
}

/// Containers whose CPU quota is below their exclusive CPUs, as crun before 1.22 writes it where kubelet sets none.
pub(super) fn quotas(facts: &Facts, _: &CpuManagerState) -> Finding {
    let quotas = match &facts.quotas {
        Ok(quotas) => quotas,
        Err(why) => return note(format!("cannot read the CPU quotas of containers: {why}")),
    };
    let low = quotas.iter().filter_map(|quota| {
        let milli = quota.milli.filter(|milli| *milli < quota.cpus.saturating_mul(1000))?;
        let (cgroup, cpus, percent) = (&quota.cgroup, counted(quota.cpus, "CPU"), milli / 10);
        Some(format!("{cgroup} has {cpus} and a quota of {percent} % of a CPU"))
    });
    let fix = "restart these containers; if the quota is 1 %, install crun 1.22 or newer, or use runc, before (containers/crun issue 1794)";
    warn_of(low, fix, "no CPU quota is below the exclusive CPUs of its container")
}

/// A finding for each VM with remote memory or devices, or one if there is none.
pub(super) fn locality(facts: &Facts) -> Vec<Finding> {
    let Some(described) = &facts.described else {
        return vec![skip(DAEMON)];
    };
    let localities = &described.locality;
    let mut findings = Vec::new();
    for (pod, vm) in &localities.instances {
        let memory = vm.memory_problem();
        let fix = match memory {
            Some(_) => vm.memory_cure(),
            None => "set a topologyManagerPolicy other than none, then restart the container (/usr/share/doc/steliad/locality.md)".to_owned(),
        };
        let problems: Vec<String> = memory.into_iter().chain(vm.devices_problem()).collect();
        if !problems.is_empty() {
            findings.push(warn(format!("{pod}: {}", problems.join("; "))).fix(fix));
        }
        if let Some(attached) = vm.attached_note() {
            let fix = "set memoryManagerPolicy: Static and reserve all memory of these nodes (/usr/share/doc/steliad/locality.md)";
            findings.push(note(format!("{pod}: {attached}")).fix(fix));
        }
    }
    if let Some(why) = &localities.devices_unknown {
        let fix =
            "run steliactl doctor as root; if the checksum is wrong, drain the node, remove the file, restart kubelet";
        findings.push(warn(format!("cannot read where devices are: {why}")).fix(fix));
    }
    if findings.is_empty() {
        let count = counted(localities.instances.len() as u64, "VM");
        findings.push(pass(format!("{count}, none with remote memory or devices")));
    }
    findings
}
