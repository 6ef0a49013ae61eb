//! Every metric: its name, type and meaning, and its samples, from the daemon's description and the kernel's counters. `docs/metrics.md`
//! has the same list.

use std::collections::{BTreeMap, BTreeSet};

use prometheus_client::metrics::MetricType;
use stelia_api::ledger::LedgerSummary;
use stelia_api::metrics::DurationHistogram;
use stelia_api::{Reason, State, ThreadRole};
use stelia_cpus::CpuSet;
use stelia_model::Instance;

use crate::shared::daemon::{Description, OnlineCpus, own_cpus};
use crate::shared::kernel::sample::{InstanceCounts, Sample, ThreadCounts};
use MetricType::{Counter, Gauge, Histogram};
use Value::{Durations, Real, Whole};

/// A metric and its samples.
#[derive(Debug)]
pub(super) struct Family {
    /// The name in OpenMetrics, which ends with the unit; a counter's samples end in `_total`.
    pub name: &'static str,
    /// What a counter counts only grows, while the daemon (or the thread, or the cgroup) lives.
    pub kind: MetricType,
    pub help: &'static str,
    pub samples: Vec<(Labels, Value)>,
}

pub(super) type Labels = Vec<(&'static str, String)>;

#[derive(Debug)]
pub(super) enum Value {
    Whole(u64),
    Real(f64),
    Durations(DurationHistogram),
}

struct Vm<'a> {
    pod: &'a str,
    instance: &'a Instance,
    described: &'a Description,
    counts: Option<&'a InstanceCounts>,
}

fn metric(kind: MetricType, name: &'static str) -> Family {
    Family {
        name,
        kind,
        help: "",
        samples: Vec::new(),
    }
}

