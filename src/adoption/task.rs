//! The task that hears KVM and takes the next step of each container.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use stelia_api::Error;
use stelia_kubelet::{ContainerCgroup, PodUid};
use stelia_model as model;
use stelia_node::cgroup::CgroupPath;
use stelia_node::kvm_events::{Change, KvmEvents, KvmEventsError, KvmMessage};
use stelia_settings::Settings;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::budget::Budgets;
use super::scan::{AdoptableVm, ScanOutcome};
use super::starting_vm::{Next, StartingVm};
use super::{adopt, scan};
use crate::engine::{CallChange, Handle, Peer, RollbackError};
use crate::journal;

/// Adopt VMs until cancelled.
pub(crate) async fn run(engine: Handle, cancel: CancellationToken) {
    let mut adoption = Adoption {
        settings: engine.settings(),
        reconciled: engine.reconciled(),
        engine: engine.clone(),
        events: None,
        births: BTreeMap::new(),
        budgets: Budgets::default(),
        unadopted: BTreeMap::new(),
        undone: BTreeMap::new(),
        strangers: BTreeSet::new(),
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
            heard = hear(&mut adoption.events) => adoption.heard(heard),
            Ok(()) = adoption.reconciled.changed(), if adoption.next_audit.is_some() => adoption.audit(Instant::now()),
            Some(ended) = adoption.tasks.join_next() => adoption.ended(ended),
            () = until(next) => adoption.in_time(Instant::now()),
        }
    }
}

/// The next of KVM's events; never while nobody listens.
async fn hear(events: &mut Option<KvmEvents>) -> Result<KvmMessage, KvmEventsError> {
    match events {
        Some(events) => events.next().await,
        None => std::future::pending().await,
    }
}

async fn until(next: Option<Instant>) {
    match next {
        Some(next) => tokio::time::sleep_until(next.into()).await,
        None => std::future::pending().await,
    }
}

/// What a task did.
enum Done {
    /// Containers that a rule is of.
    Swept(Vec<(CgroupPath, ContainerCgroup)>),
    Looked(CgroupPath, ScanOutcome),
    /// The engine answered.
    Answered(CgroupPath, Box<Answer>),
}

/// What the engine said of a VM.
struct Answer {
    vm: AdoptableVm,
    refusal: Option<RollbackError>,
}

pub(super) struct Adoption {
    pub(super) engine: Handle,
    settings: watch::Receiver<Arc<Settings>>,
    reconciled: watch::Receiver<()>,
    /// `None` without a rule, or where the socket cannot be made: then VMs are found by the audit.
    events: Option<KvmEvents>,
    /// Containers that are looked at, by their cgroups.
    pub(super) births: BTreeMap<CgroupPath, StartingVm>,
    budgets: Budgets,
    /// VMs that a rule is of and that are not adopted.
    pub(super) unadopted: BTreeMap<CgroupPath, model::Unadopted>,
    /// VMs that were registered and whose vCPUs could not be isolated: they are not moved again before something of them changes.
    undone: BTreeMap<CgroupPath, AdoptableVm>,
    /// Containers that no rule is of and in which a VM was made: they are not looked at again.
    strangers: BTreeSet<CgroupPath>,
    tasks: JoinSet<Done>,
    /// `None` without a rule.
    next_audit: Option<Instant>,
}

impl Adoption {
    /// New rules count for the VMs that are there too. What was adopted stays so.
    fn follow_settings(&mut self) {
        let settings = self.settings.borrow_and_update().clone();
        self.strangers.clear();
        self.undone.clear();
        if settings.policies.adopt.is_empty() {
            self.events = None;
            self.next_audit = None;
            self.births.clear();
            self.unadopted.clear();
            return self.show();
        }
        if self.events.is_none() {
            self.listen();
        }
        let now = Instant::now();
        self.next_audit = Some(now + settings.audit_interval);
        let refused: Vec<CgroupPath> = self.unadopted.keys().cloned().collect();
        self.births.values_mut().for_each(|starting_vm| starting_vm.anew(now));
        self.look_once(refused, now);
        self.sweep();
    }

