//! Every metric: its name, type and meaning, and its samples, from the daemon's description and the kernel's counters. `docs/metrics.md`
//! has the same list.

use std::collections::{BTreeMap, BTreeSet};

use prometheus_client::metrics::MetricType;
use stelia_api::ledger::{LedgerSummary, LedgerVm};
use stelia_api::metrics::DurationHistogram;
use stelia_api::quiet::{CacheUse, Quiet};
use stelia_api::{Reason, State, ThreadRole};
use stelia_cpus::CpuSet;
use stelia_kernel::locality::Locality;
use stelia_model::{Instance, Usage};

use crate::shared::daemon::{Description, OnlineCpus};
use crate::shared::kernel::sample::{InstanceCounts, Sample, ThreadCounts};
use Value::{Durations, Real, Whole};

/// A metric and its samples.
#[derive(Debug)]
pub(super) struct Family {
    /// The name in OpenMetrics, which ends with the unit; a counter's samples end in `_total`.
    pub name: &'static str,
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

/// What is known of a VM. What is not has no sample: a counter of 0 would look like a restart.
struct Vm<'a> {
    uid: &'a str,
    instance: &'a Instance,
    usage: Option<&'a Usage>,
    locality: Option<&'a Locality>,
    counts: Option<&'a InstanceCounts>,
    quiet: &'a Quiet,
    ledger: Option<&'a LedgerVm>,
}

fn metric(kind: MetricType, name: &'static str) -> Family {
    Family {
        name,
        kind,
        help: "",
        samples: Vec::new(),
    }
}

fn gauge(name: &'static str) -> Family {
    metric(MetricType::Gauge, name)
}

/// It only grows, while the daemon (or the thread, or the cgroup) lives.
fn counter(name: &'static str) -> Family {
    metric(MetricType::Counter, name)
}

fn histogram(name: &'static str) -> Family {
    metric(MetricType::Histogram, name)
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

    /// A sample of each VM of which it is known.
    fn each(self, vms: &[Vm<'_>], value: fn(&Vm<'_>) -> Option<Value>) -> Self {
        self.series(vms.iter().filter_map(|vm| Some((vm.labels(), value(vm)?))))
    }

    /// Samples of each VM with more labels.
    fn each_with(self, vms: &[Vm<'_>], samples: fn(&Vm<'_>) -> Vec<(Labels, Value)>) -> Self {
        let of_vm = |vm: &Vm<'_>| {
            let samples = samples(vm).into_iter();
            let all = samples.map(|(labels, value)| ([vm.labels(), labels].concat(), value));
            all.collect::<Vec<_>>()
        };
        self.series(vms.iter().flat_map(of_vm))
    }

    /// A sample of each vCPU thread. It has not the pod's name, which would make it half as long again: `docs/metrics.md` has the figures
    /// and the join.
    fn vcpus(self, vms: &[Vm<'_>], value: fn(&ThreadCounts) -> Option<Value>) -> Self {
        let of_vm = |vm: &Vm<'_>| {
            let threads = vm.counts.into_iter().flat_map(|counts| &counts.vcpus);
            let known = threads.filter_map(|(index, one)| Some((vm.vcpu_labels(*index, one.cpu), value(one)?)));
            known.collect::<Vec<_>>()
        };
        self.series(vms.iter().flat_map(of_vm))
    }
}

impl Vm<'_> {
    /// A name that the runtime does not tell is an empty label, not one left out: with `honorLabels` an empty label keeps Prometheus from
    /// putting the scraped pod's own name there.
    fn labels(&self) -> Labels {
        let names = [
            ("pod_uid", self.uid),
            ("namespace", self.instance.namespace()),
            ("pod", self.instance.name()),
        ];
        names.map(|(label, name)| (label, name.to_owned())).into()
    }

    /// A pinned I/O thread is `iothread-0` in the label `vcpu`; a thread without a CPU of its own has an empty `cpu`.
    fn vcpu_labels(&self, index: u32, cpu: Option<u32>) -> Labels {
        let name = match ThreadRole::from(index) {
            ThreadRole::Vcpu(index) => index.to_string(),
            ThreadRole::IoThread(index) => format!("iothread-{index}"),
        };
        let cpu = cpu.map(|cpu| cpu.to_string()).unwrap_or_default();
        vec![("pod_uid", self.uid.to_owned()), ("vcpu", name), ("cpu", cpu)]
    }

    fn caches(&self) -> Option<&CacheUse> {
        self.quiet.report.caches.get(self.uid)
    }

    /// How many of these can disturb its CPUs; `None` while `steliad-quiet` does not tell.
    fn left<'a>(&self, remaining: impl Iterator<Item = &'a CpuSet>) -> Option<Value> {
        let own = &self.instance.exclusive;
        let is_known = !self.quiet.steering.is_empty() && self.quiet.problem.is_none() && !own.is_empty();
        is_known.then(|| count(remaining.filter(|cpus| !cpus.is_disjoint(own)).count()))
    }
}

