//! Rates from two samples, and what of them disturbs a VM.

use std::cmp::Ordering;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use serde_json::json;
use stelia_api::{Reason, ThreadRole};
use stelia_model::Instance;

use crate::shared::daemon::{Condition, Pod, note, reasons};
use crate::shared::kernel::sample::{InstanceCounts, Sample, ThreadCounts};

/// Time that a vCPU waits for its CPU, in percent: above this the guest notices it.
const HIGH_DELAY_PERCENT: f64 = 1.0;
/// Time that the VM was throttled by a CPU limit, in percent.
pub(crate) const HIGH_THROTTLED_PERCENT: f64 = 1.0;
/// Time that core scheduling kept siblings of a vCPU's CPU idle, in percent of one CPU.
pub(crate) const HIGH_FORCED_IDLE_PERCENT: f64 = 1.0;
/// The kernel's own bound threads preempt an isolated vCPU now and then; above this many times a second it is something else.
const HIGH_PREEMPTIONS_PER_SECOND: f64 = 10.0;

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Model {
    /// Between the two samples.
    #[serde(rename = "interval_us", serialize_with = "us")]
    pub seconds: f64,
    /// What is wrong on the node.
    pub problems: Vec<Reason>,
    /// A sentence of the VMs that were released or ended.
    #[serde(skip)]
    pub former: Option<String>,
    pub instances: Vec<InstanceRates>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct InstanceRates {
    #[serde(flatten)]
    pub pod: Pod,
    #[serde(flatten, serialize_with = "shown")]
    pub instance: Arc<Instance>,
    /// CPU time of the threads in `float`, percent of one CPU.
    #[serde(rename = "float_ratio", serialize_with = "ratio")]
    pub float_percent: Option<f64>,
    /// Time that the scope was throttled, percent.
    #[serde(rename = "throttled_ratio", serialize_with = "ratio")]
    pub throttled_percent: Option<f64>,
    /// Device interrupts on its exclusive CPUs: 0 is guaranteed.
    pub device_interrupts_per_second: Option<f64>,
    /// Bytes in the last-level caches, from resctrl.
    pub llc_bytes: Option<u64>,
    /// Of its vCPUs together.
    #[serde(flatten)]
    pub rates: Rates,
    /// For a column: what the daemon says, or what was measured; empty where nothing disturbs it.
    pub note: String,
    /// The same in words, all of it; `None` where nothing does.
    pub reason: Option<String>,
    pub vcpus: Vec<VcpuRates>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct VcpuRates {
    /// `0` is the first vCPU, `io0` the first I/O thread that has a CPU to itself.
    pub name: String,
    pub tid: i32,
    pub cpu: Option<u32>,
    #[serde(flatten)]
    pub rates: Rates,
    /// What disturbs it; empty where nothing does.
    pub note: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Rates {
    /// Time it ran, percent of one CPU.
    #[serde(rename = "utilisation_ratio", serialize_with = "ratio")]
    pub utilisation_percent: Option<f64>,
    /// Time it waited for a CPU, percent: the guest sees it as steal.
    #[serde(rename = "delay_ratio", serialize_with = "ratio")]
    pub delay_percent: Option<f64>,
    /// Moves to another CPU, per second.
    pub migrations_per_second: Option<f64>,
    /// Preemptions, per second.
    pub involuntary_per_second: Option<f64>,
    /// Time that core scheduling kept siblings of its CPU idle while it ran, percent. Only `reason` shows it.
    #[serde(skip)]
    pub forced_idle_percent: Option<f64>,
}

/// Percents are for people; JSON has ratios, rounded to a ten-thousandth.
fn ratio<S: Serializer>(percent: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    percent
        .map(|percent| (percent * 100.0).round() / 10_000.0)
        .serialize(serializer)
}

fn us<S: Serializer>(seconds: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64((seconds * 1e6).round() as u64)
}

fn shown<S: Serializer>(vm: &Arc<Instance>, serializer: S) -> Result<S::Ok, S::Error> {
    let degraded = matches!(Condition::of(vm), Condition::Degraded | Condition::Evicted);
    let (state, isolation, cpus) = (vm.state, vm.isolation, &vm.exclusive);
    let members = json!({ "state": state, "isolation": isolation, "degraded": degraded, "exclusive_cpus": cpus });
    members.serialize(serializer)
}

pub(crate) fn rates(before: &Sample, now: &Sample) -> Model {
    let seconds = now.at.saturating_sub(before.at).as_secs_f64();
    let instances = now.instances.iter();
    Model {
        seconds,
        problems: now.problems.clone(),
        former: None,
        instances: instances
            .map(|(pod, one)| InstanceRates::of(pod, before.instances.get(pod), one, seconds))
            .collect(),
    }
}

/// The growth of a counter per second, in `unit`s; `None` where a value is missing, it decreased, or no time passed.
fn rate(before: Option<u64>, now: Option<u64>, seconds: f64, unit: f64) -> Option<f64> {
    let grown = now?.checked_sub(before?)?;
    // Rounded to a hundredth: the rest would be noise in the JSON.
    (seconds > 0.0).then(|| (grown as f64 / unit / seconds * 100.0).round() / 100.0)
}

impl InstanceRates {
    pub(crate) fn condition(&self) -> Condition {
        Condition::of(&self.instance)
    }

    fn of(uid: &str, before: Option<&InstanceCounts>, now: &InstanceCounts, seconds: f64) -> Self {
        let instance = &now.instance;
        let vcpus = now.vcpus.iter();
        let vcpus = vcpus.map(|(role, thread)| {
            let before = before.and_then(|before| before.vcpus.get(role));
            VcpuRates::of(ThreadRole::from(*role), before, thread, seconds)
        });
        let vcpus: Vec<VcpuRates> = vcpus.collect();
        let grown = |of: fn(&InstanceCounts) -> Option<u64>, unit| rate(before.and_then(of), of(now), seconds, unit);
        // Percent of a second, in microseconds.
        let throttled_percent = grown(|one| one.throttled_us, 1e4);
        let throttled = throttled_percent.filter(|percent| *percent >= HIGH_THROTTLED_PERCENT);
        let throttled = throttled.map(|percent| format!("throttled {percent:.0} %"));
        // On other CPUs it is a different counter.
        let is_comparable = before.is_some_and(|before| before.instance.exclusive == instance.exclusive);
        let interrupts = grown(|one| one.device_interrupts, 1.0).filter(|_| is_comparable);
        let interrupted = interrupts.filter(|number| *number > 0.0);
        let interrupted = interrupted.map(|number| match number {
            few if few < 10.0 => format!("interrupts {few}/s"),
            many => format!("interrupts {many:.0}/s"),
        });
        let sum = |of: fn(&Rates) -> Option<f64>| vcpus.iter().filter_map(|vcpu| of(&vcpu.rates)).reduce(|a, b| a + b);
        let worst = worst(&vcpus);
        // What the daemon says, then what was measured.
        let reported = reasons(instance).map(|reason| reason.text.clone());
        let of_worst = worst.map(|vcpu| format!("vCPU {} {}", vcpu.name, vcpu.note));
        let measured: Vec<String> = interrupted.into_iter().chain(throttled).collect();
        let all: Vec<String> = reported.chain(measured.clone()).chain(of_worst).collect();
        let measured = || measured.into_iter().next().or_else(|| Some(worst?.note.clone()));
        Self {
            pod: Pod::new(uid, instance.pod_name.as_ref()),
            instance: Arc::clone(instance),
            float_percent: grown(|one| one.float_us, 1e4),
            throttled_percent,
            device_interrupts_per_second: interrupts,
            llc_bytes: now.llc_bytes,
            rates: Rates {
                utilisation_percent: sum(|one| one.utilisation_percent),
                delay_percent: sum(|one| one.delay_percent),
                migrations_per_second: sum(|one| one.migrations_per_second),
                involuntary_per_second: sum(|one| one.involuntary_per_second),
                forced_idle_percent: sum(|one| one.forced_idle_percent),
            },
            note: match note(instance) {
                "" => measured().unwrap_or_default(),
                note => note.to_owned(),
            },
            reason: (!all.is_empty()).then(|| all.join("; ")),
            vcpus,
        }
    }
}

impl VcpuRates {
    fn of(role: ThreadRole, before: Option<&ThreadCounts>, now: &ThreadCounts, seconds: f64) -> Self {
        // Counters of another thread cannot be compared.
        let before = before.filter(|before| before.task == now.task);
        let grown = |of: fn(&ThreadCounts) -> Option<u64>, unit| rate(before.and_then(of), of(now), seconds, unit);
        // Percent of a second, in nanoseconds.
        let percent = 1e7;
        let rates = Rates {
            utilisation_percent: grown(|one| one.run_ns, percent),
            delay_percent: grown(|one| one.delay_ns, percent),
            migrations_per_second: grown(|one| one.migrations, 1.0),
            involuntary_per_second: grown(|one| one.involuntary, 1.0),
            forced_idle_percent: grown(|one| one.forced_idle_ns, percent),
        };
        Self {
            name: match role {
                ThreadRole::Vcpu(index) => index.to_string(),
                ThreadRole::IoThread(index) => format!("io{index}"),
            },
            tid: now.task.0,
            cpu: now.cpu,
            note: rates.disturbances(),
            rates,
        }
    }
}

impl Rates {
    /// What disturbs a thread much: "waits for CPU 12 %, preempted 30/s".
    fn disturbances(&self) -> String {
        let much = |what: &str, value: Option<f64>, least: f64, unit: &str| {
            let value = value.filter(|value| *value >= least)?;
            Some(format!("{what} {value:.0}{unit}"))
        };
        let (idle, preemptions) = (self.forced_idle_percent, self.involuntary_per_second);
        let all = [
            much("waits for CPU", self.delay_percent, HIGH_DELAY_PERCENT, " %"),
            much("preempted", preemptions, HIGH_PREEMPTIONS_PER_SECOND, "/s"),
            much("keeps siblings idle", idle, HIGH_FORCED_IDLE_PERCENT, " %"),
        ];
        all.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// The thread that is disturbed most.
pub(crate) fn worst(vcpus: &[VcpuRates]) -> Option<&VcpuRates> {
    let by = |vcpu: &VcpuRates| [vcpu.rates.delay_percent, vcpu.rates.involuntary_per_second];
    let disturbed = vcpus.iter().filter(|vcpu| !vcpu.note.is_empty());
    disturbed.max_by(|a, b| by(a).partial_cmp(&by(b)).unwrap_or(Ordering::Equal))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use stelia_api::ReasonCode;

    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn thread(task: (i32, u64)) -> ThreadCounts {
        ThreadCounts {
            task,
            ..ThreadCounts::default()
        }
    }

    /// A VM on CPU 2 of which everything grows with `count`.
    fn counts(task: (i32, u64), count: u64) -> InstanceCounts {
        let thread = ThreadCounts {
            run_ns: Some(count * SECOND_NS),
            delay_ns: Some(count * 1_000_000),
            involuntary: Some(count * 3),
            ..thread(task)
        };
        let instance = Instance {
            exclusive: "2".parse().unwrap(),
            ..Instance::default()
        };
        InstanceCounts {
            instance: Arc::new(instance),
            float_us: Some(count * 500_000),
            device_interrupts: Some(count * 7),
            vcpus: [(0, thread.clone()), (ThreadRole::IoThread(0).into(), thread)].into(),
            ..InstanceCounts::default()
        }
    }

    fn of(before: &InstanceCounts, now: &InstanceCounts, seconds: u64) -> InstanceRates {
        let sample = |at, counts: &InstanceCounts| Sample {
            at: Duration::from_secs(at),
            instances: [("a".to_owned(), counts.clone())].into(),
            ..Sample::default()
        };
        rates(&sample(10, before), &sample(10 + seconds, now))
            .instances
            .remove(0)
    }

    #[test]
    fn rates_are_per_second_and_an_instance_has_its_vcpus_together() {
        let a = of(&counts((7, 1), 4), &counts((7, 1), 5), 2);
        let vcpu = &a.vcpus[0].rates;
        assert_eq!((vcpu.utilisation_percent, vcpu.delay_percent), (Some(50.0), Some(0.05)));
        assert_eq!(
            (vcpu.involuntary_per_second, vcpu.migrations_per_second),
            (Some(1.5), None)
        );
        assert_eq!(
            (a.rates.utilisation_percent, a.rates.migrations_per_second),
            (Some(100.0), None)
        );
        assert_eq!((a.float_percent, a.throttled_percent), (Some(25.0), None));
        assert_eq!(a.device_interrupts_per_second, Some(3.5));
        assert_eq!((a.vcpus[1].name.as_str(), a.note.as_str()), ("io0", "interrupts 3.5/s"));
        assert_eq!(a.reason.as_deref(), Some("interrupts 3.5/s"));
    }

    #[test]
    fn what_cannot_be_compared_has_no_rate() {
        let now = counts((7, 1), 5);
        // Another thread, a decreased counter, no time between.
        for (before, seconds) in [(counts((7, 2), 4), 2), (counts((7, 1), 6), 2), (counts((7, 1), 4), 0)] {
            assert_eq!(of(&before, &now, seconds).vcpus[0].rates, Rates::default());
        }
        let mut elsewhere = counts((7, 1), 4);
        Arc::make_mut(&mut elsewhere.instance).exclusive = "3".parse().unwrap();
        assert_eq!(of(&elsewhere, &now, 2).device_interrupts_per_second, None);
    }

    /// A VM of whose vCPUs each waited for so many milliseconds in a second, and was preempted so often.
    fn disturbed(vcpus: &[(u64, u64)], throttled_us: u64, degraded: &[&str]) -> InstanceRates {
        let all = |count: u64| InstanceCounts {
            instance: Arc::new(Instance {
                degraded: degraded
                    .iter()
                    .map(|text| Reason::of_node(ReasonCode::CpusetChanged, *text))
                    .collect(),
                ..Instance::default()
            }),
            throttled_us: Some(count * throttled_us),
            vcpus: (0..)
                .zip(vcpus)
                .map(|(index, (delay, involuntary))| {
                    let thread = ThreadCounts {
                        delay_ns: Some(count * delay * 1_000_000),
                        involuntary: Some(count * involuntary),
                        ..thread((7, 1))
                    };
                    (index, thread)
                })
                .collect(),
            ..InstanceCounts::default()
        };
        of(&all(0), &all(1), 1)
    }

    #[test]
    fn a_thread_is_disturbed_from_a_bar_on() {
        let reported = |delay, involuntary| disturbed(&[(delay, involuntary)], 0, &[]).vcpus[0].note.clone();
        assert_eq!(reported(9, 9), "");
        assert_eq!(reported(10, 0), "waits for CPU 1 %");
        assert_eq!(reported(0, 30), "preempted 30/s");
        assert_eq!(reported(123, 10), "waits for CPU 12 %, preempted 10/s");
        let idles = Rates {
            forced_idle_percent: Some(40.0),
            ..Rates::default()
        };
        assert_eq!(idles.disturbances(), "keeps siblings idle 40 %");
    }

    #[test]
    fn a_vm_has_what_the_daemon_says_first_and_its_worst_thread_last() {
        let vcpus = [(30, 0), (120, 0), (0, 99)];
        let reported = disturbed(&vcpus, 50_000, &["the cpuset was changed"]);
        assert_eq!(
            reported.reason.unwrap(),
            "the cpuset was changed; throttled 5 %; vCPU 1 waits for CPU 12 %"
        );
        assert_eq!(reported.note, "cpuset changed");
        let preempted = disturbed(&[(5, 20), (5, 40)], 9_000, &[]);
        assert_eq!(preempted.reason.unwrap(), "vCPU 1 preempted 40/s");
        assert_eq!(disturbed(&vcpus, 50_000, &[]).note, "throttled 5 %");
        assert_eq!(disturbed(&vcpus, 0, &[]).note, "waits for CPU 12 %");
    }
}