    fn listen(&mut self) {
        match KvmEvents::listen() {
            Ok(events) => self.events = Some(events),
            Err(error) => tracing::warn!(
                MESSAGE_ID = journal::KVM_UNHEARD,
                STELIA_REASON = %error,
                "VMs to adopt are found by the audit only: {error}"
            ),
        }
    }

    fn next(&self) -> Option<Instant> {
        let opens = |starting_vm: &StartingVm| self.budgets.opens(&starting_vm.container.pod, starting_vm.due()?);
        let births = self.births.values().filter_map(opens);
        births.chain(self.next_audit).min()
    }

    /// Look for all containers that a rule is of.
    fn sweep(&mut self) {
        let (system, settings) = (self.engine.system().clone(), self.settings.borrow().clone());
        self.tasks
            .spawn_blocking(move || Done::Swept(scan::with_rules(&system, &settings.policies.adopt)));
    }

    fn heard(&mut self, heard: Result<KvmMessage, KvmEventsError>) {
        match heard {
            // The end of a VM shows in its cgroup: a container may have several VMMs in turn.
            Ok(KvmMessage::Vm(event)) if event.change == Change::Destroyed => {}
            Ok(KvmMessage::Vm(event)) => self.created_by(event.thread),
            Ok(KvmMessage::Lost) => self.sweep(),
            Err(error) => {
                self.events = None;
                tracing::warn!(
                    MESSAGE_ID = journal::KVM_UNHEARD,
                    STELIA_REASON = %error,
                    "VMs to adopt are found by the audit only: {error}"
                );
            }
        }
    }

    /// A thread made a VM: look at its container. A thread that has ended is of no VM that would be adopted.
    fn created_by(&mut self, thread: i32) {
        let system = self.engine.system();
        let Ok(cgroup) = system.procs.cgroup(thread) else {
            return;
        };
        match Peer::of(cgroup.clone()) {
            Peer::Container(origin, container) if !self.strangers.contains(&origin) => self.look_at(origin, container),
            // Another VMM in an adopted container, while the former one's instance is there.
            Peer::Instance(pod) if self.engine.view().instances.contains_key(&pod) => self.look_again(&pod),
            // A cgroup of that name, but KubeVirt's.
            Peer::Instance(_) => self.look_at_parent(&cgroup),
            Peer::Container(..) | Peer::Other(_) => {}
        }
    }

    /// Look at the container of an adopted instance.
    fn look_again(&mut self, pod: &PodUid) {
        let view = self.engine.view();
        let Some(known) = view.instances.get(pod).filter(|known| known.adopted_by.is_some()) else {
            return;
        };
        if let Some(container) = ContainerCgroup::parse(known.origin.as_str()) {
            self.look_at(known.origin.clone(), container);
        }
    }

    /// Look at the container that this cgroup is a part of.
    fn look_at_parent(&mut self, part: &CgroupPath) {
        let Some(origin) = part.parent() else { return };
        let container = ContainerCgroup::parse(origin.as_str());
        if let Some(container) = container.filter(|_| !self.strangers.contains(&origin)) {
            self.look_at(origin, container);
        }
    }

    fn look_at(&mut self, origin: CgroupPath, container: ContainerCgroup) {
        let now = Instant::now();
        let starting_vm = self.births.entry(origin);
        starting_vm
            .and_modify(|starting_vm| starting_vm.again(now))
            .or_insert_with(|| StartingVm::begun(container, now));
    }

    fn in_time(&mut self, now: Instant) {
        if self.next_audit.is_some_and(|audit| audit <= now) {
            self.audit(now);
        }
        for (origin, starting_vm) in &mut self.births {
            let pod = &starting_vm.container.pod;
            let opens = starting_vm.due().and_then(|due| self.budgets.opens(pod, due));
            if opens.is_none_or(|opens| opens > now) {
                continue;
            }
            self.budgets.begin(pod, now);
            starting_vm.look();
            let (engine, settings) = (self.engine.clone(), self.settings.borrow().clone());
            let (origin, container) = (origin.clone(), starting_vm.container.clone());
            self.tasks.spawn_blocking(move || {
                let looked = scan::at(&engine, &settings.policies.adopt, &origin, &container);
                Done::Looked(origin, looked)
            });
        }
    }

