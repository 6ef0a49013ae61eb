//! What is asked of the API server next. A `ReconcilerState` is told readings, the time and answers, and says which request is due and when. It
//! does no I/O and has no clock: times are durations since the publisher's start.

pub mod content;
mod event_queue;
mod node_uid;
mod outcome;
mod pods;
mod reconciler;
pub mod taint;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use kube::core::params::GetParams;
use serde_json::Value;
use stelia_api::publication::Publication;

use crate::backoff::{Random, RetryPause};
use crate::intervals::{GRACE_PERIOD, REAPPLY_INTERVAL, WRITE_INTERVAL};
use crate::options::PublishOptions;
use crate::request::{self, Made, PublisherRequest};
use crate::source::Reading;
use crate::status::{Part, Status};
use content::Freshness;
use event_queue::Events;
use node_uid::NodeUid;
use pods::{PodTask, Pods};
use reconciler::{Digest, Reconciler, digest};
use taint::{Taint, TaintTask};

/// A request's purpose; what it was written from is in it where that matters for the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Task {
    /// The Node's UID.
    Node,
    /// Read the existing object, because the daemon has published none since the start.
    Recall,
    Object(Digest),
    Label(Digest),
    Taint(TaintTask),
    Pod(PodTask),
    /// By its number.
    Event(u64),
}

/// What to do next.
#[derive(Debug)]
pub(crate) enum Next {
    /// Send this and tell what came of it ([`ReconcilerState::answered`]).
    Send(Task, Box<PublisherRequest>),
    /// Wait until then, since the start, or for a reading; without a time only for a reading.
    Wait(Option<Duration>),
}

/// Everything a publisher knows.
pub(crate) struct ReconcilerState {
    options: PublishOptions,
    random: Random,
    /// Nothing is sent before.
    start_at: Duration,
    begun: bool,
    /// The first reading, until there is another.
    first: Option<Reading>,
    /// The API server as a whole.
    api: RetryPause,
    /// The last publication of this node.
    told: Option<Arc<Publication>>,
    /// The last one that has an object.
    described: Option<Arc<Publication>>,
    recall: Recall,
    /// Since when the daemon is away or its file is of no use.
    wrong_since: Option<Duration>,
    daemon_lives: bool,
    /// What is wanted was made for this; `None` if it is to be made anew.
    wanted_for: Option<(Freshness, Option<bool>)>,
    node: NodeUid,
    object: Reconciler,
    label: Reconciler,
    taint: Taint,
    pods: Pods,
    events: Events,
    status: Status,
}

/// The object as it stood when the publisher started.
#[derive(Default)]
struct Recall {
    object: Option<Value>,
    done: bool,
    rest: RetryPause,
}

impl ReconcilerState {
    pub fn new(options: PublishOptions) -> Self {
        let mut random = Random::new(options.seed);
        Self {
            start_at: random.below(options.start_spread),
            begun: false,
            first: None,
            api: RetryPause::default(),
            told: None,
            described: None,
            recall: Recall::default(),
            wrong_since: None,
            daemon_lives: true,
            wanted_for: None,
            node: NodeUid::default(),
            object: Reconciler::new(WRITE_INTERVAL, Some(REAPPLY_INTERVAL)),
            label: Reconciler::new(WRITE_INTERVAL, Some(REAPPLY_INTERVAL)),
            taint: Taint::default(),
            pods: Pods::new(options.pod_conditions),
            events: Events::default(),
            status: Status::default(),
            random,
            options,
        }
    }

    pub fn status(&self) -> Status {
        Status {
            events_posted: self.events.posted,
            events_dropped: self.events.dropped,
            settled: !self.is_pending(),
            ..self.status.clone()
        }
    }

    fn say(&mut self, part: Part, problem: Option<String>) {
        let Some(problem) = problem else {
            if self.status.problems.remove(&part).is_some() {
                tracing::info!(part = part.name(), "as it should be again");
            }
            return;
        };
        if self.status.problems.get(&part) != Some(&problem) {
            tracing::warn!(part = part.name(), "{problem}");
            self.status.problems.insert(part, problem);
        }
    }

