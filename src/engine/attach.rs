//! AttachVcpus: the threads are checked and recorded, and the call is answered once they are pinned and isolated.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use stelia_api::{Amiss, Error, ErrorKind, Reason, ThreadRole};
use stelia_kubelet::PodUid;
use stelia_node::cgroup::CgroupPath;
use stelia_node::proc::TaskId;
use stelia_record::{Phase, Record, Vcpu, VcpuThread, is_prop_name};
use stelia_settings::Partition;
use stelia_text::excerpt::excerpt;

use super::calls::{Goal, failed, no_instance, undoing};
use super::container::identify_pidfd;
use super::dirty::Stale;
use super::handle::Reply;
use super::inbox::Asker;
use super::pass::Numbers;
use super::task::Engine;
use super::{in_place, kvm_threads, store};
use crate::decide::{Wanted, attached, placement_name};
use crate::journal::{self, about};

/// More vCPUs than this in one call are refused: twice what QEMU's largest machine has.
const MAX_VCPUS: usize = 8192;

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
    OnHost(TaskId, Wanted),
}

impl AttachRequest {
    /// Every thread with its number in the container's PID namespace.
    fn threads(&self) -> Vec<(ThreadRole, i32)> {
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

/// An attach whose answer comes when the instance is isolated.
pub(super) struct Attaching {
    pub(super) reply: Reply<Vec<Placed>>,
    former: Record,
    threads: Vec<VcpuThread>,
    partition: Partition,
    before: Numbers,
}

/// How a call begins.
enum Begun {
    /// There is nothing to do: answer.
    Done(Vec<Placed>),
    /// The record is written: answer when the turns are done.
    Recorded {
        former: Box<Record>,
        threads: Vec<VcpuThread>,
        partition: Partition,
    },
}

impl Engine {
    pub(super) fn attach(&mut self, asker: Asker, request: AttachRequest, reply: Reply<Vec<Placed>>) {
        let pod = request.pod.clone();
        match self.begin_attach(request) {
            Ok(Begun::Done(placed)) => self.finish(&asker, [reply], Ok(placed)),
            Ok(Begun::Recorded {
                former,
                threads,
                partition,
            }) => {
                let attaching = Attaching {
                    reply,
                    former: *former,
                    threads,
                    partition,
                    before: self.passes.did_for(&pod),
                };
                self.wait(&pod, asker, Goal::Attached(Box::new(attaching)));
            }
            Err(refusal) => self.finish(&asker, [reply], Err(refusal)),
        }
    }

    fn begin_attach(&mut self, request: AttachRequest) -> Result<Begun, Error> {
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
            let mut gone = BTreeSet::new();
            self.dirty.everyone |= self.look_at(&pod, Stale::default(), &mut gone);
        }
        let known = self.picture.find(&pod).ok_or_else(|| no_instance(&pod))?;
        match known.record.phase {
            Phase::Registered => return Err(ErrorKind::Busy.because(format!("pod {pod} is still being registered"))),
            Phase::Leaving => return Err(no_instance(&pod)),
            _ => {}
        }
        let former = known.record.clone();
        let tasks = resolve(&self.system, known.scope(), &request)?;
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
            return Ok(Begun::Done(vcpus.map(placed).collect()));
        }
        let guest = request.vcpus.into_iter().map(|request| request.vcpu).collect();
        let (snapshot, policies) = (&self.picture.snapshot, &self.settings.policies);
        let wanted = match request.vmm {
            Vmm::Pidfd(_) => Wanted::default(),
            Vmm::OnHost(_, wanted) => wanted,
        };
        let (next, note) = attached(snapshot, policies, known, tasks, guest, &wanted);
        if let Some(note) = note {
            let pod = self.named(&pod);
            about!(warn, journal::PLACEMENT, pod, STELIA_REASON = %note, "placement of pod {pod}: {note}");
        }
        let (threads, partition) = (next.vcpus.clone(), next.partition);
        self.write_record(&pod, next)?;
        Ok(Begun::Recorded {
            former: Box::new(former),
            threads,
            partition,
        })
    }

    /// Replace the record; the turns act on it.
    pub(super) fn write_record(&mut self, pod: &PodUid, next: Record) -> Result<(), Error> {
        let Some(before) = self.picture.find(pod).cloned() else {
            return Err(no_instance(pod));
        };
        let place = before.tree.place();
        let large = match before.is_in_place() {
            true => place.lacks_room(&next, &in_place::attributes(&*self.system.cgroups, place.cgroup())?),
            false => next.too_large(),
        };
        if let Some(text) = large {
            return Err(ErrorKind::InvalidArgument.because(text));
        }
        self.retries.instances.wake(pod);
        self.dirty.wrote(pod.clone());
        match store::write(&self.system, place, Some(&before.record), &next) {
            // It ended, and was not read since.
            Err(error) if error.is_gone() => return Err(no_instance(pod)),
            result => result.map_err(|error| Error::from(error).of(pod))?,
        }
        if let Some(instance) = self.picture.snapshot.instances.get_mut(pod) {
            instance.record = next;
            instance.refusals = 0;
        }
        self.dirty.everyone |= self.picture.record(&self.settings.policies, &before);
        Ok(())
    }

