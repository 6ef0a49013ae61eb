//! Writes the view that entry points read. Each turn writes only what it changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use stelia_api::ledger::LedgerSummary;
use stelia_api::publishing::Publishing;
use stelia_api::quiet::Quiet;
use stelia_decide::{Assessment, Snapshot, Wait};
use stelia_kernel::clock;
use stelia_kubelet::PodUid;
use stelia_model as model;
use stelia_settings::Policies;
use tokio::sync::watch;

use super::picture::Picture;
use super::retries::RetryTable;
use super::view;
use super::view::{show_node, show_shared};
use super::visible_to_pods::Restrict;

/// Subscribers to single instances.
pub(super) type Followers = Arc<Mutex<BTreeMap<PodUid, watch::Sender<Option<Arc<model::Instance>>>>>>;

/// The one writer of the view, and of the subscriptions to single instances.
pub(super) struct ViewWriter {
    pub(super) view: watch::Sender<Arc<model::Node>>,
    pub(super) followers: Followers,
    pub(super) counters: model::Counters,
}

impl ViewWriter {
    pub(super) fn view(&self) -> Arc<model::Node> {
        self.view.borrow().clone()
    }

    /// Show the instances that were read, and remove those that are gone. `waits`: what instances wait for in vain.
    pub(super) fn show(
        &self,
        picture: &mut Picture,
        policies: &Policies,
        assessed: &BTreeMap<PodUid, Assessment>,
        waits: &BTreeMap<PodUid, Wait>,
        retries: &RetryTable<PodUid>,
        gone: &BTreeSet<PodUid>,
    ) {
        let mut changed: BTreeMap<PodUid, Option<Arc<model::Instance>>> = BTreeMap::new();
        let view = self.view();
        for (pod, assessment) in assessed {
            let deadline = picture.unplug_deadline_us(pod);
            let before = view.instances.get(pod);
            let before = before.map(|before| &**before);
            let now = picture.find(pod).map(|instance| {
                let wait = waits.get(pod);
                view::instance(instance, assessment, wait, retries.failures(pod), deadline, before)
            });
            if before != now.as_ref() {
                changed.insert(pod.clone(), now.map(Arc::new));
            }
        }
        for pod in gone {
            if view.instances.contains_key(pod) && !assessed.contains_key(pod) {
                changed.insert(pod.clone(), None);
            }
        }
        let node = picture.take_node_changed();
        let differs = shared_differs(&view, &picture.snapshot);
        // Otherwise the change below would copy the whole view.
        drop(view);
        if node || differs || !changed.is_empty() {
            self.view.send_modify(|view| {
                let view = Arc::make_mut(view);
                if node {
                    show_node(view, &picture.snapshot, &picture.facts, policies);
                    let modified = picture.version.and_then(|version| version.modified);
                    view.kubelet_modified_us = modified.map(clock::us);
                    view.offline = picture.offline.clone();
                }
                for (pod, now) in &changed {
                    match now {
                        Some(now) => drop(view.instances.insert(pod.clone(), now.clone())),
                        None => {
                            if let Some(was) = view.instances.remove(pod) {
                                view.remember(&was, clock::now_us());
                            }
                        }
                    }
                }
                show_shared(view, &picture.snapshot);
            });
        }
        self.show_followers(changed);
    }

    pub(super) fn show_unadopted(&self, unadopted: Vec<model::Unadopted>) {
        self.view
            .send_modify(|view| Arc::make_mut(view).unadopted = Arc::new(unadopted));
    }

    pub(super) fn show_quiet(&self, quiet: Quiet) {
        self.set(|view| &mut view.quiet, |view| &view.quiet, Arc::new(quiet));
    }

    /// Show the ledger's state. Subscribers are not woken where only its sums have risen.
    pub(super) fn show_ledger(&self, ledger: LedgerSummary) {
        self.view.send_if_modified(|view| {
            let (was, now) = (&view.ledger, &ledger);
            let differs = was.problem != now.problem || was.key != now.key || was.enabled != now.enabled;
            Arc::make_mut(view).ledger = Arc::new(ledger);
            differs
        });
    }

    /// Show the publication's state. Subscribers are not woken where only the file was written again.
    pub(super) fn show_publishing(&self, publishing: Publishing) {
        self.view.send_if_modified(|view| {
            let (was, now) = (&view.publishing, &publishing);
            let differs = was.profile != now.profile || was.problem != now.problem;
            Arc::make_mut(view).publishing = Arc::new(publishing);
            differs
        });
    }

    fn show_followers(&self, changed: BTreeMap<PodUid, Option<Arc<model::Instance>>>) {
        if changed.is_empty() {
            return;
        }
        // A panic in another thread leaves no half-made change in a map: each call changes it once.
        let mut followers = self.followers.lock().unwrap_or_else(PoisonError::into_inner);
        for (pod, now) in changed {
            let Some(sender) = followers.get(&pod) else { continue };
            if sender.receiver_count() == 0 {
                followers.remove(&pod);
            } else {
                sender.send_replace(now.visible_to(&pod));
            }
        }
    }

    /// Show the counters of drift, and wake subscribers.
    pub(super) fn show_drift(&self) {
        let counters = self.counters;
        self.view.send_modify(|view| Arc::make_mut(view).counters = counters);
    }

    /// Show the last pass. Subscribers are not woken.
    pub(super) fn show_pass(&self, last_pass: model::LastPass) {
        self.view.send_if_modified(|view| {
            Arc::make_mut(view).last_pass = Some(last_pass);
            false
        });
    }

    /// Show which call systemd has not answered; `None` when it answers again.
    pub(super) fn show_systemd(&self, problem: Option<String>) {
        self.set(|view| &mut view.systemd_problem, |view| &view.systemd_problem, problem);
    }

    /// Show why the node is not watched; `None` when it is again.
    pub(super) fn show_watching(&self, problem: Option<String>) {
        self.set(|view| &mut view.watch_problem, |view| &view.watch_problem, problem);
    }

    /// Show why KVM's events are not heard; `None` when they are again.
    pub(super) fn show_kvm(&self, problem: Option<String>) {
        self.set(|view| &mut view.kvm_problem, |view| &view.kvm_problem, problem);
    }

    pub(super) fn show_vm_capacity(&self, capacity: u32) {
        self.set(|view| &mut view.vm_capacity, |view| &view.vm_capacity, capacity);
    }

    pub(super) fn show_jobs(&self, jobs: Vec<model::Job>) {
        self.set(|view| &mut view.jobs, |view| &view.jobs, jobs);
    }

    /// Set one field, and wake subscribers, where it differs.
    fn set<T: PartialEq>(&self, field: fn(&mut model::Node) -> &mut T, shown: fn(&model::Node) -> &T, now: T) {
        self.view.send_if_modified(|view| {
            let differs = *shown(view) != now;
            if differs {
                *field(Arc::make_mut(view)) = now;
            }
            differs
        });
    }
}

/// Whether the view differs in what any instance may change.
fn shared_differs(view: &model::Node, snapshot: &Snapshot) -> bool {
    let exclusive = snapshot.slice.exclusive.as_ref();
    let same = exclusive.map_or(view.slice_exclusive.is_empty(), |now| *now == view.slice_exclusive);
    let restricted = snapshot.outside.values().filter(|outside| outside.saved.is_some());
    !same || view.unreadable != snapshot.unreadable || view.restricted.len() != restricted.count()
}