    /// A reading of what the daemon tells.
    pub fn take(&mut self, reading: &Reading, now: Duration) {
        if !std::mem::replace(&mut self.begun, true) {
            self.first = Some(reading.clone());
        } else if self.first.as_ref().is_some_and(|first| first != reading) {
            // Spread is what begins on all nodes together. What changes now, changes on this one.
            self.start_at = self.start_at.min(now);
            self.first = None;
        }
        let publication = reading.publication.as_ref();
        let foreign = publication.and_then(|publication| self.foreign(publication));
        let problem = reading.problem.clone().or(foreign.clone());
        self.daemon_lives = reading.daemon_lives;
        let wrong = !reading.daemon_lives || problem.is_some();
        self.wrong_since = wrong.then(|| self.wrong_since.unwrap_or(now));
        let away = (!reading.daemon_lives).then(|| "steliad does not run".to_owned());
        self.say(Part::Daemon, away);
        self.say(Part::File, problem);
        if let (Some(publication), None) = (publication, foreign)
            && self.told.as_ref() != Some(publication)
        {
            self.told = Some(publication.clone());
            self.wanted_for = None;
            if publication.object.is_some() {
                self.described = Some(publication.clone());
                self.recall.object = None;
            }
            self.pods.take(publication, now);
            if self.options.pod_events {
                self.events.take(publication, self.options.started_us, now);
            }
        }
        self.want(now);
    }

    /// Why the publication is not this node's.
    fn foreign(&self, publication: &Publication) -> Option<String> {
        let node = &self.options.node;
        let of = &publication.node;
        if of != node {
            return Some(format!("of node {of:?}, and this publisher is of {node:?}"));
        }
        let object = publication.object.as_ref()?;
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        if name != node {
            return Some(format!("the object's name is {name:?}, expected {node:?}"));
        }
        let (version, kind) = (&object["apiVersion"], &object["kind"]);
        let known = content::object_version(object).is_some_and(pods::is_name) && kind == "NodeResourceTopology";
        (!known).then(|| format!("the object is {version} {kind}, expected a NodeResourceTopology"))
    }

    /// The daemon is away, or its file of no use, for longer than a restart takes.
    fn is_past_grace(&self, now: Duration) -> bool {
        self.wrong_since.is_some_and(|since| now >= since + GRACE_PERIOD)
    }

    fn is_pending(&self) -> bool {
        !self.node.was_asked()
            || self.object.is_pending()
            || self.label.is_pending()
            || self.taint.is_pending() && self.options.remove_taint.is_some()
            || self.pods.is_pending()
            || self.events.waiting() > 0
    }

    fn freshness(&self, now: Duration) -> Freshness {
        match (self.is_past_grace(now), self.daemon_lives, &self.told) {
            (true, false, _) => Freshness::Away,
            (true, true, _) => Freshness::Unusable,
            (false, _, Some(told)) if told.object.is_none() => Freshness::Unusable,
            // Not known yet: what stands there stays.
            (false, ..) => Freshness::Current,
        }
    }

    /// The object that stands has to be marked, and is not known.
    fn is_recall_wanted(&self, now: Duration) -> bool {
        !self.recall.done && self.described.is_none() && self.freshness(now) != Freshness::Current
    }

    fn wanted_object(&self, now: Duration) -> Option<Value> {
        let described = self.described.as_ref().and_then(|told| told.object.as_ref());
        let owner = self.node.uid().map(|uid| (self.options.node.as_str(), uid));
        let known = described.or(self.recall.object.as_ref())?;
        let summary = self.told.as_ref().and_then(|told| told.summary.as_ref());
        Some(content::object(known, self.freshness(now), owner, summary))
    }

    /// Whether VMs can be admitted; `None` while that is not known.
    fn is_ready(&self, now: Duration) -> Option<bool> {
        if self.is_past_grace(now) {
            Some(false)
        } else {
            Some(self.told.as_ref()?.ready.status)
        }
    }

    fn wanted_label(&self, now: Duration) -> Option<Value> {
        let ready = self.is_ready(now).filter(|_| self.options.ready_label)?;
        Some(content::label(&self.options.node, self.node.uid(), Some(ready)))
    }

    /// What is wanted, anew: of a reading, of the grace that has passed, of the Node's UID.
    fn want(&mut self, now: Duration) {
        let key = (self.freshness(now), self.is_ready(now));
        if self.wanted_for == Some(key) {
            return;
        }
        let of = |body: Option<Value>| body.map(|body| digest(body.to_string().as_bytes()));
        let (object, label) = (of(self.wanted_object(now)), of(self.wanted_label(now)));
        self.object.want(object, now);
        self.label.want(label, now);
        self.taint.want(self.is_ready(now) == Some(true));
        self.wanted_for = Some(key);
    }

