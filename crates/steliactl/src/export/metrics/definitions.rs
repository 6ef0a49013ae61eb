//! Every metric: its name, type, labels, meaning, and where its samples come from. A test compares them with
//! `docs/metrics.md`.

use Kind::{Counter, Gauge, Histogram};
use stelia_api::State;
use stelia_cpus::CpuSet;

use super::samples::{
    Input, Read, Samples, Value, Vm, count, each, flag, moment, nanoseconds, number, owners, seconds, with_label,
};
use crate::shared::kernel::sample::ThreadCounts;

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

impl Definition {
    /// The unit, which is the end of the name.
    pub fn unit(&self) -> Option<&'static str> {
        ["seconds", "bytes"].into_iter().find(|unit| self.name.ends_with(unit))
    }

    pub fn samples(&self) -> Vec<String> {
        let endings: &[&str] = match self.kind {
            Gauge => &[""],
            Counter => &["_total"],
            Histogram => &["_bucket", "_sum", "_count"],
        };
        endings.iter().map(|ending| format!("{}{ending}", self.name)).collect()
    }
}

const POD: &[&str] = &["pod_uid", "namespace", "pod"];
/// Without the pod's name, which would make them half as long again: `docs/metrics.md` has the figures and the join.
const VCPU: &[&str] = &["pod_uid", "vcpu", "cpu"];

