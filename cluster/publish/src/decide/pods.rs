//! The pods' conditions: which pods have one, what is due, and what follows from an answer.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use stelia_api::publication::{Publication, PublishedPod};
use stelia_cpus::rate::RateLimit;

use crate::answer::{ApiFailure, FailureKind};
use crate::backoff::{Random, RetryPause};
use crate::decide::content::{self, CONDITION};
use crate::decide::reconciler::{self, Digest, Reconciler};
use crate::options::PodConditions;

/// Requests for pods at once, and one more in [`POD_REFILL_INTERVAL`]: a node that starts with hundreds of VMs takes its time.
const POD_BURST: u32 = 10;
const POD_REFILL_INTERVAL: Duration = Duration::from_millis(200);

/// What is due for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PodTask {
    /// Whether its readiness gates name the condition.
    Gate(String),
    Condition(String, Digest),
}

/// Whether the pod has a condition of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GatePresence {
    Unknown,
    Yes,
    /// It has no such readiness gate; or it is gone, or another pod has its name. Asked once.
    No,
}

#[derive(Debug, Clone)]
struct Entry {
    namespace: String,
    name: String,
    gate: GatePresence,
    reconciler: Reconciler,
    /// It is not in the publication any more: its condition is removed.
    leaves: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Pods {
    of: PodConditions,
    by_uid: BTreeMap<String, Entry>,
    bucket: RateLimit,
    /// Shared by all pods: a missing right is missing for each of them.
    rest: RetryPause,
}

fn digest(body: &Value) -> Digest {
    reconciler::digest(body.to_string().as_bytes())
}

impl Pods {
    pub(crate) fn new(of: PodConditions) -> Self {
        Self {
            of,
            by_uid: BTreeMap::new(),
            bucket: RateLimit::new(POD_BURST, POD_REFILL_INTERVAL),
            rest: RetryPause::default(),
        }
    }

    pub(crate) fn take(&mut self, publication: &Publication, now: Duration) {
        let gate = match self.of {
            PodConditions::Off => return,
            PodConditions::Gated => GatePresence::Unknown,
            PodConditions::All => GatePresence::Yes,
        };
        for entry in self.by_uid.values_mut() {
            entry.leaves = true;
        }
        // Names become parts of a path: what cannot be a name of the API asks for nothing.
        let named = |told: &&PublishedPod| is_name(&told.namespace) && is_name(&told.name) && !told.uid.is_empty();
        for told in publication.pods.iter().filter(named) {
            let entry = self.by_uid.entry(told.uid.clone()).or_insert_with(|| Entry {
                namespace: told.namespace.clone(),
                name: told.name.clone(),
                gate,
                reconciler: Reconciler::new(Duration::ZERO, None),
                leaves: false,
            });
            entry.leaves = false;
            entry.reconciler.want(Some(digest(&content::condition(told))), now);
        }
        let stays = |entry: &Entry| entry.gate == GatePresence::Yes && entry.reconciler.was_tried();
        self.by_uid.retain(|_, entry| !entry.leaves || stays(entry));
        for (uid, entry) in self.by_uid.iter_mut().filter(|(_, entry)| entry.leaves) {
            let nothing = content::no_condition(&entry.namespace, &entry.name, uid);
            entry.reconciler.want(Some(digest(&nothing)), now);
        }
    }

    /// The next request, and when.
    pub(crate) fn due(&self) -> Option<(Duration, PodTask)> {
        let due = self.by_uid.iter().filter_map(|(uid, entry)| {
            let at = entry.reconciler.due()?;
            Some(match entry.gate {
                GatePresence::No => return None,
                GatePresence::Unknown => (at, PodTask::Gate(uid.clone())),
                GatePresence::Yes => (at, PodTask::Condition(uid.clone(), entry.reconciler.wanted()?)),
            })
        });
        let (at, task) = due.min_by_key(|(at, _)| *at)?;
        Some((at.max(self.rest.until()).max(self.bucket.ready_at()), task))
    }

