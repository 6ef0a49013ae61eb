//! The waiting pods by namespace, so that one namespace alone cannot fill the list of them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use stelia_kubelet::Uid;

use crate::reservations::Moment;

/// The waiting pods of each namespace. Every call takes time logarithmic in the number of pods.
#[derive(Debug, Default)]
pub(super) struct NamespaceQueues {
    /// The pods of each namespace, the oldest first.
    pods: HashMap<Arc<str>, BTreeSet<(Moment, Uid)>>,
    /// The namespaces by their number of pods.
    sizes: BTreeSet<(usize, Arc<str>)>,
}

fn namespace(name: &str) -> &str {
    name.split_once('/').map_or(name, |(namespace, _)| namespace)
}

impl NamespaceQueues {
    /// A pod of the name `namespace/name`.
    pub(super) fn add(&mut self, name: &str, since: Moment, pod: Uid) {
        let name = namespace(name);
        let (key, mut pods) = self
            .pods
            .remove_entry(name)
            .unwrap_or_else(|| (name.into(), BTreeSet::new()));
        self.sizes.remove(&(pods.len(), key.clone()));
        pods.insert((since, pod));
        self.sizes.insert((pods.len(), key.clone()));
        self.pods.insert(key, pods);
    }

    pub(super) fn remove(&mut self, name: &str, since: Moment, pod: Uid) {
        let Some((key, mut pods)) = self.pods.remove_entry(namespace(name)) else {
            return;
        };
        self.sizes.remove(&(pods.len(), key.clone()));
        pods.remove(&(since, pod));
        if !pods.is_empty() {
            self.sizes.insert((pods.len(), key.clone()));
            self.pods.insert(key, pods);
        }
    }

    /// The youngest pod of the namespace that has the most, if a pod of this name is to take its place. `None` if that namespace would then have fewer pods
    /// than the other one: two namespaces must not displace each other's pods in turn.
    pub(super) fn pod_to_displace(&self, name: &str) -> Option<Uid> {
        let own = self.pods.get(namespace(name)).map_or(0, BTreeSet::len);
        let (most, largest) = self.sizes.last()?;
        if own + 1 >= *most {
            return None;
        }
        self.pods.get(largest)?.last().map(|(_, pod)| *pod)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.sizes.is_empty()
    }
}
