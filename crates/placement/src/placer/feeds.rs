//! What the watches tell becomes events of the reservations.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::value::RawValue;
use stelia_kubelet::Uid;
use stelia_placement_rules::node;
use stelia_placement_rules::request::{Request, SharedRequest};
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
                listed: Mutex::default(),
            }),
        },
        Feed {
            source: parse::OBJECTS,
            follower: Arc::new(Objects {
                placer: placer.clone(),
                listed: Mutex::default(),
            }),
        },
        Feed {
            source: parse::CLAIMS,
            follower: Arc::new(ClaimObjects {
                placer: placer.clone(),
                listed: Mutex::default(),
            }),
        },
    ]
}

/// What a list had so far; `None` outside of lists.
type Listed<T> = Mutex<Option<HashSet<T>>>;

fn note<T: std::hash::Hash + Eq>(listed: &Listed<T>, item: T) {
    if let Some(listed) = listed.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        listed.insert(item);
    }
}

fn begin<T>(listed: &Listed<T>) {
    *listed.lock().unwrap_or_else(PoisonError::into_inner) = Some(HashSet::new());
}

fn end<T>(listed: &Listed<T>) -> HashSet<T> {
    listed
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take()
        .unwrap_or_default()
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
    fn is_read(&self, place: usize, what: &str, number: u64) {
        if let Some(read) = self.read.get(place) {
            read.fetch_max(number, Ordering::AcqRel);
        }
        if let Some(listed) = self.listed.get(place) {
            listed.store(true, Ordering::Release);
        }
        info!("all {what} are read");
    }

    /// Takes over a pod, from a watch or read by itself.
    pub(crate) fn observe_pod(&self, text: &str) -> Option<Uid> {
        self.pod_listed(text, false)
    }

    /// The same; in a `list` pods are found that a former leader refused, which this instance was not asked about.
    fn pod_listed(&self, text: &str, list: bool) -> Option<Uid> {
        let now = self.now();
        let Some(pod) = parse::pod(text) else {
            count(&self.counts.unreadable);
            return None;
        };
        let uid = pod.uid;
        if pod.node.is_some() || pod.ending || pod.failed.is_some() {
            self.state().waiting.is_over(uid);
        }
        if let Some(reason) = &pod.failed {
            let refused = (!ADMITTED.contains(&reason.as_str())).then_some(reason.as_str());
            let mut state = self.state();
            state.reservations.pod_gone(uid, refused, now);
            self.notify_refused(&mut state);
            return Some(uid);
        }
        // For a pod that requests no CPUs only the version matters, and only while a bind of it is under way.
        if !pod.concerns {
            return Some(uid);
        }
        let document = serde_json::from_str(text).unwrap_or_default();
        let request = match Request::of_pod(&document, self.options.strategy) {
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
        // Only those of which it is sure that kube-scheduler asks about them.
        if list && pod.unschedulable && pod.node.is_none() && !pod.ending && request.0.vm.is_some() {
            let (name, request) = (pod.name.clone(), request.clone());
            state.waiting.found(uid, name, request, pod.priority, now);
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
        state.reservations.pod(pod, now);
        Some(uid)
    }

    /// The instance that leads tells it: those that read along see the same.
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
    /// The request, kept once.
    pub(crate) fn shared(&mut self, request: Request) -> Option<SharedRequest> {
        let cluster = &mut self.reservations.rules_mut().cluster;
        let number = cluster.request(request);
        cluster.requested(number)
    }
}

impl Follower for Pods {
    fn changed(&self, object: &RawValue) {
        count(&self.placer.counts.updates);
        let list = self.listed.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if let Some(uid) = self.placer.pod_listed(object.get(), list) {
            note(&self.listed, uid);
        }
    }

    fn gone(&self, object: &RawValue) {
        let Some(pod) = parse::pod(object.get()) else { return };
        let now = self.placer.now();
        let mut state = self.placer.state();
        state.waiting.is_over(pod.uid);
        if pod.concerns || state.reservations.asked(pod.uid).is_some() {
            state.reservations.pod_gone(pod.uid, None, now);
        }
    }

    fn list_begins(&self) {
        begin(&self.listed);
    }

    fn list_ends(&self, version: Version, number: u64) {
        let (listed, now) = (end(&self.listed), self.placer.now());
        self.placer.state().reservations.only_pods(&listed, version, now);
        self.placer.is_read(0, "pods", number);
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
        let described = node::read(object.get().as_bytes());
        if let Err(cause) = &described {
            count(&self.placer.counts.unreadable);
            warn!("node {}: its NodeResourceTopology cannot be used: {cause}", named.name);
        }
        note(&self.listed, named.name.clone());
        let now = self.placer.now();
        let mut state = self.placer.state();
        match named.owner {
            Some(owner) => state.owners.insert(named.name.clone(), owner),
            None => state.owners.remove(&named.name),
        };
        state.reservations.object(&named.name, named.version, described, now);
    }

    fn gone(&self, object: &RawValue) {
        let Some(named) = parse::node_object(object.get()) else {
            return;
        };
        let now = self.placer.now();
        let mut state = self.placer.state();
        state.owners.remove(&named.name);
        state.reservations.object_gone(&named.name, named.version, now);
    }

    fn list_begins(&self) {
        begin(&self.listed);
    }

    fn list_ends(&self, version: Version, number: u64) {
        let (listed, now) = (end(&self.listed), self.placer.now());
        self.placer.state().reservations.only_objects(&listed, version, now);
        self.placer.is_read(1, "nodes' objects", number);
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
                note(&self.listed, claims.node.clone());
                let mut state = self.placer.state();
                state
                    .reservations
                    .claims(&claims.node, claims.version, &claims.entries, now);
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
            .claims_gone(&claims.node, claims.version);
    }

    fn list_begins(&self) {
        begin(&self.listed);
    }

    fn list_ends(&self, version: Version, number: u64) {
        let listed = end(&self.listed);
        self.placer.state().reservations.only_claims(&listed, version);
        self.placer.is_read(2, "claim objects", number);
    }

    fn failed(&self, failure: &Failure) {
        warn!("the claim objects: {failure}");
    }
}
