//! The watches: what changes is passed to the reservations.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use serde_json::value::RawValue;
use stelia_kubelet::Uid;
use stelia_placement_rules::node;
use stelia_placement_rules::request::{Request, RequestError, SharedRequest};
use stelia_reservations::{NodeName, ObservedPod, Version};
use tracing::{info, warn};

use super::{Placer, State, count};
use crate::apiserver::{Failure, Follower, Source, parse};

/// Reasons of failed pods that their nodes had admitted.
const ADMITTED: [&str; 5] = ["Evicted", "Preempting", "Terminated", "NodeLost", "NodeShutdown"];

/// One of the three watches.
pub struct Feed {
    pub source: Source,
    pub follower: Arc<dyn Follower>,
}

/// The watches of a placer.
pub fn feeds(placer: &Arc<Placer>) -> [Feed; 3] {
    [
        Feed {
            source: parse::PODS,
            follower: Arc::new(Pods {
                placer: placer.clone(),
                listed: Listed(Mutex::default()),
            }),
        },
        Feed {
            source: parse::OBJECTS,
            follower: Arc::new(Objects {
                placer: placer.clone(),
                listed: Listed(Mutex::default()),
            }),
        },
        Feed {
            source: parse::CLAIMS,
            follower: Arc::new(ClaimObjects {
                placer: placer.clone(),
                listed: Listed(Mutex::default()),
            }),
        },
    ]
}

/// The objects of the current list so far; `None` outside of lists.
struct Listed<T>(Mutex<Option<HashSet<T>>>);

impl<T: Hash + Eq> Listed<T> {
    fn lock(&self) -> MutexGuard<'_, Option<HashSet<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self) {
        *self.lock() = Some(HashSet::new());
    }

    fn add(&self, item: T) {
        if let Some(listed) = self.lock().as_mut() {
            listed.insert(item);
        }
    }

    fn end(&self) -> HashSet<T> {
        self.lock().take().unwrap_or_default()
    }
}

struct Pods {
    placer: Arc<Placer>,
    listed: Listed<Uid>,
}

struct Objects {
    placer: Arc<Placer>,
    listed: Listed<NodeName>,
}

struct ClaimObjects {
    placer: Arc<Placer>,
    listed: Listed<NodeName>,
}

impl Placer {
    fn mark_read(&self, place: usize, what: &str, term: u64) {
        if let Some(read) = self.read_terms.get(place) {
            read.fetch_max(term, Ordering::AcqRel);
        }
        if let Some(listed) = self.listed.get(place) {
            listed.store(true, Ordering::Release);
        }
        info!("all {what} are read");
    }

    /// Stores what a pod says that was read apart from the watch. Returns its UID.
    pub(crate) fn observe_pod(&self, document: &Value) -> Option<Uid> {
        let request = || Request::of_pod(document, self.options.strategy);
        self.pod_changed(parse::pod_of(document), request, false)
    }

    /// Stores what a pod of the watch says. Returns its UID. The whole document is built only for pods that may get CPUs of their own: these are few.
    fn watched_pod(&self, text: &str, is_list: bool) -> Option<Uid> {
        let request = || Request::of_pod(&serde_json::from_str(text).unwrap_or_default(), self.options.strategy);
        self.pod_changed(parse::pod(text), request, is_list)
    }

    /// `request` is called if it is needed. A list has pods that a former leader refused, and that this instance was not asked about.
    fn pod_changed(
        &self,
        pod: Option<parse::Pod>,
        request: impl FnOnce() -> Result<Request, RequestError>,
        is_list: bool,
    ) -> Option<Uid> {
        let now = self.now();
        let Some(pod) = pod else {
            count(&self.counts.unreadable);
            return None;
        };
        let uid = pod.uid;
        if pod.node.is_some() || pod.ending || pod.failed.is_some() {
            self.state().waiting.remove(uid);
        }
        if let Some(reason) = &pod.failed {
            let refused = (!ADMITTED.contains(&reason.as_str())).then_some(reason.as_str());
            let mut state = self.state();
            state.reservations.pod_gone(uid, refused, now);
            self.notify_refused(&mut state);
            return Some(uid);
        }
        // For a pod that requests no CPUs only the version matters, and only while a bind of it is under way.
        if !pod.may_own_cpus {
            return Some(uid);
        }
        let request = match request() {
            Ok(request) => request,
            Err(cause) => {
                warn!("pod {}: {cause}", pod.name);
                return Some(uid);
            }
        };
        let mut state = self.state();
        let Some(request) = state.shared(request) else {
            return Some(uid);
        };
        // Only pods that kube-scheduler certainly asks this program about.
        if is_list && pod.unschedulable && pod.node.is_none() && !pod.ending && request.vm.is_some() {
            let (name, request) = (pod.name.clone(), request.clone());
            state.waiting.add_inherited(uid, name, request, pod.priority, now);
        }
        let pod = ObservedPod {
            uid,
            name: pod.name,
            version: pod.version,
            node: pod.node,
            request,
            cpus: pod.cpus,
            running: pod.running,
            ending: pod.ending,
        };
        state.reservations.pod_changed(pod, now);
        Some(uid)
    }

