//! The pods that were asked about lately.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::request::Shared;
use crate::reservations::{Uid, Version};

/// So many are remembered.
const MOST: usize = 20_000;

/// A pod as the scheduler described it.
#[derive(Debug, Clone)]
pub(crate) struct AskedPod {
    /// `namespace/name`.
    pub(crate) name: Arc<str>,
    pub(crate) version: Version,
    /// `spec.priority`.
    pub(crate) priority: i64,
    /// `None`: it gets no CPUs of its own.
    pub(crate) request: Option<Shared>,
}

/// By UID; the first that was asked about is forgotten first.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    pods: HashMap<Uid, AskedPod>,
    order: VecDeque<Uid>,
}

impl Asked {
    pub(crate) fn put(&mut self, uid: Uid, pod: AskedPod) {
        if self.pods.insert(uid, pod).is_some() {
            return;
        }
        self.order.push_back(uid);
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.pods.remove(&oldest);
        }
    }

    pub(crate) fn get(&self, uid: Uid) -> Option<&AskedPod> {
        self.pods.get(&uid)
    }

    pub(crate) fn named(&self, name: &str) -> Option<(Uid, &AskedPod)> {
        let newest = self
            .order
            .iter()
            .rev()
            .filter_map(|uid| Some((*uid, self.pods.get(uid)?)));
        newest.into_iter().find(|(_, pod)| &*pod.name == name)
    }
}
