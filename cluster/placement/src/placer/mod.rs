//! Places pods: what the extender answers, and what a bind does.

mod bind;
mod feeds;
mod node_rules;
mod preempt;
#[cfg(test)]
mod tests;
mod waiting;
mod wake_waiting;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use stelia_koordinator::allocator::evaluate::ScoringStrategy;
use stelia_placement_rules::cluster::{NodeVerdict, Question};
use stelia_placement_rules::evaluate::refusal_names::{NO_OBJECT, NODE_SILENT};
use stelia_placement_rules::request::{Request, RequestError, SharedRequest};
use tokio::sync::Semaphore;
use tokio::task::JoinError;
use tokio::time::Instant;

use crate::apiserver::Api;
use crate::apiserver::lease::Leadership;
use crate::apiserver::parse::ParsedPod;
use crate::reservations::{Moment, ReservationCounts, Reservations};

pub use bind::BindError;
pub use feeds::{Feed, feeds};
pub use node_rules::NodeRules;
use waiting::Waiting;

/// How many questions are evaluated at the same time; others wait. Each may take as long as the authors of nodes' objects and pods make it, within limits.
const MAX_EVALUATIONS: usize = 2;

/// How the program places.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlacerOptions {
    pub strategy: ScoringStrategy,
    /// How long a new leader reads pods before it answers. It does not know a pod that was deleted before its list, although the pod's node may have given it
    /// CPUs and not said so yet.
    pub settle: Duration,
}

/// What is known of pods and nodes, and the leadership by which it may be acted on.
pub struct Placer {
    state: Mutex<PlacerState>,
    pub(crate) api: Api,
    pub(crate) leadership: Leadership,
    /// The last term whose list each watch has read, pods and objects, and when it had read the first list of that term.
    lists: Mutex<[Option<(u64, Moment)>; 2]>,
    /// The term in which all nodes were checked for pods that a former leader refused.
    checked_term: AtomicU64,
    options: PlacerOptions,
    evaluations: Arc<Semaphore>,
    started: Instant,
    pub(crate) counts: Counts,
}

pub(crate) struct PlacerState {
    pub(crate) reservations: Reservations<NodeRules>,
    pub(crate) waiting: Waiting,
}

/// What happened since the start.
#[derive(Debug, Default)]
pub struct Counts {
    pub bound: AtomicU64,
    pub rejected: AtomicU64,
    pub failed: AtomicU64,
    pub retried: AtomicU64,
    pub refused_foreign: AtomicU64,
    pub refused_own: AtomicU64,
    pub updates: AtomicU64,
    pub unreadable: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Why nothing is answered now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    #[error("this instance does not hold the Lease, or not for long enough yet")]
    NotLeader,
    #[error("pods and nodes' objects are still being read")]
    NotRead,
}

