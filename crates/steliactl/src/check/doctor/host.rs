//! Checks of the kernel, systemd and the CPUs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::hierarchy::CONTROLLERS;
use stelia_kernel::kernel_release::isolated_is_safe;
use stelia_kubelet::{CpuManagerState, KubeletConfig};

use super::{COMMAND_LINE, CONTROLLER_NAMES, CheckResult, KVM, NO_VMS, Observed, RELEASE, fail, note, pass, warn};
use crate::shared::output::counted;

/// The first version with everything that is used: `Type=notify` with `ExecReload=`, scopes by pidfd where it has them.
const MIN_SYSTEMD_VERSION: u32 = 252;

pub(super) fn cgroup(seen: &Observed) -> CheckResult {
    let has = seen.text(CONTROLLER_NAMES);
    let is_there = |name: &str| has.split_whitespace().any(|one| one == name);
    let missing: Vec<&str> = CONTROLLERS.into_iter().filter(|name| !is_there(name)).collect();
    if missing.is_empty() {
        return pass(format!("cgroup v2 with {}", CONTROLLERS.join(", ")));
    }
    fail(
        format!("/sys/fs/cgroup has no cgroup v2 controllers {}", missing.join(", ")),
        NO_VMS,
        "boot with systemd.unified_cgroup_hierarchy=1 and without cgroup_disable= and cgroup_no_v1=; use cgroup v2 in kubelet and the runtime",
    )
}

/// Remote partitions came with Linux 6.7; a distribution may have backported them.
pub(super) fn kernel(seen: &Observed) -> CheckResult {
    let release = seen.text(RELEASE);
    let kernel = if release.is_empty() {
        "release not known"
    } else {
        release
    };
    match seen.has_exclusive {
        None => note(format!("{kernel}: no cgroup has the cpuset controller yet"), "", ""),
        Some(true) if release.is_empty() => note("release and partition type not known", "", ""),
        Some(true) if isolated_is_safe(kernel) => pass(format!("{kernel}; partition type: isolated")),
        Some(true) => pass(format!(
            "{kernel}; partition type: root (isolated can hang this kernel)"
        )),
        Some(false) => {
            let fact = format!("{kernel} has no cpuset.cpus.exclusive");
            warn(fact, "VMs are pinned, not isolated", "install Linux 6.7 or newer")
        }
    }
}

/// Whether cgroups have `cpuset.cpus.exclusive`; `None`: none has the cpuset controller.
pub(super) fn has_exclusive(root: &Path) -> Option<bool> {
    // The root cgroup does not have the file, so it is looked for in any child with a cpuset.
    let partition = matching(root, "sys/fs/cgroup/*/cpuset.cpus.partition").next();
    partition.map(|path| path.with_file_name("cpuset.cpus.exclusive").exists())
}

/// The files below `root` that a pattern fits.
fn matching(root: &Path, pattern: &str) -> impl Iterator<Item = PathBuf> {
    let found = glob::glob(&root.join(pattern).to_string_lossy());
    found.into_iter().flatten().flatten()
}

/// PID 1 maps `libsystemd-shared-<version>[.suffix].so`.
pub(crate) fn version_of_systemd(root: &Path) -> Option<u32> {
    let everywhere = matching(root, "usr/lib*/systemd/libsystemd-shared-*");
    let mut libraries = everywhere.chain(matching(root, "usr/lib/*-linux-gnu/systemd/libsystemd-shared-*"));
    libraries.find_map(|path| {
        let version = path.file_name()?.to_str()?.strip_prefix("libsystemd-shared-")?;
        version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    })
}

pub(super) fn systemd(seen: &Observed) -> CheckResult {
    let version = seen.systemd;
    let found = version.map_or("not found".to_owned(), |version| version.to_string());
    if version >= Some(MIN_SYSTEMD_VERSION) {
        return pass(found);
    }
    let fix = format!("boot with systemd {MIN_SYSTEMD_VERSION} or newer");
    fail(found, NO_VMS, fix)
}

