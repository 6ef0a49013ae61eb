//! The checks: functions of the facts, each with a cure.

use serde::Serialize;
use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::hierarchy::CONTROLLERS;
use stelia_kernel::kernel_release::isolated_is_safe;
use stelia_koordinator::allocator::{CpuSource, guaranteed};

use super::merge::merge;
use super::start::{CORRECT, hidden_policy, start};
use super::{
    Check, Facts, Verdict, cgroups, config, cores, crun, device_plugin, dra, home, interrupts, ledger, locality, noise,
    publish, scheduler_settings, vm_memory,
};

/// The first version with everything that is used: `Type=notify` with `ExecReload=`, scopes by pidfd where it has them.
const MIN_SYSTEMD_VERSION: u32 = 252;

type NamedCheck = (&'static str, fn(&Facts) -> Finding);

/// The checks by name, the most basic first.
const CHECKS: [NamedCheck; 29] = [
    ("cgroup", cgroup),
    ("kernel", kernel),
    ("systemd", systemd),
    ("kvm", kvm),
    ("kubelet-home", home::check),
    ("kubelet-config", config::check),
    ("kubelet-cgroups", cgroups::check),
    ("kubelet-policy", policy),
    ("dra-driver", dra::check),
    ("crun", crun::check),
    ("kubelet-state", state),
    ("kubelet-start", start),
    ("hint-merge", merge),
    ("cpus", cores::check),
    ("whole-cores", cores::whole),
    ("core-scheduling", scheduler_settings::core_scheduling),
    ("numa-balancing", scheduler_settings::numa_balancing),
    ("sched-ext", scheduler_settings::sched_ext),
    ("isolcpus", scheduler_settings::isolcpus),
    ("offline", offline),
    ("quiet", interrupts::unit),
    ("irq-steering", interrupts::steering),
    ("irqbalance", interrupts::irqbalance),
    ("ledger", ledger::check),
    ("publish", publish::check),
    ("device-plugin", device_plugin::check),
    ("vm-memory", vm_memory::check),
    ("runner-socket", socket),
    ("daemon", daemon),
];

/// Runs all checks.
pub(super) fn checks(facts: &Facts) -> Vec<Check> {
    let basic = CHECKS.iter().map(|(name, check)| (*name, check(facts)));
    let localities = locality::checks(&facts.localities).into_iter();
    let all = basic.chain(localities.map(|finding| ("locality", finding)));
    let all = all.chain(noise::checks(facts));
    all.map(|(check, finding)| Check { check, finding }).collect()
}

/// What is found where the daemon would have to say it.
pub(super) const NO_ANSWER: &str = "not known: steliad does not answer";

/// What a check found, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) verdict: Verdict,
    pub(super) found: String,
    /// What to do; empty when the check passed.
    pub(super) cure: String,
}

fn finding(verdict: Verdict, found: impl Into<String>, cure: impl Into<String>) -> Finding {
    let (found, cure) = (found.into(), cure.into());
    Finding { verdict, found, cure }
}

pub(super) fn ok(found: impl Into<String>) -> Finding {
    finding(Verdict::Ok, found, "")
}

/// Neither good nor bad: what would decide it cannot be had.
pub(super) fn unknown(found: impl Into<String>) -> Finding {
    finding(Verdict::Unknown, found, "")
}

pub(super) fn advice(found: impl Into<String>, cure: impl Into<String>) -> Finding {
    finding(Verdict::Advice, found, cure)
}

pub(super) fn warning(found: impl Into<String>, cure: impl Into<String>) -> Finding {
    finding(Verdict::Warning, found, cure)
}

pub(super) fn failed(found: impl Into<String>, cure: impl Into<String>) -> Finding {
    finding(Verdict::Failed, found, cure)
}

