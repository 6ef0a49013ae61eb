//! What an event, an audit or an answer of systemd puts out of date.

use std::time::Instant;

use stelia_allocator::CpuSource;
use stelia_kubelet::PodUid;
use stelia_node::cgroup::CgroupPath;

use super::Trigger;
use super::systemd_calls::Done;
use super::task::Engine;
use super::watch::{Event, directory};

impl Engine {
    /// Something happened on the node.
    pub(super) fn happened(&mut self, event: Event) {
        self.trigger.get_or_insert(Trigger::Event);
        let dirty = &mut self.dirty;
        match event {
            Event::Kubelet => dirty.kubelet = true,
            Event::Slice => dirty.slice = true,
            Event::Scope(pod) if self.picture.snapshot.instances.contains_key(&pod) => {
                dirty.changed(pod);
            }
            Event::Scope(pod) => {
                dirty.unknown.insert(pod);
            }
            Event::Pods => {
                dirty.leftover = true;
                self.look_outside();
            }
            Event::Instance(pod) => {
                if self.picture.snapshot.instances.contains_key(&pod) {
                    dirty.changed(pod);
                    // A partition may have ended because its CPUs went offline.
                    dirty.topology = true;
                }
            }
            Event::Limits(pod) => {
                if self.picture.snapshot.instances.contains_key(&pod) {
                    dirty.limited(pod);
                }
            }
            Event::Float(pod) => {
                if self.picture.snapshot.instances.contains_key(&pod) {
                    dirty.floats.entry(pod).or_insert(false);
                }
            }
            Event::Lost => {
                self.audit(Trigger::Event);
                let everybody: Vec<_> = self.picture.snapshot.instances.keys().cloned().collect();
                everybody.into_iter().for_each(|pod| self.dirty.limited(pod));
            }
        }
    }

    /// Look at everything.
    pub(super) fn audit(&mut self, trigger: Trigger) {
        self.trigger.get_or_insert(trigger);
        let (setting, root) = (&self.settings.kubelet_root, self.system.root());
        self.picture.kubelet.find(setting, root);
        self.picture.forget_version();
        self.dirty.kubelet = true;
        self.dirty.topology = true;
        self.dirty.slice = true;
        self.dirty.leftover = true;
        self.dirty.scopes = true;
        self.dirty.shared = true;
        self.look_outside();
        self.dirty.audit = self.picture.snapshot.instances.keys().cloned().collect();
        self.patience.wake_all();
        self.shared.wake_all();
        self.watch_node();
    }

    /// What there is outside is read where it matters, and else as soon as it does.
    pub(super) fn look_outside(&mut self) {
        if self.picture.outside_matters() {
            self.dirty.outside = true;
        } else {
            self.picture.forget_outside();
        }
    }

    /// Watch what is the node's; what cannot be watched is said.
    pub(super) fn watch_node(&mut self) {
        let slice = directory(&self.system, &CgroupPath::slice());
        let pods = directory(&self.system, &CgroupPath::root().child("kubepods.slice"));
        // A pod that comes must be kept off CPUs that no partition protects, and one that goes frees what kubelet gave it.
        let pods = (self.settings.policies.allocator.source == CpuSource::Steliad).then_some(pods);
        let kubelet = self.watcher.kubelet(self.picture.kubelet.path());
        let watched = kubelet.and(self.watcher.slice(&slice)).and(self.watcher.pods(pods));
        let unwatched = watched.err();
        if unwatched != self.picture.snapshot.unwatched {
            self.picture.snapshot.unwatched = unwatched;
            self.dirty.everyone = true;
        }
    }

    /// A call to systemd ended.
    pub(super) fn done(&mut self, done: Done) {
        match done {
            Done::Unit { unit, pod, result } => {
                self.systemd_calls.ended(&unit);
                if let Err(error) = result {
                    let (error, now) = (error.to_string(), Instant::now());
                    self.total.failed = self.total.failed.wrapping_add(1);
                    self.log_failure(pod.as_ref(), &error);
                    match &pod {
                        Some(pod) => self.patience.tried(pod, 1, vec![error], now),
                        None => self.shared.tried(&unit, 1, vec![error], now),
                    }
                }
                match pod {
                    Some(pod) => self.dirty.wrote(pod),
                    None => {
                        self.picture.removed(&unit);
                        self.dirty.slice = true;
                        self.look_outside();
                        self.wrote_shared = true;
                        self.shared_changed();
                        if let Some(pod) = PodUid::from_scope(&unit) {
                            self.look_for(&pod);
                            self.retry_pod(&pod);
                        }
                    }
                }
            }
            Done::Started { pod, result } => {
                self.systemd_calls.ended(&pod.scope());
                self.started(&pod, result);
            }
        }
    }

    /// A scope came or went.
    fn look_for(&mut self, pod: &PodUid) {
        if self.picture.snapshot.instances.contains_key(pod) {
            self.dirty.wrote(pod.clone());
        } else {
            self.dirty.unknown.insert(pod.clone());
        }
    }
}
