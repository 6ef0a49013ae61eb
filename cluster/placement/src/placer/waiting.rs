//! The pods that no node had room for when kube-scheduler last asked about them, and the nodes whose answers may have changed since.
//!
//! There is no I/O and no clock here: the caller passes the time and the nodes' answers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use stelia_cpus::rate::Backoff;
use stelia_kubelet::Uid;
use stelia_placement_rules::request::SharedRequest;

use crate::reservations::{Moment, NodeName};

/// Limit of the pods that are stored. A pod beyond it displaces the youngest pod of the namespace that has the most, unless that namespace would then
/// have fewer than the pod's own. Otherwise the pod is left to kube-scheduler, which tries every pod again after five minutes.
const MAX_PODS: usize = 10_000;
/// A pod is forgotten when kube-scheduler has not asked about it for this long: kube-scheduler tries each that waits at least every five and a half minutes.
const RETENTION_TIME: Duration = Duration::from_secs(900);
/// The pauses after a pod was tried again and refused again, and after kube-scheduler could not be told.
const PAUSE: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(32));
/// Limit of the pause that the API server may ask for: by then kube-scheduler tries the pod by itself.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);
/// Limit of the answers that are checked in one turn: nodes times different requests.
const MAX_ANSWERS_A_TURN: usize = 2048;
const MAX_NODES_A_TURN: usize = 64;
const MAX_REQUESTS_A_TURN: usize = 256;
/// How long a changed node is checked if there are more different requests than one turn checks.
const MAX_REVIEW_TIME: Duration = Duration::from_secs(60);

/// A pod that waits.
#[derive(Debug, Clone)]
struct Pod {
    /// `namespace/name`.
    name: Arc<str>,
    request: SharedRequest,
    /// `spec.priority`.
    priority: i64,
    since: Moment,
    /// When the last answers were given, by which all nodes refused it.
    answered_at: Moment,
    /// When kube-scheduler was last told to try it again.
    retried_at: Option<Moment>,
    /// How often it was tried again in vain.
    vain_retries: u32,
    /// After a notification failed: the moment before which there is no other, and how often that was so in a row.
    notify_not_before: Moment,
    failed_notifications: u32,
}

impl Pod {
    /// When kube-scheduler last asked about the pod, or was last told to try it again.
    fn last_tried(&self) -> Moment {
        self.answered_at.max(self.retried_at.unwrap_or_default())
    }

    /// Whether a change of a node at this moment is newer than the last try.
    fn is_outdated_by(&self, changed: Moment) -> bool {
        self.last_tried() < changed
    }

    /// Whether its pauses are over.
    fn is_due(&self, now: Moment) -> bool {
        let again = self.retried_at.map(|at| at + PAUSE.pause(self.vain_retries));
        now >= self.notify_not_before.max(again.unwrap_or_default())
    }
}

fn namespace(name: &str) -> &str {
    name.split_once('/').map_or(name, |(namespace, _)| namespace)
}

/// A pod that kube-scheduler is to try again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Retry {
    pub(crate) pod: Uid,
    /// `namespace/name`.
    pub(crate) name: Arc<str>,
}

/// The nodes to ask in a turn, and the different requests of the pods that a change of these nodes may concern.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    pub(crate) nodes: Vec<NodeName>,
    pub(crate) requests: Vec<SharedRequest>,
    /// Whether no request was left to a later turn.
    has_all_requests: bool,
}

/// The requests of a turn that a node has room for.
pub(crate) type Fits = HashSet<SharedRequest>;

#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pods: HashMap<Uid, Pod>,
    /// The same pods by namespace, the oldest first.
    by_namespace: HashMap<Arc<str>, BTreeSet<(Moment, Uid)>>,
    /// The API server asked for a pause until then: no pod is notified before.
    busy_until: Moment,
    /// Nodes whose change is not checked yet, or not completely, with its moment.
    nodes: BTreeMap<NodeName, Moment>,
    /// Turns that did not have all requests.
    turns: usize,
}

impl Waiting {
    pub(crate) fn len(&self) -> usize {
        self.pods.len()
    }