    pub(crate) fn is_pending(&self) -> bool {
        let mut entries = self.by_uid.values();
        entries.any(|entry| entry.gate != GatePresence::No && entry.reconciler.is_pending())
    }

    /// Some pod's condition was refused, and is still wanted.
    pub(crate) fn is_refused(&self) -> bool {
        self.by_uid.values().any(|entry| entry.reconciler.is_refused())
    }

    /// Namespace and name of the pod.
    pub(crate) fn name(&self, uid: &str) -> Option<(&str, &str)> {
        let entry = self.by_uid.get(uid)?;
        Some((&entry.namespace, &entry.name))
    }

    pub(crate) fn condition(&self, uid: &str, publication: Option<&Publication>) -> Option<Value> {
        let entry = self.by_uid.get(uid)?;
        let mut pods = publication.into_iter().flat_map(|publication| &publication.pods);
        let told = pods.find(|told| told.uid == uid).filter(|_| !entry.leaves);
        Some(match told {
            Some(told) => content::condition(told),
            None => content::no_condition(&entry.namespace, &entry.name, uid),
        })
    }

    /// A request was sent.
    pub(crate) fn sent(&mut self, now: Duration) {
        self.bucket.take(now);
    }

    /// No answer came.
    pub(crate) fn interrupted(&mut self, task: &PodTask, now: Duration) {
        if let PodTask::Condition(uid, _) = task
            && let Some(entry) = self.by_uid.get_mut(uid)
        {
            entry.reconciler.interrupted(now);
        }
    }

    /// The pod with this UID, as the API server answered.
    pub(crate) fn gates(&mut self, uid: &str, pod: &[u8]) {
        let Some(entry) = self.by_uid.get_mut(uid) else { return };
        let pod: Value = serde_json::from_slice(pod).unwrap_or_default();
        let mut gates = pod["spec"]["readinessGates"].as_array().into_iter().flatten();
        let gated = pod["metadata"]["uid"] == uid && gates.any(|gate| gate["conditionType"] == CONDITION);
        entry.gate = if gated { GatePresence::Yes } else { GatePresence::No };
        self.rest.succeeded();
    }

    pub(crate) fn written(&mut self, uid: &str, written: Digest, now: Duration, random: &mut Random) {
        self.rest.succeeded();
        let Some(entry) = self.by_uid.get_mut(uid) else { return };
        entry.reconciler.succeeded(written, now, random);
        if entry.leaves && !entry.reconciler.is_pending() {
            self.by_uid.remove(uid);
        }
    }

    /// Returns what is to be said, if anything: a pod that is gone is nothing to tell of.
    pub(crate) fn failed(
        &mut self,
        task: &PodTask,
        failure: &ApiFailure,
        now: Duration,
        random: &mut Random,
    ) -> Option<String> {
        let (PodTask::Gate(uid) | PodTask::Condition(uid, _)) = task;
        let entry = self.by_uid.get_mut(uid)?;
        match failure.kind {
            FailureKind::Missing | FailureKind::Stale | FailureKind::Ending => {
                entry.gate = GatePresence::No;
                if entry.leaves {
                    self.by_uid.remove(uid);
                }
                self.rest.succeeded();
                return None;
            }
            FailureKind::Forbidden => self.rest.failed(now, failure, random),
            FailureKind::Refused if matches!(task, PodTask::Gate(_)) => entry.gate = GatePresence::No,
            _ => {
                let wanted = entry.reconciler.wanted().unwrap_or_default();
                entry.reconciler.failed(wanted, failure, now, random);
            }
        }
        Some(format!("pod {}/{}: {}", entry.namespace, entry.name, failure.text))
    }
}

/// A DNS subdomain, as the API has names.
pub(crate) fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    let bounded = !name.is_empty() && name.len() <= 253 && !name.starts_with('.') && !name.ends_with('.');
    bounded && bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.')
}
