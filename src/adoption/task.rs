//! The task that receives KVM's events and takes the next step for each container.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stelia_api::Error;
use stelia_kernel::cgroup::CgroupPath;
use stelia_kernel::kvm_events::{KvmEvents, KvmEventsError, KvmMessage};
use stelia_kubelet::{ContainerCgroup, PodUid};
use stelia_model as model;
use stelia_settings::{AdoptKind, Settings};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::budget::Budgets;
use super::pod_search::PodSearches;
use super::scan::{Adoptable, ScanOutcome};
use super::starting_vm::{Next, StartingVm};
use super::sweep::{Listing, Sweeps};
use super::{register_and_attach::adopt, scan, vm_end};
use crate::engine::{CallChange, Handle, RollbackError};
use crate::lasting_problem::LastingProblem;
use crate::wait_until::wait_until;

/// How often VMs are looked for while KVM's events are not heard.
const UNHEARD_INTERVAL: Duration = Duration::from_secs(5);

/// Adopt until cancelled.
pub(crate) async fn run(engine: Handle, cancel: CancellationToken) {
    let mut adoption = Adoption {
        settings: engine.settings(),
        reconciled: engine.reconciled(),
        views: engine.watch(),
        engine: engine.clone(),
        events: None,
        problem: LastingProblem::default(),
        starting: BTreeMap::new(),
        searches: PodSearches::default(),
        budgets: Budgets::default(),
        unadopted: BTreeMap::new(),
        undone: BTreeMap::new(),
        without_rule: BTreeSet::new(),
        sweeps: Sweeps::default(),
        end_checks: vm_end::EndChecks::default(),
        tasks: JoinSet::new(),
        next_audit: None,
    };
    adoption.follow_settings();
    loop {
        let next = adoption.next();
        tokio::select! {
            () = cancel.cancelled() => return,
            changed = adoption.settings.changed() => match changed {
                Ok(()) => adoption.follow_settings(),
                Err(_) => return,
            },
            changed = adoption.views.changed(), if adoption.adopts_containers() => match changed {
                Ok(()) => adoption.follow_view(Instant::now()),
                Err(_) => return,
            },
            event = next_event(&mut adoption.events) => adoption.use_event(event),
            Ok(()) = adoption.reconciled.changed(), if adoption.next_audit.is_some() => adoption.audit(Instant::now()),
            Some(ended) = adoption.tasks.join_next() => adoption.task_ended(ended),
            () = wait_until(next) => adoption.begin_due_work(Instant::now()),
        }
    }
}

/// The next event of KVM; it never comes without a socket.
async fn next_event(events: &mut Option<KvmEvents>) -> Result<KvmMessage, KvmEventsError> {
    match events {
        Some(events) => events.next().await,
        None => std::future::pending().await,
    }
}

/// The result of a task.
pub(super) enum TaskResult {
    /// All containers that match a rule.
    Swept(Vec<(CgroupPath, ContainerCgroup)>),
    /// The containers of a pod that match a rule.
    Searched(Vec<(CgroupPath, ContainerCgroup)>),
    Scanned(CgroupPath, ScanOutcome),
    /// Whether all threads of an adopted VM have ended.
    EndChecked(PodUid, bool),
    /// The engine audited an instance.
    Audited,
    /// The engine answered.
    Answered(CgroupPath, Box<Answer>),
}

/// The engine's answer about a VM or a whole container.
pub(super) struct Answer {
    vm: Adoptable,
    refusal: Option<RollbackError>,
}

pub(super) struct Adoption {
    pub(super) engine: Handle,
    pub(super) settings: watch::Receiver<Arc<Settings>>,
    reconciled: watch::Receiver<()>,
    views: watch::Receiver<Arc<model::Node>>,
    /// `None` without a rule, or if there is no socket: then VMs are found by audits.
    pub(super) events: Option<KvmEvents>,
    /// Why there is no socket.
    pub(super) problem: LastingProblem,
    /// The containers that are scanned, by their cgroups.
    pub(super) starting: BTreeMap<CgroupPath, StartingVm>,
    /// Pods with exclusive CPUs to search for whole containers; empty without such a rule.
    searches: PodSearches,
    budgets: Budgets,
    /// VMs that match a rule and are not adopted.
    pub(super) unadopted: BTreeMap<CgroupPath, model::Unadopted>,
    /// VMs that were registered and whose vCPUs could not be isolated. They are not moved again before something about them changes.
    undone: BTreeMap<CgroupPath, Adoptable>,
    /// Containers that match no rule and in which a VM was created. They are not scanned again.
    pub(super) without_rule: BTreeSet<CgroupPath>,
    pub(super) sweeps: Sweeps,
    /// Adopted VMs that may have ended.
    pub(super) end_checks: vm_end::EndChecks,
    pub(super) tasks: JoinSet<TaskResult>,
    /// `None` without a rule.
    next_audit: Option<Instant>,
}

