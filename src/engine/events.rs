//! What an event, an audit or an answer of systemd puts out of date.

use std::time::Instant;

use stelia_decide::Whom;
use stelia_kernel::cgroup::CgroupPath;
use stelia_kubelet::PodUid;
use stelia_model::Trigger;

use super::state::EngineState;
use super::systemd_calls::Done;
use super::watch::{Event, Place, directory};

impl EngineState {
    pub(super) fn happened(&mut self, event: Event) {
        self.passes.trigger.get_or_insert(Trigger::Event);
        let known = |pod: &PodUid| self.picture.snapshot.instances.contains_key(pod);
        let dirty = &mut self.dirty;
        match event {
            Event::Kubelet => dirty.kubelet = true,
            Event::Slice => dirty.slice = true,
            Event::Scope(pod) if !known(&pod) => drop(dirty.unknown.insert(pod)),
            Event::Instance(pod) | Event::Limits(pod) | Event::Float(pod) if !known(&pod) => {}
            Event::Scope(pod) => dirty.changed(pod),
            Event::Pods => {
                dirty.leftover = true;
                self.mark_outside();
            }
            Event::Instance(pod) => {
                // In place the partition may have ended because of a list that nothing watches.
                dirty.slice |= self
                    .picture
                    .find(&pod)
                    .is_some_and(|instance| instance.tree.pod().is_some());
                dirty.changed(pod);
                // A partition may have ended because its CPUs went offline.
                dirty.topology = true;
            }
            Event::Limits(pod) => dirty.limited(pod),
            // All of it is to be read, perhaps because this program wrote this very list among others.
            Event::Float(pod) if dirty.instances.contains_key(&pod) => {}
            Event::Float(pod) => drop(dirty.floats.entry(pod).or_insert(false)),
            Event::Lost => self.has_lost_events = true,
        }
    }

    /// Mark everything as out of date, try again what rests, and have the tasks beside the engine look at what is theirs.
    pub(super) fn audit(&mut self, trigger: Trigger) {
        self.mark_everything(trigger);
        self.retries.wake_all();
        self.audits.send_replace(());
    }

    /// Mark everything as out of date. No rest is ended: a container can have the kernel drop events all the time, and what cannot be read may
    /// stay so.
    pub(super) fn mark_everything(&mut self, trigger: Trigger) {
        self.looked = Instant::now();
        self.has_unread_parts = false;
        if std::mem::take(&mut self.has_lost_events) {
            let everybody: Vec<_> = self.picture.snapshot.instances.keys().cloned().collect();
            everybody.into_iter().for_each(|pod| self.dirty.limited(pod));
        }
        self.passes.trigger.get_or_insert(trigger);
        let (setting, root) = (&self.settings.kubelet_root, self.system.root());
        self.picture.kubelet.find(setting, root);
        self.picture.forget_version();
        self.dirty.node();
        self.mark_outside();
        self.dirty.audit = self.picture.snapshot.instances.keys().cloned().collect();
        self.recent_looks.forget_old(Instant::now());
        self.rates.forget_old(Instant::now());
        self.watch_node();
    }

    /// Units outside are read where an instance depends on them, else when one begins to.
    pub(super) fn mark_outside(&mut self) {
        if self.picture.outside_matters() {
            self.dirty.outside = true;
        } else {
            self.picture.forget_outside();
        }
    }

    /// Watch kubelet's directory, the slice and the pods' slices. A failure degrades every instance.
    pub(super) fn watch_node(&mut self) {
        self.watcher.revive();
        let slice = directory(&self.system, &CgroupPath::slice());
        let pods = directory(&self.system, &CgroupPath::root().child("kubepods.slice"));
        // A new pod must be kept off CPUs of pinned instances, and one that ends frees what kubelet gave it.
        let pods = self.settings.policies.allocator.source.restricts_pods().then_some(pods);
        let places = [
            (Place::Kubelet, Some(self.picture.kubelet.path().to_owned())),
            (Place::Slice, Some(slice)),
            (Place::Pods, pods),
        ];
        let watched = places.map(|(place, path)| self.watcher.watch(place, path.as_slice()));
        let unwatched = watched.into_iter().find_map(Result::err);
        if unwatched != self.picture.snapshot.unwatched {
            match &unwatched {
                Some(problem) => tracing::warn!("{problem}"),
                None => tracing::info!("the node is watched again"),
            }
            self.view_writer.show_watching(unwatched.clone());
            self.picture.snapshot.unwatched = unwatched;
            self.dirty.everyone = true;
        }
    }

    /// systemd answered.
    pub(super) fn done(&mut self, done: Done) {
        match done {
            Done::Unit { unit, whom, result } => {
                self.systemd_calls.ended(&unit);
                if let Err(error) = result {
                    let (error, now) = (error.to_string(), Instant::now());
                    self.passes.total.failed = self.passes.total.failed.wrapping_add(1);
                    self.log_failure(&whom, &error);
                    match &whom {
                        Whom::Instance(pod) => self.retries.instances.tried(pod, 1, vec![error], now),
                        Whom::Node => self.retries.shared.tried(&unit, 1, vec![error], now),
                    }
                }
                match whom {
                    Whom::Instance(pod) => self.dirty.wrote(pod),
                    Whom::Node => {
                        self.picture.removed(&unit);
                        self.mark_outside();
                        self.wrote_shared();
                        if let Some(pod) = PodUid::from_scope(&unit) {
                            self.look_for(&pod);
                            self.retry_pod(&pod);
                        }
                    }
                }
            }
            Done::RuntimeChecked { pod, unit, result } => {
                self.systemd_calls.ended(&unit);
                self.runtime_checked(&pod, &result.map_err(|error| error.to_string()));
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
