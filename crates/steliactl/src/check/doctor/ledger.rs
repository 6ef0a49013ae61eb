//! Whether the ledger is kept, as the daemon says.

use super::Facts;
use super::checks::{Finding, NO_ANSWER, advice, ok, unknown, warning};

/// Whether it is on, written and signed.
pub(super) fn check(facts: &Facts) -> Finding {
    let Some(ledger) = &facts.ledger else {
        return unknown(NO_ANSWER);
    };
    if !ledger.enabled {
        return advice(
            "off: what runs on the VMs' CPUs is not recorded",
            "ledger = true in /etc/stelia/steliad.toml, then systemctl reload steliad",
        );
    }
    if let Some(problem) = &ledger.problem {
        return warning(
            problem,
            "journalctl -u steliad, df /var/lib/stelia; the VMs keep their CPUs, and the time until it is written again will be \
             missing from accounts",
        );
    }
    if ledger.key.is_empty() {
        return warning(
            "written, but not signed: there is no key",
            "journalctl -u steliad says why /var/lib/stelia/ledger/key was not created or has another machine id",
        );
    }
    if !facts.tracing {
        return advice(
            "written; tasks cannot be named: tracefs is not mounted or not readable",
            "run steliactl doctor as root; if this stays, the kernel is locked down (/sys/kernel/security/lockdown), and counts have no names",
        );
    }
    let head = match ledger.day.as_str() {
        "" => "no day signed yet".to_owned(),
        day => format!("last signed for {day}"),
    };
    ok(format!("written: {:.1} MiB, {head}", ledger.bytes as f64 / 1_048_576.0))
}