impl Placer {
    pub fn new(api: Api, options: PlacerOptions) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(PlacerState {
                reservations: Reservations::new(NodeRules::default()),
                waiting: Waiting::default(),
            }),
            api,
            leadership: Leadership::default(),
            lists: Mutex::default(),
            checked_term: AtomicU64::new(0),
            options,
            evaluations: Arc::new(Semaphore::new(MAX_EVALUATIONS)),
            started: Instant::now(),
            counts: Counts::default(),
        })
    }

    pub fn leadership(&self) -> &Leadership {
        &self.leadership
    }

    pub fn api(&self) -> &Api {
        &self.api
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, PlacerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn now(&self) -> Moment {
        self.started.elapsed()
    }

    /// Whether every watch has read a list, so that this instance could take over.
    pub fn is_synced(&self) -> bool {
        self.lists().iter().all(Option::is_some)
    }

    fn lists(&self) -> MutexGuard<'_, [Option<(u64, Moment)>; 2]> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether calls are answered: this instance leads, and every watch has read a list since it does, and gone on for a while.
    ///
    /// # Errors
    /// Why not.
    pub fn ready(&self) -> Result<(), NotReady> {
        if !self.leadership.is_held() {
            return Err(NotReady::NotLeader);
        }
        let term = *self.leadership.terms().borrow();
        let (now, lists) = (self.now(), *self.lists());
        let read = |list: Option<(u64, Moment)>| {
            list.is_some_and(|(read, at)| read >= term && now >= at + self.options.settle)
        };
        lists.into_iter().all(read).then_some(()).ok_or(NotReady::NotRead)
    }

    /// Evaluates apart from the threads that renew the Lease and read the watches.
    ///
    /// # Errors
    /// The program ends, or there is a bug.
    pub(crate) async fn evaluate<T: Send + 'static>(
        &self,
        evaluate: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        // It is never closed. The permit lasts as long as the evaluation, also if the caller goes away.
        let permit = self.evaluations.clone().acquire_owned().await.ok();
        let evaluated = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            evaluate()
        });
        evaluated.await
    }

    pub fn reservation_counts(&self) -> ReservationCounts {
        let now = self.now();
        let mut state = self.state();
        state.reservations.advance(now);
        state.reservations.counts(now)
    }

    /// How many pods wait that no node had room for.
    pub fn waiting(&self) -> usize {
        self.state().waiting.len()
    }

    /// How many nodes have an object.
    pub fn nodes(&self) -> usize {
        self.state().reservations.rules().cluster.len()
    }

    /// What a pod requests; `None` if it gets no CPUs of its own and has no VM. `pod` is parsed from the same document.
    ///
    /// # Errors
    /// It fits nowhere.
    pub fn request(&self, document: &Value, pod: Option<&ParsedPod>) -> Result<Option<Request>, RequestError> {
        if pod.is_some_and(|pod| !pod.may_own_cpus) {
            return Ok(None);
        }
        Request::of_pod(document, self.options.strategy).map(Some)
    }

    /// What each of these nodes would do with the pod, in their order. The lock is free while states are evaluated.
    pub fn evaluate_nodes(&self, request: &Request, names: &[&str]) -> Vec<NodeVerdict> {
        let now = self.now();
        let (silent, mut question) = {
            let mut state = self.state();
            let request = state.current_request(request, now);
            state.prepare(&request, names, now)
        };
        if question.unanswered() > 0 {
            question.evaluate();
            self.state().reservations.rules_mut().cluster.keep_answers(&question);
        }
        let has_vm = request.vm.is_some();
        let answers = silent.into_iter().zip(question.verdicts());
        answers
            .map(|(is_silent, verdict)| answer(is_silent, verdict, has_vm))
            .collect()
    }
}

fn answer(is_silent: bool, verdict: NodeVerdict, has_vm: bool) -> NodeVerdict {
    match verdict {
        _ if is_silent => NodeVerdict::Refused(NODE_SILENT),
        // A node without an object is kubelet's alone, and nothing is known against placing a pod without a VM there.
        NodeVerdict::Refused(NO_OBJECT) if !has_vm => NodeVerdict::Fits(0),
        verdict => verdict,
    }
}

impl PlacerState {
    /// Whether each of these nodes is silent, and the question to them.
    fn prepare(&mut self, request: &SharedRequest, names: &[&str], now: Moment) -> (Vec<bool>, Question) {
        let reservations = &mut self.reservations;
        let silent = names.iter().map(|name| reservations.is_silent(name, now)).collect();
        let cluster = &mut reservations.rules_mut().cluster;
        (silent, cluster.question(request, names.iter().copied()))
    }

    /// The request, stored once. Before it is given, all nodes' answers are made to count what is held there.
    fn current_request(&mut self, request: &Request, now: Moment) -> SharedRequest {
        self.reservations.advance(now);
        self.reservations
            .update_rules(|rules, node, held| rules.cluster.set_held(node, held));
        self.reservations.rules_mut().cluster.request(request.clone())
    }
}
