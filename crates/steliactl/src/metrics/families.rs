//! The samples of each metric, from the daemon's description and the kernel's counters.

use stelia_api::ThreadRole;
use stelia_api::metrics::Timed;
use stelia_api::view::Instance;
use stelia_record::Phase;

use super::definitions::*;
use crate::node::{Description, Owner, owner};
use crate::sample::{Sample, ThreadCounts};

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Family {
    pub definition: &'static Definition,
    /// Each sample with the labels' values, in the definition's order.
    pub samples: Vec<(Vec<String>, Value)>,
}

#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[serde(untagged)]
pub(crate) enum Value {
    Count(u64),
    Seconds(f64),
    Ratio(f64),
    Timed(Timed),
}

type Samples = Vec<(Vec<String>, Value)>;

/// The only metric when no daemon answers.
pub(crate) fn down() -> Vec<Family> {
    vec![one(&UP, Value::Count(0))]
}

pub(crate) fn families(described: &Description, sample: &Sample) -> Vec<Family> {
    let mut families = node(described);
    families.extend(counted(described));
    families.extend(instances(described, sample));
    families
}

fn family(definition: &'static Definition, samples: Samples) -> Family {
    Family { definition, samples }
}

fn one(definition: &'static Definition, value: Value) -> Family {
    family(definition, vec![(Vec::new(), value)])
}

fn count(number: usize) -> Value {
    Value::Count(number as u64)
}

fn seconds(microseconds: u64) -> Value {
    Value::Seconds(microseconds as f64 / 1e6)
}

fn nanoseconds(number: u64) -> Value {
    Value::Seconds(number as f64 / 1e9)
}

/// A time that is not known has no sample.
fn moment(definition: &'static Definition, us: u64) -> Family {
    let samples = (us > 0).then(|| (Vec::new(), seconds(us)));
    family(definition, samples.into_iter().collect())
}

fn node(described: &Description) -> Vec<Family> {
    let (node, metrics) = (&described.node, &described.metrics);
    let states = [
        Phase::Registered,
        Phase::Floating,
        Phase::Isolated,
        Phase::Contained,
        Phase::Leaving,
    ];
    let in_state = |state: &str| {
        node.instances
            .values()
            .filter(|instance| instance.state == state)
            .count()
    };
    let degraded = node.instances.values().filter(|instance| !instance.degraded.is_empty());
    let online = node.topology.online();
    let owned = |is: fn(&Owner) -> bool| count(online.iter().filter(|cpu| is(&owner(described, *cpu))).count());
    let owners = [
        ("exclusive", owned(|owner| matches!(owner, Owner::Instance { .. }))),
        (
            "pod",
            owned(|owner| matches!(owner, Owner::Pod { .. } | Owner::Kubelet)),
        ),
        ("shared", owned(|owner| matches!(owner, Owner::Shared))),
        ("reserved", owned(|owner| matches!(owner, Owner::Reserved))),
        ("unknown", owned(|owner| matches!(owner, Owner::Unknown))),
        ("offline", count(described.node.offline.len())),
    ];
    vec![
        one(&UP, Value::Count(1)),
        family(&BUILD, vec![(vec![described.version.clone()], Value::Count(1))]),
        moment(&STARTED, metrics.started_us),
        family(
            &INSTANCES,
            states
                .iter()
                .map(|state| (vec![state.name().to_owned()], count(in_state(state.name()))))
                .collect(),
        ),
        one(&DEGRADED, count(degraded.count())),
        one(&UNREADABLE, count(node.unreadable.len())),
        family(
            &CPUS,
            owners
                .into_iter()
                .map(|(owner, number)| (vec![owner.to_owned()], number))
                .collect(),
        ),
        one(
            &KUBELET_USABLE,
            Value::Count(described.node.kubelet_problem.is_none().into()),
        ),
        moment(&KUBELET_SINCE, metrics.kubelet_since_us),
        moment(&KUBELET_MODIFIED, described.node.kubelet_modified_us.unwrap_or(0)),
        one(&FOLLOW, Value::Timed(metrics.follow.clone())),
    ]
}

