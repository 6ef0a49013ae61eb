//! The pods that kube-scheduler recently asked about.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use stelia_kubelet::Uid;
use stelia_placement_rules::request::SharedRequest;

use super::PlacerState;
use crate::reservations::{BindRequest, Version};

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

/// What is stored of a pod that is to be bound.
pub(super) enum StoredPod {
    /// Nothing: kube-scheduler did not ask about it here, and the watch has not seen it.
    Missing,
    WithoutOwnCpus,
    Requests(BindRequest<SharedRequest>),
}

impl PlacerState {
    /// The newest that is stored of a pod.
    pub(super) fn stored_pod(&self, uid: Uid) -> StoredPod {
        let watched = self.reservations.bind_request(uid);
        let Some(filtered) = self.filtered.get(uid) else {
            return watched.map_or(StoredPod::Missing, StoredPod::Requests);
        };
        match (watched, &filtered.request) {
            (Some(watched), None) => StoredPod::Requests(watched),
            (Some(watched), Some(_)) if watched.version >= filtered.version => StoredPod::Requests(watched),
            (_, Some(request)) => StoredPod::Requests(BindRequest {
                uid,
                version: filtered.version,
                request: request.clone(),
            }),
            (None, None) => StoredPod::WithoutOwnCpus,
        }
    }
}
