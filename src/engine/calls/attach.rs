//! AttachVcpus: the threads are checked and recorded, and the call is answered once they are pinned and isolated.

use std::os::fd::OwnedFd;
use std::time::Instant;

use stelia_api::{Error, ErrorKind, Reason, ReasonCode, ThreadRole};
use stelia_decide::{AdoptedPlacement, attached, placement_of};
use stelia_kernel::proc::TaskId;
use stelia_kubelet::PodUid;
use stelia_model::record::{Phase, Record, Vcpu, VcpuThread};
use stelia_settings::Partition;

use super::attach_threads::{self, MAX_VCPUS};
use super::rollback::{CallChange, RollbackError};
use super::{Asker, Call, Goal, Reply, failed, no_instance};
use crate::engine::handle::Handle;
use crate::engine::out_of_date::Stale;
use crate::engine::pass::Numbers;
use crate::engine::state::EngineState;
use crate::engine::{in_place, kvm_threads, record_writer};
use crate::journal::{self, about};

/// A vCPU as the caller hands it over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VcpuRequest {
    /// vCPU index and QMP properties.
    pub vcpu: Vcpu,
    /// Thread id, as [`Vmm`] says.
    pub thread: i32,
}

/// A call of AttachVcpus.
#[derive(Debug)]
pub struct AttachRequest {
    pub pod: PodUid,
    pub vmm: Vmm,
    pub vcpus: Vec<VcpuRequest>,
    /// I/O threads, numbered as the vCPUs' threads: each gets a CPU of its own while the vCPUs leave some over.
    pub iothreads: Vec<i32>,
}

/// The process whose threads are attached.
#[derive(Debug)]
pub enum Vmm {
    /// A process that its pod handed over, with threads as the container's PID namespace numbers them.
    Pidfd(OwnedFd),
    /// A process that was found on the host, with threads as the host numbers them, and how they are placed.
    OnHost(TaskId, AdoptedPlacement),
}

impl AttachRequest {
    /// Every thread with its number in the container's PID namespace.
    pub(super) fn threads(&self) -> Vec<(ThreadRole, i32)> {
        let vcpus = self.vcpus.iter().map(|given| (given.vcpu.index.into(), given.thread));
        let iothreads = (0..).map(ThreadRole::IoThread).zip(self.iothreads.iter().copied());
        vcpus.chain(iothreads).collect()
    }
}

/// A thread with the CPU it is pinned to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    pub role: ThreadRole,
    /// Thread id on the host.
    pub thread: i32,
    /// `None` when it is not pinned.
    pub cpu: Option<u32>,
}

/// The vCPUs are isolated, or pinned.
struct UntilAttached {
    reply: Reply<Vec<Placed>>,
    former: Record,
    threads: Vec<VcpuThread>,
    partition: Partition,
    before: Numbers,
}

/// How a call begins.
enum StartedCall {
    /// There is nothing to do: answer.
    Done(Vec<Placed>),
    /// The record is written: answer when the turns are done.
    Recorded {
        former: Box<Record>,
        threads: Vec<VcpuThread>,
        partition: Partition,
    },
}

struct AttachCall {
    request: AttachRequest,
    reply: Reply<Vec<Placed>>,
}

impl Handle {
    /// Attach vCPU threads; answers after the isolation was read back.
    ///
    /// # Errors
    /// The [`Error`]; what was attached before stays attached.
    pub async fn attach(&self, request: AttachRequest) -> Result<Vec<Placed>, Error> {
        self.call(|reply| AttachCall { request, reply }).await
    }
}

impl Call for AttachCall {
    fn begin(self: Box<Self>, state: &mut EngineState, asker: Asker) {
        let Self { request, reply } = *self;
        let pod = request.pod.clone();
        match state.begin_attach(request) {
            Ok(StartedCall::Done(placed)) => state.finish(&asker, [reply], Ok(placed)),
            Ok(StartedCall::Recorded {
                former,
                threads,
                partition,
            }) => {
                let goal = UntilAttached {
                    reply,
                    former: *former,
                    threads,
                    partition,
                    before: state.passes.did_for(&pod),
                };
                state.wait(&pod, asker, goal);
            }
            Err(refusal) => state.finish(&asker, [reply], Err(refusal)),
        }
    }