    /// Adds a pod that all nodes refused, by answers of the moment `at`.
    pub(crate) fn add_refused(&mut self, pod: Uid, name: Arc<str>, request: SharedRequest, priority: i64, at: Moment) {
        if let Some(known) = self.pods.get_mut(&pod) {
            // It was tried again in vain: something else than this program is in its way.
            let in_vain = |tried: Moment| known.answered_at < tried && tried <= at;
            if known.retried_at.is_some_and(in_vain) {
                known.vain_retries = known.vain_retries.saturating_add(1);
                known.failed_notifications = 0;
            }
            (known.request, known.answered_at) = (request, known.answered_at.max(at));
            return;
        }
        self.add(pod, name, request, priority, at, at);
    }

    /// Adds a pod that all nodes refused when a former leader was asked, unless it is known.
    pub(crate) fn add_inherited(
        &mut self,
        pod: Uid,
        name: Arc<str>,
        request: SharedRequest,
        priority: i64,
        now: Moment,
    ) {
        if !self.pods.contains_key(&pod) {
            self.add(pod, name, request, priority, now, Moment::ZERO);
        }
    }

    /// Adds a pod that is not known yet.
    fn add(&mut self, pod: Uid, name: Arc<str>, request: SharedRequest, priority: i64, since: Moment, at: Moment) {
        if self.pods.len() >= MAX_PODS {
            let Some(out) = self.pod_to_displace(&name) else { return };
            self.remove(out);
        }
        let queue = self.by_namespace.entry(namespace(&name).into()).or_default();
        queue.insert((since, pod));
        let pod_waits = Pod {
            name,
            request,
            priority,
            since,
            answered_at: at,
            retried_at: None,
            vain_retries: 0,
            notify_not_before: Moment::ZERO,
            failed_notifications: 0,
        };
        self.pods.insert(pod, pod_waits);
    }

    /// Removes a pod that is bound or gone.
    pub(crate) fn remove(&mut self, pod: Uid) {
        let Some(over) = self.pods.remove(&pod) else { return };
        let namespace = namespace(&over.name);
        if let Some(queue) = self.by_namespace.get_mut(namespace) {
            queue.remove(&(over.since, pod));
            if queue.is_empty() {
                self.by_namespace.remove(namespace);
            }
        }
    }

    /// The youngest pod of the namespace that has the most, if a pod of this name is to take its place. `None` if that namespace would then have fewer pods
    /// than the other one: two namespaces must not displace each other's pods in turn.
    fn pod_to_displace(&self, name: &str) -> Option<Uid> {
        let own = self.by_namespace.get(namespace(name)).map_or(0, BTreeSet::len);
        let (_, largest) = self
            .by_namespace
            .iter()
            .max_by_key(|(name, queue)| (queue.len(), *name))?;
        let (_, youngest) = largest.last().filter(|_| own + 1 < largest.len())?;
        Some(*youngest)
    }

    /// The answers of these nodes may have changed.
    pub(crate) fn nodes_changed(&mut self, nodes: impl IntoIterator<Item = NodeName>, now: Moment) {
        if self.pods.is_empty() {
            self.nodes.clear();
            return;
        }
        self.nodes.extend(nodes.into_iter().map(|node| (node, now)));
    }

    /// The nodes to ask now, and what to ask them; none if nothing changed for any pod that waits.
    pub(crate) fn next_turn(&mut self, now: Moment) -> Turn {
        let is_forgotten = |pod: &Pod| now.saturating_sub(pod.answered_at.max(pod.since)) >= RETENTION_TIME;
        let forgotten = self.pods.iter().filter(|(_, pod)| is_forgotten(pod));
        let forgotten: Vec<Uid> = forgotten.map(|(uid, _)| *uid).collect();
        forgotten.into_iter().for_each(|uid| self.remove(uid));
        let earliest = self.pods.values().map(Pod::last_tried).min();
        self.nodes
            .retain(|_, changed| earliest.is_some_and(|earliest| earliest < *changed));
        let Some(newest) = self.nodes.values().max() else {
            return Turn::default();
        };
        let concerned = self.pods.values().filter(|pod| pod.is_outdated_by(*newest));
        let different: HashSet<&SharedRequest> = concerned.map(|pod| &pod.request).collect();
        let mut requests: Vec<SharedRequest> = different.into_iter().cloned().collect();
        let has_all_requests = requests.len() <= MAX_REQUESTS_A_TURN;
        if !has_all_requests {
            // Others the next time, in an order that stays.
            requests.sort_by_key(|request| request.address());
            let first = self.turns.wrapping_mul(MAX_REQUESTS_A_TURN) % requests.len();
            requests.rotate_left(first);
            requests.truncate(MAX_REQUESTS_A_TURN);
            self.turns = self.turns.wrapping_add(1);
        }
        let most = (MAX_ANSWERS_A_TURN / requests.len().max(1)).clamp(1, MAX_NODES_A_TURN);
        // Those first that changed first.
        let mut nodes: Vec<(&NodeName, &Moment)> = self.nodes.iter().collect();
        nodes.sort_by_key(|(_, changed)| **changed);
        let nodes = nodes.into_iter().take(most).map(|(node, _)| node.clone()).collect();
        Turn {
            nodes,
            requests,
            has_all_requests,
        }
    }

