//! Settings of the kernel's scheduler other than cpusets, and what they cost VMs: automatic NUMA balancing, core scheduling, a
//! scheduler of sched_ext, CPUs that it does not balance (isolcpus=).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use stelia_cpus::{CpuSet, Topology};
use stelia_kernel::locality::{Locality, NodeMemory, size};
use stelia_kernel::proc::allowed;
use stelia_koordinator::allocator::CpuSource;

use super::Facts;
use super::checks::{Finding, failed, ok, unknown, warning};
use crate::shared::kernel::numbered;

/// From this much memory on a VM counts as large, in bytes.
pub(crate) const LARGE_VM_BYTES: u64 = 32 << 30;

/// Whether the kernel balances tasks and memory between NUMA nodes; `proc` is `/proc`.
pub(crate) fn numa_balances(proc: &Path) -> bool {
    let setting = fs::read_to_string(proc.join("sys/kernel/numa_balancing")).unwrap_or_default();
    !matches!(setting.trim(), "" | "0")
}

/// Settings of the scheduler.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Scheduling {
    /// Whether the kernel balances tasks and memory between NUMA nodes.
    pub(crate) numa_balancing: bool,
    /// Whether the kernel knows core scheduling (CONFIG_SCHED_CORE); `None`: unknown.
    pub(crate) core_scheduling: Option<bool>,
    /// Processes of Cloud Hypervisor with core scheduling, its default, and the CPUs that their vCPUs may run on.
    pub(crate) with_cookies: BTreeMap<i32, CpuSet>,
    /// The scheduler of sched_ext that is loaded, by its name.
    pub(crate) extension: Option<String>,
}

impl Scheduling {
    /// Reads it; `root` is `/`.
    pub(super) fn read(root: &Path, kernel: &str) -> Self {
        let proc = root.join("proc");
        let text = |path: &Path| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let extension = root.join("sys/kernel/sched_ext");
        let name = || match text(&extension.join("root/ops")) {
            name if name.is_empty() => "of no known name".to_owned(),
            name => name,
        };
        let state = text(&extension.join("state"));
        Self {
            numa_balancing: numa_balances(&proc),
            core_scheduling: has_core_scheduling(root, kernel),
            with_cookies: with_cookies(&proc),
            extension: (!matches!(state.as_str(), "" | "disabled")).then(name),
        }
    }
}

/// By the configuration that a distribution keeps beside its kernel.
fn has_core_scheduling(root: &Path, kernel: &str) -> Option<bool> {
    let places = [format!("boot/config-{kernel}"), format!("lib/modules/{kernel}/config")];
    let text = places
        .iter()
        .find_map(|place| fs::read_to_string(root.join(place)).ok())?;
    Some(text.lines().any(|line| line == "CONFIG_SCHED_CORE=y"))
}

