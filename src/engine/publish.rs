//! What doors are shown: of each turn only what it changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

use stelia_kubelet::PodUid;

use super::audience::ToldTo;
use super::task::Engine;
use super::{InstanceView, View, apply};
use crate::decide::Assessment;

impl Engine {
    /// Show those instances, and that others are gone; the journal is told as well.
    pub(super) fn show(&mut self, assessed: &BTreeMap<PodUid, Assessment>, gone: &BTreeSet<PodUid>) {
        let mut changed: BTreeMap<PodUid, Option<Arc<InstanceView>>> = BTreeMap::new();
        {
            let view = self.view.borrow();
            for (pod, assessment) in assessed {
                let now = self
                    .picture
                    .find(pod)
                    .map(|instance| InstanceView::of(instance, assessment));
                let before = view.instances.get(pod);
                if before.map(|before| &**before) != now.as_ref() {
                    changed.insert(pod.clone(), now.map(Arc::new));
                }
            }
            for pod in gone {
                if view.instances.contains_key(pod) && !assessed.contains_key(pod) {
                    changed.insert(pod.clone(), None);
                }
            }
        }
        let node = self.picture.take_news();
        let differs = self.shared_differs();
        if node || differs || !changed.is_empty() {
            let (picture, policies) = (&self.picture, &self.settings.policies);
            self.view.send_modify(|view| {
                let view = Arc::make_mut(view);
                if node {
                    view.show_node(&picture.snapshot, &picture.facts, policies);
                    let modified = picture.version.and_then(|version| version.modified);
                    view.kubelet_modified_us = modified.map(apply::us);
                    view.offline = picture.offline.clone();
                }
                for (pod, now) in &changed {
                    match now {
                        Some(now) => drop(view.instances.insert(pod.clone(), now.clone())),
                        None => drop(view.instances.remove(pod)),
                    }
                }
                view.show_shared(&picture.snapshot);
            });
        }
        self.tell_followers(changed);
        self.tell(assessed, gone);
    }

    /// Whether what changes with any instance is not as it is shown.
    fn shared_differs(&self) -> bool {
        let (view, snapshot) = (self.view.borrow(), &self.picture.snapshot);
        let exclusive = snapshot.slice.exclusive.as_ref();
        let same = exclusive.map_or(view.slice_exclusive.is_empty(), |now| *now == view.slice_exclusive);
        let saved = snapshot
            .outside
            .values()
            .filter(|outside| outside.saved.is_some())
            .count();
        !same || view.unreadable != snapshot.unreadable || view.restricted.len() != saved
    }

    fn tell_followers(&self, changed: BTreeMap<PodUid, Option<Arc<InstanceView>>>) {
        if changed.is_empty() {
            return;
        }
        // Maps that are whole after every call.
        let mut followers = self.followers.lock().unwrap_or_else(PoisonError::into_inner);
        for (pod, now) in changed {
            let Some(sender) = followers.get(&pod) else { continue };
            if sender.receiver_count() == 0 {
                followers.remove(&pod);
            } else {
                sender.send_replace(now.told_to(&pod));
            }
        }
    }

    /// Show what was counted. That a pass ended is no news to those who follow the view: they are told of drift only.
    pub(super) fn publish_numbers(&self, news: bool) {
        let (counters, last_pass) = (self.counters, self.last_pass);
        self.view.send_if_modified(|view| {
            let shown = Arc::make_mut(view);
            shown.counters = counters;
            shown.last_pass = last_pass;
            news
        });
    }

    /// systemd does not answer, or answers again.
    pub(super) fn systemd_is_slow(&self, problem: Option<String>) {
        self.view.send_if_modified(|view| {
            let changed = view.systemd_problem != problem;
            if changed {
                Arc::make_mut(view).systemd_problem = problem;
            }
            changed
        });
    }

    pub(super) fn publish_jobs(&self) {
        let jobs = self.jobs.list.clone();
        self.view.send_if_modified(|view: &mut Arc<View>| {
            let changed = view.jobs != jobs;
            if changed {
                Arc::make_mut(view).jobs = jobs;
            }
            changed
        });
    }
}