impl Adoption {
    /// New rules apply to running VMs too. VMs that are adopted remain so.
    fn follow_settings(&mut self) {
        let settings = self.settings.borrow_and_update().clone();
        self.without_rule.clear();
        self.undone.clear();
        if settings.policies.adopt.is_empty() {
            self.events = None;
            self.clear_kvm_problem();
            self.next_audit = None;
            self.starting.clear();
            self.check_all_ends();
            self.searches = PodSearches::default();
            self.unadopted.clear();
            return self.show();
        }
        self.listen();
        let now = Instant::now();
        self.schedule_audit(now);
        let refused: Vec<CgroupPath> = self.unadopted.keys().cloned().collect();
        self.starting
            .values_mut()
            .for_each(|starting_vm| starting_vm.restart(now));
        self.recheck(refused, now);
        self.searches = PodSearches::default();
        if self.adopts_containers() {
            self.follow_view(now);
        }
        self.sweep(Listing::All);
    }

    /// Whether a rule adopts whole containers; only kubelet's state announces these.
    fn adopts_containers(&self) -> bool {
        let rules = &self.settings.borrow().policies.adopt;
        rules.iter().any(|rule| rule.kind == AdoptKind::Container)
    }

    /// Search for the containers of pods that kubelet gave CPUs and that have no instance.
    fn follow_view(&mut self, now: Instant) {
        let view = self.views.borrow_and_update().clone();
        let given: BTreeSet<&PodUid> = view.entries.keys().chain(view.pod_entries.keys()).collect();
        self.searches
            .follow(&given, |pod| view.instances.contains_key(pod), now);
    }

    fn next(&self) -> Option<Instant> {
        let earliest = |starting_vm: &StartingVm| self.budgets.earliest(&starting_vm.container.pod, starting_vm.due()?);
        let starting = self.starting.values().filter_map(earliest);
        let sweep = self.sweeps.due(Instant::now());
        let others = self.searches.next().into_iter().chain(sweep).chain(self.next_audit);
        starting.chain(others).min()
    }

    /// Begin the audit and the scans that are due.
    fn begin_due_work(&mut self, now: Instant) {
        if self.next_audit.is_some_and(|audit| audit <= now) {
            self.audit(now);
        }
        self.begin_sweep(now);
        for pod in self.searches.begin_due(now) {
            let (system, settings) = (self.engine.system().clone(), self.settings.borrow().clone());
            self.tasks.spawn_blocking(move || {
                TaskResult::Searched(scan::whole_containers_of(&system, &settings.policies.adopt, &pod))
            });
        }
        for (origin, starting_vm) in &mut self.starting {
            let pod = &starting_vm.container.pod;
            let earliest = starting_vm.due().and_then(|due| self.budgets.earliest(pod, due));
            if earliest.is_none_or(|earliest| earliest > now) {
                continue;
            }
            self.budgets.begin(pod, now);
            starting_vm.scan();
            let (engine, settings) = (self.engine.clone(), self.settings.borrow().clone());
            let (origin, container) = (origin.clone(), starting_vm.container.clone());
            self.tasks.spawn_blocking(move || {
                let outcome = scan::container(&engine, &settings.policies.adopt, &origin, &container);
                TaskResult::Scanned(origin, outcome)
            });
        }
    }

    /// Check known VMs again: vCPUs may have been plugged, unplugged or pinned elsewhere, for which there is no event, and a VM that was
    /// refused may be adoptable now.
    fn audit(&mut self, now: Instant) {
        let cgroups = &self.engine.system().cgroups;
        self.without_rule.retain(|origin| cgroups.exists(origin));
        self.undone.retain(|origin, _| cgroups.exists(origin));
        let before = self.unadopted.len();
        self.unadopted.retain(|origin, _| cgroups.exists(origin));
        if before != self.unadopted.len() {
            self.show();
        }
        let adopted = self.engine.view();
        let adopted = adopted.instances.values().filter(|known| known.adopted_by.is_some());
        let adopted = adopted.map(|known| known.origin.clone());
        let known: Vec<CgroupPath> = adopted.chain(self.unadopted.keys().cloned()).collect();
        self.recheck(known, now);
        // KVM reports VMs; those from before it is heard again are found by one more sweep.
        let was_heard = self.events.is_some();
        self.listen();
        if !was_heard {
            self.check_all_ends();
        }
        if !was_heard || self.adopts_containers() {
            self.sweep(if was_heard {
                Listing::WholeContainers
            } else {
                Listing::All
            });
        }
        self.schedule_audit(now);
    }

    pub(super) fn schedule_audit(&mut self, now: Instant) {
        let interval = self.settings.borrow().audit_interval;
        let interval = match self.events {
            Some(_) => interval,
            None => interval.min(UNHEARD_INTERVAL),
        };
        self.next_audit = Some(now + interval);
    }

