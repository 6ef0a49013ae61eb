//! `pm_qos_resume_latency_us`: the time that a CPU may take to wake up. It forbids idle states that take longer.
//!
//! All programs share the one file of a CPU (Documentation/ABI/testing/sysfs-devices-power), so the tightest value is kept, as
//! the kernel does with its own requests: a tighter value of another program is left alone.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use stelia_api::quiet::Report;
use stelia_cpus::CpuSet;

use super::{CPUS, Change, Decision, Write, is_gone, read};
use crate::failure::{QuietFailure, problem};
use crate::files::Files;
use crate::order::{Latency, Order};

impl Latency {
    /// The value as it is written to the file.
    fn text(self) -> String {
        match self {
            Self::Microseconds(count) => count.to_string(),
            Self::Polling => "n/a".into(),
        }
    }
}

fn path(cpu: u32) -> String {
    format!("{CPUS}/cpu{cpu}/power/pm_qos_resume_latency_us")
}

/// Greater is tighter: `n/a`, then microseconds, then `0`, which is no constraint; `None` for any other text.
fn tightness(text: &str) -> Option<Reverse<u64>> {
    match text {
        "n/a" => Some(Reverse(0)),
        "0" => Some(Reverse(u64::MAX)),
        number => number.parse().ok().map(Reverse),
    }
}

/// What to do with a CPU's value.
fn decide(record: Option<&Change>, now: &str, want: &str) -> Decision {
    let is_tight_enough = tightness(now) >= tightness(want);
    match record {
        // The order has changed: the base may be tighter than the new value.
        Some(change) if change.ours == now && now != want => {
            if tightness(&change.base) >= tightness(want) {
                Decision::undo(change, now)
            } else {
                Decision::change(&change.base, want)
            }
        }
        Some(change) if change.ours == now => Decision::keep(Some(change)),
        // Another program wrote the value. If it is tighter it stays; if not, it is the new base.
        _ if is_tight_enough => Decision::keep(None),
        _ => Decision::change(now, want),
    }
}

/// The writes for all CPUs; `record` is changed to what it is after them.
pub(super) fn plan(
    files: &dyn Files,
    order: &Order,
    record: &mut BTreeMap<u32, Change>,
    report: &mut Report,
) -> Vec<Write> {
    let vms = order.vms.iter().filter_map(|(pod, vm)| Some((pod, vm, vm.latency?)));
    let vms: Vec<_> = vms.collect();
    let has_driver = vms.is_empty() || has_idle_driver(files);
    let (mut writes, mut wanted) = (Vec::new(), CpuSet::new());
    for (pod, vm, latency) in vms {
        let want = latency.text();
        if latency == Latency::Microseconds(0) {
            problem(report, pod, "wake-up latency: 0 microseconds would mean no constraint");
            continue;
        }
        if !has_driver {
            let text = "wake-up latency: this machine has no cpuidle driver, so idle states cannot be limited";
            problem(report, pod, text);
            continue;
        }
        wanted.union_with(&vm.cpus);
        let (mut unread, mut first_failure): (CpuSet, Option<QuietFailure>) = (CpuSet::new(), None);
        for cpu in vm.cpus.iter() {
            match read(files, &path(cpu)) {
                Ok(now) => {
                    let decision = decide(record.get(&cpu), &now, &want);
                    decision.apply(cpu, path(cpu), pod, record, &mut writes);
                }
                Err(failure) => {
                    unread.insert(cpu);
                    first_failure.get_or_insert(failure);
                }
            }
        }
        if let Some(failure) = first_failure {
            problem(report, pod, format!("wake-up latency of CPUs {unread}: {failure}"));
        }
    }
    let unwanted: Vec<u32> = record.keys().copied().filter(|cpu| !wanted.contains(*cpu)).collect();
    for cpu in unwanted {
        // If the file cannot be read, the next order tries again. A CPU that is no longer there has nothing to restore.
        let decision = Decision::unwanted(record.get(&cpu), read(files, &path(cpu)));
        decision.apply(cpu, path(cpu), "", record, &mut writes);
    }
    writes
}

/// Whether a cpuidle driver exists, without which the kernel ignores the value. True if that cannot be read.
fn has_idle_driver(files: &dyn Files) -> bool {
    match read(files, &format!("{CPUS}/cpuidle/current_driver")) {
        Ok(name) => !name.is_empty() && name != "none",
        Err(failure) => !is_gone(&failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(base: &str, ours: &str) -> Change {
        let (base, ours) = (base.into(), ours.into());
        Change { base, ours }
    }

    #[test]
    fn the_tightest_value_is_n_a_and_the_loosest_is_zero() {
        assert!(tightness("n/a") > tightness("1") && tightness("1") > tightness("20"));
        assert!(tightness("20") > tightness("4294967295") && tightness("4294967295") > tightness("0"));
        assert!(tightness("junk") < tightness("0"));
    }

    #[test]
    fn a_looser_value_is_saved_and_replaced_and_a_tighter_one_left() {
        assert_eq!(decide(None, "0", "20"), Decision::change("0", "20"));
        assert_eq!(decide(None, "100", "n/a"), Decision::change("100", "n/a"));
        for tighter in ["20", "5", "n/a"] {
            assert_eq!(decide(None, tighter, "20"), Decision::keep(None), "{tighter}");
        }
    }

    #[test]
    fn what_another_program_makes_tighter_is_its_own_and_what_it_makes_looser_is_repaired() {
        let ours = change("0", "20");
        assert_eq!(decide(Some(&ours), "20", "20"), Decision::keep(Some(&ours)));
        assert_eq!(decide(Some(&ours), "3", "20"), Decision::keep(None));
        assert_eq!(decide(Some(&ours), "50", "20"), Decision::change("50", "20"));
    }

    #[test]
    fn another_order_replaces_our_value_but_never_loosens_the_base() {
        assert_eq!(
            decide(Some(&change("100", "20")), "20", "n/a"),
            Decision::change("100", "n/a")
        );
        let undone = Decision {
            write: Some("100".into()),
            record: None,
        };
        assert_eq!(decide(Some(&change("100", "20")), "20", "500"), undone);
    }

    #[test]
    fn only_our_own_value_is_undone() {
        assert_eq!(Decision::undo(&change("0", "20"), "20").write.as_deref(), Some("0"));
        assert_eq!(Decision::undo(&change("0", "20"), "5"), Decision::keep(None));
    }
}
