//! Handles KVM's events: a created VM starts the scan of its container, a destroyed VM a check whether the adopted VM has ended.

use std::time::Instant;

use stelia_kernel::cgroup::CgroupPath;
use stelia_kernel::kvm_events::{Change, KvmEvents, KvmEventsError, KvmMessage};
use stelia_kubelet::{ContainerCgroup, PodUid};

use super::starting_vm::StartingVm;
use super::sweep::Listing;
use super::task::{Adoption, TaskResult};
use super::vm_end;
use crate::engine::Peer;
use crate::journal;

impl Adoption {
    /// Listen to KVM's events, unless that is done already. VMs that began or ended before are found by a sweep.
    pub(super) fn listen(&mut self) {
        if self.events.is_some() {
            return;
        }
        match KvmEvents::listen() {
            Ok(events) => {
                self.events = Some(events);
                self.clear_kvm_problem();
            }
            Err(error) => self.not_listening(&error),
        }
    }

    fn not_listening(&mut self, error: &KvmEventsError) {
        self.events = None;
        if self.problem.begins(&error.to_string()) {
            let text =
                format!("VMs to adopt are looked for every 5 s, because KVM's events cannot be received: {error}");
            tracing::warn!(MESSAGE_ID = journal::KVM_UNHEARD, STELIA_REASON = %error, "{text}");
            self.engine.show_kvm_problem(Some(text));
        }
    }

    /// Withdraws the problem: KVM's events are heard, or no rule needs them.
    pub(super) fn clear_kvm_problem(&mut self) {
        if self.problem.ends() {
            self.engine.show_kvm_problem(None);
        }
    }

    pub(super) fn use_event(&mut self, event: Result<KvmMessage, KvmEventsError>) {
        match event {
            Ok(KvmMessage::Vm(event)) => match event.change {
                Change::Created => self.vm_created_by(event.thread),
                Change::Destroyed => self.vm_destroyed(event.thread),
            },
            Ok(KvmMessage::Lost) => {
                self.sweep(Listing::All);
                self.check_all_ends();
            }
            Err(error) => {
                self.not_listening(&error);
                self.schedule_audit(Instant::now());
            }
        }
    }

    /// A thread created a VM, so its container is scanned. If the thread has ended, there is no VM to adopt.
    fn vm_created_by(&mut self, thread: i32) {
        let system = self.engine.system();
        let Ok(cgroup) = system.procs.cgroup(thread) else {
            return;
        };
        match Peer::of(cgroup.clone()) {
            Peer::Container(origin, container) if !self.without_rule.contains(&origin) => self.scan(origin, container),
            // Another VMM in an adopted container, while the former one's instance is there.
            Peer::Instance(pod) if self.engine.view().instances.contains_key(&pod) => self.scan_instance(&pod),
            // KubeVirt's cgroup of that name.
            Peer::Instance(_) => self.scan_parent(&cgroup),
            Peer::Container(..) | Peer::Other(_) => {}
        }
    }

    /// The VM that this thread created was destroyed. If the thread has ended, most often its VMM has too, whose end the engine detects; that of
    /// another VM is found by the audit. To check every VM would have one pod's events cost the time of all.
    fn vm_destroyed(&mut self, thread: i32) {
        let Ok(cgroup) = self.engine.system().procs.cgroup(thread) else {
            return;
        };
        if let Some(pod) = vm_end::pod(cgroup, &self.engine.view()) {
            self.begin_end_check(pod);
        }
    }

    /// Check every adopted VM whose end may have been missed.
    pub(super) fn check_all_ends(&mut self) {
        for pod in vm_end::all(&self.engine.view()) {
            self.begin_end_check(pod);
        }
    }

    /// Check whether the adopted VM of this pod has ended, if it has one whose end is to be found here.
    pub(super) fn begin_end_check(&mut self, pod: PodUid) {
        if vm_end::instance(&pod, &self.engine.view()).is_some() && self.end_checks.begin(&pod) {
            self.check_end(pod);
        }
    }

    fn check_end(&mut self, pod: PodUid) {
        let engine = self.engine.clone();
        self.tasks.spawn(async move {
            let has_ended = vm_end::has_ended(&engine, &pod).await;
            TaskResult::EndChecked(pod, has_ended)
        });
    }

    /// The check of an adopted VM's threads ended.
    pub(super) fn end_checked(&mut self, pod: PodUid, has_ended: bool) {
        let is_again = self.end_checks.finish(&pod);
        if has_ended && !self.has_starting_vm(&pod) {
            let engine = self.engine.clone();
            self.tasks.spawn(async move {
                // Without an instance there is nothing to release.
                let _ = engine.audit(pod).await;
                TaskResult::Audited
            });
        } else if is_again {
            self.begin_end_check(pod);
        }
    }

    /// Whether a new VM starts in the container of this pod's instance, as when the guest reboots. Then the CPUs stay its own until the new
    /// threads are attached. If that VM is not adopted, the check is begun again.
    fn has_starting_vm(&self, pod: &PodUid) -> bool {
        let view = self.engine.view();
        let known = view.instances.get(pod);
        let starting = known.and_then(|known| self.starting.get(&known.origin));
        starting.is_some_and(StartingVm::is_created)
    }

    /// Scan the container of an adopted instance.
    fn scan_instance(&mut self, pod: &PodUid) {
        let view = self.engine.view();
        let Some(known) = view.instances.get(pod).filter(|known| known.adopted_by.is_some()) else {
            return;
        };
        if let Some(container) = ContainerCgroup::parse(known.origin.as_str()) {
            self.scan(known.origin.clone(), container);
        }
    }

    /// Scan the container that this cgroup is a part of.
    fn scan_parent(&mut self, part: &CgroupPath) {
        let Some(origin) = part.parent() else { return };
        let container = ContainerCgroup::parse(origin.as_str());
        if let Some(container) = container.filter(|_| !self.without_rule.contains(&origin)) {
            self.scan(origin, container);
        }
    }

    fn scan(&mut self, origin: CgroupPath, container: ContainerCgroup) {
        let now = Instant::now();
        let starting_vm = self.starting.entry(origin);
        starting_vm
            .and_modify(|starting_vm| starting_vm.created_again(now))
            .or_insert_with(|| StartingVm::created(container, now));
    }
}
