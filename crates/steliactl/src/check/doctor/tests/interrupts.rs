//! Interrupts as the daemon tells of them, and advice on what it cannot do.

use stelia_api::quiet::{Irqbalance, Quiet, Remaining, RemainingCause, Report};

use super::*;

/// The VM has CPUs 1 and 5; interrupts are steered and nothing is left.
fn steered() -> Facts {
    Facts {
        irqbalance: true,
        quiet: Some(Quiet {
            steering: "shared".to_owned(),
            answered_us: 1,
            report: Report {
                interrupts: 40,
                moved: 12,
                irqbalance: Irqbalance::Informed,
                ..Report::default()
            },
            ..Quiet::default()
        }),
        noise: Some(Noise {
            cpus: "1,5".parse().unwrap(),
            ..Noise::default()
        }),
        ..fit()
    }
}

fn report(facts: &mut Facts) -> &mut Report {
    &mut facts.quiet.as_mut().unwrap().report
}

fn noise(facts: &mut Facts) -> &mut Noise {
    facts.noise.as_mut().unwrap()
}

fn managed(facts: &mut Facts, count: u64) {
    report(facts).remaining = vec![Remaining {
        irq: 130,
        name: "nvme0q3".to_owned(),
        cpus: "5".parse().unwrap(),
        why: RemainingCause::Managed,
        count,
        ..Remaining::default()
    }];
}

#[test]
fn a_quiet_node_passes_and_says_what_was_done() {
    let facts = steered();
    for check in checks(&facts) {
        assert!(is_passed(&check) && check.finding.cure.is_empty(), "{check:?}");
    }
    let moved = "steliad-quiet answers: 12 of 40 device interrupts and 0 kernel threads moved";
    assert_eq!(named(&facts, "quiet").found, moved);
    says(&named(&facts, "irqbalance").found, &["has the list of the VMs' CPUs"]);
}

#[rstest]
#[case::no_answer("quiet", Verdict::Warning, |f: &mut Facts| {
    f.irqbalance = false;
    f.quiet.as_mut().unwrap().problem = Some("steliad-quiet does not answer".to_owned());
})]
#[case::switched_off("irq-steering", Verdict::Advice, |f: &mut Facts| {
    f.irqbalance = false;
    f.quiet.as_mut().unwrap().steering = "off".to_owned();
})]
#[case::some_remain("irq-steering", Verdict::Warning, |f: &mut Facts| managed(f, 0))]
#[case::irqbalance_not_told("irqbalance", Verdict::Warning, |f: &mut Facts| report(f).irqbalance = Irqbalance::NotInformed)]
#[case::the_tick("nohz_full", Verdict::Advice, |f: &mut Facts| noise(f).timers = 250.0)]
#[case::no_such_kernel("nohz_full", Verdict::Advice, |f: &mut Facts| f.cmdline = "nohz_full=1,5".to_owned())]
#[case::rcu("rcu_nocbs", Verdict::Advice, |f: &mut Facts| noise(f).rcu = 3.0)]
#[case::rps("rps", Verdict::Advice, |f: &mut Facts| {
    noise(f).rps = [("eth0/rx-0".to_owned(), "5".parse().unwrap())].into();
})]
fn what_is_amiss_is_told_and_nothing_else_is(#[case] name: &str, #[case] verdict: Verdict, #[case] change: Change) {
    let mut facts = steered();
    change(&mut facts);
    let check = assert_only_problem(&facts, name, verdict);
    assert_eq!(Examined(vec![check]).failure(), None);
}

#[test]
fn advice_names_the_cpus_that_vms_may_get_and_what_it_would_gain() {
    let mut facts = steered();
    noise(&mut facts).timers = 250.4;
    managed(&mut facts, 17);
    for (name, found, cure) in [
        (
            "nohz_full",
            "does not have the VMs' CPUs 1,5: 250 local timer interrupts a second on each",
            // All but the reserved ones, 0 and 4.
            "boot with nohz_full=1-3,5-7: ",
        ),
        (
            "managed_irq",
            "managed interrupts fired 17 times on the VMs' CPUs 5: nvme0q3",
            "boot with isolcpus=managed_irq,1-3,5-7: ",
        ),
    ] {
        let check = named(&facts, name);
        assert_eq!(check.found, found);
        assert!(check.cure.starts_with(cure), "{check:?}");
    }
}

#[test]
fn what_the_command_line_has_is_not_advised() {
    let mut facts = steered();
    noise(&mut facts).timers = 1.5;
    noise(&mut facts).rcu = 2.0;
    facts.nohz_full = "1-3,5-7".parse().unwrap();
    facts.cmdline = "nohz_full=1-3,5-7 isolcpus=managed_irq,1-3,5-7".to_owned();
    managed(&mut facts, 17);
    for name in ["nohz_full", "rcu_nocbs", "managed_irq", "isolcpus"] {
        assert_eq!(named(&facts, name).verdict, Verdict::Ok, "{name}");
    }
    let found = named(&facts, "nohz_full").found;
    says(&found, &["; 1.5 local timer interrupts a second on each"]);
    facts.nohz_full = CpuSet::new();
    for (given, verdict) in [
        ("rcu_nocbs=1-7", Verdict::Ok),
        ("rcu_nocbs=all", Verdict::Ok),
        ("rcu_nocbs=1-N", Verdict::Ok),
        ("rcu_nocbs=1", Verdict::Advice),
    ] {
        facts.cmdline = given.to_owned();
        assert_eq!(named(&facts, "rcu_nocbs").verdict, verdict, "{given}");
    }
}

#[test]
fn without_vms_nothing_is_advised_and_without_a_daemon_nothing_is_known() {
    let names: Vec<&str> = checks(&fit()).into_iter().map(|check| check.check).collect();
    let has = |name| names.contains(&name);
    assert!(!has("nohz_full") && has("irq-steering"), "{names:?}");
    let mut facts = fit();
    for check in ["quiet", "ledger", "publish"] {
        let silent = "not known: steliad does not answer".to_owned();
        assert_eq!(said(&facts, check), (Verdict::Unknown, silent), "{check}");
    }
    facts.quiet = Some(Quiet::default());
    let (_, found) = said(&facts, "irq-steering");
    assert_eq!(found, "not known: steliad-quiet has not reported interrupts yet");
    // It has no kubelet yet, so no VM, so it has ordered nothing.
    facts.quiet = Some(Quiet {
        steering: "shared".to_owned(),
        ..Quiet::default()
    });
    for check in ["quiet", "irq-steering"] {
        says(&said(&facts, check).1, &["no VM has had CPUs"]);
    }
    // A VM has CPUs, and nothing was reported of them.
    facts.noise = Some(Noise::default());
    for check in ["quiet", "irq-steering"] {
        let (verdict, found) = said(&facts, check);
        assert_eq!(verdict, Verdict::Unknown);
        says(&found, &["has not reported"]);
    }
    facts.quiet.as_mut().unwrap().steering = "off".to_owned();
    assert_eq!(named(&facts, "irq-steering").verdict, Verdict::Advice);
}
