//! What disturbs the CPUs of VMs besides tasks, as reasons of degradation.

use std::collections::BTreeMap;

use stelia_api::quiet::{Quiet, Remaining, RemainingCause};
use stelia_api::{Reason, ReasonCode};
use stelia_cpus::CpuSet;
use stelia_kubelet::PodUid;

/// An interrupt that the kernel places is reported after it fired in this many samples, and after as many without it that is taken
/// back.
const FIRING_SAMPLES: u8 = 3;
/// Minimum distance of two samples, in microseconds. Answers in between are ignored: while VMs start, dozens of them come.
const SAMPLE_US: u64 = 10_000_000;

/// Everything that disturbs VMs' CPUs now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Disturbances(Vec<Disturbance>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Disturbance {
    of: Affected,
    code: ReasonCode,
    text: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Affected {
    /// The instances that have one of these CPUs.
    Cpus(CpuSet),
    Pod(String),
}

impl Disturbances {
    /// `firing` must have recorded this answer before.
    pub fn new(quiet: &Quiet, firing: &FiringInterrupts) -> Self {
        let remaining = quiet.report.remaining.iter();
        let remaining = remaining.filter(|one| one.why != RemainingCause::Managed || firing.has(one));
        let remaining = remaining.map(|one| Disturbance {
            of: Affected::Cpus(one.cpus.clone()),
            code: ReasonCode::Interrupts,
            text: in_words(one),
        });
        let problems = quiet.report.problems.iter().filter(|problem| !problem.pod.is_empty());
        let problems = problems.map(|problem| Disturbance {
            of: Affected::Pod(problem.pod.clone()),
            code: ReasonCode::NotQuiet,
            text: problem.text.clone(),
        });
        let left_out = quiet.report.left_out.iter().map(|(pod, reason)| Disturbance {
            of: Affected::Pod(pod.clone()),
            code: ReasonCode::NotSteered,
            text: format!("device interrupts are not kept off its CPUs: {reason}"),
        });
        Self(remaining.chain(problems).chain(left_out).collect())
    }

    /// The reasons of one instance with these exclusive CPUs.
    pub fn of(&self, pod: &PodUid, exclusive: &CpuSet) -> Vec<Reason> {
        let reason = |one: &Disturbance| match &one.of {
            Affected::Cpus(cpus) => (!cpus.is_disjoint(exclusive)).then(|| Reason::of_node(one.code, &one.text)),
            Affected::Pod(of) => (of == pod.as_str()).then(|| Reason::of(pod, one.code, &one.text)),
        };
        self.0.iter().filter_map(reason).collect()
    }
}

fn in_words(one: &Remaining) -> String {
    format!(
        "interrupt {} ({}) reaches the CPUs {}: {}",
        one.irq,
        one.name,
        one.cpus,
        one.why.text()
    )
}

/// Which of the interrupts that the kernel places fire on VMs' CPUs. Its queues for single CPUs are silent unless something on that
/// CPU submits I/O, as everything did before it was a VM's: so it takes several samples in which one fired.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FiringInterrupts {
    samples: BTreeMap<(u32, String), InterruptSamples>,
    sampled_us: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct InterruptSamples {
    count: u64,
    /// Samples in which it fired, less those since in which it did not.
    heat: u8,
    fires: bool,
}

impl FiringInterrupts {
    /// Follow an answer. What it does not name is forgotten.
    pub fn record(&mut self, quiet: &Quiet) {
        let remaining = &quiet.report.remaining;
        let named = |key: &(u32, String)| remaining.iter().any(|one| (one.irq, &one.name) == (key.0, &key.1));
        self.samples.retain(|key, _| named(key));
        if quiet.answered_us < self.sampled_us.saturating_add(SAMPLE_US) {
            return;
        }
        self.sampled_us = quiet.answered_us;
        for one in remaining {
            let known = self.samples.entry((one.irq, one.name.clone()));
            known
                .and_modify(|samples| *samples = samples.then(one.count))
                .or_insert(InterruptSamples {
                    count: one.count,
                    ..InterruptSamples::default()
                });
        }
    }