    fn is_given_up(&self) -> bool {
        self.reply.is_closed()
    }
}

impl EngineState {
    fn begin_attach(&mut self, request: AttachRequest) -> Result<StartedCall, Error> {
        let too_large = |index: &u32| matches!(ThreadRole::from(*index), ThreadRole::IoThread(_));
        if let Some(index) = request.vcpus.iter().map(|given| given.vcpu.index).find(too_large) {
            return Err(ErrorKind::InvalidArgument.because(format!("vCPU index {index} is too large")));
        }
        if request.vcpus.is_empty() {
            return Err(ErrorKind::InvalidArgument.because(format!("0 vCPUs: give 1 to {MAX_VCPUS}")));
        }
        let pod = request.pod.clone();
        // Read again first: attached threads that have ended tell an unplugged vCPU from a different list.
        if self
            .picture
            .find(&pod)
            .is_some_and(|known| !known.record.vcpus.is_empty())
        {
            self.look_at(&pod, Stale::default());
        }
        let known = self.picture.find(&pod).ok_or_else(|| no_instance(&pod))?;
        match known.record.phase {
            Phase::Registered => return Err(ErrorKind::Busy.because(format!("pod {pod} is still being registered"))),
            Phase::Leaving => return Err(no_instance(&pod)),
            _ => {}
        }
        let former = known.record.clone();
        let mut read = 0;
        let resolved = attach_threads::resolve(&self.system, known.scope(), &request, &mut read);
        self.recent_looks.add(&pod, read, Instant::now());
        let tasks = resolved?;
        if former.qos().is_some_and(|qos| !qos.is_exclusive()) {
            // vCPUs of a class without CPUs of its own stay in float, on its pool: nothing is recorded or moved.
            let vcpus = tasks
                .into_iter()
                .filter(|(role, _)| matches!(role, ThreadRole::Vcpu(_)));
            let placed = |(role, task): (ThreadRole, TaskId)| Placed {
                role,
                thread: task.id,
                cpu: None,
            };
            return Ok(StartedCall::Done(vcpus.map(placed).collect()));
        }
        let guest = request.vcpus.into_iter().map(|request| request.vcpu).collect();
        let (snapshot, policies) = (&self.picture.snapshot, &self.settings.policies);
        let wanted = match request.vmm {
            Vmm::Pidfd(_) => AdoptedPlacement::default(),
            Vmm::OnHost(_, wanted) => wanted,
        };
        let (next, note) = attached(snapshot, policies, known, tasks, guest, &wanted);
        if let Some(note) = note {
            let pod = self.named(&pod);
            about!(warn, journal::PLACEMENT, pod, STELIA_REASON = %note, "placement of pod {pod}: {note}");
        }
        let (threads, partition) = (next.vcpus.clone(), next.partition);
        self.write_record(&pod, next)?;
        Ok(StartedCall::Recorded {
            former: Box::new(former),
            threads,
            partition,
        })
    }

    /// Replace the record; the turns act on it.
    pub(in crate::engine) fn write_record(&mut self, pod: &PodUid, next: Record) -> Result<(), Error> {
        let Some(before) = self.picture.find(pod).cloned() else {
            return Err(no_instance(pod));
        };
        let place = before.tree.place();
        let large = if before.tree.pod().is_some() {
            let all = in_place::attributes(&*self.system.cgroups, place.cgroup()).map_err(Error::failed)?;
            place.lacks_room(&next, &all)
        } else {
            next.too_large()
        };
        if let Some(text) = large {
            return Err(ErrorKind::InvalidArgument.because(text));
        }
        self.retries.instances.wake(pod);
        self.dirty.wrote(pod.clone());
        match record_writer::write(&self.system, place, Some(&before.record), &next) {
            // It ended, and was not read since.
            Err(error) if error.is_gone() => return Err(no_instance(pod)),
            result => result.map_err(|error| Error::failed(error).of(pod))?,
        }
        if let Some(instance) = self.picture.snapshot.instances.get_mut(pod) {
            instance.record = next;
            instance.refusals = 0;
        }
        self.picture
            .follow_record(&self.settings.policies, &before, &mut self.dirty);
        Ok(())
    }