/// The only metric when no daemon answers.
pub(super) fn up(is_up: bool) -> Family {
    gauge("stelia_up")
        .help("Whether the daemon answered: 1 or 0.")
        .is(flag(is_up))
}

/// All metrics, in the order in which they are printed.
pub(super) fn all(described: &Description, sample: &Sample) -> Vec<Family> {
    let ledger = Some(&*described.node.ledger).filter(|ledger| ledger.enabled);
    let vms = described.node.instances.iter().map(|(pod, instance)| {
        let uid = pod.as_str();
        Vm {
            uid,
            instance,
            usage: described.usage.get(pod),
            locality: described.locality.instances.get(uid),
            counts: sample.instances.get(uid),
            quiet: &described.node.quiet,
            ledger: ledger.and_then(|ledger| ledger.vms.get(uid)),
        }
    });
    let vms: Vec<Vm<'_>> = vms.collect();
    let groups = [
        vec![up(true)],
        of_node(described, &vms),
        of_work(described),
        of_vms(&vms),
        of_ledger(ledger, &vms),
        of_vcpus(&vms),
    ];
    groups.into_iter().flatten().collect()
}

fn of_node(described: &Description, vms: &[Vm<'_>]) -> Vec<Family> {
    let (node, metrics) = (&described.node, &described.metrics);
    let in_state = |state: State| vms.iter().filter(|vm| vm.instance.state == state).count();
    let cpus = OnlineCpus::of(described);
    let published = node
        .publishing
        .profile
        .as_ref()
        .map(|_| node.publishing.problem.is_none());
    vec![
        gauge("stelia_build_info")
            .help("Always 1. The version of the daemon.")
            .by("version", [(&described.version, Whole(1))]),
        gauge("stelia_start_time_seconds")
            .help("When the daemon started.")
            .is(moment(metrics.started_us)),
        gauge("stelia_instances")
            .help("VMs by state.")
            .by("state", State::ALL.map(|state| (state.name(), count(in_state(state))))),
        gauge("stelia_node_problems")
            .help("1 for each code of what is wrong on the node.")
            .by("code", codes(&described.problems)),
        gauge("stelia_instances_degraded")
            .help("VMs whose isolation is degraded.")
            .is(count(vms.iter().filter(|vm| !vm.instance.degraded.is_empty()).count())),
        gauge("stelia_scopes_unreadable")
            .help("Scopes with an unusable record, left alone.")
            .is(count(node.unreadable.len())),
        gauge("stelia_cpus")
            .help("CPUs by owner: exclusive (VMs), pod (other pods' own), shared, reserved, unknown, offline.")
            .by(
                "owner",
                [
                    ("exclusive", count(cpus.exclusive.len())),
                    ("pod", count(cpus.pods.len())),
                    ("shared", count(cpus.shared.len())),
                    ("reserved", count(cpus.reserved.len())),
                    ("unknown", count(cpus.unknown.len())),
                    ("offline", count(node.offline.len())),
                ],
            ),
        gauge("stelia_kubelet_state_usable")
            .help("Whether cpu_manager_state is valid: 1 or 0.")
            .is(flag(node.kubelet_problem.is_none())),
        gauge("stelia_kubelet_state_since_timestamp_seconds")
            .help("Since when cpu_manager_state is valid or invalid.")
            .is(moment(metrics.kubelet_since_us)),
        gauge("stelia_kubelet_state_modified_timestamp_seconds")
            .help("When kubelet last wrote cpu_manager_state.")
            .is(moment(node.kubelet_modified_us.unwrap_or(0))),
        gauge("stelia_published")
            .help("Whether the file for the cluster's publisher is current: 1 or 0. Absent if there is none.")
            .is(published.map(flag)),
    ]
}

/// What the daemon does.
fn of_work(described: &Description) -> Vec<Family> {
    let (metrics, drift) = (&described.metrics, &described.node.counters);
    vec![
        histogram("stelia_kubelet_follow_seconds")
            .help("Time from a write of cpu_manager_state to the end of the reconciliation that it caused.")
            .is(Durations(metrics.follow.clone())),
        counter("stelia_passes")
            .help("Reconciliations by cause: event, audit, call, reload.")
            .by(
                "trigger",
                values(&metrics.passes, |timed| Whole(timed.counts.iter().sum())),
            ),
        histogram("stelia_pass_duration_seconds")
            .help("Duration of reconciliations.")
            .by("trigger", values(&metrics.passes, |timed| Durations(timed.clone()))),
        counter("stelia_steps")
            .help("Changes made, including failed ones.")
            .is(Whole(metrics.steps)),
        counter("stelia_steps_failed")
            .help("Changes that failed. They are retried.")
            .is(Whole(metrics.failed)),
        counter("stelia_cgroup_writes")
            .help("Writes to cgroup files; cgroups made, removed.")
            .is(Whole(metrics.writes)),
        counter("stelia_cgroup_moves")
            .help("Processes and threads moved to other cgroups.")
            .is(Whole(metrics.moves)),
        counter("stelia_drift_found")
            .help("Changes by other programs (drift) that were found.")
            .is(Whole(drift.drift_found)),
        counter("stelia_drift_repaired")
            .help("Drift that was repaired when it was found.")
            .is(Whole(drift.drift_repaired)),
        histogram("stelia_call_duration_seconds")
            .help("Duration of D-Bus calls, including refused ones. Its count is the number of calls.")
            .by("call", values(&metrics.calls, |timed| Durations(timed.clone()))),
        counter("stelia_refusals")
            .help("D-Bus calls that were refused, by the name of the error.")
            .by("error", values(&metrics.refusals, |times| Whole(*times))),
    ]
}

fn of_vms(vms: &[Vm<'_>]) -> Vec<Family> {
    vec![
        gauge("stelia_instance_info")
            .help("Always 1. A VM: who uses its CPUs (vcpus, container), state, and the class if steliad chose the CPUs.")
            .each_with(vms, |vm| {
                let one = vm.instance;
                let own = [
                    ("container", one.container.as_str()),
                    ("isolation", one.isolation.name()),
                    ("state", one.state.name()),
                    ("class", one.class()),
                ];
                vec![(own.map(|(label, value)| (label, value.to_owned())).into(), Whole(1))]
            }),
        gauge("stelia_instance_degraded")
            .help("1 for each code of what is wrong with a VM.")
            .each_with(vms, |vm| {
                let codes = codes(&vm.instance.degraded).into_iter();
                codes.map(|(code, one)| (vec![("code", code.to_owned())], one)).collect()
            }),
        gauge("stelia_instance_exclusive_cpus")
            .help("Exclusive CPUs of a VM.")
            .each(vms, |vm| Some(count(vm.instance.exclusive.len()))),
        gauge("stelia_instance_registered_timestamp_seconds")
            .help("When a VM was registered.")
            .each(vms, |vm| moment(vm.instance.registered_us)),
        gauge("stelia_instance_isolated_timestamp_seconds")
            .help("When a VM became isolated or pinned.")
            .each(vms, |vm| moment(vm.instance.isolated_us)),
        gauge("stelia_instance_memory_bytes")
            .help("Memory of a VM, in its scope and in the cgroup of its container together.")
            .each(vms, |vm| {
                let usage = vm.usage?;
                Some(Whole(usage.memory_bytes.saturating_add(usage.origin_memory_bytes)))
            }),
        gauge("stelia_instance_memory_away_ratio")
            .help("Share of a VM's memory, without page cache, that is remote from its CPUs. Absent without exclusive CPUs.")
            .each(vms, |vm| Some(Real(vm.locality?.away()?.ratio()))),
        counter("stelia_instance_float_cpu_seconds")
            .help("CPU time of a VM's other threads.")
            .each(vms, |vm| vm.counts?.float_us.map(microseconds)),
        counter("stelia_device_interrupts")
            .help("Device interrupts on a VM's exclusive CPUs since boot. The rate is 0 if nothing disturbs them.")
            .each(vms, |vm| vm.counts?.device_interrupts.map(Whole)),
        gauge("stelia_interrupts_remaining")
            .help("Device interrupts that can reach a VM's exclusive CPUs. Absent if not steered or not known.")
            .each(vms, |vm| {
                let is_steered = vm.quiet.steering != "off";
                is_steered.then(|| vm.left(vm.quiet.report.remaining.iter().map(|one| &one.cpus)))?
            }),
        gauge("stelia_kernel_threads_remaining")
            .help("Kernel threads that may run on a VM's exclusive CPUs and could not be moved. Absent if not known.")
            .each(vms, |vm| vm.left(vm.quiet.report.threads_remaining.iter().map(|one| &one.cpus))),
        gauge("stelia_llc_occupancy_bytes")
            .help("Last-level cache that a VM uses (resctrl).")
            .each(vms, |vm| vm.caches()?.llc_bytes.map(Whole)),
        counter("stelia_memory_bandwidth_bytes")
            .help("Memory traffic of a VM (resctrl).")
            .each(vms, |vm| vm.caches()?.memory_bytes.map(Whole)),
    ]
}

fn of_ledger(ledger: Option<&LedgerSummary>, vms: &[Vm<'_>]) -> Vec<Family> {
    let signed = ledger.filter(|ledger| !ledger.hash.is_empty()).map(|ledger| {
        let entry = ledger.seq.to_string();
        let labels = [
            ("day", &ledger.day),
            ("entry", &entry),
            ("hash", &ledger.hash),
            ("key", &ledger.key),
        ];
        (labels.map(|(label, value)| (label, value.clone())).into(), Whole(1))
    });
    vec![
        gauge("stelia_ledger_kept")
            .help("Whether the ledger is switched on and written: 1 or 0.")
            .is(flag(ledger.is_some_and(|ledger| ledger.problem.is_none()))),
        gauge("stelia_ledger_size_bytes")
            .help("Total size of the ledger's files.")
            .is(ledger.map(|ledger| Whole(ledger.bytes))),
        gauge("stelia_ledger_head_info")
            .help("Always 1. The last signature: the hash of a day's last entry. Store it elsewhere to detect changes.")
            .series(signed),
        counter("stelia_ledger_other_tasks")
            .help("How often other tasks began to run on a VM's exclusive CPUs, at least and at most (label bound).")
            .each_with(vms, |vm| {
                let bounds = |of: &LedgerVm| [("least", of.other_tasks_least), ("most", of.other_tasks_most)];
                let bounds = vm.ledger.map(bounds).into_iter().flatten();
                bounds
                    .map(|(bound, times)| (vec![("bound", bound.to_owned())], Whole(times)))
                    .collect()
            }),
        counter("stelia_ledger_device_interrupts")
            .help("Other devices' interrupts on a VM's CPUs.")
            .each(vms, |vm| Some(Whole(vm.ledger?.devices))),
        counter("stelia_ledger_delay_seconds")
            .help(
                "Time that a VM's vCPUs, or its container's tasks, could run and did not: the upper bound of the loss.",
            )
            .each(vms, |vm| Some(nanoseconds(vm.ledger?.delay_ns))),
        counter("stelia_ledger_promised_cpu_seconds")
            .help("CPU time for which a VM had exclusive CPUs.")
            .each(vms, |vm| Some(microseconds(vm.ledger?.promised_us))),
        counter("stelia_ledger_covered_cpu_seconds")
            .help("The part of stelia_ledger_promised_cpu_seconds that the ledger measured; the rest is unknown.")
            .each(vms, |vm| Some(microseconds(vm.ledger?.covered_us))),
        counter("stelia_ledger_intrusions")
            .help("How often a reading showed other tasks or other devices' interrupts on a VM's exclusive CPUs.")
            .each(vms, |vm| Some(Whole(vm.ledger?.intruded))),
    ]
}

fn of_vcpus(vms: &[Vm<'_>]) -> Vec<Family> {
    vec![
        counter("stelia_vcpu_run_seconds")
            .help("Time that a vCPU thread ran.")
            .vcpus(vms, |thread| thread.run_ns.map(nanoseconds)),
        counter("stelia_vcpu_run_delay_seconds")
            .help("Time that a runnable vCPU thread waited for a CPU: almost 0 on an exclusive CPU.")
            .vcpus(vms, |thread| thread.delay_ns.map(nanoseconds)),
        counter("stelia_vcpu_involuntary_switches")
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
