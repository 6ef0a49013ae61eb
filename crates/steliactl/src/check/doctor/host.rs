//! Checks of the kernel, systemd and the CPUs.

use std::collections::BTreeSet;

use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::hierarchy::CONTROLLERS;
use stelia_kernel::kernel_release::isolated_is_safe;
use stelia_koordinator::allocator::CpuSource;
use stelia_kubelet::KubeletConfig;

use super::noise::domain_cpus;
use super::{Facts, Finding, fail, note, pass, warn};
use crate::shared::output::counted;

/// The first version with everything that is used: `Type=notify` with `ExecReload=`, scopes by pidfd where it has them.
const MIN_SYSTEMD_VERSION: u32 = 252;

pub(super) fn cgroup(facts: &Facts) -> Finding {
    let unmounted = || Some("/sys/fs/cgroup is not a cgroup v2 mount".to_owned());
    let unfit = facts.unfit.clone();
    if let Some(unfit) = unfit.or_else(|| facts.controllers.is_none().then(unmounted).flatten()) {
        return fail(unfit).fix("boot with systemd.unified_cgroup_hierarchy=1 and without cgroup_no_v1=; use cgroup v2 in kubelet and the runtime");
    }
    let has = facts.controllers.iter().flatten();
    let has: BTreeSet<&str> = has.map(String::as_str).collect();
    let missing: Vec<&str> = CONTROLLERS.into_iter().filter(|name| !has.contains(name)).collect();
    if missing.is_empty() {
        return pass(format!("cgroup v2 with {}", CONTROLLERS.join(", ")));
    }
    fail(format!("controllers missing: {}", missing.join(", ")))
        .fix("remove cgroup_disable= from the kernel's command line, unmount cgroup v1 hierarchies, reboot")
}

/// major.minor of a kernel release.
fn release(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

pub(super) fn kernel(facts: &Facts) -> Finding {
    // A folder that is not a whole node need not have the kernel's release.
    let found = match facts.kernel.as_str() {
        "" => "unknown release",
        release => release,
    };
    // Remote partitions came with Linux 6.7; a distribution may have backported them.
    match facts.exclusive.or_else(|| Some(release(found)? >= (6, 7))) {
        None => note(format!("{found}: cannot tell whether it has cpuset.cpus.exclusive")),
        Some(true) if isolated_is_safe(found) => pass(format!("{found}; partition type: isolated")),
        Some(true) => pass(format!("{found}; partition type: root (isolated can hang this kernel)")),
        Some(false) => warn(format!(
            "{found}: no cpuset.cpus.exclusive, so VMs are pinned, not isolated"
        ))
        .fix("install Linux 6.7 or newer"),
    }
}

pub(super) fn systemd(facts: &Facts) -> Finding {
    match facts.systemd {
        Some(version) if version >= MIN_SYSTEMD_VERSION => pass(version.to_string()),
        Some(version) => fail(version.to_string()).fix(format!("install systemd {MIN_SYSTEMD_VERSION} or newer")),
        None => fail("not found").fix("boot with systemd, which manages steliad's cgroups"),
    }
}

/// Only a warning: QEMU emulates without it, far too slowly for use.
pub(super) fn kvm(facts: &Facts) -> Finding {
    if facts.kvm {
        return pass("/dev/kvm");
    }
    let fix = match facts.virtualization {
        Some(true) => "modprobe kvm_intel or kvm_amd; if that fails, see dmesg",
        Some(false) => "switch on VT-x or AMD-V in the firmware; of a VM, nested virtualization in its hypervisor",
        None => {
            "boot a kernel with CONFIG_KVM at exception level 2 (dmesg says at which it runs); in a cloud, use a bare-metal instance"
        }
    };
    warn("/dev/kvm is missing: QEMU can only emulate, and pods with stelia.io/vm are refused").fix(fix)
}

/// How many there are, and whether kubelet can keep cores whole.
pub(super) fn cpus(facts: &Facts) -> Finding {
    let topology = match &facts.topology {
        Ok(topology) => topology,
        Err(error) => return fail(error).fix("make /sys/devices/system/cpu readable"),
    };
    let cpus = topology.cpus.values();
    let nodes: BTreeSet<u32> = cpus.clone().map(|cpu| cpu.node).collect();
    let cores: BTreeSet<(u32, u32)> = cpus.clone().map(|cpu| (cpu.package, cpu.core)).collect();
    // kubelet takes the siblings on each NUMA node for a core.
    let kubelets: BTreeSet<(u32, u32, u32)> = cpus.map(|cpu| (cpu.node, cpu.package, cpu.core)).collect();
    let found = format!(
        "{}, {}, {}",
        counted(topology.cpus.len() as u64, "CPU"),
        counted(cores.len() as u64, "core"),
        counted(nodes.len() as u64, "NUMA node")
    );
    if kubelets.len() > cores.len() {
        return warn(format!(
            "{found}; siblings are on different NUMA nodes, so kubelet sees {} cores and full-pcpus-only splits them",
            kubelets.len()
        ))
        .fix("correct the NUMA topology in the firmware, or in the hypervisor that this node is a VM of");
    }
    let splits =
        |kubelet: &KubeletConfig| kubelet.cpu_manager_policy == "static" && !kubelet.cpu_option("full-pcpus-only");
    if cores.len() < topology.cpus.len() && facts.kubelet.as_ref().is_ok_and(splits) {
        return warn(format!(
            "{found}; without full-pcpus-only a VM can share a core with another pod"
        ))
        .fix("set cpuManagerPolicyOptions: {full-pcpus-only: \"true\"}");
    }
    pass(found)
}

pub(super) fn offline(facts: &Facts) -> Finding {
    let assigned = facts.state.as_ref().map(|state| state.assigned()).unwrap_or_default();
    let lost = assigned.intersection(&facts.offline);
    match facts.offline.to_string() {
        _ if !lost.is_empty() => fail(format!("CPUs {lost} of pods are offline: their VMs share CPUs"))
            .fix("echo 1 > /sys/devices/system/cpu/cpuN/online"),
        none if none.is_empty() => pass("none"),
        some => pass(some),
    }
}

/// It decides in place of the kernel's own scheduler which of the ordinary tasks runs, on every CPU.
pub(super) fn sched_ext(facts: &Facts) -> Finding {
    match &facts.sched_ext {
        None => pass("not loaded"),
        Some(name) => warn(format!("{name} schedules all tasks, vCPUs too; cpusets still hold"))
            .fix("systemctl stop scx, unless you have measured it with these VMs"),
    }
}

pub(super) fn isolcpus(facts: &Facts) -> Finding {
    let given = domain_cpus(&facts.cmdline);
    let shared = match (&facts.state, facts.allocator.source, &facts.topology) {
        (Err(_), ..) => CpuSet::new(),
        (Ok(state), CpuSource::Steliad, Ok(topology)) => topology.online().difference(&state.assigned()),
        (Ok(state), ..) => state.shared_pool(),
    };
    let unbalanced = given.intersection(&shared);
    const FIX: &str = "remove isolcpus= from the kernel's command line, reboot; partitions replace it";
    if !unbalanced.is_empty() {
        return fail(format!(
            "isolcpus={given}: the kernel does not balance load on the shared CPUs {unbalanced}"
        ))
        .fix(FIX);
    }
    if given.is_empty() {
        pass("not set")
    } else {
        warn(format!("isolcpus={given} is not needed")).fix(FIX)
    }
}
