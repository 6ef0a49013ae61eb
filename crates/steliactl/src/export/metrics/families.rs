//! The samples of each metric, from the daemon's description and the kernel's counters.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use stelia_api::ThreadRole;
use stelia_api::metrics::DurationHistogram;
use stelia_cpus::CpuSet;
use stelia_kubelet::PodUid;
use stelia_model::Instance;

use super::definitions::{ALL, Definition, UP};
use crate::shared::daemon::{Description, OnlineCpus};
use crate::shared::kernel::sample::{Sample, ThreadCounts};

#[derive(Debug)]
pub(crate) struct Family {
    pub definition: &'static Definition,
    pub samples: Samples,
}

/// Each sample with the labels' values, in the definition's order.
pub(crate) type Samples = Vec<(Vec<String>, Value)>;

#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[serde(untagged)]
pub(crate) enum Value {
    Count(u64),
    Seconds(f64),
    Ratio(f64),
    Durations(DurationHistogram),
}

/// The data from which the samples are computed.
#[derive(Debug)]
pub(crate) struct MetricsInput<'a> {
    pub described: &'a Description,
    pub sample: &'a Sample,
}

impl<'a> MetricsInput<'a> {
    pub(super) fn instances(&self) -> impl Iterator<Item = (&'a PodUid, &'a Instance)> + use<'a> {
        let instances = self.described.node.instances.iter();
        instances.map(|(uid, one)| (uid, &**one))
    }

    /// A sample for each instance of a map by pod for which `value` knows one.
    pub(super) fn of_pods<K: Borrow<str>, T>(&self, map: &BTreeMap<K, T>, value: fn(&T) -> Option<Value>) -> Samples {
        map.iter()
            .filter_map(|(uid, of)| Some((self.pod_labels(uid.borrow()), value(of)?)))
            .collect()
    }

    /// A sample for each instance for which `value` knows one.
    pub(super) fn of_instances(&self, value: fn(&Instance) -> Option<Value>) -> Samples {
        self.instances()
            .filter_map(|(uid, one)| Some((self.pod_labels(uid.as_str()), value(one)?)))
            .collect()
    }

    /// The labels `pod_uid`, `namespace`, `pod`. A name that the runtime does not tell is an empty label, not one left
    /// out: with `honorLabels` an empty label keeps Prometheus from putting the scraped pod's own name there.
    pub(super) fn pod_labels(&self, uid: &str) -> Vec<String> {
        let instance = self.described.node.instances.get(uid);
        let (namespace, name) = instance.map_or(("", ""), |one| (one.namespace(), one.name()));
        [uid, namespace, name].map(str::to_owned).into()
    }
}

/// What is left when no daemon answers.
pub(crate) fn down() -> Vec<Family> {
    let samples = one(Value::Count(0));
    vec![Family {
        definition: &UP,
        samples,
    }]
}

pub(crate) fn families(described: &Description, sample: &Sample) -> Vec<Family> {
    let input = MetricsInput { described, sample };
    let family = |definition: &'static Definition| Family {
        definition,
        samples: (definition.read)(&input),
    };
    ALL.iter().map(family).collect()
}

/// A sample without labels, or none.
pub(super) fn one(value: impl Into<Option<Value>>) -> Samples {
    let value = value.into().map(|value| (Vec::new(), value));
    value.into_iter().collect()
}

/// A sample for each key of a map.
pub(super) fn each<T>(map: &BTreeMap<String, T>, value: fn(&T) -> Value) -> Samples {
    map.iter().map(|(key, of)| (vec![key.clone()], value(of))).collect()
}

pub(super) fn count(number: usize) -> Value {
    Value::Count(number as u64)
}

pub(super) fn seconds(microseconds: u64) -> Value {
    Value::Seconds(microseconds as f64 / 1e6)
}

pub(super) fn nanoseconds(number: u64) -> Value {
    Value::Seconds(number as f64 / 1e9)
}

/// `None`: the time is not known, and has no sample.
pub(super) fn moment(us: u64) -> Option<Value> {
    (us > 0).then(|| seconds(us))
}

/// What cannot be read is left out: a counter of 0 would look like a restart.
pub(super) fn threads(input: &MetricsInput<'_>, of: fn(&ThreadCounts) -> Option<Value>) -> Samples {
    let sampled = input.sample.instances.iter();
    let all = sampled.flat_map(|(uid, instance)| instance.vcpus.iter().map(move |thread| (uid, thread)));
    all.filter_map(|(uid, (index, thread))| Some((vcpu_labels(uid, *index, thread.cpu), of(thread)?)))
        .collect()
}

/// What is left on each instance's exclusive CPUs; no sample while `steliad-quiet` does not tell.
pub(super) fn left(input: &MetricsInput<'_>, of: impl Fn(&CpuSet) -> Option<usize>) -> Samples {
    let quiet = &input.described.node.quiet;
    let is_known = !quiet.steering.is_empty() && quiet.problem.is_none();
    let instances = input
        .instances()
        .filter(|(_, one)| is_known && !one.exclusive.is_empty());
    instances
        .filter_map(|(uid, one)| Some((input.pod_labels(uid.as_str()), count(of(&one.exclusive)?))))
        .collect()
}

pub(super) fn owners(input: &MetricsInput<'_>) -> Samples {
    let cpus = OnlineCpus::of(input.described);
    let all = [
        ("exclusive", &cpus.exclusive),
        ("pod", &cpus.pods),
        ("shared", &cpus.shared),
        ("reserved", &cpus.reserved),
        ("unknown", &cpus.unknown),
        ("offline", &input.described.node.offline),
    ];
    all.map(|(owner, cpus)| (vec![owner.to_owned()], count(cpus.len())))
        .into()
}

/// A pinned I/O thread is `iothread-0` in the label `vcpu`; a thread without a CPU of its own has an empty `cpu`.
fn vcpu_labels(uid: &str, index: u32, cpu: Option<u32>) -> Vec<String> {
    let name = match ThreadRole::from(index) {
        ThreadRole::Vcpu(index) => index.to_string(),
        ThreadRole::IoThread(index) => format!("iothread-{index}"),
    };
    vec![
        uid.to_owned(),
        name,
        cpu.map_or_else(String::new, |cpu| cpu.to_string()),
    ]
}
