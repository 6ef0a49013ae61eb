//! Checks of steliad's own services: what the daemon says of the node, interrupts and the ledger, and whether kubelet has the node's VMs
//! as devices (`stelia-device-plugin`).

use stelia_api::quiet::Irqbalance;
use stelia_api::{Reason, ReasonCode};

use super::kubelet::OF_FILE;
use super::{CheckResult, Diagnosis, Observed, Outcome, SOCKET, TRACING, diagnosis, fail, note, pass, warn};
use crate::check::noise::{NOT_REPORTED, START, STEER};
use crate::shared::daemon::{Failure, is_reported};
use crate::shared::output::counted;

const JOURNAL: &str = "journalctl -u steliad";

/// The daemon's words.
pub(super) fn reported(reason: &Reason) -> Diagnosis {
    let outcome = match reason.code {
        ReasonCode::KubeletUnusable | ReasonCode::NoSharedCpus | ReasonCode::SystemdSilent => Outcome::Fail,
        _ => Outcome::Warn,
    };
    let fix = match reason.fix.as_str() {
        "run steliactl doctor" => "see /usr/share/doc/steliad/troubleshooting.md",
        fix => fix,
    };
    diagnosis(outcome, &reason.text, reason.code.effect(), fix)
}

/// What the daemon says is wrong on the node, but for kubelet's file.
pub(super) fn problems(seen: &Observed) -> impl Iterator<Item = Diagnosis> {
    let problems = seen.described.iter().flat_map(|told| &told.problems);
    problems
        .filter(|reason| !OF_FILE.contains(&reason.code))
        .map(|reason| Diagnosis {
            check: reason.code.name(),
            ..reported(reason)
        })
}

/// It needs no daemon to be ready: the socket, kubelet's next change and every call start it.
pub(super) fn daemon(seen: &Observed) -> CheckResult {
    const EFFECT: &str = "nothing is repaired; running VMs stay isolated";
    let state = seen.units.get("steliad").map(|[state, _]| state.as_str());
    match (&seen.described, state) {
        (Ok(told), _) => pass(format!("running, version {}", told.version)),
        (Err(Failure::NotRunning), None | Some("inactive")) => warn("not running", EFFECT, "systemctl start steliad"),
        (Err(Failure::NotRunning), Some("failed")) => warn("failed", EFFECT, JOURNAL),
        (Err(Failure::NotRunning), Some(state)) => warn(format!("does not answer ({state})"), EFFECT, JOURNAL),
        (Err(denied), _) if denied.is_denied() => note(denied.to_string(), "", "run steliactl doctor as root"),
        (Err(failure), _) => warn(format!("does not answer: {failure}"), EFFECT, JOURNAL),
    }
}

pub(super) fn socket(seen: &Observed) -> CheckResult {
    if seen.has(SOCKET) {
        return pass("/run/stelia/runner/socket");
    }
    let fix = "systemctl enable --now steliad-runner.socket";
    fail("/run/stelia/runner/socket is missing", "no VM can register", fix)
}

/// Whether the plugin runs and kubelet knows of it, by its status (`status.rs` in `crates/device-plugin`). Running VMs are not affected.
pub(super) fn device_plugin(seen: &Observed) -> CheckResult {
    const JOURNAL: &str = "journalctl -u steliad-device-plugin";
    match (&seen.has_plugins, seen.units.get("steliad-device-plugin")) {
        (Err(cause), _) => {
            let fact = format!("whether kubelet has a plugin directory is not known: {cause}");
            note(fact, "", "run steliactl doctor as root")
        }
        (Ok(false), _) => pass("off: kubelet has no plugin directory"),
        (_, None) => note("systemd does not say whether it runs", "", ""),
        (_, Some([state, _])) if state != "active" => warn(
            format!("not running ({state})"),
            "this node offers no stelia.io/vm",
            format!("systemctl enable --now steliad-device-plugin.path; {JOURNAL}"),
        ),
        (_, Some([_, status])) if status.starts_with("registered") && !status.contains("unhealthy") => pass(status),
        (_, Some([_, status])) => warn(status, "", JOURNAL),
    }
}

/// Whether interrupts are steered, and with what success. Without VMs nothing is asked of steliad-quiet.
pub(super) fn steering(seen: &Observed) -> CheckResult {
    let told = seen.description()?;
    let quiet = &told.node.quiet;
    let remaining = quiet.report.remaining.iter();
    let left = remaining.filter(|one| is_reported(told, one)).count() as u64;
    match quiet.steering.as_str() {
        "off" => note(
            "off",
            "devices, and irqbalance where it runs, may interrupt the VMs' CPUs",
            STEER,
        ),
        "" if told.node.instances.is_empty() => note(NOT_REPORTED, "", ""),
        "" => note(NOT_REPORTED, "", START),
        _ if quiet.report.irqbalance == Irqbalance::NotInformed => {
            let fact = "irqbalance could not be sent the list of the VMs' CPUs";
            warn(fact, "it may put interrupts there", "steliactl noise")
        }
        _ if left > 0 => {
            let fact = format!("{} can still reach VMs' CPUs", counted(left, "device interrupt"));
            warn(fact, "each delays a vCPU", "steliactl noise")
        }
        steering => pass(steering),
    }
}

/// Whether the ledger is on, and can name tasks.
pub(super) fn ledger(seen: &Observed) -> CheckResult {
    let ledger = &seen.description()?.node.ledger;
    if !ledger.enabled {
        let fix = "set ledger = true in /etc/stelia/steliad.toml, systemctl reload steliad";
        return note("off", "", fix);
    }
    // The key is known from the first account on.
    if ledger.key.is_empty() && !ledger.vms.is_empty() {
        return warn("not signed", "nobody can check that it is unchanged", JOURNAL);
    }
    if !seen.has(TRACING) {
        let fix = "run steliactl doctor as root; then see /sys/kernel/security/lockdown";
        return note("tracefs is not mounted or not readable", "it cannot name tasks", fix);
    }
    pass("on")
}