    /// Every request that will be due, the more important first.
    fn due(&self, now: Duration) -> Vec<(Duration, Task)> {
        let mut due = vec![(self.node.due(), Task::Node)];
        if !self.node.was_asked() {
            return due;
        }
        if self.is_recall_wanted(now) {
            due.push((self.recall.rest.until(), Task::Recall));
        }
        let mut reconciler = |reconciler: &Reconciler, what: fn(Digest) -> Task| {
            due.extend(reconciler.due().zip(reconciler.wanted().map(what)));
        };
        reconciler(&self.object, Task::Object);
        // Nothing is applied to a Node that is not there: that would ask to create it.
        if !self.node.is_missing() {
            reconciler(&self.label, Task::Label);
            let taint = self.taint.due().filter(|_| self.options.remove_taint.is_some());
            due.extend(taint.map(|(at, task)| (at, Task::Taint(task))));
        }
        due.extend(self.pods.due().map(|(at, task)| (at, Task::Pod(task))));
        due.extend(self.events.due().map(|(at, number)| (at, Task::Event(number))));
        due
    }

    /// What is due now, or when the next thing is.
    pub fn next(&mut self, now: Duration) -> Next {
        if !self.begun {
            return Next::Wait(None);
        }
        self.want(now);
        let earliest = self.start_at.max(self.api.until());
        let due = self.due(now);
        let grace = self.wrong_since.map(|since| since + GRACE_PERIOD);
        let grace = grace.filter(|end| *end > now);
        if now < earliest {
            return Next::Wait(Some(grace.map_or(earliest, |grace| grace.min(earliest))));
        }
        let Some((_, what)) = due.iter().find(|(at, _)| *at <= now) else {
            return Next::Wait(due.into_iter().map(|(at, _)| at).chain(grace).min());
        };
        let what = what.clone();
        match self.request(&what, now) {
            Some(Ok(request)) => {
                self.sent(&what, now);
                Next::Send(what, Box::new(request))
            }
            failed => {
                // Nothing to send after all, or nothing that can be: what follows from that is what follows from an answer.
                let text = failed.and_then(Result::err).map(|error| error.to_string());
                self.impossible(&what, text.unwrap_or_else(|| "nothing to write".into()), now);
                Next::Wait(Some(now))
            }
        }
    }

    fn boot(&self) -> &str {
        self.options.boot_id.as_deref().unwrap_or_default()
    }

    fn sent(&mut self, what: &Task, now: Duration) {
        self.status.requests += 1;
        match what {
            Task::Pod(_) => self.pods.sent(now),
            Task::Event(number) => self.events.sent(*number, now),
            _ => {}
        }
    }

    fn request(&self, what: &Task, now: Duration) -> Option<Made> {
        let (manager, node) = (self.options.field_manager.as_str(), self.options.node.as_str());
        Some(match what {
            Task::Node => request::nodes().get_metadata(node, &GetParams::default()),
            Task::Recall => request::get(&request::objects("v1alpha2"), node),
            Task::Object(_) => {
                let object = self.wanted_object(now)?;
                let objects = request::objects(content::object_version(&object)?);
                request::apply(&objects, manager, node, &object)
            }
            Task::Label(_) => request::apply(&request::nodes(), manager, node, &self.wanted_label(now)?),
            Task::Taint(TaintTask::ReadNode) => request::get(&request::nodes(), node),
            Task::Taint(TaintTask::TakeOff) => request::merge(&request::nodes(), manager, node, self.taint.patch()?),
            Task::Pod(PodTask::Gate(uid)) => {
                let (namespace, name) = self.pods.name(uid)?;
                request::get(&request::pods(namespace), name)
            }
            Task::Pod(PodTask::Condition(uid, _)) => {
                let (namespace, name) = self.pods.name(uid)?;
                let body = self.pods.condition(uid, self.told.as_deref())?;
                request::apply_pod_status(manager, namespace, name, &body)
            }
            Task::Event(number) => {
                let (event, is_posted) = self.events.event(*number)?;
                if is_posted {
                    let body = serde_json::json!({"series": content::series(event)?});
                    let name = content::event_name(self.boot(), event);
                    request::merge(&request::events(&event.namespace), manager, &name, &body)
                } else {
                    let body = content::event(self.boot(), node, event);
                    request::create_event(manager, &event.namespace, &body)
                }
            }
        })
    }
}
