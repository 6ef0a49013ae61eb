//! The samples of each metric, from the daemon's description and the kernel's counters.

use std::collections::BTreeMap;

use stelia_api::ThreadRole;
use stelia_api::ledger::{LedgerSummary, LedgerVm};
use stelia_api::metrics::{Counted, DurationHistogram};
use stelia_api::quiet::{CacheUse, Quiet};
use stelia_kernel::locality::Locality;
use stelia_kubelet::PodUid;
use stelia_model::{Instance, Node, Usage};

use super::definitions::{ALL, Definition, UP};
use crate::shared::daemon::{Description, OnlineCpus};
use crate::shared::kernel::sample::{InstanceCounts, Sample, ThreadCounts};

#[derive(Debug)]
pub(crate) struct Family {
    pub definition: &'static Definition,
    pub samples: Samples,
}

/// Each sample with the labels' values, in the definition's order.
pub(crate) type Samples = Vec<(Vec<String>, Value)>;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Count(u64),
    Real(f64),
    Durations(DurationHistogram),
}

/// How the samples of a metric are made.
#[derive(Debug)]
pub(super) enum Read {
    Node(fn(&Input<'_>) -> Option<Value>),
    Vm(fn(&Vm<'_>) -> Option<Value>),
    Vcpu(fn(&ThreadCounts) -> Option<Value>),
    Series(fn(&Input<'_>) -> Samples),
}

/// The data from which the samples are computed.
#[derive(Debug)]
pub(super) struct Input<'a> {
    described: &'a Description,
    pub version: &'a str,
    pub node: &'a Node,
    pub metrics: &'a Counted,
    sample: &'a Sample,
}

/// What is known of a VM. What is not has no sample: a counter of 0 would look like a restart.
#[derive(Debug)]
pub(super) struct Vm<'a> {
    uid: &'a str,
    pub instance: &'a Instance,
    pub usage: Option<&'a Usage>,
    pub locality: Option<&'a Locality>,
    pub counts: Option<&'a InstanceCounts>,
    pub caches: Option<&'a CacheUse>,
    pub ledger: Option<&'a LedgerVm>,
    pub quiet: &'a Quiet,
}

impl<'a> Input<'a> {
    pub(super) fn vms(&self) -> impl Iterator<Item = Vm<'a>> + use<'a> {
        let (described, sample) = (self.described, self.sample);
        let ledger = self.ledger();
        described
            .node
            .instances
            .iter()
            .map(move |(pod, instance): (&PodUid, _)| {
                let uid = pod.as_str();
                Vm {
                    uid,
                    instance,
                    usage: described.usage.get(pod),
                    locality: described.locality.instances.get(uid),
                    counts: sample.instances.get(uid),
                    caches: described.node.quiet.report.caches.get(uid),
                    ledger: ledger.and_then(|ledger| ledger.vms.get(uid)),
                    quiet: &described.node.quiet,
                }
            })
    }

    /// The ledger, where it is switched on.
    pub(super) fn ledger(&self) -> Option<&'a LedgerSummary> {
        Some(&*self.node.ledger).filter(|ledger| ledger.enabled)
    }
}

impl Vm<'_> {
    /// The labels `pod_uid`, `namespace`, `pod`. A name that the runtime does not tell is an empty label, not one left
    /// out: with `honorLabels` an empty label keeps Prometheus from putting the scraped pod's own name there.
    pub(super) fn labels(&self) -> Vec<String> {
        [self.uid, self.instance.namespace(), self.instance.name()]
            .map(str::to_owned)
            .into()
    }

    /// A pinned I/O thread is `iothread-0` in the label `vcpu`; a thread without a CPU of its own has an empty `cpu`.
    fn vcpu_labels(&self, index: u32, cpu: Option<u32>) -> Vec<String> {
        let name = match ThreadRole::from(index) {
            ThreadRole::Vcpu(index) => index.to_string(),
            ThreadRole::IoThread(index) => format!("iothread-{index}"),
        };
        vec![
            self.uid.to_owned(),
            name,
            cpu.map_or_else(String::new, |cpu| cpu.to_string()),
        ]
    }
}

/// What is left when no daemon answers.
pub(crate) fn down() -> Vec<Family> {
    vec![Family {
        definition: &UP,
        samples: vec![(Vec::new(), Value::Count(0))],
    }]
}

pub(crate) fn families(described: &Description, sample: &Sample) -> Vec<Family> {
    let input = Input {
        described,
        version: &described.version,
        node: &described.node,
        metrics: &described.metrics,
        sample,
    };
    let samples = |read: &Read| -> Samples {
        match read {
            Read::Node(read) => read(&input).map(|value| (Vec::new(), value)).into_iter().collect(),
            Read::Vm(read) => input.vms().filter_map(|vm| Some((vm.labels(), read(&vm)?))).collect(),
            Read::Vcpu(read) => {
                let vcpus = |vm: Vm<'_>| -> Samples {
                    let threads = vm.counts.into_iter().flat_map(|counts| &counts.vcpus);
                    let sample =
                        |(index, one): (&u32, &ThreadCounts)| Some((vm.vcpu_labels(*index, one.cpu), read(one)?));
                    threads.filter_map(sample).collect()
                };
                input.vms().flat_map(vcpus).collect()
            }
            Read::Series(read) => read(&input),
        }
    };
    let family = |definition: &'static Definition| Family {
        definition,
        samples: samples(&definition.read),
    };
    ALL.iter().map(family).collect()
}

/// A sample for each key of a map, which is its label.
pub(super) fn each<T>(map: &BTreeMap<String, T>, value: fn(&T) -> Value) -> Samples {
    map.iter().map(|(key, of)| (vec![key.clone()], value(of))).collect()
}

/// One sample of a metric with one label, or none.
pub(super) fn with_label(label: &str, value: Option<Value>) -> Samples {
    value.map(|value| (vec![label.to_owned()], value)).into_iter().collect()
}

pub(super) fn number(number: u64) -> Option<Value> {
    Some(Value::Count(number))
}

pub(super) fn count(count: usize) -> Option<Value> {
    number(count as u64)
}

pub(super) fn flag(is_set: bool) -> Option<Value> {
    number(is_set.into())
}

pub(super) fn seconds(microseconds: u64) -> Value {
    Value::Real(microseconds as f64 / 1e6)
}

pub(super) fn nanoseconds(number: u64) -> Value {
    Value::Real(number as f64 / 1e9)
}

/// `None`: the time is not known, and has no sample.
pub(super) fn moment(us: u64) -> Option<Value> {
    (us > 0).then(|| seconds(us))
}

pub(super) fn owners(input: &Input<'_>) -> Samples {
    let cpus = OnlineCpus::of(input.described);
    let all = [
        ("exclusive", &cpus.exclusive),
        ("pod", &cpus.pods),
        ("shared", &cpus.shared),
        ("reserved", &cpus.reserved),
        ("unknown", &cpus.unknown),
        ("offline", &input.node.offline),
    ];
    all.into_iter()
        .flat_map(|(owner, cpus)| with_label(owner, count(cpus.len())))
        .collect()
}
