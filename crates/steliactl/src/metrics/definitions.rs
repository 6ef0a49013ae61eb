//! Every metric: its name, type, labels, meaning, and where its samples come from. A test compares them with
//! `docs/metrics.md`.

use stelia_api::view::Instance;
use stelia_record::Phase;

use super::families::{Samples, Seen, Value, count, each, left, moment, nanoseconds, one, owners, seconds, threads};
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
pub(super) type Read = fn(&Seen<'_>) -> Samples;
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
        |seen| vec![(vec![seen.described.version.clone()], Value::Count(1))],
    ),
    Definition::gauge(
        "stelia_start_time_seconds",
        &[],
        "When the daemon started, since the epoch.",
        |seen| one(moment(seen.described.metrics.started_us)),
    ),
    Definition::gauge("stelia_instances", &["state"], "Instances by state.", |seen| {
        let with = |state: &str| seen.instances().filter(|(_, instance)| instance.state == state).count();
        let states = [
            Phase::Registered,
            Phase::Floating,
            Phase::Isolated,
            Phase::Contained,
            Phase::Leaving,
        ];
        states
            .map(|state| (vec![state.name().to_owned()], count(with(state.name()))))
            .into()
    }),
    Definition::gauge(
        "stelia_instances_degraded",
        &[],
        "Instances whose isolation is degraded.",
        |seen| {
            one(count(
                seen.instances()
                    .filter(|(_, instance)| !instance.degraded.is_empty())
                    .count(),
            ))
        },
    ),
    Definition::gauge(
        "stelia_scopes_unreadable",
        &[],
        "Scopes in stelia.slice whose record cannot be used; steliad does not touch them.",
        |seen| one(count(seen.described.node.unreadable.len())),
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
        |seen| one(Value::Count(seen.described.node.kubelet_problem.is_none().into())),
    ),
    Definition::gauge(
        "stelia_kubelet_state_since_timestamp_seconds",
        &[],
        "Since when that is so.",
        |seen| one(moment(seen.described.metrics.kubelet_since_us)),
    ),
    Definition::gauge(
        "stelia_kubelet_state_modified_timestamp_seconds",
        &[],
        "When that file was written last.",
        |seen| one(moment(seen.described.node.kubelet_modified_us.unwrap_or(0))),
    ),
    Definition::histogram(
        "stelia_kubelet_follow_seconds",
        &[],
        "From kubelet's write to the end of the pass that followed it.",
        |seen| one(Value::Timed(seen.described.metrics.follow.clone())),
    ),
    Definition::counter(
        "stelia_passes",
        &["trigger"],
        "Passes by what made them happen: event, audit, call, reload.",
        |seen| {
            each(&seen.described.metrics.passes, |timed| {
                Value::Count(timed.counts.iter().sum())
            })
        },
    ),
    Definition::histogram(
        "stelia_pass_duration_seconds",
        &["trigger"],
        "How long passes took.",
        |seen| each(&seen.described.metrics.passes, |timed| Value::Timed(timed.clone())),
    ),
    Definition::counter("stelia_steps", &[], "Steps taken, failed ones included.", |seen| {
        one(Value::Count(seen.described.metrics.steps))
    }),
    Definition::counter(
        "stelia_steps_failed",
        &[],
        "Steps that failed; they are tried again.",
        |seen| one(Value::Count(seen.described.metrics.failed)),
    ),
    Definition::counter(
        "stelia_cgroup_writes",
        &[],
        "Writes to cgroup files, cgroups made and removed.",
        |seen| one(Value::Count(seen.described.metrics.writes)),
    ),
    Definition::counter(
        "stelia_cgroup_moves",
        &[],
        "Processes and threads moved between cgroups.",
        |seen| one(Value::Count(seen.described.metrics.moves)),
    ),
    Definition::counter(
        "stelia_drift_found",
        &[],
        "Things found changed by somebody else.",
        |seen| one(Value::Count(seen.described.node.counters.drift_found)),
    ),
    Definition::counter(
        "stelia_drift_repaired",
        &[],
        "Those put right in the same pass.",
        |seen| one(Value::Count(seen.described.node.counters.drift_repaired)),
    ),
    Definition::histogram(
        "stelia_call_duration_seconds",
        &["call"],
        "How long D-Bus calls took, refused ones included; its count is the number of calls.",
        |seen| each(&seen.described.metrics.calls, |timed| Value::Timed(timed.clone())),
    ),
    Definition::counter(
        "stelia_refusals",
        &["error"],
        "Calls answered with an error, by its name.",
        |seen| each(&seen.described.metrics.refusals, |number| Value::Count(*number)),
    ),
    Definition::gauge(
        "stelia_instance_info",
        &["pod_uid", "namespace", "pod", "container", "state", "class"],
        "Always 1: an instance, its state, and its QoS class where steliad chose its CPUs.",
        |seen| {
            let labels = |(uid, one): (&String, &Instance)| {
                let own = [&one.container, &one.state, one.class()].map(str::to_owned);
                ([seen.pod_labels(uid), own.into()].concat(), Value::Count(1))
            };
            seen.instances().map(labels).collect()
        },
    ),
    Definition::gauge(
        "stelia_instance_degraded_reasons",
        POD,
        "Reasons why an instance's isolation is degraded; 0 where it is not.",
        |seen| {
            seen.of_pods(&seen.described.node.instances, |instance| {
                Some(count(instance.degraded.len()))
            })
        },
    ),
    Definition::gauge(
        "stelia_instance_exclusive_cpus",
        POD,
        "Exclusive CPUs of an instance.",
        |seen| {
            seen.of_pods(&seen.described.node.instances, |instance| {
                Some(count(instance.exclusive.len()))
            })
        },
    ),
    Definition::gauge(
        "stelia_instance_registered_timestamp_seconds",
        POD,
        "When an instance was registered.",
        |seen| {
            seen.of_pods(&seen.described.node.instances, |instance| {
                moment(instance.registered_us)
            })
        },
    ),
    Definition::gauge(
        "stelia_instance_isolated_timestamp_seconds",
        POD,
        "When its vCPUs were isolated or contained; absent before.",
        |seen| seen.of_pods(&seen.described.node.instances, |instance| moment(instance.isolated_us)),
    ),
    Definition::gauge(
        "stelia_instance_memory_bytes",
        POD,
        "Memory of an instance's scope and of its container's own cgroup together.",
        |seen| {
            seen.of_pods(&seen.described.usage, |usage| {
                let both = usage.memory_bytes.saturating_add(usage.origin_memory_bytes);
                Some(Value::Count(both))
            })
        },
    ),
    Definition::gauge(
        "stelia_instance_memory_away_ratio",
        POD,
        "Share of an instance's memory that is on other NUMA nodes than its CPUs', 0 to 1; the page cache is not counted. Absent where it has no CPUs of its own.",
        |seen| {
            seen.of_pods(&seen.described.locality.instances, |vm| {
                Some(Value::Ratio(vm.away()?.ratio()))
            })
        },
    ),
    Definition::counter(
        "stelia_instance_float_cpu_seconds",
        POD,
        "CPU time of everything of an instance that is no vCPU.",
        |seen| seen.of_pods(&seen.sample.instances, |counts| counts.float_us.map(seconds)),
    ),
    Definition::counter(
        "stelia_device_interrupts",
        POD,
        "Device interrupts on an instance's exclusive CPUs since boot, before it had them too; its rate is 0 where nothing disturbs them.",
        |seen| {
            seen.of_pods(&seen.sample.instances, |counts| {
                counts.device_interrupts.map(Value::Count)
            })
        },
    ),
    Definition::gauge(
        "stelia_interrupts_remaining",
        POD,
        "Device interrupts that can reach an instance's exclusive CPUs although they should not. Absent where they are not steered or that is not known.",
        |seen| {
            let quiet = &seen.described.node.quiet;
            let steered = quiet.steering != "off";
            left(seen, |cpus| {
                let remaining = quiet.report.remaining.iter();
                steered.then(|| remaining.filter(|one| !one.cpus.is_disjoint(cpus)).count())
            })
        },
    ),
    Definition::gauge(
        "stelia_kernel_threads_remaining",
        POD,
        "Kernel threads that may run on an instance's exclusive CPUs and could not be moved. Absent where that is not known.",
        |seen| {
            let threads = &seen.described.node.quiet.report.threads_remaining;
            left(seen, |cpus| {
                Some(threads.iter().filter(|one| !one.cpus.is_disjoint(cpus)).count())
            })
        },
    ),
    Definition::gauge(
        "stelia_llc_occupancy_bytes",
        POD,
        "Last-level cache that an instance uses, where resctrl counts it.",
        |seen| {
            seen.of_pods(&seen.described.node.quiet.report.caches, |used| {
                used.llc_bytes.map(Value::Count)
            })
        },
    ),
    Definition::counter(
        "stelia_memory_bandwidth_bytes",
        POD,
        "Moved between an instance and memory, where resctrl counts it.",
        |seen| {
            seen.of_pods(&seen.described.node.quiet.report.caches, |used| {
                used.memory_bytes.map(Value::Count)
            })
        },
    ),
    ledger::KEPT,
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
        "Whether the file for the cluster's publisher says how things are: 1 or 0. Absent where it is switched off.",
        |seen| {
            let publishing = seen.described.node.publishing.as_ref();
            let publishing = publishing.filter(|publishing| publishing.profile.is_some());
            one(publishing.map(|publishing| Value::Count(u64::from(publishing.problem.is_none()))))
        },
    ),
    Definition::counter("stelia_vcpu_run_seconds", VCPU, "Time a vCPU thread ran.", |seen| {
        threads(seen, |thread| thread.run_ns.map(nanoseconds))
    }),
    Definition::counter(
        "stelia_vcpu_run_delay_seconds",
        VCPU,
        "Time a vCPU thread could have run and waited for a CPU: next to nothing on a CPU of its own.",
        |seen| threads(seen, |thread| thread.delay_ns.map(nanoseconds)),
    ),
    Definition::counter(
        "stelia_vcpu_involuntary_switches",
        VCPU,
        "How often a vCPU thread was switched out while it could have run on.",
        |seen| threads(seen, |thread| thread.involuntary.map(Value::Count)),
    ),
];
