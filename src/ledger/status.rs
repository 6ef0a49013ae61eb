//! Logs messages about the ledger to the journal.

use std::fmt::Write as _;

use stelia_cpus::CpuSet;
use stelia_kubelet::PodName;
use stelia_ledger::entry::{Class, Event};

use crate::journal::{self, JournalPod, about};
use crate::lasting_problem::LastingProblem;

/// Logs why the ledger is not kept.
pub(super) fn failed(lasting: &mut LastingProblem, problem: &str) {
    if lasting.begins(problem) {
        tracing::warn!(
            MESSAGE_ID = journal::LEDGER_PROBLEM,
            STELIA_REASON = problem,
            "the ledger is not kept: {problem}"
        );
    }
}

/// Logs that the ledger is kept again.
pub(super) fn works(lasting: &mut LastingProblem) {
    if lasting.ends() {
        tracing::info!(MESSAGE_ID = journal::LEDGER_KEPT, "the ledger is kept again");
    }
}

/// The CPUs of the intrusions of one entry, and the message's text.
fn intrusions(events: &[Event]) -> (CpuSet, String) {
    let (mut all, mut text) = (CpuSet::new(), String::new());
    for event in events {
        let Event::Intruded {
            cpus,
            class,
            name,
            count: (least, most),
            ..
        } = event
        else {
            continue;
        };
        all = all.union(&cpus.parse().unwrap_or_default());
        let kind = match class {
            Class::OtherTasks => "other tasks".to_owned(),
            Class::Devices => format!("interrupts of {name:?}"),
        };
        let count = if least == most {
            least.to_string()
        } else {
            format!("{least} to {most}")
        };
        let separator = if text.is_empty() { "" } else { "; " };
        // Writing to a String cannot fail.
        let _ = write!(text, "{separator}CPU {cpus}: {count} of {kind}");
    }
    (all, text)
}

/// Log the intrusions of one entry on one VM's CPUs. `name` is `namespace/name`, or empty.
pub(super) fn intruded(pod: &str, name: &str, events: &[Event]) {
    let (cpus, reason) = intrusions(events);
    let cpus = cpus.to_string();
    let name = pod_name(name);
    let pod = JournalPod::new(pod, name.as_ref());
    about!(
        warn,
        journal::INTRUDED,
        pod,
        STELIA_CPUSET = cpus,
        STELIA_REASON = reason,
        "something else ran on the CPUs {cpus:?} of pod {pod}: {reason}"
    );
}

/// Log what ran on a VM's CPUs. `name` is `namespace/name`, or empty.
pub(super) fn attributed(pod: &str, name: &str, cpus: &str, reason: &str) {
    let name = pod_name(name);
    let pod = JournalPod::new(pod, name.as_ref());
    about!(
        info,
        journal::ATTRIBUTED,
        pod,
        STELIA_CPUSET = cpus,
        STELIA_REASON = reason,
        "who runs on the CPUs {cpus:?} of pod {pod}: {reason}"
    );
}

fn pod_name(name: &str) -> Option<PodName> {
    let (namespace, name) = name.split_once('/')?;
    PodName::new(namespace, name)
}

pub(super) fn cut(bytes: u64) {
    tracing::warn!(
        MESSAGE_ID = journal::LEDGER_CUT,
        STELIA_BYTES = bytes,
        "{bytes} bytes behind the ledger's last whole line were cut off"
    );
}

/// Log that the heads are signed with a new key. `reason`: a sentence.
pub(super) fn key(key: &str, reason: &str) {
    tracing::warn!(
        MESSAGE_ID = journal::LEDGER_KEY,
        STELIA_KEY = key,
        STELIA_REASON = reason,
        "the ledger's heads are signed with the key {key}: {reason}"
    );
}

pub(super) fn head(event: &Event) {
    let Event::Head {
        day,
        seq,
        hash,
        key,
        signature,
    } = event
    else {
        return;
    };
    tracing::info!(
        MESSAGE_ID = journal::LEDGER_HEAD,
        STELIA_DAY = day.as_str(),
        STELIA_SEQ = seq,
        STELIA_HASH = hash.as_str(),
        STELIA_KEY = key.as_str(),
        STELIA_SIGNATURE = signature.as_str(),
        "the ledger of {day} is signed: entry {seq}, hash {hash}"
    );
}
