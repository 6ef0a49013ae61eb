//! What the journal is told of the instances: only what differs from what it was told before.

use std::collections::{BTreeMap, BTreeSet};

use stelia_allocator::{CpuSource, guaranteed};
use stelia_api::reason::joined;
use stelia_api::{Amiss, Reason};
use stelia_cpus::CpuSet;
use stelia_kubelet::PodUid;
use stelia_record::Phase;

use super::task::Engine;
use crate::decide::{Assessment, Instance, Snapshot};
use crate::journal;

/// An instance as it was last told of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Told {
    leaving: bool,
    evicted: bool,
    cpus: CpuSet,
    reasons: Vec<Reason>,
}

/// What is worth a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum News {
    /// It ended, and nobody had given it back.
    Gone,
    /// Its CPUs became another pod's.
    Evicted,
    /// Its promise is not whole, or for other reasons than before; the message's id.
    Degraded(&'static str),
    /// Its promise is whole again.
    Whole,
}

impl Engine {
    /// Tell who keeps Guaranteed pods that are no VM on CPUs of their own, where steliad chooses: when it begins to, and when
    /// that becomes another.
    pub(super) fn tell_of_guaranteed(&mut self) {
        let snapshot = &self.picture.snapshot;
        let who = match (snapshot.source, &snapshot.kubelet) {
            (CpuSource::Steliad, Ok(kubelet)) => guaranteed(kubelet, &snapshot.leftover),
            (CpuSource::Steliad, Err(_)) => return,
            (CpuSource::Kubelet, _) => {
                self.told_guaranteed = None;
                return;
            }
        };
        let kind = std::mem::discriminant(&who);
        if self.told_guaranteed.replace(kind) == Some(kind) {
            return;
        }
        let text = who.in_words();
        tracing::warn!(
            MESSAGE_ID = journal::GUARANTEED,
            STELIA_REASON = text,
            "cpu-source is steliad: {text}"
        );
    }

    /// Tell of each of those instances what differs from what was told of it; of those that are gone, that they are.
    pub(super) fn tell(&mut self, assessed: &BTreeMap<PodUid, Assessment>, gone: &BTreeSet<PodUid>) {
        let snapshot = &self.picture.snapshot;
        for (pod, assessment) in assessed {
            let before = self.told.get(pod);
            let Some(instance) = self.picture.find(pod) else {
                if let Some(before) = self.told.remove(pod) {
                    tell(pod, &before, news(Some(&before), None));
                }
                continue;
            };
            let now = Told::of(snapshot, instance, assessment, before);
            let news = news(before, Some(&now));
            tell(pod, &now, news);
            self.told.insert(pod.clone(), now);
        }
        for pod in gone {
            if let Some(before) = self.told.remove(pod) {
                tell(pod, &before, news(Some(&before), None));
            }
        }
    }
}

impl Told {
    /// While kubelet's file cannot be used every instance is degraded for that reason, which is told once for the node:
    /// what was told before stands.
    fn of(snapshot: &Snapshot, instance: &Instance, assessment: &Assessment, before: Option<&Self>) -> Self {
        let record = &instance.record;
        let told = Self {
            leaving: record.phase == Phase::Leaving,
            evicted: assessment.evicted,
            cpus: record.exclusive.clone(),
            ..Self::default()
        };
        if snapshot.kubelet.is_err() {
            return Self {
                leaving: told.leaving,
                ..before.cloned().unwrap_or(told)
            };
        }
        Self {
            reasons: assessment.degraded.clone(),
            ..told
        }
    }

    /// Whether this is amiss, and was not before.
    fn is_new(&self, before: &Self, kind: Amiss) -> bool {
        let has = |told: &Self| told.reasons.iter().any(|reason| reason.kind == kind);
        has(self) && !has(before)
    }
}