    fn log_attached(&self, pod: &PodUid, before: Numbers) {
        let Some(now) = self.picture.find(pod) else { return };
        let record = &now.record;
        let id = match record.phase {
            Phase::Isolated => journal::ISOLATED,
            _ => journal::CONTAINED,
        };
        let did = self.passes.did_for(pod).since(before);
        let pod = self.named(pod);
        about!(
            info, id, pod, STELIA_CPUSET = %record.exclusive,
            STELIA_FLOAT = now.float().map(|leaf| leaf.cpus.to_string()),
            "{} pod {pod} ({}): {} moves, {} writes", record.phase.name(), placement_of(record).name(), did.moves, did.writes
        );
    }
}

impl Goal for UntilAttached {
    /// The vCPUs are where they belong, or cannot be brought there.
    fn settle(self: Box<Self>, state: &mut EngineState, pod: &PodUid, asker: Asker) {
        let Some(now) = state.picture.find(pod) else { return };
        let alive = now.vcpus.iter().all(Option::is_some);
        if alive && matches!(now.record.phase, Phase::Isolated | Phase::Pinned) {
            state.log_attached(pod, self.before);
            let attached = self.threads.iter().map(|thread| thread.task.id).collect();
            // A thread that KVM makes late stays where all others of the container are.
            if now.tree.has_float() {
                let (vcpu, wake) = (now.tree.vcpu().clone(), state.watcher.notifier(pod));
                kvm_threads::watch_for(state.system.clone(), vcpu, attached, wake);
            }
            let placed = |thread: &VcpuThread| Placed {
                role: thread.role,
                thread: thread.task.id,
                cpu: thread.cpu,
            };
            let answer = self.threads.iter().map(placed).collect();
            return state.finish(&asker, [self.reply], Ok(answer));
        }
        let mut causes = state.amiss(pod);
        let text = now.vcpu().map(|vcpu| vcpu.partition.clone()).unwrap_or_default();
        let partition = self.partition;
        if partition.is_partition() && text != partition.name() {
            let text = format!("the kernel gives no {} partition: {text:?}", partition.name());
            causes.push(Reason::of(pod, ReasonCode::PartitionChanged, text));
        }
        if now.record.phase == Phase::Leaving {
            return state.finish(&asker, [self.reply], Err(failed(pod, "isolation", causes)));
        }
        let former = &self.former;
        let phase = if former.vcpus.is_empty() {
            now.detached_phase(former.phase)
        } else {
            former.phase
        };
        let back = Record {
            phase,
            vcpus: former.vcpus.clone(),
            props: former.props.clone(),
            placement: former.placement,
            partition: former.partition,
            refused: former.refused,
            ..now.record.clone()
        };
        let failed = RollbackError::new(pod, failed(pod, "isolation", causes));
        match state.write_record(pod, back) {
            Ok(()) => {
                let reply = self.reply;
                state.wait(pod, asker, UntilDetached { reply, failed });
            }
            Err(why) => {
                let failed = failed.not_undone(CallChange::Isolation, why);
                state.finish(&asker, [self.reply], Err(failed.into()));
            }
        }
    }

    fn ended(self: Box<Self>, state: &mut EngineState, pod: &PodUid, asker: Asker) {
        state.finish(&asker, [self.reply], Err(no_instance(pod)));
    }

    fn is_start(&self) -> bool {
        true
    }
}

/// An attach that failed is undone.
struct UntilDetached {
    reply: Reply<Vec<Placed>>,
    failed: RollbackError,
}

impl Goal for UntilDetached {
    fn settle(self: Box<Self>, state: &mut EngineState, _: &PodUid, asker: Asker) {
        let failed = self.failed.undone(CallChange::Isolation);
        state.finish(&asker, [self.reply], Err(failed.into()));
    }

    fn ended(self: Box<Self>, state: &mut EngineState, pod: &PodUid, asker: Asker) {
        state.finish(&asker, [self.reply], Err(no_instance(pod)));
    }
}
