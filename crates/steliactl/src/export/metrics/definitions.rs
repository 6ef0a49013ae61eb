//! Every metric: its name, type, labels, meaning, and where its samples come from. A test compares them with
//! `docs/metrics.md`.

use stelia_api::State;
use stelia_kubelet::PodUid;
use stelia_model::Instance;

use super::families::{
    MetricsInput, Samples, Value, count, each, left, moment, nanoseconds, one, owners, seconds, threads,
};
use super::ledger;

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Gauge,
    /// Only grows, while the daemon (or the thread, or the cgroup) lives.
    Counter,
    /// Durations.
    Histogram,
}

#[derive(Debug)]
pub struct Definition {
    /// The name in OpenMetrics; a counter's samples end in `_total`.
    pub name: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
    pub help: &'static str,
    pub(super) read: Read,
}

/// The samples of a metric.
pub(super) type Read = fn(&MetricsInput<'_>) -> Samples;
type Labels = &'static [&'static str];

impl Definition {
    pub(super) const fn gauge(name: &'static str, labels: Labels, help: &'static str, read: Read) -> Self {
        Self::of(Kind::Gauge, name, labels, help, read)
    }

    pub(super) const fn counter(name: &'static str, labels: Labels, help: &'static str, read: Read) -> Self {
        Self::of(Kind::Counter, name, labels, help, read)
    }

    const fn histogram(name: &'static str, labels: Labels, help: &'static str, read: Read) -> Self {
        Self::of(Kind::Histogram, name, labels, help, read)
    }

    const fn of(kind: Kind, name: &'static str, labels: Labels, help: &'static str, read: Read) -> Self {
        Self {
            name,
            kind,
            labels,
            help,
            read,
        }
    }

    /// The unit, which is the end of the name.
    pub fn unit(&self) -> Option<&'static str> {
        ["seconds", "bytes"].into_iter().find(|unit| self.name.ends_with(unit))
    }

    pub fn samples(&self) -> Vec<String> {
        let endings: &[&str] = match self.kind {
            Kind::Gauge => &[""],
            Kind::Counter => &["_total"],
            Kind::Histogram => &["_bucket", "_sum", "_count"],
        };
        endings.iter().map(|ending| format!("{}{ending}", self.name)).collect()
    }
}

pub(super) const POD: &[&str] = &["pod_uid", "namespace", "pod"];
/// Without the pod's name, which would make them half as long again: `docs/metrics.md` has the figures and the join.
const VCPU: &[&str] = &["pod_uid", "vcpu", "cpu"];

/// The only metric when no daemon answers.
pub(super) const UP: Definition = Definition::gauge("stelia_up", &[], "Whether the daemon answered: 1 or 0.", |_| {
    one(Value::Count(1))
});