    /// vCPUs may have been plugged, unplugged or pinned elsewhere, for which there is no event; and what was refused may be
    /// adoptable now.
    fn audit(&mut self, now: Instant) {
        self.next_audit = Some(now + self.settings.borrow().audit_interval);
        let cgroups = &self.engine.system().cgroups;
        self.strangers.retain(|origin| cgroups.exists(origin));
        self.undone.retain(|origin, _| cgroups.exists(origin));
        let before = self.unadopted.len();
        self.unadopted.retain(|origin, _| cgroups.exists(origin));
        if before != self.unadopted.len() {
            self.show();
        }
        let adopted = self.engine.view();
        let adopted = adopted.instances.values().filter(|known| known.adopted_by.is_some());
        let adopted = adopted.map(|known| known.origin.clone());
        let again: Vec<CgroupPath> = adopted.chain(self.unadopted.keys().cloned()).collect();
        self.look_once(again, now);
        if self.events.is_none() {
            self.sweep();
        }
    }

    fn look_once(&mut self, origins: Vec<CgroupPath>, now: Instant) {
        for origin in origins {
            if let Some(container) = ContainerCgroup::parse(origin.as_str()) {
                self.births
                    .entry(origin)
                    .or_insert_with(|| StartingVm::known(container, now));
            }
        }
    }

    fn ended(&mut self, ended: Result<Done, JoinError>) {
        let now = Instant::now();
        match ended {
            Ok(Done::Swept(found)) => {
                for (origin, container) in found {
                    self.births
                        .entry(origin)
                        .or_insert_with(|| StartingVm::swept(container, now));
                }
            }
            Ok(Done::Looked(origin, looked)) => {
                if let Some(container) = ContainerCgroup::parse(origin.as_str()) {
                    self.budgets.end(&container.pod, now);
                }
                self.looked(origin, looked, now);
            }
            Ok(Done::Answered(origin, answer)) => self.answered(&origin, *answer, now),
            // A look or a call that panicked. Which one is not known: those that are under way are begun anew by the next audit.
            Err(error) => {
                self.budgets.clear();
                self.births.retain(|_, starting_vm| starting_vm.due().is_some());
                tracing::warn!("adoption: {error}");
            }
        }
    }

    fn looked(&mut self, origin: CgroupPath, looked: ScanOutcome, now: Instant) {
        let Some(starting_vm) = self.births.get_mut(&origin) else {
            return;
        };
        match starting_vm.saw(looked, now) {
            Next::LookOn => {}
            Next::Forget { stranger } => {
                if stranger {
                    self.strangers.insert(origin.clone());
                }
                if self.unadopted.remove(&origin).is_some() {
                    self.show();
                }
                self.over(&origin, now);
            }
            Next::Refuse(refused) => {
                // The rules speak of the container's own processes only.
                let told = refused.text.clone();
                self.refuse(origin.clone(), *refused, &told);
                self.over(&origin, now);
            }
            Next::Adopt(vm) if self.undone.get(&origin).is_some_and(|undone| undone.is_same(&vm)) => {
                self.over(&origin, now);
            }
            Next::Adopt(vm) => {
                let (engine, container) = (self.engine.clone(), starting_vm.container.clone());
                self.tasks.spawn(async move {
                    let refusal = adopt::adopt(&engine, &origin, &container.pod, &vm).await.err();
                    Done::Answered(origin, Box::new(Answer { vm: *vm, refusal }))
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
                let told = error.visible_to(&vm.pod).to_string();
                self.refuse(origin.clone(), refused, &told);
                if is_moved {
                    self.undone.insert(origin.clone(), vm);
                }
            }
        }
        self.over(origin, now);
    }

    /// A container needs no more looks, unless another VM was made there meanwhile.
    fn over(&mut self, origin: &CgroupPath, now: Instant) {
        if let Some(starting_vm) = self.births.remove(origin)
            && starting_vm.is_to_begin_again()
        {
            self.births
                .insert(origin.clone(), StartingVm::begun(starting_vm.container, now));
        }
    }

    pub(super) fn show(&self) {
        self.engine.show_unadopted(self.unadopted.values().cloned().collect());
    }
}
