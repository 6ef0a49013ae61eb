//! Whether the ledger is kept, as the daemon says.

use super::Facts;
use super::checks::{Finding, advice, ok, unknown, warning};

/// Whether it is on, written and signed.
pub(super) fn check(facts: &Facts) -> Finding {
    let Some(ledger) = &facts.ledger else {
        return ok(unknown(facts));
    };
    if !ledger.enabled {
        return advice(
            "off: who runs on the VMs' CPUs is not booked",
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
            "kept, and not signed: there is no key",
            "journalctl -u steliad says why /var/lib/stelia/ledger/key was not made or is not this machine's",
        );
    }
    if !facts.tracing {
        return advice(
            "kept; who ran cannot be named: tracefs is not mounted, or closed to you",
            "as root; where it stays so the kernel is locked down (/sys/kernel/security/lockdown), and counts remain without names",
        );
    }
    let head = match ledger.day.as_str() {
        "" => "no day signed yet".to_owned(),
        day => format!("last signed for {day}"),
    };
    ok(format!("kept: {:.1} MiB, {head}", ledger.bytes as f64 / 1_048_576.0))
}