/// Cloud Hypervisor gives each VM a cookie of its own unless it is told not to (`--cpus core_scheduling=off`).
fn with_cookies(proc: &Path) -> BTreeMap<i32, CpuSet> {
    let of_vmm = numbered(proc).filter(|(_, path)| {
        let comm = fs::read_to_string(path.join("comm")).unwrap_or_default();
        let command = fs::read(path.join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).into_owned();
        let off = |argument: &str| argument.split(',').any(|word| word == "core_scheduling=off");
        comm.starts_with("cloud-hyperviso") && !command.split('\0').any(off)
    });
    of_vmm
        .map(|(pid, path)| (pid, vcpus_allowed(&path)))
        .filter(|(_, cpus)| !cpus.is_empty())
        .collect()
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

/// Whether the kernel's balancing between NUMA nodes has something to do with a VM: it has CPUs of several, or so much memory
/// that looking through it is felt.
pub(crate) fn is_large(locality: &Locality) -> bool {
    let memory = locality.memory.values().map(NodeMemory::counted).sum::<u64>();
    locality.nodes.len() > 1 || memory >= LARGE_VM_BYTES
}

/// Automatic NUMA balancing unmaps pages to see who uses them, which KVM has to follow for each range of a guest's memory.
pub(super) fn numa_balancing(facts: &Facts) -> Finding {
    if !facts.scheduling.numa_balancing {
        return ok("off");
    }
    let nodes: BTreeSet<u32> = match &facts.topology {
        Ok(topology) => topology.cpus.values().map(|cpu| cpu.node).collect(),
        Err(_) => BTreeSet::new(),
    };
    let large = facts
        .localities
        .instances
        .iter()
        .filter(|(_, locality)| is_large(locality));
    let large: Vec<&str> = large.map(|(pod, _)| pod.as_str()).collect();
    if nodes.len() < 2 {
        return ok("on; this host has one NUMA node".to_owned());
    }
    if large.is_empty() {
        return ok(format!(
            "on; no VM here has CPUs of several NUMA nodes, or {} of memory",
            size(LARGE_VM_BYTES)
        ));
    }
    warning(
        format!("on, with large VMs: {}", large.join(", ")),
        "sysctl kernel.numa_balancing=0, and in /etc/sysctl.d: vCPUs stay on their CPUs, so it can only move memory, and it stops the guest at \
         each scan",
    )
}

/// The siblings of a set's CPUs that are not in it.
fn foreign(topology: &Topology, cpus: &CpuSet) -> CpuSet {
    let siblings = cpus
        .iter()
        .flat_map(|cpu| topology.siblings(cpu).iter().collect::<Vec<_>>());
    siblings.collect::<CpuSet>().difference(cpus)
}

/// With a cookie a vCPU shares its core with nobody else: while it runs, a sibling that has another task stands idle, and the other
/// way round. Where a VM has whole cores that costs nothing.
pub(super) fn core_scheduling(facts: &Facts) -> Finding {
    let Ok(topology) = &facts.topology else {
        return unknown("not known: the CPU topology is not known");
    };
    let with_cookies = &facts.scheduling.with_cookies;
    if facts.scheduling.core_scheduling == Some(false) {
        return ok("this kernel has none");
    }
    let split = with_cookies.iter().filter_map(|(pid, cpus)| {
        let foreign = foreign(topology, cpus);
        (!foreign.is_empty()).then(|| format!("process {pid} on {cpus}, siblings {foreign}"))
    });
    let split: Vec<String> = split.collect();
    if split.is_empty() {
        return ok(match with_cookies.len() {
            0 => "no VM uses it".to_owned(),
            count => format!("{count} VMs, which have whole cores"),
        });
    }
    warning(
        format!("Cloud Hypervisor's default, without whole cores: {}", split.join("; ")),
        "whole cores for such VMs (full-pcpus-only of kubelet, FullPCPUs of steliad), or --cpus core_scheduling=off: a sibling with a task of \
         others is forced idle while a vCPU runs, and a vCPU while the other runs",
    )
}

/// It decides in place of the kernel's own scheduler which of the ordinary tasks runs, on every CPU.
pub(super) fn sched_ext(facts: &Facts) -> Finding {
    match &facts.scheduling.extension {
        None => ok("none is loaded"),
        Some(name) => warning(
            format!("{name} schedules the tasks of this node, VMs' vCPUs too"),
            "stop it (systemctl stop scx, or the program that loaded it), unless it was measured with these VMs: cpusets hold, but who runs next \
             on a CPU, and how long a vCPU waits, is its decision",
        ),
    }
}

pub(super) fn isolcpus(facts: &Facts) -> Finding {
    let Ok(state) = &facts.state else {
        return if facts.isolcpus.is_empty() {
            ok("not set")
        } else {
            warning(facts.isolcpus.to_string(), "see /usr/share/doc/steliad/isolcpus.md")
        };
    };
    let shared = match (facts.allocator.source, &facts.topology) {
        (CpuSource::Steliad, Ok(topology)) => topology.online().difference(&state.assigned()),
        _ => state.shared_pool(),
    };
    let unbalanced = facts.isolcpus.intersection(&shared);
    if !unbalanced.is_empty() {
        return failed(
            format!(
                "isolcpus={} of which {unbalanced} are in the shared pool",
                facts.isolcpus
            ),
            "the kernel does not balance load there, so floating threads would gather on one CPU: remove isolcpus= from the kernel's command line and reboot; partitions replace it",
        );
    }
    if !facts.isolcpus.is_empty() {
        return warning(
            facts.isolcpus.to_string(),
            "not needed: partitions isolate the CPUs that VMs have now, and only those",
        );
    }
    ok("not set")
}