/// One sample of the whole node.
const fn node(kind: Kind, name: &'static str, help: &'static str, read: fn(&Input<'_>) -> Option<Value>) -> Definition {
    series(kind, name, &[], help, Read::Node(read))
}

/// A sample of each VM.
const fn vm(kind: Kind, name: &'static str, help: &'static str, read: fn(&Vm<'_>) -> Option<Value>) -> Definition {
    series(kind, name, POD, help, Read::Vm(read))
}

/// A sample of each vCPU thread.
const fn vcpu(name: &'static str, help: &'static str, read: fn(&ThreadCounts) -> Option<Value>) -> Definition {
    series(Counter, name, VCPU, help, Read::Vcpu(read))
}

/// Samples with these labels.
const fn series(
    kind: Kind,
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
    read: Read,
) -> Definition {
    Definition {
        name,
        kind,
        labels,
        help,
        read,
    }
}

/// The only metric when no daemon answers.
pub(super) const UP: Definition = node(Gauge, "stelia_up", "Whether the daemon answered: 1 or 0.", |_| {
    number(1)
});

/// All metrics, in the order in which they are printed.
pub const ALL: [Definition; 47] = [
    UP,
    series(
        Gauge,
        "stelia_build_info",
        &["version"],
        "Always 1. The version of the daemon.",
        Read::Series(|input| with_label(input.version, number(1))),
    ),
    node(
        Gauge,
        "stelia_start_time_seconds",
        "When the daemon started.",
        |input| moment(input.metrics.started_us),
    ),
    series(
        Gauge,
        "stelia_instances",
        &["state"],
        "VMs by state.",
        Read::Series(|input| {
            let with = |state: State| input.vms().filter(|vm| vm.instance.state == state).count();
            State::ALL
                .into_iter()
                .flat_map(|state| with_label(state.name(), count(with(state))))
                .collect()
        }),
    ),
    node(
        Gauge,
        "stelia_instances_degraded",
        "VMs whose isolation is degraded.",
        |input| count(input.vms().filter(|vm| !vm.instance.degraded.is_empty()).count()),
    ),
    node(
        Gauge,
        "stelia_scopes_unreadable",
        "Scopes with an unusable record, left alone.",
        |input| count(input.node.unreadable.len()),
    ),
    series(
        Gauge,
        "stelia_cpus",
        &["owner"],
        "CPUs by owner: exclusive (VMs), pod (exclusive to other pods), shared, reserved (for the system), unknown, offline.",
        Read::Series(owners),
    ),
    node(
        Gauge,
        "stelia_kubelet_state_usable",
        "Whether cpu_manager_state is valid: 1 or 0.",
        |input| flag(input.node.kubelet_problem.is_none()),
    ),
    node(
        Gauge,
        "stelia_kubelet_state_since_timestamp_seconds",
        "Since when cpu_manager_state is valid or invalid.",
        |input| moment(input.metrics.kubelet_since_us),
    ),
    node(
        Gauge,
        "stelia_kubelet_state_modified_timestamp_seconds",
        "When kubelet last wrote cpu_manager_state.",
        |input| moment(input.node.kubelet_modified_us.unwrap_or(0)),
    ),
    node(
        Histogram,
        "stelia_kubelet_follow_seconds",
        "Time from a write of cpu_manager_state to the end of the reconciliation that it caused.",
        |input| Some(Value::Durations(input.metrics.follow.clone())),
    ),
    series(
        Counter,
        "stelia_passes",
        &["trigger"],
        "Reconciliations by cause: event, audit, call, reload.",
        Read::Series(|input| each(&input.metrics.passes, |timed| Value::Count(timed.counts.iter().sum()))),
    ),
    series(
        Histogram,
        "stelia_pass_duration_seconds",
        &["trigger"],
        "Duration of reconciliations.",
        Read::Series(|input| each(&input.metrics.passes, |timed| Value::Durations(timed.clone()))),
    ),
    node(
        Counter,
        "stelia_steps",
        "Changes made, including failed ones.",
        |input| number(input.metrics.steps),
    ),
    node(
        Counter,
        "stelia_steps_failed",
        "Changes that failed. They are retried.",
        |input| number(input.metrics.failed),
    ),
    node(
        Counter,
        "stelia_cgroup_writes",
        "Writes to cgroup files; cgroups made, removed.",
        |input| number(input.metrics.writes),
    ),
    node(
        Counter,
        "stelia_cgroup_moves",
        "Processes and threads moved to other cgroups.",
        |input| number(input.metrics.moves),
    ),
    node(
        Counter,
        "stelia_drift_found",
        "Changes by other programs (drift) that were found.",
        |input| number(input.node.counters.drift_found),
    ),
    node(
        Counter,
        "stelia_drift_repaired",
        "Drift that was repaired when it was found.",
        |input| number(input.node.counters.drift_repaired),
    ),
    series(
        Histogram,
        "stelia_call_duration_seconds",
        &["call"],
        "Duration of D-Bus calls, including refused ones. Its count is the number of calls.",
        Read::Series(|input| each(&input.metrics.calls, |timed| Value::Durations(timed.clone()))),
    ),
    series(
        Counter,
        "stelia_refusals",
        &["error"],
        "D-Bus calls that were refused, by the name of the error.",
        Read::Series(|input| each(&input.metrics.refusals, |times| Value::Count(*times))),
    ),
    series(
        Gauge,
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
        "Always 1. A VM, who uses its exclusive CPUs (vcpus, container), its state, and its QoS class if steliad assigned its CPUs.",
        Read::Series(|input| {
            let labels = |vm: Vm<'_>| {
                let one = vm.instance;
                let own = [&one.container, one.isolation.name(), one.state.name(), one.class()].map(str::to_owned);
                ([vm.labels(), own.into()].concat(), Value::Count(1))
            };
            input.vms().map(labels).collect()
        }),
    ),
    vm(
        Gauge,
        "stelia_instance_degraded_reasons",
        "Problems that degrade a VM's isolation.",
        |vm| count(vm.instance.degraded.len()),
    ),
    vm(
        Gauge,
        "stelia_instance_exclusive_cpus",
        "Exclusive CPUs of a VM.",
        |vm| count(vm.instance.exclusive.len()),
    ),
    vm(
        Gauge,
        "stelia_instance_registered_timestamp_seconds",
        "When a VM was registered.",
        |vm| moment(vm.instance.registered_us),
    ),
    vm(
        Gauge,
        "stelia_instance_isolated_timestamp_seconds",
        "When a VM became isolated or pinned.",
        |vm| moment(vm.instance.isolated_us),
    ),
    vm(
        Gauge,
        "stelia_instance_memory_bytes",
        "Memory of a VM, in its scope and in the cgroup of its container together.",
        |vm| {
            vm.usage
                .and_then(|usage| number(usage.memory_bytes.saturating_add(usage.origin_memory_bytes)))
        },
    ),
    vm(
        Gauge,
        "stelia_instance_memory_away_ratio",
        "Share of a VM's memory that is remote from its CPUs, 0 to 1, without the page cache. Absent if it has no exclusive CPUs.",
        |vm| Some(Value::Real(vm.locality?.away()?.ratio())),
    ),
    vm(
        Counter,
        "stelia_instance_float_cpu_seconds",
        "CPU time of a VM's other threads.",
        |vm| vm.counts?.float_us.map(seconds),
    ),
    vm(
        Counter,
        "stelia_device_interrupts",
        "Device interrupts on a VM's exclusive CPUs since boot. The rate is 0 if nothing disturbs them.",
        |vm| number(vm.counts?.device_interrupts?),
    ),
    vm(
        Gauge,
        "stelia_interrupts_remaining",
        "Device interrupts that can reach a VM's exclusive CPUs although they should not. Absent if interrupts are not steered or the number is unknown.",
        |vm| {
            let remaining = vm.quiet.report.remaining.iter();
            let steered = vm.quiet.steering != "off";
            steered.then(|| vm.left(remaining.map(|one| &one.cpus))).flatten()
        },
    ),
    vm(
        Gauge,
        "stelia_kernel_threads_remaining",
        "Kernel threads that may run on a VM's exclusive CPUs and could not be moved. Absent if the number is unknown.",
        |vm| vm.left(vm.quiet.report.threads_remaining.iter().map(|one| &one.cpus)),
    ),
    vm(
        Gauge,
        "stelia_llc_occupancy_bytes",
        "Last-level cache that a VM uses (resctrl).",
        |vm| number(vm.caches?.llc_bytes?),
    ),
    vm(
        Counter,
        "stelia_memory_bandwidth_bytes",
        "Memory traffic of a VM (resctrl).",
        |vm| number(vm.caches?.memory_bytes?),
    ),
    node(
        Gauge,
        "stelia_ledger_kept",
        "Whether the ledger is switched on and written: 1 or 0.",
        |input| {
            let ledger = &input.node.ledger;
            flag(ledger.enabled && ledger.problem.is_none())
        },
    ),
    node(
        Gauge,
        "stelia_ledger_size_bytes",
        "Total size of the ledger's files.",
        |input| number(input.ledger()?.bytes),
    ),
    series(
        Gauge,
        "stelia_ledger_head_info",
        &["day", "entry", "hash", "key"],
        "Always 1. The last signature of the ledger: the hash of the last entry of a day. Store it elsewhere to detect later changes.",
        Read::Series(|input| {
            let signed = input.ledger().filter(|ledger| !ledger.hash.is_empty());
            let labels = signed.map(|ledger| {
                let entry = ledger.seq.to_string();
                [&ledger.day, &entry, &ledger.hash, &ledger.key]
                    .map(String::clone)
                    .into()
            });
            labels.map(|labels| (labels, Value::Count(1))).into_iter().collect()
        }),
    ),
    series(
        Counter,
        "stelia_ledger_other_tasks",
        &["pod_uid", "namespace", "pod", "bound"],
        "How often other tasks began to run on a VM's exclusive CPUs. The label bound is least or most; the count is exact if both grow equally.",
        Read::Series(|input| {
            let mut samples = Samples::new();
            for vm in input.vms() {
                let Some(ledger) = vm.ledger else { continue };
                for (bound, times) in [("least", ledger.other_tasks_least), ("most", ledger.other_tasks_most)] {
                    samples.push(([vm.labels(), vec![bound.to_owned()]].concat(), Value::Count(times)));
                }
            }
            samples
        }),
    ),
    vm(
        Counter,
        "stelia_ledger_device_interrupts",
        "Other devices' interrupts on a VM's CPUs.",
        |vm| number(vm.ledger?.devices),
    ),
    vm(
        Counter,
        "stelia_ledger_delay_seconds",
        "Time that a VM's vCPUs, or its container's tasks, were runnable and did not run. It includes wake-ups: no more was lost to other tasks.",
        |vm| Some(nanoseconds(vm.ledger?.delay_ns)),
    ),
    vm(
        Counter,
        "stelia_ledger_promised_cpu_seconds",
        "CPU time for which a VM had exclusive CPUs.",
        |vm| Some(seconds(vm.ledger?.promised_us)),
    ),
    vm(
        Counter,
        "stelia_ledger_covered_cpu_seconds",
        "The part of stelia_ledger_promised_cpu_seconds that the ledger measured. Nothing is known about the rest.",
        |vm| Some(seconds(vm.ledger?.covered_us)),
    ),
    vm(
        Counter,
        "stelia_ledger_intrusions",
        "How often a reading showed other tasks or other devices' interrupts on a VM's exclusive CPUs.",
        |vm| number(vm.ledger?.intruded),
    ),
    node(
        Gauge,
        "stelia_published",
        "Whether the file for the cluster's publisher is current: 1 or 0. Absent if publishing is switched off.",
        |input| {
            let publishing = &input.node.publishing;
            publishing
                .profile
                .as_ref()
                .and_then(|_| flag(publishing.problem.is_none()))
        },
    ),
    vcpu("stelia_vcpu_run_seconds", "Time that a vCPU thread ran.", |thread| {
        thread.run_ns.map(nanoseconds)
    }),
    vcpu(
        "stelia_vcpu_run_delay_seconds",
        "Time that a runnable vCPU thread waited for a CPU: almost 0 on an exclusive CPU.",
        |thread| thread.delay_ns.map(nanoseconds),
    ),
    vcpu(
        "stelia_vcpu_involuntary_switches",
        "Involuntary context switches of a vCPU thread.",
        |thread| thread.involuntary.map(Value::Count),
    ),
];

impl Vm<'_> {
    /// How many of these can disturb its CPUs; `None` while `steliad-quiet` does not tell.
    fn left<'a>(&self, cpus: impl Iterator<Item = &'a CpuSet>) -> Option<Value> {
        let own = &self.instance.exclusive;
        let is_known = !self.quiet.steering.is_empty() && self.quiet.problem.is_none() && !own.is_empty();
        is_known
            .then(|| count(cpus.filter(|cpus| !cpus.is_disjoint(own)).count()))
            .flatten()
    }
}