fn counted(described: &Description) -> Vec<Family> {
    let metrics = &described.metrics;
    let passes = metrics.passes.iter();
    let calls = metrics.calls.iter();
    let refusals = metrics.refusals.iter();
    vec![
        family(
            &PASSES,
            passes
                .clone()
                .map(|(trigger, timed)| (vec![trigger.clone()], Value::Count(timed.counts.iter().sum())))
                .collect(),
        ),
        family(
            &PASS_TIME,
            passes
                .map(|(trigger, timed)| (vec![trigger.clone()], Value::Timed(timed.clone())))
                .collect(),
        ),
        one(&STEPS, Value::Count(metrics.steps)),
        one(&FAILED, Value::Count(metrics.failed)),
        one(&WRITES, Value::Count(metrics.writes)),
        one(&MOVES, Value::Count(metrics.moves)),
        one(&DRIFT_FOUND, Value::Count(described.node.counters.drift_found)),
        one(&DRIFT_REPAIRED, Value::Count(described.node.counters.drift_repaired)),
        family(
            &CALL_TIME,
            calls
                .map(|(call, timed)| (vec![call.clone()], Value::Timed(timed.clone())))
                .collect(),
        ),
        family(
            &REFUSALS,
            refusals
                .map(|(error, number)| (vec![error.clone()], Value::Count(*number)))
                .collect(),
        ),
    ]
}

fn instances(described: &Description, sample: &Sample) -> Vec<Family> {
    let nodes = described.node.instances.iter();
    let info = nodes.clone().map(|(pod, instance)| {
        let (container, state) = (instance.container.clone(), instance.state.clone());
        let labels = vec![pod.clone(), container, state, instance.class().to_owned()];
        (labels, Value::Count(1))
    });
    let reasons = nodes
        .clone()
        .map(|(pod, instance)| (vec![pod.clone()], count(instance.degraded.len())));
    let exclusive = nodes.map(|(pod, instance)| (vec![pod.clone()], count(instance.exclusive.len())));
    let moments = |of: fn(&Instance) -> u64| -> Samples {
        let known = described.node.instances.iter().filter(|(_, instance)| of(instance) > 0);
        known
            .map(|(pod, instance)| (vec![pod.clone()], seconds(of(instance))))
            .collect()
    };
    let memory = described.usage.iter().map(|(pod, usage)| {
        let both = usage.memory_bytes.saturating_add(usage.origin_memory_bytes);
        (vec![pod.clone()], Value::Count(both))
    });
    let away = described.locality.instances.iter();
    let away = away.filter_map(|(pod, locality)| Some((vec![pod.clone()], Value::Ratio(locality.away()?.ratio()))));
    let sampled = || sample.instances.iter();
    let floats = sampled().filter_map(|(pod, instance)| Some((vec![pod.clone()], seconds(instance.float_us?))));
    // What cannot be read is left out: a counter of 0 would look like a restart.
    let threads = |of: fn(&ThreadCounts) -> Option<Value>| -> Samples {
        let all = sampled().flat_map(|(pod, instance)| instance.vcpus.iter().map(move |thread| (pod, thread)));
        all.filter_map(|(pod, (index, thread))| Some((vcpu_labels(pod, *index, thread.cpu), of(thread)?)))
            .collect()
    };
    vec![
        family(&INSTANCE, info.collect()),
        family(&REASONS, reasons.collect()),
        family(&EXCLUSIVE, exclusive.collect()),
        family(&REGISTERED, moments(|instance| instance.registered_us)),
        family(&ISOLATED, moments(|instance| instance.isolated_us)),
        family(&MEMORY, memory.collect()),
        family(&AWAY, away.collect()),
        family(&FLOAT, floats.collect()),
        family(&RUN, threads(|thread| thread.run_ns.map(nanoseconds))),
        family(&DELAY, threads(|thread| thread.delay_ns.map(nanoseconds))),
        family(&INVOLUNTARY, threads(|thread| thread.involuntary.map(Value::Count))),
    ]
}

/// A pinned I/O thread is `iothread-0` in the label `vcpu`; a thread without a CPU of its own has an empty `cpu`.
fn vcpu_labels(pod: &str, index: u32, cpu: Option<u32>) -> Vec<String> {
    let name = match ThreadRole::from(index) {
        ThreadRole::Vcpu(index) => index.to_string(),
        ThreadRole::IoThread(index) => format!("iothread-{index}"),
    };
    vec![
        pod.to_owned(),
        name,
        cpu.map_or_else(String::new, |cpu| cpu.to_string()),
    ]
}
