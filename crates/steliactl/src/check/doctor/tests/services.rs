//! Steliad's services: what systemd says of them, and the daemon of interrupts and the ledger.

use stelia_api::ledger::LedgerSummary;
use stelia_api::quiet::{Irqbalance, Quiet, Remaining, RemainingCause};

use super::*;

fn quiet(seen: &mut Observed) -> &mut Quiet {
    Arc::make_mut(&mut node(seen).quiet)
}

fn ledger(seen: &mut Observed) -> &mut LedgerSummary {
    Arc::make_mut(&mut node(seen).ledger)
}

/// An interrupt that reaches a VM's CPUs.
fn remaining(seen: &mut Observed, why: RemainingCause) {
    quiet(seen).report.remaining = vec![Remaining {
        irq: 130,
        name: "nvme0q3".to_owned(),
        why,
        ..Remaining::default()
    }];
}

#[rstest]
#[case::switched_off("irq-steering", Outcome::Note, |f: &mut Observed| quiet(f).steering = "off".to_owned())]
#[case::some_remain("irq-steering", Outcome::Warn, |f: &mut Observed| remaining(f, RemainingCause::StillFires))]
#[case::irqbalance_not_told("irq-steering", Outcome::Warn, |f: &mut Observed| quiet(f).report.irqbalance = Irqbalance::NotInformed)]
#[case::no_answer("not-steered", Outcome::Warn, |f: &mut Observed| problem(f, ReasonCode::NotSteered))]
#[case::a_ledger_that_is_off("ledger", Outcome::Note, |f: &mut Observed| ledger(f).enabled = false)]
#[case::a_ledger_that_cannot_be_written("ledger-not-kept", Outcome::Warn, |f: &mut Observed| problem(f, ReasonCode::LedgerNotKept))]
#[case::no_tracing("ledger", Outcome::Note, |f: &mut Observed| absent(f, TRACING))]
fn what_is_amiss_is_told_and_nothing_else_is(#[case] name: &str, #[case] outcome: Outcome, #[case] change: Change) {
    let mut seen = fit();
    change(&mut seen);
    assert_eq!(
        Examined(vec![assert_only_problem(&seen, name, outcome)]).failure(),
        None
    );
}

#[test]
fn an_interrupt_that_the_kernel_places_and_that_does_not_fire_disturbs_nobody() {
    let mut seen = fit();
    remaining(&mut seen, RemainingCause::Managed);
    assert_eq!(wrong(&seen), []);
    // Before it has asked, nothing is called calm.
    *quiet(&mut seen) = Quiet::default();
    assert_eq!(wrong(&seen), [("irq-steering", Outcome::Note)]);
}

fn unit(seen: &mut Observed, name: &'static str, state: &str, status: &str) {
    seen.units.insert(name, [state, status].map(str::to_owned));
}

#[test]
fn a_daemon_that_failed_is_not_one_that_does_not_run() {
    let silent = || Failure::Other("steliad has not answered for 25 s".to_owned());
    let not_running = || Failure::NotRunning;
    for (state, failure, fact, fix) in [
        ("", not_running(), "not running", "systemctl start steliad"),
        ("inactive", not_running(), "not running", "systemctl start steliad"),
        ("failed", not_running(), "failed", "journalctl -u steliad"),
        // It ends again and again.
        ("activating", not_running(), "does not answer", "journalctl -u steliad"),
        ("active", not_running(), "does not answer", "journalctl -u steliad"),
        ("active", silent(), "has not answered", "journalctl -u steliad"),
    ] {
        let mut seen = fit();
        seen.described = Err(failure);
        if !state.is_empty() {
            unit(&mut seen, "steliad", state, "");
        }
        let one = named(&seen, DAEMON);
        assert_eq!((one.outcome, one.fix.as_str()), (Outcome::Warn, fix), "{state}");
        says(&one.fact, &[fact]);
        says(one.effect, &["VMs stay isolated"]);
        assert_eq!(named(&seen, "ledger").needs, Some(DAEMON));
    }
    let mut seen = fit();
    seen.described = Err(Failure::Other("Permission denied: run as root".to_owned()));
    assert_eq!(named(&seen, DAEMON).outcome, Outcome::Note);
}

#[test]
fn the_plugin_is_judged_by_what_it_says_of_itself() {
    let plugin = |state: &str, status: &str| {
        let mut seen = fit();
        seen.has_plugins = Ok(true);
        unit(&mut seen, "steliad-device-plugin", state, status);
        said(&seen, "device-plugin")
    };
    for (state, status, outcome) in [
        ("active", "registered; 3 devices, healthy", Outcome::Pass),
        (
            "active",
            "not registered: kubelet refuses it; 1 devices, healthy",
            Outcome::Warn,
        ),
        (
            "active",
            "registered; 1 devices, unhealthy: /dev/kvm does not exist",
            Outcome::Warn,
        ),
        ("active", "starting; 1 devices, healthy", Outcome::Warn),
    ] {
        assert_eq!(plugin(state, status), (outcome, status.to_owned()));
    }
    assert_eq!(plugin("inactive", "").0, Outcome::Warn);
    let mut seen = fit();
    seen.has_plugins = Ok(true);
    assert_eq!(named(&seen, "device-plugin").outcome, Outcome::Note);
    // What may not be read is not said to be off.
    seen.has_plugins = read(folder(&[("var/lib/kubelet", "")]).path()).has_plugins;
    let (outcome, fact) = said(&seen, "device-plugin");
    assert_eq!(outcome, Outcome::Note);
    says(&fact, &["not known", "device-plugins: Not a directory"]);
}