/// Only a warning: QEMU emulates without it, far too slowly for use.
pub(super) fn kvm(seen: &Observed) -> CheckResult {
    if seen.has(KVM) {
        return pass("/dev/kvm");
    }
    warn(
        "/dev/kvm is missing",
        "QEMU can only emulate, and pods with stelia.io/vm are refused",
        "modprobe kvm_intel or kvm_amd; if that fails, switch on virtualization in the firmware (arm64: exception level 2), or nested \
         virtualization in the hypervisor",
    )
}

/// How many there are, and whether kubelet keeps cores whole.
pub(super) fn cpus(seen: &Observed) -> CheckResult {
    let topology = match &seen.topology {
        Ok(topology) => topology,
        Err(error) => return fail(error, "", "make /sys/devices/system/cpu readable"),
    };
    let all = topology.cpus.values();
    let cores: BTreeSet<(u32, u32)> = all.clone().map(|cpu| (cpu.package, cpu.core)).collect();
    let nodes = all.clone().map(|cpu| cpu.node).collect::<BTreeSet<u32>>();
    let counts = [(all.len(), "CPU"), (cores.len(), "core"), (nodes.len(), "NUMA node")];
    let found = counts.map(|(count, what)| counted(count as u64, what)).join(", ");
    let splits =
        |kubelet: &KubeletConfig| kubelet.cpu_manager_policy == "static" && !kubelet.cpu_option("full-pcpus-only");
    if cores.len() < topology.cpus.len() && seen.kubelet.as_ref().is_ok_and(splits) {
        return warn(
            format!("{found}; full-pcpus-only is not set"),
            "a VM can share a core with another pod",
            "set cpuManagerPolicyOptions: {full-pcpus-only: \"true\"}, then recreate the VMs' pods",
        );
    }
    pass(found)
}

/// The CPU lists of the `isolcpus=` parameters that take CPUs out of load balancing. Such a parameter has the flag domain, or no flag. A flag
/// begins with a letter; the lists `all` and `N` do too.
fn isolcpus_of(cmdline: &str) -> Vec<&str> {
    let words = cmdline.split_whitespace();
    let mut lists = Vec::new();
    for value in words.filter_map(|word| word.strip_prefix("isolcpus=")) {
        let is_flag = |part: &&str| part.starts_with(|c: char| c.is_ascii_lowercase()) && *part != "all";
        let parts = value.split(',').filter(|part| !part.is_empty());
        let (flags, own): (Vec<&str>, Vec<&str>) = parts.partition(is_flag);
        if flags.is_empty() || flags.contains(&"domain") {
            lists.extend(own);
        }
    }
    lists
}

/// Whether `isolcpus=` takes CPUs out of the scheduler's balancing. The list in /sys includes those of partitions.
pub(super) fn isolcpus(seen: &Observed) -> CheckResult {
    const FIX: &str = "remove isolcpus= from the kernel's command line, reboot; partitions replace it";
    let lists = isolcpus_of(seen.text(COMMAND_LINE));
    if lists.is_empty() {
        return pass("not set");
    }
    let plain = lists.iter().filter_map(|list| list.parse::<CpuSet>().ok());
    let (given, cpus) = (lists.join(","), plain.fold(CpuSet::new(), |all, some| all.union(&some)));
    let state = seen.state();
    let shared = match &seen.topology {
        Ok(topology) if seen.allocator.source.allocates() => {
            let assigned = state.map(CpuManagerState::assigned);
            topology.online().difference(&assigned.unwrap_or_default())
        }
        _ => state.map(CpuManagerState::shared_pool).unwrap_or_default(),
    };
    let unbalanced = cpus.intersection(&shared);
    if unbalanced.is_empty() {
        return warn(format!("isolcpus={given} is not needed"), "", FIX);
    }
    let fact = format!("isolcpus={given} has the shared CPUs {unbalanced}");
    let effect = "the kernel does not balance load there: threads gather on one of them";
    fail(fact, effect, FIX)
}