    /// The pod to try next among those that the node has room for now: the highest priority, then the longest wait. `fits` says
    /// which requests of this turn it has room for, `is_free` whether nobody binds the pod at this moment. A node that no other pod fits is not looked at
    /// again before it changes.
    pub(crate) fn next_retry(
        &mut self,
        turn: &Turn,
        node: &NodeName,
        fits: &Fits,
        is_free: impl Fn(Uid) -> bool,
        now: Moment,
    ) -> Option<Retry> {
        let changed = *self.nodes.get(node)?;
        let mut left = 0;
        let is_busy = now < self.busy_until;
        let mut first: Option<(Reverse<i64>, Moment, Uid)> = None;
        for (uid, pod) in &self.pods {
            if !pod.is_outdated_by(changed) || !fits.contains(&pod.request) {
                continue;
            }
            left += 1;
            let rank = (Reverse(pod.priority), pod.since, *uid);
            if !is_busy && pod.is_due(now) && first.is_none_or(|first| rank < first) && is_free(*uid) {
                first = Some(rank);
            }
        }
        let looked_at = turn.has_all_requests || now >= changed + MAX_REVIEW_TIME;
        if looked_at && left <= usize::from(first.is_some()) {
            self.nodes.remove(node);
        }
        let (_, _, uid) = first?;
        let pod = self.pods.get_mut(&uid)?;
        pod.retried_at = Some(now);
        let name = pod.name.clone();
        Some(Retry { pod: uid, name })
    }

