//! What follows from an answer.

use std::time::Duration;

use super::pods::PodTask;
use super::reconciler::{Digest, Reconciler};
use super::taint::TaintTask;
use super::{ReconcilerState, Task, content};
use crate::answer::{ApiFailure, FailureKind};
use crate::status::Part;

impl Task {
    fn part(&self) -> Part {
        match self {
            Self::Node => Part::Node,
            Self::Recall | Self::Object(_) => Part::Object,
            Self::Label(_) => Part::Label,
            Self::Taint(_) => Part::Taint,
            Self::Pod(_) => Part::Conditions,
            Self::Event(_) => Part::Events,
        }
    }

    /// The right that a 403 says is missing, as RBAC has it.
    fn right(&self) -> &'static str {
        match self {
            Self::Node | Self::Taint(TaintTask::ReadNode) => "get nodes",
            Self::Recall => "get noderesourcetopologies",
            Self::Object(_) => "create and patch noderesourcetopologies",
            Self::Label(_) | Self::Taint(TaintTask::TakeOff) => "patch nodes",
            Self::Pod(PodTask::Gate(_)) => "get pods",
            Self::Pod(PodTask::Condition(..)) => "patch pods/status",
            Self::Event(_) => "create and patch events.events.k8s.io",
        }
    }
}

/// What a failure is called.
fn problem(what: &Task, failure: &ApiFailure) -> String {
    let text = &failure.text;
    match (&failure.kind, what) {
        (FailureKind::Conflict(managers), _) => format!(
            "{} also writes this, and what it wrote differs: one of the two has to stop ({text})",
            managers.join(", ")
        ),
        (FailureKind::Forbidden, _) => format!("no right to {}: {text}", what.right()),
        (FailureKind::Missing, Task::Object(_)) => {
            format!("the CRD of NodeResourceTopology is not in the cluster: {text}")
        }
        (FailureKind::Missing, Task::Node) => format!("there is no such Node: {text}"),
        _ => text.clone(),
    }
}

impl ReconcilerState {
    fn reconciler(&mut self, what: &Task) -> Option<(&mut Reconciler, Digest)> {
        match what {
            Task::Object(digest) => Some((&mut self.object, *digest)),
            Task::Label(digest) => Some((&mut self.label, *digest)),
            _ => None,
        }
    }

    /// What came of a request.
    pub(crate) fn answered(&mut self, task: &Task, answer: Result<Vec<u8>, ApiFailure>, now: Duration) {
        match answer {
            Ok(body) => {
                self.api_answers();
                self.succeeded(task, &body, now);
            }
            Err(failure) => {
                self.status.failures += 1;
                match failure.kind {
                    FailureKind::Away | FailureKind::Unauthorized => self.api_away(task, &failure, now),
                    _ => {
                        self.api_answers();
                        self.failed(task, &failure, now);
                    }
                }
            }
        }
    }

    /// A request that cannot be written.
    pub(super) fn impossible(&mut self, what: &Task, text: String, now: Duration) {
        self.failed(what, &ApiFailure::new(FailureKind::Refused, text), now);
    }

    fn api_answers(&mut self) {
        self.api.succeeded();
        self.say(Part::Api, None);
    }

    fn api_away(&mut self, what: &Task, failure: &ApiFailure, now: Duration) {
        let again = self.api.failures() > 0;
        // Read again, the credentials may be good: a token that has just expired costs one request.
        if failure.kind == FailureKind::Unauthorized && !again {
            self.api.at_once(now);
        } else {
            self.api.failed_for_now(now, failure.retry_after, &mut self.random);
            self.say(Part::Api, Some(failure.text.clone()));
        }
        match what {
            // Not carried out, for certain.
            _ if failure.kind == FailureKind::Unauthorized => {}
            Task::Taint(_) => self.taint.interrupted(),
            Task::Pod(task) => self.pods.interrupted(task, now),
            _ => {
                if let Some((reconciler, _)) = self.reconciler(what) {
                    reconciler.interrupted(now);
                }
            }
        }
    }

    fn succeeded(&mut self, what: &Task, body: &[u8], now: Duration) {
        let mut said = None;
        if let Task::Object(_) = what {
            self.status.object_writes += 1;
        }
        match what {
            Task::Node => {
                said = self.node.answered(body, now, &mut self.random);
                self.wanted_for = None;
            }
            Task::Recall => {
                self.recall.rest.succeeded();
                self.recall.done = true;
                self.recall.object = serde_json::from_slice(body).ok().and_then(content::recalled);
                self.wanted_for = None;
            }
            Task::Object(digest) => self.object.succeeded(*digest, now, &mut self.random),
            Task::Label(digest) => self.label.succeeded(*digest, now, &mut self.random),
            Task::Taint(TaintTask::ReadNode) => match serde_json::from_slice(body) {
                Ok(node) => {
                    let key = self.options.remove_taint.clone().unwrap_or_default();
                    self.taint.node_read(&node, &key, now, &mut self.random);
                }
                Err(error) => {
                    said = Some(format!("the Node as it was read: {error}"));
                    self.taint.off(now, &mut self.random);
                }
            },
            Task::Taint(TaintTask::TakeOff) => {
                tracing::info!("the taint was taken off");
                self.taint.off(now, &mut self.random);
            }
            Task::Pod(PodTask::Gate(uid)) => self.pods.gates(uid, body),
            Task::Pod(PodTask::Condition(uid, digest)) => self.pods.written(uid, *digest, now, &mut self.random),
            Task::Event(number) => self.events.succeeded(*number, now),
        }
        // One pod's success says nothing of another's condition.
        if said.is_some() || !(matches!(what, Task::Pod(_)) && self.pods.is_refused()) {
            self.say(what.part(), said);
        }
    }

    fn failed(&mut self, what: &Task, failure: &ApiFailure, now: Duration) {
        let about = |text| {
            let failure = failure.clone();
            problem(what, &ApiFailure { text, ..failure })
        };
        let mut said = Some(problem(what, failure));
        match what {
            Task::Node => {
                self.node.failed(failure, now, &mut self.random);
                self.wanted_for = None;
            }
            Task::Recall => match failure.kind {
                // Nothing stands there that could be marked.
                FailureKind::Missing => {
                    self.recall.done = true;
                    said = None;
                }
                _ => self.recall.rest.failed(now, failure, &mut self.random),
            },
            Task::Object(digest) => self.object.failed(*digest, failure, now, &mut self.random),
            Task::Label(digest) => self.label.failed(*digest, failure, now, &mut self.random),
            Task::Taint(_) => {
                self.taint.failed(failure, now, &mut self.random);
                // Somebody else changed the Node meanwhile: nothing is wrong.
                if failure.kind == FailureKind::Stale {
                    said = None;
                }
            }
            Task::Pod(task) => {
                let text = self.pods.failed(task, failure, now, &mut self.random);
                said = text.map(about);
            }
            Task::Event(number) => {
                let text = self.events.failed(*number, failure, now, &mut self.random);
                said = text.map(about);
            }
        }
        // The Node is not the one whose UID is known: it was deleted, or registered anew.
        if matches!(what, Task::Label(_)) && matches!(failure.kind, FailureKind::Stale | FailureKind::Missing) {
            self.node.is_doubtful(now);
        }
        self.say(what.part(), said);
    }
}
