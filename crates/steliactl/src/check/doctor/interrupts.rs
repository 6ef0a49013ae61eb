//! Whether device interrupts are kept off the CPUs of VMs, as the daemon says.

use stelia_api::quiet::{Irqbalance, Quiet};

use super::Facts;
use super::checks::{Finding, NO_ANSWER, advice, ok, unknown, warning};
use crate::check::noise::NOT_REPORTED;
use crate::shared::output::counted;

/// The state of `steliad-quiet`; the error is the finding if it is not known, for which another check gives the reason.
fn quiet_state(facts: &Facts) -> Result<&Quiet, Finding> {
    match &facts.quiet {
        None => Err(unknown(NO_ANSWER)),
        Some(quiet) if quiet.steering.is_empty() => Err(unknown(format!("not known: {NOT_REPORTED}"))),
        // Without VMs nothing is asked of steliad-quiet, and a daemon that waits for kubelet has none.
        Some(quiet) if quiet.answered_us == 0 && quiet.problem.is_none() => match quiet.steering.as_str() {
            "off" => Ok(quiet),
            // The noise on the CPUs of VMs is measured where there are any.
            _ if facts.noise.is_some() => Err(unknown(format!("not known: {NOT_REPORTED}"))),
            steering => Err(ok(format!("{steering}; no VM has had CPUs yet"))),
        },
        Some(quiet) => Ok(quiet),
    }
}

/// Whether `steliad-quiet` answers.
pub(super) fn unit(facts: &Facts) -> Finding {
    let quiet = match quiet_state(facts) {
        Ok(quiet) => quiet,
        Err(finding) => return finding,
    };
    if quiet.answered_us == 0 && quiet.problem.is_none() {
        return ok("not asked yet: no VM has had CPUs");
    }
    if let Some(problem) = &quiet.problem {
        return warning(
            problem,
            "systemctl status steliad-quiet, journalctl -u steliad-quiet; until it answers VMs keep their CPUs, and device \
             interrupts stay where they are",
        );
    }
    let report = &quiet.report;
    let threads = counted(report.threads_moved, "kernel thread");
    ok(format!(
        "steliad-quiet answers: {} of {} and {threads} moved",
        report.moved,
        counted(report.interrupts.into(), "device interrupt")
    ))
}

/// Whether interrupts are steered, and with what success.
pub(super) fn steering(facts: &Facts) -> Finding {
    let quiet = match quiet_state(facts) {
        Ok(quiet) => quiet,
        Err(finding) => return finding,
    };
    if quiet.steering == "off" {
        return advice(
            "off: devices may interrupt the VMs' CPUs",
            "irq-steering = \"shared\" in /etc/stelia/steliad.toml, then systemctl reload steliad",
        );
    }
    let remaining = &quiet.report.remaining;
    if remaining.is_empty() {
        return ok(quiet.steering.as_str());
    }
    warning(
        format!(
            "{}; {} can still reach VMs' CPUs",
            quiet.steering,
            counted(remaining.len() as u64, "device interrupt")
        ),
        "steliactl noise lists each with the reason and the remedy",
    )
}

/// irqbalance moves interrupts by itself, and knows nothing of partitions unless it is told.
pub(super) fn irqbalance(facts: &Facts) -> Finding {
    if !facts.irqbalance {
        return ok("does not run");
    }
    let steered = facts.quiet.as_ref().filter(|quiet| {
        let is_known = quiet.problem.is_none();
        is_known && !matches!(quiet.steering.as_str(), "" | "off")
    });
    match steered.map(|quiet| quiet.report.irqbalance) {
        Some(Irqbalance::Informed) => ok("runs, and has the list of the VMs' CPUs"),
        Some(Irqbalance::Absent) => ok("runs; it gets the list once a VM has CPUs"),
        Some(Irqbalance::NotInformed) => warning(
            "runs, and the list of the VMs' CPUs could not be sent to it",
            "steliactl noise says why; until then what it moves there is moved back at each audit",
        ),
        None => warning(
            "runs",
            "it may put interrupts on VMs' CPUs; set IRQBALANCE_BANNED_CPULIST to all but the reserved CPUs, or stop it and set \
             /proc/irq/default_smp_affinity. With irq-steering steliad sends it the VMs' CPUs",
        ),
    }
}