/// All metrics, in the order in which they are printed.
pub const ALL: [Definition; 47] = [
    UP,
    Definition::gauge(
        "stelia_build_info",
        &["version"],
        "Always 1: the daemon that runs.",
        |input| vec![(vec![input.described.version.clone()], Value::Count(1))],
    ),
    Definition::gauge(
        "stelia_start_time_seconds",
        &[],
        "When the daemon started, since the epoch.",
        |input| one(moment(input.described.metrics.started_us)),
    ),
    Definition::gauge("stelia_instances", &["state"], "Instances by state.", |input| {
        let with = |state: State| {
            input
                .instances()
                .filter(|(_, instance)| instance.state == state)
                .count()
        };
        State::ALL
            .map(|state| (vec![state.name().to_owned()], count(with(state))))
            .into()
    }),
    Definition::gauge(
        "stelia_instances_degraded",
        &[],
        "Instances whose isolation is degraded.",
        |input| {
            one(count(
                input
                    .instances()
                    .filter(|(_, instance)| !instance.degraded.is_empty())
                    .count(),
            ))
        },
    ),
    Definition::gauge(
        "stelia_scopes_unreadable",
        &[],
        "Scopes in stelia.slice whose record cannot be used; steliad does not touch them.",
        |input| one(count(input.described.node.unreadable.len())),
    ),
    Definition::gauge(
        "stelia_cpus",
        &["owner"],
        "CPUs by owner: exclusive (an instance's), pod (another pod's exclusive ones), shared, reserved (for the system), unknown, offline.",
        owners,
    ),
    Definition::gauge(
        "stelia_kubelet_state_usable",
        &[],
        "Whether kubelet's cpu_manager_state can be used: 1 or 0.",
        |input| one(Value::Count(input.described.node.kubelet_problem.is_none().into())),
    ),
    Definition::gauge(
        "stelia_kubelet_state_since_timestamp_seconds",
        &[],
        "Since when kubelet's cpu_manager_state is usable or unusable, since the epoch.",
        |input| one(moment(input.described.metrics.kubelet_since_us)),
    ),
    Definition::gauge(
        "stelia_kubelet_state_modified_timestamp_seconds",
        &[],
        "When kubelet's cpu_manager_state was last written, since the epoch.",
        |input| one(moment(input.described.node.kubelet_modified_us.unwrap_or(0))),
    ),
    Definition::histogram(
        "stelia_kubelet_follow_seconds",
        &[],
        "Time from kubelet's write of cpu_manager_state to the end of the pass that it caused.",
        |input| one(Value::Durations(input.described.metrics.follow.clone())),
    ),
    Definition::counter(
        "stelia_passes",
        &["trigger"],
        "Passes by cause: event, audit, call, reload.",
        |input| {
            each(&input.described.metrics.passes, |timed| {
                Value::Count(timed.counts.iter().sum())
            })
        },
    ),
    Definition::histogram(
        "stelia_pass_duration_seconds",
        &["trigger"],
        "Duration of passes.",
        |input| each(&input.described.metrics.passes, |timed| Value::Durations(timed.clone())),
    ),
    Definition::counter("stelia_steps", &[], "Steps taken, including failed ones.", |input| {
        one(Value::Count(input.described.metrics.steps))
    }),
    Definition::counter(
        "stelia_steps_failed",
        &[],
        "Steps that failed. Failed steps are retried.",
        |input| one(Value::Count(input.described.metrics.failed)),
    ),
    Definition::counter(
        "stelia_cgroup_writes",
        &[],
        "Writes to cgroup files, and cgroups created and removed.",
        |input| one(Value::Count(input.described.metrics.writes)),
    ),
    Definition::counter(
        "stelia_cgroup_moves",
        &[],
        "Processes and threads moved between cgroups.",
        |input| one(Value::Count(input.described.metrics.moves)),
    ),
    Definition::counter(
        "stelia_drift_found",
        &[],
        "Differences found because another program changed something (drift).",
        |input| one(Value::Count(input.described.node.counters.drift_found)),
    ),
    Definition::counter(
        "stelia_drift_repaired",
        &[],
        "Drift that the pass which found it repaired.",
        |input| one(Value::Count(input.described.node.counters.drift_repaired)),
    ),
    Definition::histogram(
        "stelia_call_duration_seconds",
        &["call"],
        "Duration of D-Bus calls, including refused ones. Its count is the number of calls.",
        |input| each(&input.described.metrics.calls, |timed| Value::Durations(timed.clone())),
    ),
    Definition::counter(
        "stelia_refusals",
        &["error"],
        "Calls that were answered with an error, by the error's name.",
        |input| each(&input.described.metrics.refusals, |number| Value::Count(*number)),
    ),
    Definition::gauge(
        "stelia_instance_info",
        &[
            "pod_uid",
            "namespace",
            "pod",
            "container",
            "isolation",
            "state",
            "class",
        ],
        "Always 1: an instance, who uses its exclusive CPUs (vcpus, container), its state, and its QoS class if steliad chose its CPUs.",
        |input| {
            let labels = |(uid, one): (&PodUid, &Instance)| {
                let own = [
                    one.container.as_str(),
                    one.isolation.name(),
                    one.state.name(),
                    one.class(),
                ]
                .map(str::to_owned);
                ([input.pod_labels(uid.as_str()), own.into()].concat(), Value::Count(1))
            };
            input.instances().map(labels).collect()
        },
    ),
    Definition::gauge(
        "stelia_instance_degraded_reasons",
        POD,
        "Number of reasons why an instance's isolation is degraded; 0 if it is not.",
        |input| input.of_instances(|instance| Some(count(instance.degraded.len()))),
    ),
    Definition::gauge(
        "stelia_instance_exclusive_cpus",
        POD,
        "Exclusive CPUs of an instance.",
        |input| input.of_instances(|instance| Some(count(instance.exclusive.len()))),
    ),
    Definition::gauge(
        "stelia_instance_registered_timestamp_seconds",
        POD,
        "When an instance was registered.",
        |input| input.of_instances(|instance| moment(instance.registered_us)),
    ),
    Definition::gauge(
        "stelia_instance_isolated_timestamp_seconds",
        POD,
        "When an instance was isolated or pinned. Absent before that.",
        |input| input.of_instances(|instance| moment(instance.isolated_us)),
    ),
    Definition::gauge(
        "stelia_instance_memory_bytes",
        POD,
        "Memory of an instance's scope and of its container's own cgroup together.",
        |input| {
            input.of_pods(&input.described.usage, |usage| {
                let both = usage.memory_bytes.saturating_add(usage.origin_memory_bytes);
                Some(Value::Count(both))
            })
        },
    ),
    Definition::gauge(
        "stelia_instance_memory_away_ratio",
        POD,
        "Share of an instance's memory that is remote from its CPUs, 0 to 1, without the page cache. Absent if it has no exclusive CPUs.",
        |input| {
            input.of_pods(&input.described.locality.instances, |vm| {
                Some(Value::Ratio(vm.away()?.ratio()))
            })
        },
    ),
    Definition::counter(
        "stelia_instance_float_cpu_seconds",
        POD,
        "CPU time of all threads of an instance except vCPU threads.",
        |input| input.of_pods(&input.sample.instances, |counts| counts.float_us.map(seconds)),
    ),
    Definition::counter(
        "stelia_device_interrupts",
        POD,
        "Device interrupts on an instance's exclusive CPUs since boot, including the time before it had them. The rate is 0 if nothing disturbs them.",
        |input| {
            input.of_pods(&input.sample.instances, |counts| {
                counts.device_interrupts.map(Value::Count)
            })
        },
    ),
    Definition::gauge(
        "stelia_interrupts_remaining",
        POD,
        "Device interrupts that can reach an instance's exclusive CPUs although they should not. Absent if interrupts are not steered or the number is unknown.",
        |input| {
            let quiet = &input.described.node.quiet;
            let steered = quiet.steering != "off";
            left(input, |cpus| {
                let remaining = quiet.report.remaining.iter();
                steered.then(|| remaining.filter(|one| !one.cpus.is_disjoint(cpus)).count())
            })
        },
    ),
    Definition::gauge(
        "stelia_kernel_threads_remaining",
        POD,
        "Kernel threads that may run on an instance's exclusive CPUs and could not be moved. Absent if the number is unknown.",
        |input| {
            let threads = &input.described.node.quiet.report.threads_remaining;
            left(input, |cpus| {
                Some(threads.iter().filter(|one| !one.cpus.is_disjoint(cpus)).count())
            })
        },
    ),
    Definition::gauge(
        "stelia_llc_occupancy_bytes",
        POD,
        "Last-level cache used by an instance, if resctrl counts it.",
        |input| {
            input.of_pods(&input.described.node.quiet.report.caches, |used| {
                used.llc_bytes.map(Value::Count)
            })
        },
    ),
    Definition::counter(
        "stelia_memory_bandwidth_bytes",
        POD,
        "Bytes moved between an instance's CPUs and memory, if resctrl counts them.",
        |input| {
            input.of_pods(&input.described.node.quiet.report.caches, |used| {
                used.memory_bytes.map(Value::Count)
            })
        },
    ),
    ledger::LEDGER_PRESENT,
    ledger::SIZE,
    ledger::HEAD,
    ledger::OTHER_TASKS,
    ledger::DEVICES,
    ledger::DELAY,
    ledger::PROMISED,
    ledger::COVERED,
    ledger::INTRUSIONS,
    Definition::gauge(
        "stelia_published",
        &[],
        "Whether the file for the cluster's publisher is current: 1 or 0. Absent if publishing is switched off.",
        |input| {
            let publishing = &input.described.node.publishing;
            let current = Value::Count(u64::from(publishing.problem.is_none()));
            one(publishing.profile.is_some().then_some(current))
        },
    ),
    Definition::counter(
        "stelia_vcpu_run_seconds",
        VCPU,
        "Time that a vCPU thread ran.",
        |input| threads(input, |thread| thread.run_ns.map(nanoseconds)),
    ),
    Definition::counter(
        "stelia_vcpu_run_delay_seconds",
        VCPU,
        "Time that a vCPU thread was runnable and waited for a CPU: almost 0 on an exclusive CPU.",
        |input| threads(input, |thread| thread.delay_ns.map(nanoseconds)),
    ),
    Definition::counter(
        "stelia_vcpu_involuntary_switches",
        VCPU,
        "How often a vCPU thread was switched out while it was runnable.",
        |input| threads(input, |thread| thread.involuntary.map(Value::Count)),
    ),
];
