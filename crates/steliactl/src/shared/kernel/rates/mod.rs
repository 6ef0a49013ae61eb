//! Rates from two samples, and what of them disturbs a VM.

mod reason;

use serde::{Serialize, Serializer};
use stelia_api::{Reason, ThreadRole};
use stelia_cpus::CpuSet;
use stelia_settings::Isolation;

use crate::shared::daemon::{Condition, Pod};
use crate::shared::kernel::sample::{InstanceCounts, Sample, ThreadCounts};

/// Time that a vCPU waits for its CPU, in percent: above this the guest notices it.
pub(crate) const HIGH_DELAY_PERCENT: f64 = 1.0;
/// Time that the VM was throttled by a CPU limit, in percent.
pub(crate) const HIGH_THROTTLED_PERCENT: f64 = 1.0;
/// Time that core scheduling kept siblings of a vCPU's CPU idle, in percent of one CPU.
pub(crate) const HIGH_FORCED_IDLE_PERCENT: f64 = 1.0;

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Model {
    /// Between the two samples.
    #[serde(rename = "interval_us", serialize_with = "us")]
    pub seconds: f64,
    /// What is wrong on the node.
    pub problems: Vec<Reason>,
    pub instances: Vec<InstanceRates>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct InstanceRates {
    #[serde(flatten)]
    pub pod: Pod,
    /// isolated, pinned, waiting, …
    pub state: String,
    pub isolation: Isolation,
    /// As JSON whether it is degraded.
    #[serde(rename = "degraded", serialize_with = "is_degraded")]
    pub condition: Condition,
    #[serde(skip)]
    pub in_trouble: bool,
    #[serde(rename = "exclusive_cpus")]
    pub cpus: CpuSet,
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
    /// To and from memory, by resctrl.
    pub memory_bytes_per_second: Option<f64>,
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
    /// Its start time: with its number, its identity.
    #[serde(skip)]
    pub start: u64,
    pub cpu: Option<u32>,
    #[serde(flatten)]
    pub rates: Rates,
    pub note: String,
    /// What disturbs it, in words; `None` where nothing does.
    pub reason: Option<String>,
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

impl Model {
    /// Whether resctrl counts any of the VMs.
    pub(crate) fn has_caches(&self) -> bool {
        let mut instances = self.instances.iter();
        instances.any(|one| one.llc_bytes.is_some() || one.memory_bytes_per_second.is_some())
    }
}

/// Percents are for people; JSON has ratios.
fn ratio<S: Serializer>(percent: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    // Percents are rounded to a hundredth, which is a ten-thousandth as a ratio.
    percent
        .map(|percent| (percent * 100.0).round() / 10_000.0)
        .serialize(serializer)
}

fn us<S: Serializer>(seconds: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64((seconds * 1e6).round() as u64)
}

fn is_degraded<S: Serializer>(condition: &Condition, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bool(matches!(condition, Condition::Degraded | Condition::Evicted))
}

/// The growth of a counter per second, in `unit`s; `None` where a value is missing, it decreased, or no time passed.
fn rate(before: Option<u64>, now: Option<u64>, seconds: f64, unit: f64) -> Option<f64> {
    let grown = now?.checked_sub(before?)?;
    // Rounded to a hundredth: the rest would be noise in the JSON.
    (seconds > 0.0).then(|| (grown as f64 / unit / seconds * 100.0).round() / 100.0)
}

fn thread(before: Option<&ThreadCounts>, now: &ThreadCounts, seconds: f64) -> Rates {
    // Counters of another thread cannot be compared.
    let Some(before) = before.filter(|before| before.task == now.task) else {
        return Rates::default();
    };
    // Percent of a second, in nanoseconds.
    let percent = 1e9 / 100.0;
    Rates {
        utilisation_percent: rate(before.run_ns, now.run_ns, seconds, percent),
        delay_percent: rate(before.delay_ns, now.delay_ns, seconds, percent),
        migrations_per_second: rate(before.migrations, now.migrations, seconds, 1.0),
        involuntary_per_second: rate(before.involuntary, now.involuntary, seconds, 1.0),
        forced_idle_percent: rate(before.forced_idle_ns, now.forced_idle_ns, seconds, percent),
    }
}

/// The sum of the known values; `None` when none is known.
fn sum(rates: &[VcpuRates], of: impl Fn(&Rates) -> Option<f64>) -> Option<f64> {
    rates
        .iter()
        .filter_map(|vcpu| of(&vcpu.rates))
        .reduce(|sum, value| sum + value)
}

fn instance(before: Option<&InstanceCounts>, now: &InstanceCounts, seconds: f64) -> InstanceRates {
    let of = |(index, task): (&u32, &ThreadCounts)| {
        let rates = thread(before.and_then(|before| before.vcpus.get(index)), task, seconds);
        VcpuRates {
            name: match ThreadRole::from(*index) {
                ThreadRole::Vcpu(index) => index.to_string(),
                ThreadRole::IoThread(index) => format!("io{index}"),
            },
            tid: task.task.0,
            start: task.task.1,
            cpu: task.cpu,
            rates,
            note: reason::note(&rates),
            reason: reason::of_thread(&rates),
        }
    };
    let vcpus: Vec<VcpuRates> = now.vcpus.iter().map(of).collect();
    let percent = 1e6 / 100.0;
    let throttled_percent = rate(
        before.and_then(|before| before.throttled_us),
        now.throttled_us,
        seconds,
        percent,
    );
    InstanceRates {
        pod: now.pod.clone(),
        state: now.state.clone(),
        isolation: now.isolation,
        condition: now.condition,
        in_trouble: now.in_trouble,
        cpus: now.cpus.clone(),
        float_percent: rate(
            before.and_then(|before| before.float_us),
            now.float_us,
            seconds,
            percent,
        ),
        throttled_percent,
        // On other CPUs it is a different counter.
        device_interrupts_per_second: rate(
            before
                .filter(|before| before.cpus == now.cpus)
                .and_then(|before| before.device_interrupts),
            now.device_interrupts,
            seconds,
            1.0,
        ),
        llc_bytes: now.caches.llc_bytes,
        memory_bytes_per_second: now.caches.memory_bytes_per_second,
        note: match now.note {
            "" => reason::note_of_instance(throttled_percent, &vcpus),
            note => note.to_owned(),
        },
        reason: reason::of_instance(&now.reasons, throttled_percent, &vcpus),
        rates: Rates {
            utilisation_percent: sum(&vcpus, |rates| rates.utilisation_percent),
            delay_percent: sum(&vcpus, |rates| rates.delay_percent),
            migrations_per_second: sum(&vcpus, |rates| rates.migrations_per_second),
            involuntary_per_second: sum(&vcpus, |rates| rates.involuntary_per_second),
            forced_idle_percent: sum(&vcpus, |rates| rates.forced_idle_percent),
        },
        vcpus,
    }
}

pub(crate) fn rates(before: &Sample, now: &Sample) -> Model {
    let seconds = now.at.saturating_sub(before.at).as_secs_f64();
    let instances = now.instances.iter();
    Model {
        seconds,
        problems: now.problems.clone(),
        instances: instances
            .map(|(pod, one)| instance(before.instances.get(pod), one, seconds))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn sample(at: u64, task: (i32, u64), count: u64) -> Sample {
        let thread = ThreadCounts {
            task,
            cpu: Some(2),
            run_ns: Some(count * 1_000_000_000),
            delay_ns: Some(count * 1_000_000),
            migrations: None,
            forced_idle_ns: None,
            involuntary: Some(count * 3),
        };
        let instance = InstanceCounts {
            float_us: Some(count * 500_000),
            cpus: "2".parse().unwrap(),
            device_interrupts: Some(count * 7),
            vcpus: [(0, thread.clone()), (ThreadRole::IoThread(0).into(), thread)].into(),
            ..InstanceCounts::default()
        };
        Sample {
            at: Duration::from_secs(at),
            instances: [("a".to_owned(), instance)].into(),
            ..Sample::default()
        }
    }

    #[test]
    fn rates_are_per_second_and_an_instance_has_its_vcpus_together() {
        let model = rates(&sample(10, (7, 1), 4), &sample(12, (7, 1), 5));
        let a = &model.instances[0];
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
        assert_eq!(a.vcpus[1].name, "io0");
        assert_eq!((a.note.as_str(), a.vcpus[0].start), ("", 1));
    }

    #[test]
    fn interrupts_of_other_cpus_are_not_compared() {
        let (mut before, now) = (sample(10, (7, 1), 4), sample(12, (7, 1), 5));
        before.instances.get_mut("a").unwrap().cpus = "3".parse().unwrap();
        assert_eq!(rates(&before, &now).instances[0].device_interrupts_per_second, None);
    }

    #[test]
    fn what_cannot_be_compared_has_no_rate() {
        let now = sample(12, (7, 1), 5);
        for before in [
            // Another thread, a decreased counter, no time between, no former sample.
            sample(10, (7, 2), 4),
            sample(10, (7, 1), 6),
            sample(12, (7, 1), 4),
            Sample::default(),
        ] {
            assert_eq!(rates(&before, &now).instances[0].vcpus[0].rates, Rates::default());
        }
    }
}