    fn recheck(&mut self, origins: Vec<CgroupPath>, now: Instant) {
        for origin in origins {
            if let Some(container) = ContainerCgroup::parse(origin.as_str()) {
                self.starting
                    .entry(origin)
                    .or_insert_with(|| StartingVm::recheck(container, now));
            }
        }
    }

    fn task_ended(&mut self, ended: Result<TaskResult, JoinError>) {
        let now = Instant::now();
        match ended {
            Ok(TaskResult::Swept(containers)) => {
                self.swept(containers, now);
                self.sweep_ended(now);
            }
            Ok(TaskResult::Searched(containers)) => self.swept(containers, now),
            Ok(TaskResult::Scanned(origin, outcome)) => {
                if let Some(container) = ContainerCgroup::parse(origin.as_str()) {
                    let took = self.budgets.end(&container.pod, now);
                    if self.starting.get(&origin).is_some_and(StartingVm::is_swept) {
                        self.sweeps.spent(took, now);
                    }
                }
                self.scanned(origin, outcome, now);
            }
            Ok(TaskResult::EndChecked(pod, has_ended)) => self.end_checked(pod, has_ended),
            Ok(TaskResult::Audited) => {}
            Ok(TaskResult::Answered(origin, answer)) => self.answered(&origin, *answer, now),
            // A scan or a call panicked. It is not known which, so all that are under way are dropped, and begun again by the next audit.
            Err(error) => {
                self.budgets.clear();
                self.starting.retain(|_, starting_vm| starting_vm.due().is_some());
                self.end_checks.clear();
                self.check_all_ends();
                self.sweep_ended(now);
                tracing::warn!("adoption: {error}");
            }
        }
    }

    fn swept(&mut self, containers: Vec<(CgroupPath, ContainerCgroup)>, now: Instant) {
        for (origin, container) in containers {
            self.starting
                .entry(origin)
                .or_insert_with(|| StartingVm::sweep(container, now));
        }
    }

    fn scanned(&mut self, origin: CgroupPath, outcome: ScanOutcome, now: Instant) {
        let Some(starting_vm) = self.starting.get_mut(&origin) else {
            return;
        };
        match starting_vm.scanned(outcome, now) {
            Next::ScanAgain => {}
            Next::Forget { matches_rule } => {
                if !matches_rule {
                    self.without_rule.insert(origin.clone());
                }
                if self.unadopted.remove(&origin).is_some() {
                    self.show();
                }
                self.end_scans(&origin, now);
            }
            Next::Refuse(refused) => {
                // The text is only about the container's own processes.
                let visible = refused.text.clone();
                self.refuse(origin.clone(), *refused, &visible);
                self.end_scans(&origin, now);
            }
            Next::Adopt(vm) if self.undone.get(&origin).is_some_and(|undone| undone.is_same(&vm)) => {
                self.end_scans(&origin, now);
            }
            Next::Adopt(vm) => {
                let (engine, container) = (self.engine.clone(), starting_vm.container.clone());
                self.tasks.spawn(async move {
                    let refusal = adopt(&engine, &origin, &container.pod, &vm.vm).await.err();
                    TaskResult::Answered(origin, Box::new(Answer { vm: *vm, refusal }))
                });
            }
        }
    }

    fn answered(&mut self, origin: &CgroupPath, answer: Answer, now: Instant) {
        let Answer { vm, refusal } = answer;
        match refusal {
            None => {
                self.log_adopted(origin, &vm, now);
                if self.unadopted.remove(origin).is_some() {
                    self.show();
                }
            }
            Some(failed) => {
                let is_moved = failed.had_changed(CallChange::Registration);
                let error = Error::from(failed);
                let refused = vm.refused(error.kind.name(), error.to_string());
                let visible = error.visible_to(&vm.pod).to_string();
                self.refuse(origin.clone(), refused, &visible);
                if is_moved {
                    self.undone.insert(origin.clone(), vm);
                }
            }
        }
        self.end_scans(origin, now);
    }

    /// End the scans of a container, unless another VM was created in it meanwhile.
    fn end_scans(&mut self, origin: &CgroupPath, now: Instant) {
        let Some(ended) = self.starting.remove(origin) else {
            return;
        };
        let (is_created, pod) = (ended.is_created(), ended.container.pod.clone());
        if ended.has_newer_vm() {
            self.starting
                .insert(origin.clone(), StartingVm::created(ended.container, now));
        } else if is_created {
            // The end of the former VM was not acted on while this one started.
            self.begin_end_check(pod);
        }
    }

    pub(super) fn show(&self) {
        self.engine.show_unadopted(self.unadopted.values().cloned().collect());
    }
}
