//! The state of an instance as it is shown, and why it is not isolated although nothing may be wrong with it.

use stelia_api::{Reason, ReasonCode, State};
use stelia_koordinator::allocator::Qos;
use stelia_kubelet::PodName;
use stelia_model::PinnedReason;
use stelia_model::record::{Phase, Record};

use super::{Assessment, Instance, Wait};

/// The state of an instance.
pub fn shown_state(record: &Record, assessment: &Assessment) -> State {
    match record.phase {
        Phase::Leaving => State::Releasing,
        _ if assessment.eviction.is_some() && assessment.must_float => State::Evicted,
        _ if shares(record) => State::Shared,
        _ if is_off_its_cpus(assessment) => State::Waiting,
        Phase::Isolated => State::Isolated,
        Phase::Pinned => State::Pinned,
        Phase::Registered | Phase::Floating | Phase::Attaching => State::Waiting,
    }
}

/// Why it has less than isolation without being degraded; `None` where it is isolated, degraded for it, or being released. `wait`: what it
/// waits for, if nothing is about to end that.
pub fn not_isolated(instance: &Instance, assessment: &Assessment, wait: Option<&Wait>) -> Option<Reason> {
    let record = &instance.record;
    let of = |code, text: String| Some(Reason::of(&record.pod, code, text));
    let waiting = |code, text: &str| {
        of(
            code,
            wait.map_or_else(|| text.to_owned(), |wait| format!("{text}: {}", wait.text())),
        )
    };
    match shown_state(record, assessment) {
        State::Isolated | State::Evicted | State::Releasing => None,
        State::Shared => {
            let class = record.qos().map_or("", Qos::name);
            of(ReasonCode::SharedClass, format!("class {class} has no CPUs of its own"))
        }
        State::Pinned => pinned(record, assessment.pinned?),
        // Why it is off its CPUs is told once: its own reasons say so, or those of the node while kubelet's file cannot be used.
        State::Waiting if is_off_its_cpus(assessment) && !assessment.degraded.is_empty() => None,
        State::Waiting if is_off_its_cpus(assessment) => of(
            ReasonCode::NoCpusNow,
            "the CPUs that kubelet assigned to it are not known at present".to_owned(),
        ),
        State::Waiting => match record.phase {
            _ if !instance.tree.has_float() => {
                waiting(ReasonCode::NoPartitionYet, "the container's partition is not made yet")
            }
            Phase::Registered => waiting(ReasonCode::Starting, "its processes are not all moved yet"),
            Phase::Attaching => waiting(ReasonCode::Pinning, "its vCPU threads are not pinned yet"),
            _ => of(
                ReasonCode::NoVcpus,
                "no vCPU threads attached; the runner retries every 5 s".to_owned(),
            )
            .map(|reason| match &instance.pod_name {
                Some(name) => reason.with_fix(fix_without_vcpus(name, &record.container)),
                None => reason,
            }),
        },
    }
}

fn fix_without_vcpus(name: &PodName, container: &str) -> String {
    format!("kubectl logs -n {} {} -c {container}", name.namespace(), name.name())
}

fn pinned(record: &Record, why: PinnedReason) -> Option<Reason> {
    let (code, text) = match why {
        PinnedReason::Class => (
            ReasonCode::ClassLsr,
            "its class, LSR, lets pods of class BE run on its CPUs",
        ),
        PinnedReason::NoPartitions => (
            ReasonCode::NoPartitions,
            "this kernel has no partitions (cpuset.cpus.exclusive)",
        ),
        PinnedReason::Setting => (ReasonCode::PartitionOff, "the setting partition is member"),
        PinnedReason::Rule => (
            ReasonCode::RuleWithoutPartition,
            "the rule that adopted it has partition = \"member\"",
        ),
        PinnedReason::Refused => (ReasonCode::PartitionRefused, "the kernel refused a partition twice"),
    };
    Some(Reason::of(&record.pod, code, text))
}

/// Whether its vCPU threads run on shared CPUs although it has CPUs of its own.
pub fn is_off_its_cpus(assessment: &Assessment) -> bool {
    assessment.must_float || assessment.blocked.is_some()
}

/// Whether it is of a class that has no CPUs of its own.
fn shares(record: &Record) -> bool {
    record.qos().is_some_and(|qos| !qos.is_exclusive())
}