fn cgroup(facts: &Facts) -> Finding {
    if let Some(unfit) = &facts.unfit {
        return failed(
            unfit,
            "boot with systemd.unified_cgroup_hierarchy=1 on the kernel's command line; kubelet and the runtime must use cgroup v2 too. Until then steliad.service is skipped, and runners find no daemon",
        );
    }
    let Some(controllers) = &facts.controllers else {
        return failed(
            "/sys/fs/cgroup is not a cgroup v2 mount",
            "boot with systemd.unified_cgroup_hierarchy=1 (and without cgroup_no_v1=... remnants); kubelet and the runtime must use it too",
        );
    };
    let missing: Vec<&str> = CONTROLLERS
        .into_iter()
        .filter(|wanted| !controllers.iter().any(|has| has == wanted))
        .collect();
    if missing.is_empty() {
        return ok(format!("cgroup v2 with {}", CONTROLLERS.join(", ")));
    }
    failed(
        format!("controllers missing: {}", missing.join(", ")),
        "a cgroup v1 hierarchy holds them, or cgroup_disable= on the kernel's command line: remove it and reboot",
    )
}

/// major.minor of a kernel release.
fn release(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn kernel(facts: &Facts) -> Finding {
    let found = &facts.kernel;
    // Remote partitions came with Linux 6.7; a distribution may have backported them.
    let has = facts.exclusive.or_else(|| Some(release(found)? >= (6, 7)));
    // A folder that is not a whole node need not have the kernel's release.
    let found = match found.as_str() {
        "" => "a kernel of unknown release",
        release => release,
    };
    let Some(has) = has else {
        return unknown(format!("{found}: whether it has cpuset.cpus.exclusive is not known"));
    };
    if has {
        let kind = if isolated_is_safe(found) {
            "isolated"
        } else {
            "root, since isolated ones could stop this kernel (kernels.md)"
        };
        return ok(format!(
            "{found}: partitions take CPUs from everything else, of kind {kind}"
        ));
    }
    warning(
        format!("{found}: no cpuset.cpus.exclusive"),
        "VMs will be pinned, not isolated (README, \"What it does by itself\"); isolation needs Linux 6.7 or later",
    )
}

fn systemd(facts: &Facts) -> Finding {
    match facts.systemd {
        Some(version) if version >= MIN_SYSTEMD_VERSION => ok(version.to_string()),
        Some(version) => failed(
            version.to_string(),
            format!("version {MIN_SYSTEMD_VERSION} or later is needed"),
        ),
        None => failed("not found", "steliad manages its cgroups through systemd"),
    }
}

/// Only a warning: QEMU emulates without it, far too slowly for use.
fn kvm(facts: &Facts) -> Finding {
    if facts.kvm {
        return ok("/dev/kvm");
    }
    let cure = match facts.virtualization {
        Some(true) => "modprobe kvm_intel or kvm_amd; the kernel's log says why a module refuses",
        Some(false) => {
            "switch on VT-x or AMD-V in the firmware; where this host is a VM, nested virtualization in the hypervisor below"
        }
        None => {
            "a kernel with CONFIG_KVM that the firmware starts at exception level 2, which the kernel's log says (\"kvm\"); in a cloud, \
             a bare-metal instance"
        }
    };
    warning(
        "/dev/kvm is not there: QEMU can only emulate guests, and pods with stelia.io/vm are refused",
        cure,
    )
}

fn policy(facts: &Facts) -> Finding {
    if facts.allocator.source == CpuSource::Steliad {
        return own_policy(facts);
    }
    if let Some(unknown) = hidden_policy(facts) {
        return unknown;
    }
    match &facts.kubelet {
        Err(unread) if unread.keeps_kubelet_from_starting => failed(unread.to_string(), CORRECT),
        Err(unread) => failed(
            unread.to_string(),
            "steliad acts on what kubelet decides: start kubelet if none runs; if it runs, this problem keeps its settings from \
             being known (/usr/share/doc/steliad/kubelet.md)",
        ),
        Ok(kubelet) if kubelet.cpu_manager_policy != "static" => failed(
            format!("cpuManagerPolicy: {}", kubelet.cpu_manager_policy),
            "set cpuManagerPolicy: static (/usr/share/doc/steliad/examples/kubelet-config.yaml), drain the node, remove cpu_manager_state, start kubelet",
        ),
        Ok(kubelet) => {
            let reserved = &kubelet.reserved_system_cpus;
            if reserved.is_empty() {
                return warning(
                    "cpuManagerPolicy: static, no reservedSystemCPUs",
                    "set reservedSystemCPUs to whole cores, so that floating threads and the system always have the same CPUs",
                );
            }
            ok(format!(
                "static, reserved {reserved}, topology manager {}",
                kubelet.topology_manager_policy
            ))
        }
    }
}

/// Where steliad chooses the CPUs kubelet may have the policy none, or be absent.
fn own_policy(facts: &Facts) -> Finding {
    let kubelets = facts
        .kubelet
        .as_ref()
        .ok()
        .map(|kubelet| kubelet.cpu_manager_policy.as_str());
    let reserved = &facts.allocator.reserved;
    let state = facts.state.as_ref().ok();
    let others = state.map(|state| format!("; {}", guaranteed(state, &CpuSet::new()).in_words()));
    let others = others.unwrap_or_default();
    if kubelets == Some("static") {
        return warning(
            format!(
                "cpu-source is steliad, and kubelet's cpuManagerPolicy is static: it may give a new pod CPUs that VMs have{others}"
            ),
            "finish the take-over (allocator.md): cpuManagerPolicy: none, remove cpu_manager_state, start kubelet; running pods keep \
             their CPUs. Keep static if Guaranteed pods that are not VMs need exclusive CPUs",
        );
    }
    if reserved.is_empty() {
        return warning(
            "cpu-source is steliad, no reserved-cpus",
            "set reserved-cpus to whole cores, so that floating threads and the system always have the same CPUs",
        );
    }
    let kubelet = kubelets.map_or("no kubelet".to_owned(), |policy| format!("kubelet's policy {policy}"));
    ok(format!("cpu-source steliad, {kubelet}, reserved {reserved}{others}"))
}

fn state(facts: &Facts) -> Finding {
    match &facts.state {
        Err(error) => failed(
            error,
            "see /usr/share/doc/steliad/troubleshooting.md; until the file can be used, no VM is admitted and floats keep their CPUs",
        ),
        Ok(state) => {
            let found = format!("shared pool {}, exclusive {}", state.shared_pool(), state.assigned());
            if let Some((pod, container, cpus)) = state.overlap() {
                return failed(
                    format!(
                        "{found}; CPUs {cpus} of {pod}/{container} are in the default set too, and kubelet does not start with this file"
                    ),
                    "drain the node, stop kubelet, remove cpu_manager_state, start kubelet",
                );
            }
            if state.unknown_keys.is_empty() {
                ok(found)
            } else {
                warning(
                    format!("{found}; not known: {}", state.unknown_keys.join(", ")),
                    "kubelet is newer than this steliad, which reads the entries and ignores these keys: upgrade steliad",
                )
            }
        }
    }
}

fn offline(facts: &Facts) -> Finding {
    if facts.offline.is_empty() {
        return ok("none");
    }
    let lost = facts
        .state
        .as_ref()
        .map(|state| state.assigned().intersection(&facts.offline))
        .unwrap_or_default();
    if lost.is_empty() {
        return ok(facts.offline.to_string());
    }
    failed(
        format!("{lost} belong to pods"),
        "set them online: echo 1 > /sys/devices/system/cpu/cpuN/online; until then their VMs float or share CPUs",
    )
}

fn socket(facts: &Facts) -> Finding {
    if facts.socket {
        return ok("/run/stelia/runner/socket");
    }
    failed(
        "/run/stelia/runner/socket is not there",
        "systemctl enable --now steliad-runner.socket",
    )
}

/// It needs no daemon to be fit: the socket, kubelet's next change and every call start it.
fn daemon(facts: &Facts) -> Finding {
    if facts.daemon {
        return ok("runs");
    }
    warning(
        "steliad does not run: nothing is repaired meanwhile",
        "systemctl start steliad; if it ends again, journalctl -u steliad",
    )
}