    /// kube-scheduler could not be told. It is told in a later turn of the node, after a pause that grows. If the API server asked for a pause of the length
    /// `after`, nothing is told for any pod before that is over.
    pub(crate) fn notify_failed(&mut self, retry: &Retry, node: &NodeName, after: Option<Duration>, now: Moment) {
        let after = after.unwrap_or_default().min(MAX_RETRY_AFTER);
        self.busy_until = self.busy_until.max(now + after);
        if let Some(pod) = self.pods.get_mut(&retry.pod) {
            pod.retried_at = None;
            pod.notify_not_before = now + after.max(PAUSE.pause(pod.failed_notifications));
            pod.failed_notifications = pod.failed_notifications.saturating_add(1);
            self.nodes.entry(node.clone()).or_insert(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use stelia_placement_rules::testing::vm;

    use super::*;

    fn at(seconds: u64) -> Moment {
        Duration::from_secs(seconds)
    }

    fn uid(number: u128) -> Uid {
        Uid::parse(&stelia_placement_rules::testing::uid(number).to_string()).unwrap()
    }

    fn shared(cpus: u64) -> SharedRequest {
        SharedRequest::new(vm(cpus))
    }

    fn node(name: &str) -> NodeName {
        name.into()
    }

    fn refused(waiting: &mut Waiting, number: u128, request: &SharedRequest, seconds: u64) {
        let name = format!("vms/{number}").into();
        waiting.add_refused(uid(number), name, request.clone(), 0, at(seconds));
    }

    fn first() -> Retry {
        let name = "vms/1".into();
        Retry { pod: uid(1), name }
    }

    /// The pods that are touched because the node has room for all of these requests.
    fn retried(waiting: &mut Waiting, of: &str, fits: &[SharedRequest], seconds: u64) -> Option<u128> {
        let turn = waiting.next_turn(at(seconds));
        assert!(turn.nodes.len() <= MAX_NODES_A_TURN);
        // What was not asked has no answer.
        let fits = fits.iter().filter(|fit| turn.requests.contains(fit)).cloned().collect();
        let next = waiting.next_retry(&turn, &node(of), &fits, |_| true, at(seconds))?;
        Some(next.name.strip_prefix("vms/").unwrap().parse().unwrap())
    }

    #[test]
    fn a_pod_is_touched_once_a_change() {
        let (mut waiting, small) = (Waiting::default(), shared(2));
        let fits = std::slice::from_ref(&small);
        refused(&mut waiting, 1, &small, 10);
        // Nothing changed since it was asked about.
        assert!(waiting.next_turn(at(11)).nodes.is_empty());
        waiting.nodes_changed([node("a")], at(12));
        assert_eq!(retried(&mut waiting, "a", fits, 12), Some(1));
        assert_eq!(retried(&mut waiting, "a", fits, 13), None);
        assert!(waiting.nodes.is_empty());
        // It was tried, in vain: the next time it waits a little, but the change is not forgotten.
        refused(&mut waiting, 1, &small, 14);
        waiting.nodes_changed([node("a")], at(15));
        assert_eq!(retried(&mut waiting, "a", fits, 15), Some(1));
        refused(&mut waiting, 1, &small, 16);
        waiting.nodes_changed([node("a")], at(17));
        assert_eq!(retried(&mut waiting, "a", fits, 17), None);
        assert_eq!(retried(&mut waiting, "a", fits, 20), Some(1));
    }

    #[test]
    fn only_pods_that_fit_are_touched_one_after_the_other() {
        let (mut waiting, small, large) = (Waiting::default(), shared(2), shared(14));
        for number in 1..=3 {
            refused(&mut waiting, number, &small, 10 + number as u64);
        }
        refused(&mut waiting, 9, &large, 10);
        waiting.nodes_changed([node("a"), node("b")], at(20));
        assert_eq!(waiting.next_turn(at(20)).requests.len(), 2);
        let fits = std::slice::from_ref(&small);
        assert_eq!(retried(&mut waiting, "a", fits, 20), Some(1));
        assert_eq!(retried(&mut waiting, "a", fits, 21), Some(2));
        // The third finds no room any more, and the node is not looked at again.
        assert_eq!(retried(&mut waiting, "a", &[], 22), None);
        assert!(!waiting.nodes.contains_key(&node("a")) && waiting.nodes.contains_key(&node("b")));
        // Whoever is bound by now waits no longer.
        waiting.remove(uid(3));
        assert_eq!(retried(&mut waiting, "b", fits, 23), None);
    }

    #[test]
    fn a_higher_priority_goes_first_and_a_bind_under_way_is_left_alone() {
        let (mut waiting, small) = (Waiting::default(), shared(2));
        refused(&mut waiting, 1, &small, 10);
        waiting.add_refused(uid(2), "vms/2".into(), small.clone(), 1000, at(11));
        waiting.nodes_changed([node("a")], at(12));
        let (turn, fits) = (waiting.next_turn(at(12)), Fits::from([small.clone()]));
        let next = waiting.next_retry(&turn, &node("a"), &fits, |_| false, at(12));
        assert!(next.is_none());
        let next = waiting.next_retry(&turn, &node("a"), &fits, |_| true, at(12)).unwrap();
        assert_eq!(&*next.name, "vms/2");
        // What could not be told is told again.
        waiting.notify_failed(&next, &node("a"), None, at(12));
        assert_eq!(retried(&mut waiting, "a", &[small], 13), Some(2));
    }

    #[test]
    fn what_is_remembered_is_bounded_in_number_and_time() {
        let (mut waiting, small) = (Waiting::default(), shared(2));
        for number in 0..MAX_PODS as u128 + 10 {
            refused(&mut waiting, number + 1, &small, 10);
        }
        assert_eq!(waiting.len(), MAX_PODS);
        let names = (0..1000).map(|number| node(&format!("node-{number}")));
        waiting.nodes_changed(names, at(11));
        let turn = waiting.next_turn(at(11));
        assert_eq!((turn.nodes.len(), turn.requests.len()), (MAX_NODES_A_TURN, 1));
        waiting.next_turn(at(10) + RETENTION_TIME);
        assert_eq!((waiting.len(), waiting.nodes.len()), (0, 0));
        // However many different requests there are, each has its turn.
        let different: Vec<SharedRequest> = (0..600).map(|_| shared(4)).collect();
        for (number, request) in different.iter().enumerate() {
            refused(&mut waiting, number as u128 + 1, request, 1000);
        }
        waiting.nodes_changed([node("a")], at(1001));
        let mut answered_at = HashSet::new();
        for _ in 0..3 {
            let turn = waiting.next_turn(at(1001));
            assert_eq!((turn.requests.len(), turn.nodes.len()), (MAX_REQUESTS_A_TURN, 1));
            answered_at.extend(turn.requests.iter().cloned());
            let next = waiting.next_retry(&turn, &node("a"), &Fits::new(), |_| true, at(1001));
            assert!(next.is_none());
        }
        assert_eq!(answered_at.len(), 600);
        waiting.next_turn(at(1000) + RETENTION_TIME);
        // The answers for a former leader's pods are not known, so every node is new.
        waiting.add_inherited(uid(1), "vms/1".into(), small.clone(), 0, at(2000));
        waiting.nodes_changed([node("a")], at(2000));
        assert_eq!(retried(&mut waiting, "a", &[small], 2000), Some(1));
    }

    #[test]
    fn a_namespace_that_fills_the_list_gives_way_to_others() {
        let (mut waiting, small) = (Waiting::default(), shared(2));
        let most = MAX_PODS as u128;
        for number in 1..=most {
            refused(&mut waiting, number, &small, 10 + number as u64 / 1000);
        }
        waiting.add_refused(uid(most + 1), "other/vm".into(), small.clone(), 0, at(30));
        assert_eq!(waiting.len(), MAX_PODS);
        assert!(waiting.pods.contains_key(&uid(most + 1)));
        // The youngest is gone, and the pods that wait longest stay.
        assert!(!waiting.pods.contains_key(&uid(most)) && waiting.pods.contains_key(&uid(1)));
        // The namespace itself takes no place of another.
        refused(&mut waiting, most + 2, &small, 31);
        assert!(!waiting.pods.contains_key(&uid(most + 2)));
        // Half of the places are the other's, and then neither takes one of the other.
        for number in 0..most {
            waiting.add_refused(uid(2 * most + number), "other/vm".into(), small.clone(), 0, at(32));
        }
        let of_other = |waiting: &Waiting| waiting.pods.values().filter(|pod| &*pod.name == "other/vm").count();
        assert_eq!((waiting.len(), of_other(&waiting)), (MAX_PODS, MAX_PODS / 2));
        // Whoever is bound or forgotten makes room for anybody.
        waiting.remove(uid(1));
        refused(&mut waiting, most + 2, &small, 33);
        assert!(waiting.pods.contains_key(&uid(most + 2)));
        waiting.next_turn(at(33) + RETENTION_TIME);
        assert!(waiting.pods.is_empty() && waiting.by_namespace.is_empty());
    }

    #[test]
    fn a_pod_that_could_not_be_told_is_told_again_after_a_pause_that_grows() {
        let (mut waiting, small) = (Waiting::default(), shared(2));
        let fits = std::slice::from_ref(&small);
        refused(&mut waiting, 1, &small, 10);
        waiting.nodes_changed([node("a")], at(11));
        let mut told = Vec::new();
        for seconds in 11..150 {
            if retried(&mut waiting, "a", fits, seconds).is_some() {
                told.push(seconds - 11);
                waiting.notify_failed(&first(), &node("a"), None, at(seconds));
            }
        }
        assert_eq!(told, [0, 1, 3, 7, 15, 31, 63, 95, 127]);
    }

    #[test]
    fn an_api_server_that_asks_for_rest_has_it() {
        let (mut waiting, small) = (Waiting::default(), shared(2));
        let fits = std::slice::from_ref(&small);
        refused(&mut waiting, 1, &small, 10);
        refused(&mut waiting, 2, &small, 10);
        waiting.nodes_changed([node("a")], at(11));
        assert_eq!(retried(&mut waiting, "a", fits, 11), Some(1));
        waiting.notify_failed(&first(), &node("a"), Some(at(20)), at(11));
        for seconds in 11..31 {
            assert_eq!(retried(&mut waiting, "a", fits, seconds), None, "{seconds}");
        }
        assert_eq!(retried(&mut waiting, "a", fits, 31), Some(1));
        assert_eq!(retried(&mut waiting, "a", fits, 31), Some(2));
        // It cannot ask for any length.
        waiting.notify_failed(&first(), &node("a"), Some(Duration::MAX), at(31));
        assert_eq!(retried(&mut waiting, "a", fits, 330), None);
        assert_eq!(retried(&mut waiting, "a", fits, 331), Some(1));
    }
}