fn labels<const N: usize>(of: [(&'static str, &str); N]) -> Labels {
    of.map(|(label, value)| (label, value.to_owned())).into()
}

impl Family {
    fn help(self, help: &'static str) -> Self {
        Self { help, ..self }
    }

    fn series(mut self, samples: impl IntoIterator<Item = (Labels, Value)>) -> Self {
        self.samples.extend(samples);
        self
    }

    /// One sample of the whole node, if it is known.
    fn is(self, value: impl Into<Option<Value>>) -> Self {
        self.series(value.into().map(|value| (Vec::new(), value)))
    }

    /// A sample for each value of a label.
    fn by<L: ToString>(self, label: &'static str, samples: impl IntoIterator<Item = (L, Value)>) -> Self {
        let samples = samples.into_iter();
        self.series(samples.map(|(of, value)| (vec![(label, of.to_string())], value)))
    }

    /// A sample of each VM of which it is known. What is not has none: a counter of 0 would look like a restart.
    fn each(self, vms: &[Vm<'_>], value: impl Fn(&Vm<'_>) -> Option<Value>) -> Self {
        self.series(vms.iter().filter_map(|vm| Some((vm.labels(), value(vm)?))))
    }

    /// Samples of each VM with more labels.
    fn each_with<I: IntoIterator<Item = (Labels, Value)>>(
        self,
        vms: &[Vm<'_>],
        samples: impl Fn(&Vm<'_>) -> I,
    ) -> Self {
        vms.iter().fold(self, |family, vm| {
            let samples = samples(vm).into_iter();
            family.series(samples.map(|(labels, value)| ([vm.labels(), labels].concat(), value)))
        })
    }

    /// A sample of each vCPU thread. It has not the pod's name, which would make it half as long again: `docs/metrics.md` has the figures
    /// and the join.
    fn vcpus(self, vms: &[Vm<'_>], value: fn(&ThreadCounts) -> Option<Value>) -> Self {
        vms.iter().fold(self, |family, vm| {
            let threads = vm.counts.into_iter().flat_map(|counts| &counts.vcpus);
            family.series(threads.filter_map(|(index, one)| Some((vm.vcpu_labels(*index, one.cpu), value(one)?))))
        })
    }
}

impl Vm<'_> {
    /// A name that the runtime does not tell is an empty label, not one left out: with `honorLabels` an empty label keeps Prometheus from
    /// putting the scraped pod's own name there.
    fn labels(&self) -> Labels {
        labels([
            ("pod_uid", self.pod),
            ("namespace", self.instance.namespace()),
            ("pod", self.instance.name()),
        ])
    }

    /// A pinned I/O thread is `iothread-0` in the label `vcpu`; a thread without a CPU of its own has an empty `cpu`.
    fn vcpu_labels(&self, index: u32, cpu: Option<u32>) -> Labels {
        let name = match ThreadRole::from(index) {
            ThreadRole::Vcpu(index) => index.to_string(),
            ThreadRole::IoThread(index) => format!("iothread-{index}"),
        };
        let cpu = cpu.map(|cpu| cpu.to_string()).unwrap_or_default();
        labels([("pod_uid", self.pod), ("vcpu", &name), ("cpu", &cpu)])
    }

    /// How many of these can disturb its CPUs; `None` while `steliad-quiet` does not tell.
    fn left<'a>(&self, remaining: impl Iterator<Item = &'a CpuSet>) -> Option<Value> {
        let (own, quiet) = (own_cpus(self.instance), &self.described.node.quiet);
        let is_known = !quiet.steering.is_empty() && quiet.problem.is_none() && !own.is_empty();
        is_known.then(|| count(remaining.filter(|cpus| !cpus.is_disjoint(&own)).count()))
    }
}

/// The only metric when no daemon answers.
pub(super) fn up(is_up: bool) -> Family {
    metric(Gauge, "stelia_up")
        .help("Whether the daemon answered: 1 or 0.")
        .is(flag(is_up))
}

/// All metrics, in the order in which they are printed.
pub(super) fn all(described: &Description, sample: &Sample) -> Vec<Family> {
    let vms = described.node.instances.iter();
    let vms = vms.map(|(pod, instance)| Vm {
        pod: pod.as_str(),
        instance,
        described,
        counts: sample.instances.get(pod.as_str()),
    });
    let vms: Vec<Vm<'_>> = vms.collect();
    let groups = [
        vec![up(true)],
        of_node(described, &vms),
        of_work(described),
        of_vms(&vms),
        of_ledger(&described.node.ledger, &vms),
        of_vcpus(&vms),
    ];
    groups.into_iter().flatten().collect()
}

fn of_node(described: &Description, vms: &[Vm<'_>]) -> Vec<Family> {
    let (node, metrics) = (&described.node, &described.metrics);
    let in_state = |state: State| vms.iter().filter(|vm| vm.instance.state == state).count();
    let cpus = OnlineCpus::of(described);
    let owners = [
        ("exclusive", &cpus.exclusive),
        ("pod", &cpus.pods),
        ("shared", &cpus.shared),
        ("reserved", &cpus.reserved),
        ("unknown", &cpus.unknown),
        ("offline", &node.offline),
    ];
    let publishing = &node.publishing;
    vec![
        metric(Gauge, "stelia_build_info")
            .help("Always 1. The version of the daemon.")
            .by("version", [(&described.version, Whole(1))]),
        metric(Gauge, "stelia_start_time_seconds")
            .help("When the daemon started.")
            .is(moment(metrics.started_us)),
        metric(Gauge, "stelia_instances")
            .help("VMs by state.")
            .by("state", State::ALL.map(|state| (state.name(), count(in_state(state))))),
        metric(Gauge, "stelia_node_problems")
            .help("1 for each code of what is wrong on the node.")
            .by("code", codes(&described.problems)),
        metric(Gauge, "stelia_instances_degraded")
            .help("VMs whose isolation is degraded.")
            .is(count(vms.iter().filter(|vm| !vm.instance.degraded.is_empty()).count())),
        metric(Gauge, "stelia_scopes_unreadable")
            .help("Scopes with an unusable record, left alone.")
            .is(count(node.unreadable.len())),
        metric(Gauge, "stelia_cpus")
            .help("CPUs by owner: exclusive (VMs), pod (other pods' own), shared, reserved, unknown, offline.")
            .by("owner", owners.map(|(owner, cpus)| (owner, count(cpus.len())))),
        metric(Gauge, "stelia_kubelet_state_usable")
            .help("Whether cpu_manager_state is valid: 1 or 0.")
            .is(flag(node.kubelet_problem.is_none())),
        metric(Gauge, "stelia_kubelet_state_since_timestamp_seconds")
            .help("Since when cpu_manager_state is valid or invalid.")
            .is(moment(metrics.kubelet_since_us)),
        metric(Gauge, "stelia_kubelet_state_modified_timestamp_seconds")
            .help("When kubelet last wrote cpu_manager_state.")
            .is(moment(node.kubelet_modified_us.unwrap_or(0))),
        metric(Gauge, "stelia_published")
            .help("Whether the file for the cluster's publisher is current: 1 or 0. Absent if there is none.")
            .is(publishing.profile.is_some().then(|| flag(publishing.problem.is_none()))),
    ]
}

/// What the daemon does.
fn of_work(described: &Description) -> Vec<Family> {
    let (metrics, drift) = (&described.metrics, &described.node.counters);
    vec![
        metric(Histogram, "stelia_kubelet_follow_seconds")
            .help("Time from a write of cpu_manager_state to the end of the reconciliation that it caused.")
            .is(Durations(metrics.follow.clone())),
        metric(Counter, "stelia_passes")
            .help("Reconciliations by cause: event, audit, call, reload.")
            .by(
                "trigger",
                values(&metrics.passes, |timed| Whole(timed.counts.iter().sum())),
            ),
        metric(Histogram, "stelia_pass_duration_seconds")
            .help("Duration of reconciliations.")
            .by("trigger", values(&metrics.passes, |timed| Durations(timed.clone()))),
        metric(Counter, "stelia_steps")
            .help("Changes made, including failed ones.")
            .is(Whole(metrics.steps)),
        metric(Counter, "stelia_steps_failed")
            .help("Changes that failed. They are retried.")
            .is(Whole(metrics.failed)),
        metric(Counter, "stelia_cgroup_writes")
            .help("Writes to cgroup files; cgroups made, removed.")
            .is(Whole(metrics.writes)),
        metric(Counter, "stelia_cgroup_moves")
            .help("Processes and threads moved to other cgroups.")
            .is(Whole(metrics.moves)),
        metric(Counter, "stelia_drift_found")
            .help("Changes by other programs (drift) that were found.")
            .is(Whole(drift.drift_found)),
        metric(Counter, "stelia_drift_repaired")
            .help("Drift that was repaired when it was found.")
            .is(Whole(drift.drift_repaired)),
        metric(Histogram, "stelia_call_duration_seconds")
            .help("Duration of D-Bus calls, including refused ones. Its count is the number of calls.")
            .by("call", values(&metrics.calls, |timed| Durations(timed.clone()))),
        metric(Counter, "stelia_refusals")
            .help("D-Bus calls that were refused, by the name of the error.")
            .by("error", values(&metrics.refusals, |times| Whole(*times))),
    ]
}

fn of_vms(vms: &[Vm<'_>]) -> Vec<Family> {
    vec![
        metric(Gauge, "stelia_instance_info").help("Always 1. A VM: who uses its CPUs (vcpus, container), state, and the class if steliad chose the CPUs.")
        .each_with(vms, |vm| {
            let one = vm.instance;
            let own = labels([
                ("container", &one.container),
                ("isolation", one.isolation.name()),
                ("state", one.state.name()),
                ("class", one.class()),
            ]);
            [(own, Whole(1))]
        }),
        metric(Gauge, "stelia_instance_degraded").help("1 for each code of what is wrong with a VM.")
        .each_with(vms, |vm| {
            let codes = codes(&vm.instance.degraded).into_iter();
            codes.map(|(code, one)| (labels([("code", code)]), one))
        }),
        metric(Gauge, "stelia_instance_exclusive_cpus").help("Exclusive CPUs of a VM.")
            .each(vms, |vm| Some(count(own_cpus(vm.instance).len()))),
        metric(Gauge, "stelia_instance_registered_timestamp_seconds").help("When a VM was registered.")
        .each(vms, |vm| moment(vm.instance.registered_us)),
        metric(Gauge, "stelia_instance_isolated_timestamp_seconds").help("When a VM became isolated or pinned.")
        .each(vms, |vm| moment(vm.instance.isolated_us)),
        metric(Gauge, "stelia_instance_memory_bytes").help("Memory of a VM, in its scope and in the cgroup of its container together.")
        .each(vms, |vm| {
            let usage = vm.described.usage.get(vm.pod)?;
            Some(Whole(usage.memory_bytes.saturating_add(usage.origin_memory_bytes)))
        }),
        metric(Gauge, "stelia_instance_memory_away_ratio").help("Share of a VM's memory, without page cache, that is remote from its CPUs. Absent without exclusive CPUs.")
        .each(vms, |vm| {
            let locality = vm.described.locality.instances.get(vm.pod)?;
            Some(Real(locality.away()?.ratio()))
        }),
        metric(Counter, "stelia_instance_float_cpu_seconds").help("CPU time of a VM's other threads.")
            .each(vms, |vm| vm.counts?.float_us.map(microseconds)),
        metric(Counter, "stelia_device_interrupts").help("Device interrupts on a VM's exclusive CPUs since boot. The rate is 0 if nothing disturbs them.")
        .each(vms, |vm| vm.counts?.device_interrupts.map(Whole)),
        metric(Gauge, "stelia_interrupts_remaining").help("Device interrupts that can reach a VM's exclusive CPUs. Absent if not steered or not known.")
        .each(vms, |vm| {
            let quiet = &vm.described.node.quiet;
            (quiet.steering != "off").then(|| vm.left(quiet.report.remaining.iter().map(|one| &one.cpus)))?
        }),
        metric(Gauge, "stelia_kernel_threads_remaining").help("Kernel threads that may run on a VM's exclusive CPUs and could not be moved. Absent if not known.")
        .each(vms, |vm| {
            let threads = &vm.described.node.quiet.report.threads_remaining;
            vm.left(threads.iter().map(|one| &one.cpus))
        }),
        metric(Gauge, "stelia_llc_occupancy_bytes").help("Last-level cache that a VM uses (resctrl).")
        .each(vms, |vm| vm.described.node.quiet.report.caches.get(vm.pod)?.llc_bytes.map(Whole)),
        metric(Counter, "stelia_memory_bandwidth_bytes").help("Memory traffic of a VM (resctrl).")
            .each(vms, |vm| vm.described.node.quiet.report.caches.get(vm.pod)?.memory_bytes.map(Whole)),
    ]
}

fn of_ledger(ledger: &LedgerSummary, vms: &[Vm<'_>]) -> Vec<Family> {
    let entry = ledger.seq.to_string();
    let signed = [
        ("day", &ledger.day),
        ("entry", &entry),
        ("hash", &ledger.hash),
        ("key", &ledger.key),
    ];
    let signed = signed.map(|(label, value)| (label, value.as_str()));
    let signed = (ledger.enabled && !ledger.hash.is_empty()).then(|| (labels(signed), Whole(1)));
    let of = |vm: &Vm<'_>| ledger.vms.get(vm.pod).filter(|_| ledger.enabled);
    vec![
        metric(Gauge, "stelia_ledger_kept")
            .help("Whether the ledger is switched on and written: 1 or 0.")
            .is(flag(ledger.enabled && ledger.problem.is_none())),
        metric(Gauge, "stelia_ledger_size_bytes")
            .help("Total size of the ledger's files.")
            .is(ledger.enabled.then_some(Whole(ledger.bytes))),
        metric(Gauge, "stelia_ledger_head_info")
            .help("Always 1. The last signature: the hash of a day's last entry. Store it elsewhere to detect changes.")
            .series(signed),
        metric(Counter, "stelia_ledger_other_tasks")
            .help("How often other tasks began to run on a VM's exclusive CPUs, at least and at most (label bound).")
            .each_with(vms, |vm| {
                let bounds = of(vm).map(|of| [("least", of.other_tasks_least), ("most", of.other_tasks_most)]);
                let bounds = bounds.into_iter().flatten();
                bounds.map(|(bound, times)| (labels([("bound", bound)]), Whole(times)))
            }),
        metric(Counter, "stelia_ledger_device_interrupts")
            .help("Other devices' interrupts on a VM's CPUs.")
            .each(vms, |vm| Some(Whole(of(vm)?.devices))),
        metric(Counter, "stelia_ledger_delay_seconds")
            .help(
                "Time that a VM's vCPUs, or its container's tasks, could run and did not: the upper bound of the loss.",
            )
            .each(vms, |vm| Some(nanoseconds(of(vm)?.delay_ns))),
        metric(Counter, "stelia_ledger_promised_cpu_seconds")
            .help("CPU time for which a VM had exclusive CPUs.")
            .each(vms, |vm| Some(microseconds(of(vm)?.promised_us))),
        metric(Counter, "stelia_ledger_covered_cpu_seconds")
            .help("The part of stelia_ledger_promised_cpu_seconds that the ledger measured; the rest is unknown.")
            .each(vms, |vm| Some(microseconds(of(vm)?.covered_us))),
        metric(Counter, "stelia_ledger_intrusions")
            .help("How often a reading showed other tasks or other devices' interrupts on a VM's exclusive CPUs.")
            .each(vms, |vm| Some(Whole(of(vm)?.intruded))),
    ]
}

fn of_vcpus(vms: &[Vm<'_>]) -> Vec<Family> {
    vec![
        metric(Counter, "stelia_vcpu_run_seconds")
            .help("Time that a vCPU thread ran.")
            .vcpus(vms, |thread| thread.run_ns.map(nanoseconds)),
        metric(Counter, "stelia_vcpu_run_delay_seconds")
            .help("Time that a runnable vCPU thread waited for a CPU: almost 0 on an exclusive CPU.")
            .vcpus(vms, |thread| thread.delay_ns.map(nanoseconds)),
        metric(Counter, "stelia_vcpu_involuntary_switches")
            .help("Involuntary context switches of a vCPU thread.")
            .vcpus(vms, |thread| thread.involuntary.map(Whole)),
    ]
}

/// Each code of these reasons once.
fn codes(reasons: &[Reason]) -> Vec<(&'static str, Value)> {
    let codes: BTreeSet<&str> = reasons.iter().map(|reason| reason.code.name()).collect();
    codes.into_iter().map(|code| (code, Whole(1))).collect()
}

fn values<T>(map: &BTreeMap<String, T>, value: fn(&T) -> Value) -> impl Iterator<Item = (&String, Value)> {
    map.iter().map(move |(key, of)| (key, value(of)))
}

fn count(count: usize) -> Value {
    Whole(count as u64)
}

fn flag(is_set: bool) -> Value {
    Whole(is_set.into())
}

fn microseconds(number: u64) -> Value {
    Real(number as f64 / 1e6)
}

fn nanoseconds(number: u64) -> Value {
    Real(number as f64 / 1e9)
}

/// `None`: the time is not known.
fn moment(us: u64) -> Option<Value> {
    (us > 0).then(|| microseconds(us))
}