    /// The vCPUs are where they belong, or cannot be brought there.
    pub(super) fn settle_attached(&mut self, pod: &PodUid, asker: Asker, attaching: Box<Attaching>) {
        let Some(now) = self.picture.find(pod) else { return };
        let alive = now.vcpus.iter().all(Option::is_some);
        if alive && matches!(now.record.phase, Phase::Isolated | Phase::Contained) {
            self.log_attached(pod, attaching.before);
            let attached = attaching.threads.iter().map(|thread| thread.task.id).collect();
            kvm_threads::watch_for(
                self.system.clone(),
                now.tree.vcpu().clone(),
                attached,
                self.watcher.notifier(pod),
            );
            let placed = |thread: &VcpuThread| Placed {
                role: thread.role,
                thread: thread.task.id,
                cpu: thread.cpu,
            };
            let _ = attaching.reply.send(Ok(attaching.threads.iter().map(placed).collect()));
            return self.inbox.release(&asker);
        }
        let mut causes = self.amiss(pod);
        let text = now.vcpu().map(|vcpu| vcpu.partition.clone()).unwrap_or_default();
        let partition = attaching.partition;
        if partition != Partition::Member && text != partition.name() {
            let text = format!("the kernel gives no {} partition: {text:?}", partition.name());
            causes.push(Reason::of(pod, Amiss::PartitionDiffers, text));
        }
        if now.record.phase == Phase::Leaving {
            let _ = attaching.reply.send(Err(failed(pod, "isolation", causes)));
            return self.inbox.release(&asker);
        }
        let former = &attaching.former;
        let phase = if former.vcpus.is_empty() {
            Phase::Floating
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
        match self.write_record(pod, back) {
            Ok(()) => self.wait(pod, asker, Goal::Detached { attaching, causes }),
            Err(refusal) => {
                causes.push(undoing(pod, &refusal));
                let _ = attaching.reply.send(Err(failed(pod, "isolation", causes)));
                self.inbox.release(&asker);
            }
        }
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
            "{} pod {pod} ({}): {} moves, {} writes", record.phase.name(), placement_name(record), did.moves, did.writes
        );
    }
}

/// The host's threads for the caller's thread numbers.
fn resolve(
    system: &stelia_node::System,
    scope: &CgroupPath,
    request: &AttachRequest,
) -> Result<BTreeMap<ThreadRole, TaskId>, Error> {
    let asked = request.threads();
    if asked.len() > MAX_VCPUS {
        return Err(ErrorKind::InvalidArgument.because(format!("{} vCPUs: give 1 to {MAX_VCPUS}", asked.len())));
    }
    let roles: BTreeSet<ThreadRole> = asked.iter().map(|(role, _)| *role).collect();
    if roles.len() != asked.len() {
        return Err(ErrorKind::InvalidArgument.because("a vCPU index is given twice"));
    }
    // The name becomes part of the instance's record: characters that separate names there would make the record
    // unreadable.
    if let Some(name) = request
        .vcpus
        .iter()
        .flat_map(|vcpu| vcpu.vcpu.props.keys())
        .find(|name| !is_prop_name(name))
    {
        let text = format!(
            "property {:?} of a vCPU: a name is up to 64 letters, digits, -, _ and .",
            excerpt(name)
        );
        return Err(ErrorKind::InvalidArgument.because(text));
    }
    let numbers: BTreeSet<i32> = asked.iter().map(|(_, thread)| *thread).collect();
    if numbers.len() != asked.len() {
        let text = "two vCPUs or I/O threads have the same thread: single-threaded emulation (-accel tcg,thread=single) cannot be isolated";
        return Err(ErrorKind::InvalidArgument.because(text));
    }
    let foreign = |text: String| ErrorKind::ForeignProcess.because(text);
    let unclear = ErrorKind::ForeignProcess.context("qemu_pidfd");
    let qemu = match &request.vmm {
        Vmm::Pidfd(fd) => identify_pidfd(system, fd).map_err(&unclear)?,
        Vmm::OnHost(task, _) => match system.procs.identify(task.id) {
            Ok(now) if now == *task => now,
            Ok(_) => return Err(foreign(format!("process {} ended", task.id))),
            Err(error) => return Err(unclear(error)),
        },
    };
    let cgroup = system.procs.cgroup(qemu.id).map_err(&unclear)?;
    if !cgroup.is_within(scope) {
        let text = format!("the process of qemu_pidfd does not belong to pod {}", request.pod);
        return Err(foreign(text).detail(format!("it is process {} in {cgroup}", qemu.id)));
    }
    let threads = system.procs.threads(qemu.id).map_err(&unclear)?;
    let by_number: BTreeMap<i32, TaskId> = threads
        .iter()
        .filter_map(|thread| match request.vmm {
            Vmm::OnHost(..) => Some((thread.task.id, thread.task)),
            Vmm::Pidfd(_) => Some((*thread.numbers.last()?, thread.task)),
        })
        .collect();
    // The process may have ended while its threads were read, and another one may have its number.
    let still = match &request.vmm {
        Vmm::Pidfd(fd) => identify_pidfd(system, fd),
        Vmm::OnHost(task, _) => system.procs.identify(task.id),
    };
    if still.map_err(&unclear)? != qemu {
        return Err(foreign(format!("process {} ended", qemu.id)));
    }
    asked
        .into_iter()
        .map(|(role, thread)| match by_number.get(&thread) {
            Some(task) => Ok((role, *task)),
            None => Err(foreign(format!(
                "thread {thread} of {role} is not a thread of the process handed over"
            ))),
        })
        .collect()
}
