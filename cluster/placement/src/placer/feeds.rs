//! The watches: what changes is passed to the reservations.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;
use stelia_kubelet::Uid;
use stelia_placement_rules::node;
use stelia_placement_rules::request::{Request, RequestError, SharedRequest};
use tracing::{info, warn};

use super::{Placer, PlacerState, count};
use crate::apiserver::{Follower, ServerFailure, Source, parse};
use crate::reservations::{NodeName, ObservedPod, Version};

/// Reasons of failed pods that their nodes had admitted.
const ADMITTED: [&str; 5] = ["Evicted", "Preempting", "Terminated", "NodeLost", "NodeShutdown"];

/// How often a node's object is read at most. A publisher writes once in 2 s; a node that writes more often costs others no time.
const OBJECT_PERIOD: Duration = Duration::from_secs(1);

/// One of the two watches.
pub struct Feed {
    pub source: Source,
    pub follower: Arc<dyn Follower>,
}

/// The watches of a placer.
pub fn feeds(placer: &Arc<Placer>) -> [Feed; 2] {
    let pods = Pods {
        placer: placer.clone(),
        listed: Listed(Mutex::default()),
    };
    let objects = Objects {
        placer: placer.clone(),
        listed: Listed(Mutex::default()),
        recent: Recent::default(),
    };
    let feed = |source, follower| Feed { source, follower };
    [
        feed(parse::PODS, Arc::new(pods)),
        feed(parse::OBJECTS, Arc::new(objects)),
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
    recent: Recent,
}

/// The nodes whose objects were read less than [`OBJECT_PERIOD`] ago, each with the newest object since then, if there is any.
type Recent = Arc<Mutex<HashMap<NodeName, Option<Box<RawValue>>>>>;

fn lock(recent: &Recent) -> MutexGuard<'_, HashMap<NodeName, Option<Box<RawValue>>>> {
    recent.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Placer {
    fn mark_read(&self, place: usize, what: &str, term: u64) {
        let now = self.now();
        if let Some(list) = self.lists().get_mut(place) {
            *list = list.filter(|(read, _)| *read >= term).or(Some((term, now)));
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
        pod: Option<parse::ParsedPod>,
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
            self.notify_refused(&mut state, pod.has_vm);
            return Some(uid);
        }
        let request = pod.may_own_cpus.then(request).transpose();
        let request = request.inspect_err(|cause| warn!("pod {}: {cause}", pod.name));
        let mut state = self.state();
        let request = match request.ok().flatten() {
            Some(request) => Some(request),
            // What was read before counts, and the version and the node of a pod that is promised CPUs.
            None if state.reservations.is_known(uid) => None,
            None if pod.may_own_cpus && pod.may_be_guaranteed && pod.node.is_some() => {
                Some(Request::of_cpus(pod.whole_cpus, pod.has_vm, self.options.strategy))
            }
            None => return Some(uid),
        };
        let request = request.map(|request| state.shared(request));
        let vm = request.as_ref().and_then(|request| request.vm.as_ref());
        // Its annotation counts where the pod's runner obeys it.
        let follows = vm.is_some_and(|vm| vm.follows_scheduler);
        // Only pods that kube-scheduler certainly asks this program about.
        if let Some(request) = request.clone().filter(|request| is_list && request.vm.is_some())
            && pod.unschedulable
            && pod.node.is_none()
            && !pod.ending
        {
            let name = pod.name.clone();
            state.waiting.add_inherited(uid, name, request, pod.priority, now);
        }
        let pod = ObservedPod {
            uid,
            shown_as: pod.shown_as,
            version: pod.version,
            node: pod.node,
            request,
            cpus: pod.cpus.filter(|_| follows),
            is_running: pod.is_running,
            ending: pod.ending,
        };
        state.reservations.pod_changed(pod, now);
        Some(uid)
    }

    /// Only the leader reports refusals: the other instances see the same ones. kube-scheduler asks this program about pods with a VM, so one that another
    /// process bound may be a former leader's.
    fn notify_refused(&self, state: &mut PlacerState, has_vm: bool) {
        let refused = state.reservations.take_refused().into_iter();
        let ours = refused.filter(|refused| has_vm || refused.foreign != Some(refused.pod));
        for refused in ours.filter(|_| self.leadership.is_held()) {
            let (pod, node, reason) = (refused.pod, &refused.node, &refused.reason);
            match refused.foreign {
                Some(foreign) => {
                    count(&self.counts.refused_foreign);
                    warn!(
                        "node {node} refused pod {pod} ({reason}): pod {foreign} was bound there by another scheduler or a former leader"
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

impl PlacerState {
    /// The request, stored once.
    pub(crate) fn shared(&mut self, request: Request) -> SharedRequest {
        self.reservations.rules_mut().cluster.request(request)
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
        if pod.may_own_cpus || state.reservations.is_known(pod.uid) {
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

    fn failed(&self, failure: &ServerFailure) {
        warn!("the pods: {failure}");
    }
}

impl Placer {
    fn object_changed(&self, named: parse::NodeObject, object: &RawValue) {
        let parsed = node::parse(object.get().as_bytes());
        if let Err(cause) = &parsed {
            count(&self.counts.unreadable);
            warn!("node {}: its NodeResourceTopology cannot be used: {cause}", named.name);
        }
        let now = self.now();
        let reservations = &mut self.state().reservations;
        reservations.object_changed(&named.name, named.version, parsed, now);
    }
}

impl Objects {
    /// Reads the newest object of the node, once a period as long as there are new ones.
    async fn follow_node(placer: Arc<Placer>, recent: Recent, node: NodeName) {
        loop {
            tokio::time::sleep(OBJECT_PERIOD).await;
            let mut nodes = lock(&recent);
            let Some(object) = nodes.get_mut(&node).and_then(Option::take) else {
                nodes.remove(&node);
                return;
            };
            drop(nodes);
            if let Some(named) = parse::node_object(object.get()) {
                placer.object_changed(named, &object);
            }
        }
    }
}

impl Follower for Objects {
    fn changed(&self, object: &RawValue) {
        count(&self.placer.counts.updates);
        let Some(named) = parse::node_object(object.get()) else {
            count(&self.placer.counts.unreadable);
            return;
        };
        let node = named.name.clone();
        let is_list = self.listed.lock().is_some();
        self.listed.add(node.clone());
        match lock(&self.recent).entry(node.clone()) {
            Entry::Occupied(mut recent) if !is_list => {
                recent.insert(Some(object.to_owned()));
                return;
            }
            Entry::Occupied(mut recent) => drop(recent.insert(None)),
            Entry::Vacant(new) => {
                new.insert(None);
                tokio::spawn(Self::follow_node(self.placer.clone(), self.recent.clone(), node));
            }
        }
        self.placer.object_changed(named, object);
    }

    fn gone(&self, object: &RawValue) {
        let Some(named) = parse::node_object(object.get()) else {
            return;
        };
        if let Some(newest) = lock(&self.recent).get_mut(&named.name) {
            *newest = None;
        }
        let now = self.placer.now();
        let reservations = &mut self.placer.state().reservations;
        reservations.object_deleted(&named.name, named.version, now);
    }

    fn list_begins(&self) {
        self.listed.start();
        lock(&self.recent).values_mut().for_each(|newest| *newest = None);
    }

    fn list_ends(&self, version: Version, term: u64) {
        let (listed, now) = (self.listed.end(), self.placer.now());
        self.placer.state().reservations.objects_listed(&listed, version, now);
        self.placer.mark_read(1, "nodes' objects", term);
    }

    fn failed(&self, failure: &ServerFailure) {
        warn!("the NodeResourceTopology objects: {failure}");
    }
}
