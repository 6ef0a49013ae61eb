//! The journal's messages about instances. Each instance that was read is compared with what was last logged of it, and a message is
//! written only where they differ.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::Discriminant;

use stelia_api::reason::joined;
use stelia_api::{Reason, ReasonCode};
use stelia_cpus::CpuSet;
use stelia_decide::entitlement::Entitlement;
use stelia_decide::{Assessment, Instance, Snapshot};
use stelia_koordinator::allocator::{Guaranteed, guaranteed};
use stelia_kubelet::{PodName, PodUid};
use stelia_model::record::Phase;

use super::picture::Picture;
use crate::journal::{self, JournalPod, about};

/// What was last logged of every instance.
#[derive(Debug, Default)]
pub(super) struct InstanceLog {
    instances: BTreeMap<PodUid, LoggedInstance>,
    /// The last logged reason for which Guaranteed pods that are not VMs have exclusive CPUs.
    guaranteed: Option<Discriminant<Guaranteed>>,
}

/// An instance as it was last logged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct LoggedInstance {
    name: Option<PodName>,
    leaving: bool,
    evicted: bool,
    cpus: CpuSet,
    /// How many CPUs remain of these, and the vCPUs are being unplugged.
    shrinks_to: Option<usize>,
    /// steliad chose the CPUs: the VM keeps them if its vCPUs are not unplugged.
    by_steliad: bool,
    reasons: Vec<Reason>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Message {
    /// The instance ended and was not deregistered.
    Ended,
    Evicted,
    /// So many of its CPUs remain, and it waits for its vCPUs to be unplugged.
    Shrinks(usize),
    /// Its vCPUs were not unplugged in time, and it keeps the CPUs that steliad chose, of which so many were to remain.
    NotShrunk(usize),
    /// The instance is degraded, or for other reasons than before; with the message's id.
    Degraded(&'static str),
    /// The instance is not degraded any more.
    Restored,
}

impl InstanceLog {
    /// Where steliad chooses the CPUs: log what keeps Guaranteed pods that are not VMs on exclusive CPUs, at the start
    /// and when it changes while a node is taken over from kubelet.
    pub(super) fn guaranteed(&mut self, snapshot: &Snapshot) {
        if !snapshot.source.allocates() {
            self.guaranteed = None;
            return;
        }
        let Ok(kubelet) = &snapshot.kubelet else { return };
        let who = guaranteed(kubelet, &snapshot.leftover);
        let kind = std::mem::discriminant(&who);
        if self.guaranteed.replace(kind) == Some(kind) {
            return;
        }
        let text = who.in_words();
        tracing::warn!(
            MESSAGE_ID = journal::GUARANTEED,
            STELIA_REASON = text,
            "cpu-source is steliad: {text}"
        );
    }

    /// Log what changed of the instances that were read, and the end of those that are gone.
    pub(super) fn instances(
        &mut self,
        picture: &Picture,
        assessed: &BTreeMap<PodUid, Assessment>,
        gone: &BTreeSet<PodUid>,
    ) {
        for (pod, assessment) in assessed {
            let before = self.instances.remove(pod);
            let Some(instance) = picture.find(pod) else {
                ended(pod, before);
                continue;
            };
            let now = LoggedInstance::of(&picture.snapshot, instance, assessment, before.as_ref());
            log(pod, &now, messages(before.as_ref(), &now));
            self.instances.insert(pod.clone(), now);
        }
        for pod in gone {
            ended(pod, self.instances.remove(pod));
        }
    }

    /// Forget an instance that is deregistered: its end is not logged as `GONE`.
    pub(super) fn forget(&mut self, pod: &PodUid) {
        self.instances.remove(pod);
    }
}

/// The kernel refused an instance a partition, for the first time or again at an audit.
pub(super) fn partition_refused(picture: &Picture, instance: &Instance) {
    let record = &instance.record;
    let pod = JournalPod::new(record.pod.as_str(), instance.pod_name.as_ref());
    if record.phase == Phase::Pinned {
        let retries = picture.retries(&record.pod);
        return tracing::debug!("the kernel refused pod {pod} a partition again, retry {retries}: it stays pinned");
    }
    let text = instance.vcpu().map_or("", |vcpu| &vcpu.partition);
    about!(
        warn, journal::PARTITION_REFUSED, pod, STELIA_CPUSET = %record.exclusive, STELIA_PARTITION = text,
        "the kernel refused pod {pod} a partition of kind {} ({text:?}): pinned instead", record.partition.name()
    );
}

/// An instance becomes isolated; this is logged of a pinned one, whose partition the kernel had refused.
pub(super) fn partition_made(picture: &Picture, instance: &Instance) {
    let record = &instance.record;
    if record.phase != Phase::Pinned {
        return;
    }
    let retries = picture.retries(&record.pod);
    let pod = JournalPod::new(record.pod.as_str(), instance.pod_name.as_ref());
    about!(
        info, journal::ISOLATED, pod, STELIA_CPUSET = %record.exclusive,
        STELIA_FLOAT = instance.float().map(|leaf| leaf.cpus.to_string()),
        "isolated pod {pod}: the kernel gives it the partition that it had refused ({retries} retries by audits)"
    );
}

impl LoggedInstance {
    /// While kubelet's file cannot be used every instance is degraded for that reason, which is logged once for the node: of each
    /// instance the reasons that were logged before stay.
    fn of(snapshot: &Snapshot, instance: &Instance, assessment: &Assessment, before: Option<&Self>) -> Self {
        let record = &instance.record;
        // An adopted VM that ended is not deregistered by anybody.
        let leaving = record.phase == Phase::Leaving && !instance.has_ended();
        let mut now = Self {
            name: instance.pod_name.clone(),
            leaving,
            evicted: assessment.eviction.is_some(),
            cpus: record.exclusive.clone(),
            shrinks_to: match &assessment.entitlement {
                Entitlement::Shrinks(shrink) => Some(shrink.to),
                // Its vCPUs fit, and its record follows.
                Entitlement::Changed { .. } => before.and_then(|before| before.shrinks_to),
                _ => None,
            },
            by_steliad: record.allocation.is_some(),
            reasons: Vec::new(),
        };
        if snapshot.kubelet.is_err() {
            let name = now.name.clone();
            let before = before.cloned().unwrap_or(now);
            return Self {
                name,
                leaving,
                ..before
            };
        }
        now.reasons.clone_from(&assessment.degraded);
        now
    }

    /// Whether a resize by steliad is over and the instance has the CPUs that it had before.
    fn keeps_all(&self, before: &Self) -> bool {
        self.by_steliad && self.shrinks_to.is_none() && self.cpus == before.cpus
    }

    /// Whether the instance is degraded for this kind of reason now, and was not before.
    fn newly(&self, before: &Self, kind: ReasonCode) -> bool {
        let has = |last: &Self| last.reasons.iter().any(|reason| reason.code == kind);
        has(self) && !has(before)
    }
}

fn ended(pod: &PodUid, before: Option<LoggedInstance>) {
    if let Some(before) = before {
        log(pod, &before, end(&before));
    }
}

fn end(before: &LoggedInstance) -> Vec<Message> {
    if before.leaving {
        Vec::new()
    } else {
        vec![Message::Ended]
    }
}

fn messages(before: Option<&LoggedInstance>, now: &LoggedInstance) -> Vec<Message> {
    let new = LoggedInstance::default();
    let before = before.unwrap_or(&new);
    let mut messages = Vec::new();
    if now.leaving {
        return messages;
    }
    if now.evicted && !before.evicted {
        messages.push(Message::Evicted);
    }
    if let Some(remain) = now.shrinks_to.filter(|_| now.shrinks_to != before.shrinks_to) {
        messages.push(Message::Shrinks(remain));
    }
    if let Some(remain) = before.shrinks_to.filter(|_| now.keeps_all(before)) {
        messages.push(Message::NotShrunk(remain));
    }
    if now.reasons != before.reasons {
        messages.push(if now.reasons.is_empty() {
            Message::Restored
        } else if now.newly(before, ReasonCode::PlaceholderEnded) {
            Message::Degraded(journal::ANCHOR_LOST)
        } else if now.newly(before, ReasonCode::PartitionChanged) {
            Message::Degraded(journal::PARTITION_INVALID)
        } else {
            Message::Degraded(journal::DEGRADED)
        });
    }
    messages
}

fn log(pod: &PodUid, last: &LoggedInstance, messages: Vec<Message>) {
    let pod = JournalPod::new(pod.as_str(), last.name.as_ref());
    let reasons = joined(&last.reasons);
    for message in messages {
        match message {
            Message::Ended => about!(
                info, journal::GONE, pod, STELIA_CPUSET = %last.cpus,
                "the instance of pod {pod} ended: its CPUs {} are free", last.cpus
            ),
            Message::Evicted => about!(
                warn, journal::EVICTED, pod, STELIA_CPUSET = %last.cpus, STELIA_REASON = reasons,
                "the vCPUs of pod {pod} had to leave the CPUs {}: {reasons}", last.cpus
            ),
            Message::Shrinks(remain) => about!(
                info, journal::SHRINKS, pod, STELIA_CPUSET = %last.cpus,
                "pod {pod} is to keep {remain} of the CPUs {}: it leaves the others when its vCPUs are unplugged", last.cpus
            ),
            Message::NotShrunk(remain) => about!(
                warn, journal::NOT_SHRUNK, pod, STELIA_CPUSET = %last.cpus,
                "pod {pod} keeps the CPUs {} instead of {remain}: its vCPUs were not unplugged in time, or it was resized again", last.cpus
            ),
            Message::Degraded(id) => about!(
                warn, id, pod, STELIA_CPUSET = %last.cpus, STELIA_REASON = reasons,
                "pod {pod} is degraded: {reasons}"
            ),
            Message::Restored => about!(
                info, journal::WHOLE, pod, STELIA_CPUSET = %last.cpus,
                "the problem of pod {pod} is over"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn degraded(kind: ReasonCode, text: &str) -> LoggedInstance {
        let pod = PodUid::parse("b9e4f71c-64a5-4f8d-8574-41363cbaf8e5").unwrap();
        LoggedInstance {
            reasons: vec![Reason::of(&pod, kind, text)],
            ..LoggedInstance::default()
        }
    }

    #[test]
    fn what_did_not_change_is_not_logged_again() {
        let (good, bad) = (
            LoggedInstance::default(),
            degraded(ReasonCode::CpusOffline, "CPUs 3 are offline"),
        );
        assert_eq!(messages(None, &good), []);
        assert_eq!(messages(Some(&bad), &bad), []);
        assert_eq!(messages(Some(&good), &bad), [Message::Degraded(journal::DEGRADED)]);
        assert_eq!(
            messages(Some(&bad), &degraded(ReasonCode::CpusOffline, "CPUs 3-4 are offline")),
            [Message::Degraded(journal::DEGRADED)]
        );
        assert_eq!(messages(Some(&bad), &good), [Message::Restored]);
    }

    #[test]
    fn a_resize_by_steliad_that_its_vm_does_not_follow_is_logged() {
        let of = |by_steliad, shrinks_to, cpus: &str| LoggedInstance {
            by_steliad,
            shrinks_to,
            cpus: cpus.parse().unwrap(),
            ..LoggedInstance::default()
        };
        let waits = of(true, Some(2), "2-5");
        assert_eq!(messages(Some(&waits), &of(true, None, "2-5")), [Message::NotShrunk(2)]);
        // It was followed.
        assert_eq!(messages(Some(&waits), &of(true, None, "2-3")), []);
        assert_eq!(messages(Some(&waits), &waits), []);
        // Where kubelet chose the CPUs, the VM is degraded instead.
        assert_eq!(messages(Some(&of(false, Some(2), "2-5")), &of(false, None, "2-5")), []);
    }

    #[test]
    fn that_it_waits_for_its_vcpus_to_be_unplugged_is_logged_once_for_each_number() {
        let shrinks = |to| LoggedInstance {
            shrinks_to: to,
            ..LoggedInstance::default()
        };
        let (whole, two, one) = (shrinks(None), shrinks(Some(2)), shrinks(Some(1)));
        assert_eq!(messages(Some(&whole), &two), [Message::Shrinks(2)]);
        assert_eq!(messages(Some(&two), &two), []);
        assert_eq!(messages(Some(&two), &one), [Message::Shrinks(1)]);
        assert_eq!(messages(Some(&one), &whole), []);
    }

    #[test]
    fn an_anchor_and_a_partition_have_messages_of_their_own() {
        let anchor = degraded(ReasonCode::PlaceholderEnded, "the anchor ended");
        let partition = degraded(ReasonCode::PartitionChanged, "the partition reads");
        assert_eq!(messages(None, &anchor), [Message::Degraded(journal::ANCHOR_LOST)]);
        assert_eq!(
            messages(Some(&anchor), &partition),
            [Message::Degraded(journal::PARTITION_INVALID)]
        );
    }

    #[test]
    fn an_instance_that_is_deregistered_has_no_message_of_its_end() {
        let leaving = LoggedInstance {
            leaving: true,
            ..degraded(ReasonCode::ThreadEnded, "half gone")
        };
        assert_eq!(messages(Some(&LoggedInstance::default()), &leaving), []);
        assert_eq!(end(&leaving), []);
        assert_eq!(end(&LoggedInstance::default()), [Message::Ended]);
    }
}