fn news(before: Option<&Told>, now: Option<&Told>) -> Vec<News> {
    let Some(now) = now else {
        return before
            .filter(|before| !before.leaving)
            .map(|_| News::Gone)
            .into_iter()
            .collect();
    };
    let new = Told::default();
    let before = before.unwrap_or(&new);
    let mut news = Vec::new();
    if now.leaving {
        return news;
    }
    if now.evicted && !before.evicted {
        news.push(News::Evicted);
    }
    if now.reasons != before.reasons {
        news.push(if now.reasons.is_empty() {
            News::Whole
        } else if now.is_new(before, Amiss::AnchorEnded) {
            News::Degraded(journal::ANCHOR_LOST)
        } else if now.is_new(before, Amiss::PartitionDiffers) {
            News::Degraded(journal::PARTITION_INVALID)
        } else {
            News::Degraded(journal::DEGRADED)
        });
    }
    news
}

fn tell(pod: &PodUid, told: &Told, news: Vec<News>) {
    let reasons = joined(&told.reasons);
    for news in news {
        match news {
            News::Gone => tracing::info!(
                MESSAGE_ID = journal::GONE, STELIA_POD_UID = %pod, STELIA_CPUSET = %told.cpus,
                "the instance of pod {pod} ended: its CPUs {} are free", told.cpus
            ),
            News::Evicted => tracing::warn!(
                MESSAGE_ID = journal::EVICTED, STELIA_POD_UID = %pod, STELIA_CPUSET = %told.cpus, STELIA_REASON = reasons,
                "the vCPUs of pod {pod} left the CPUs {}: {reasons}", told.cpus
            ),
            News::Degraded(id) => tracing::warn!(
                MESSAGE_ID = id, STELIA_POD_UID = %pod, STELIA_CPUSET = %told.cpus, STELIA_REASON = reasons,
                "pod {pod} is degraded: {reasons}"
            ),
            News::Whole => tracing::info!(
                MESSAGE_ID = journal::WHOLE, STELIA_POD_UID = %pod, STELIA_CPUSET = %told.cpus,
                "pod {pod} is degraded no more"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn degraded(kind: Amiss, text: &str) -> Told {
        let pod = PodUid::parse("b9e4f71c-64a5-4f8d-8574-41363cbaf8e5").unwrap();
        Told {
            reasons: vec![Reason::of(&pod, kind, text)],
            ..Told::default()
        }
    }

    #[test]
    fn what_did_not_change_is_not_told_again() {
        let (good, bad) = (Told::default(), degraded(Amiss::CpusOffline, "CPUs 3 are offline"));
        assert_eq!(news(None, Some(&good)), []);
        assert_eq!(news(Some(&bad), Some(&bad)), []);
        assert_eq!(news(Some(&good), Some(&bad)), [News::Degraded(journal::DEGRADED)]);
        assert_eq!(
            news(Some(&bad), Some(&degraded(Amiss::CpusOffline, "CPUs 3-4 are offline"))),
            [News::Degraded(journal::DEGRADED)]
        );
        assert_eq!(news(Some(&bad), Some(&good)), [News::Whole]);
    }

    #[test]
    fn an_anchor_and_a_partition_have_messages_of_their_own() {
        let anchor = degraded(Amiss::AnchorEnded, "the anchor ended");
        let partition = degraded(Amiss::PartitionDiffers, "the partition reads");
        assert_eq!(news(None, Some(&anchor)), [News::Degraded(journal::ANCHOR_LOST)]);
        assert_eq!(
            news(Some(&anchor), Some(&partition)),
            [News::Degraded(journal::PARTITION_INVALID)]
        );
    }

    #[test]
    fn who_leaves_on_purpose_is_not_missed() {
        let leaving = Told {
            leaving: true,
            ..degraded(Amiss::ThreadEnded, "half gone")
        };
        assert_eq!(news(Some(&Told::default()), Some(&leaving)), []);
        assert_eq!(news(Some(&leaving), None), []);
        assert_eq!(news(Some(&Told::default()), None), [News::Gone]);
    }
}