    fn has(&self, one: &Remaining) -> bool {
        let samples = self.samples.get(&(one.irq, one.name.clone()));
        samples.is_some_and(|samples| samples.fires)
    }
}

impl InterruptSamples {
    fn then(self, count: u64) -> Self {
        let heat = if count > self.count {
            (self.heat + 1).min(FIRING_SAMPLES)
        } else {
            self.heat.saturating_sub(1)
        };
        let fires = heat == FIRING_SAMPLES || self.fires && heat > 0;
        Self { count, heat, fires }
    }
}

#[cfg(test)]
mod tests {
    use stelia_api::quiet::{Problem, Report};

    use super::*;

    fn pod(number: u32) -> PodUid {
        PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap()
    }

    fn remaining(why: RemainingCause, cpus: &str, count: u64) -> Remaining {
        Remaining {
            irq: 30,
            name: "nvme0q3".into(),
            cpus: cpus.parse().unwrap(),
            why,
            count,
            ..Remaining::default()
        }
    }

    fn quiet(remaining: Vec<Remaining>) -> Quiet {
        Quiet {
            report: Report {
                remaining,
                ..Report::default()
            },
            ..Quiet::default()
        }
    }

    fn kinds(of: &Disturbances, number: u32, cpus: &str) -> Vec<ReasonCode> {
        let reasons = of.of(&pod(number), &cpus.parse().unwrap());
        reasons.iter().map(|reason| reason.code).collect()
    }

    #[test]
    fn an_interrupt_that_cannot_be_moved_is_a_reason_of_those_whose_cpus_it_reaches() {
        let now = quiet(vec![remaining(RemainingCause::NoVector, "3", 0)]);
        let found = Disturbances::new(&now, &FiringInterrupts::default());
        assert_eq!(kinds(&found, 1, "2-3"), [ReasonCode::Interrupts]);
        assert_eq!(kinds(&found, 2, "4-5"), []);
        let reason = &found.of(&pod(1), &"2-3".parse().unwrap())[0];
        assert_eq!(
            reason.text,
            "interrupt 30 (nvme0q3) reaches the CPUs 3: no other CPU has a free interrupt vector"
        );
        assert_eq!(reason.pod, None, "a pod reads the name of no device of the node's");
    }

    #[test]
    fn a_managed_one_is_a_reason_once_it_fired_for_a_while_and_until_it_is_silent_for_a_while() {
        let (mut firing, mut us) = (FiringInterrupts::default(), 0);
        let mut answer = |count, later_us| {
            us += later_us;
            let now = Quiet {
                answered_us: us,
                ..quiet(vec![remaining(RemainingCause::Managed, "3", count)])
            };
            firing.record(&now);
            kinds(&Disturbances::new(&now, &firing), 1, "3")
        };
        assert_eq!(answer(7, SAMPLE_US), [], "it fired before anybody looked");
        for count in 8..20 {
            assert_eq!(answer(count, SAMPLE_US / 100), [], "no samples");
        }
        assert_eq!(answer(20, SAMPLE_US), []);
        assert_eq!(answer(20, SAMPLE_US), [], "once is none");
        for count in [21, 22] {
            assert_eq!(answer(count, SAMPLE_US), []);
        }
        for count in [23, 23, 23] {
            assert_eq!(answer(count, SAMPLE_US), [ReasonCode::Interrupts]);
        }
        assert_eq!(answer(23, SAMPLE_US), []);
    }

    #[test]
    fn an_order_that_was_not_possible_is_its_pods() {
        let mut now = quiet(Vec::new());
        now.report.problems = vec![
            Problem {
                pod: pod(1).to_string(),
                text: "CPU 2 has no cpuidle".into(),
            },
            Problem {
                pod: String::new(),
                text: "irqbalance does not answer".into(),
            },
        ];
        let found = Disturbances::new(&now, &FiringInterrupts::default());
        assert_eq!(kinds(&found, 1, "2"), [ReasonCode::NotQuiet]);
        assert_eq!(kinds(&found, 2, "3"), []);
    }
}