    /// Only the leader reports refusals: the other instances see the same ones.
    fn notify_refused(&self, state: &mut State) {
        let refused = state.reservations.take_refused().into_iter();
        for refused in refused.filter(|_| self.leadership.is_held()) {
            let (pod, node, reason) = (refused.pod, &refused.node, &refused.reason);
            match refused.foreign {
                Some(foreign) => {
                    count(&self.counts.refused_foreign);
                    warn!(
                        "node {node} refused pod {pod} ({reason}): pod {foreign} was bound there by another scheduler"
                    );
                }
                None => {
                    count(&self.counts.refused_own);
                    warn!("node {node} refused pod {pod} ({reason}), and no other scheduler was there");
                }
            }
        }
    }
}

impl State {
    /// The request, stored once.
    pub(crate) fn shared(&mut self, request: Request) -> Option<SharedRequest> {
        let cluster = &mut self.reservations.rules_mut().cluster;
        let id = cluster.request(request);
        cluster.shared_request(id)
    }
}

impl Follower for Pods {
    fn changed(&self, object: &RawValue) {
        count(&self.placer.counts.updates);
        let is_list = self.listed.lock().is_some();
        if let Some(uid) = self.placer.watched_pod(object.get(), is_list) {
            self.listed.add(uid);
        }
    }

    fn gone(&self, object: &RawValue) {
        let Some(pod) = parse::pod(object.get()) else { return };
        let now = self.placer.now();
        let mut state = self.placer.state();
        state.waiting.remove(pod.uid);
        if pod.may_own_cpus || state.reservations.bind_request(pod.uid).is_some() {
            state.reservations.pod_gone(pod.uid, None, now);
        }
    }

    fn list_begins(&self) {
        self.listed.start();
    }

    fn list_ends(&self, version: Version, term: u64) {
        let (listed, now) = (self.listed.end(), self.placer.now());
        self.placer.state().reservations.pods_listed(&listed, version, now);
        self.placer.mark_read(0, "pods", term);
    }

    fn failed(&self, failure: &Failure) {
        warn!("the pods: {failure}");
    }
}

impl Follower for Objects {
    fn changed(&self, object: &RawValue) {
        count(&self.placer.counts.updates);
        let Some(named) = parse::node_object(object.get()) else {
            count(&self.placer.counts.unreadable);
            return;
        };
        let parsed = node::parse(object.get().as_bytes());
        if let Err(cause) = &parsed {
            count(&self.placer.counts.unreadable);
            warn!("node {}: its NodeResourceTopology cannot be used: {cause}", named.name);
        }
        self.listed.add(named.name.clone());
        let now = self.placer.now();
        let mut state = self.placer.state();
        match named.owner {
            Some(owner) => state.owners.insert(named.name.clone(), owner),
            None => state.owners.remove(&named.name),
        };
        state
            .reservations
            .object_changed(&named.name, named.version, parsed, now);
    }

    fn gone(&self, object: &RawValue) {
        let Some(named) = parse::node_object(object.get()) else {
            return;
        };
        let now = self.placer.now();
        let mut state = self.placer.state();
        state.owners.remove(&named.name);
        state.reservations.object_deleted(&named.name, named.version, now);
    }

    fn list_begins(&self) {
        self.listed.start();
    }

    fn list_ends(&self, version: Version, term: u64) {
        let (listed, now) = (self.listed.end(), self.placer.now());
        self.placer.state().reservations.objects_listed(&listed, version, now);
        self.placer.mark_read(1, "nodes' objects", term);
    }

    fn failed(&self, failure: &Failure) {
        warn!("the NodeResourceTopology objects: {failure}");
    }
}

impl Follower for ClaimObjects {
    fn changed(&self, object: &RawValue) {
        let now = self.placer.now();
        match parse::claims(object.get()) {
            Ok(claims) => {
                self.listed.add(claims.node.clone());
                let mut state = self.placer.state();
                state
                    .reservations
                    .claims_changed(&claims.node, claims.version, &claims.claims, now);
            }
            Err(cause) => {
                count(&self.placer.counts.unreadable);
                warn!("a claim object: {cause}");
            }
        }
    }

    fn gone(&self, object: &RawValue) {
        let Ok(claims) = parse::claims(object.get()) else {
            return;
        };
        self.placer
            .state()
            .reservations
            .claims_deleted(&claims.node, claims.version);
    }

    fn list_begins(&self) {
        self.listed.start();
    }

    fn list_ends(&self, version: Version, term: u64) {
        let listed = self.listed.end();
        self.placer.state().reservations.claims_listed(&listed, version);
        self.placer.mark_read(2, "claim objects", term);
    }

    fn failed(&self, failure: &Failure) {
        warn!("the claim objects: {failure}");
    }
}
