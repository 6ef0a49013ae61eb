//! The pods that kube-scheduler recently asked about.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use stelia_kubelet::Uid;
use stelia_placement_rules::request::SharedRequest;
use stelia_reservations::Version;

/// Limit of the pods that are stored.
const MAX_FILTERED_PODS: usize = 20_000;

/// A pod as the scheduler described it.
#[derive(Debug, Clone)]
pub(crate) struct FilteredPod {
    /// `namespace/name`.
    pub(crate) name: Arc<str>,
    pub(crate) version: Version,
    /// `spec.priority`.
    pub(crate) priority: i64,
    /// `None`: it gets no CPUs of its own.
    pub(crate) request: Option<SharedRequest>,
}

/// The pods by UID; the one asked about first is dropped first.
#[derive(Debug, Default)]
pub(crate) struct FilteredPods {
    pods: HashMap<Uid, FilteredPod>,
    order: VecDeque<Uid>,
}

impl FilteredPods {
    pub(crate) fn put(&mut self, uid: Uid, pod: FilteredPod) {
        if self.pods.insert(uid, pod).is_some() {
            return;
        }
        self.order.push_back(uid);
        if self.order.len() > MAX_FILTERED_PODS
            && let Some(oldest) = self.order.pop_front()
        {
            self.pods.remove(&oldest);
        }
    }

    pub(crate) fn get(&self, uid: Uid) -> Option<&FilteredPod> {
        self.pods.get(&uid)
    }

    pub(crate) fn named(&self, name: &str) -> Option<(Uid, &FilteredPod)> {
        let newest = self
            .order
            .iter()
            .rev()
            .filter_map(|uid| Some((*uid, self.pods.get(uid)?)));
        newest.into_iter().find(|(_, pod)| &*pod.name == name)
    }
}
