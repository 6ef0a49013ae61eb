//! AttachVcpus: whose threads they are, where they go, and the passes that bring them there.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use super::container::identify_pidfd;
use super::late;
use super::lifecycle::{find, no_instance};
use super::metrics::Trigger;
use super::task::Engine;
use crate::alloc::Qos;
use crate::cgroup::CgroupPath;
use crate::excerpt::excerpt;
use crate::journal;
use crate::kubelet::PodUid;
use crate::plan::admission::{Kind, Refusal};
use crate::plan::partition::Partition;
use crate::plan::placement::{IOTHREADS, Vcpu, is_iothread, place};
use crate::plan::record::{
    PARTITION_ATTRIBUTE, PHASE_ATTRIBUTE, PLACEMENT_ATTRIBUTE, PROPS_ATTRIBUTE, VCPUS_ATTRIBUTE, is_prop_name,
    props_text, vcpus_text,
};
use crate::plan::{Instance, Phase, Record, Snapshot, VcpuThread, placed};
use crate::proc::TaskId;

/// More vCPUs than this in one call are refused: twice what QEMU's largest machine has.
const MAX_VCPUS: usize = 8192;

/// A vCPU as the caller hands it over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VcpuRequest {
    /// vCPU index and QMP properties.
    pub vcpu: Vcpu,
    /// Thread id as the container's PID namespace numbers it.
    pub thread: i32,
}

/// A call of AttachVcpus.
#[derive(Debug)]
pub struct AttachRequest {
    /// The instance.
    pub pod: PodUid,
    /// QEMU.
    pub qemu: OwnedFd,
    /// Every vCPU.
    pub vcpus: Vec<VcpuRequest>,
    /// I/O threads, as the container's PID namespace numbers them: each gets a CPU of its own while the vCPUs leave some over.
    pub iothreads: Vec<i32>,
}

impl AttachRequest {
    /// The I/O threads beside the vCPUs: their indexes tell them apart.
    fn join(&mut self) {
        let iothreads = std::mem::take(&mut self.iothreads);
        self.vcpus
            .extend((IOTHREADS..).zip(iothreads).map(|(index, thread)| VcpuRequest {
                vcpu: Vcpu {
                    index,
                    props: BTreeMap::new(),
                },
                thread,
            }));
    }
}

/// Where a vCPU was put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// vCPU index.
    pub vcpu: u32,
    /// Thread id on the host.
    pub thread: i32,
    /// CPU; `None` when it is not pinned.
    pub cpu: Option<u32>,
}

impl Engine {
    /// Attach vCPU threads.
    pub(super) async fn attach(&mut self, mut request: AttachRequest) -> Result<Vec<Placed>, Refusal> {
        if let Some(wrong) = request.vcpus.iter().find(|vcpu| is_iothread(vcpu.vcpu.index)) {
            return Err(Kind::InvalidArgument.because(format!("vCPU index {} is too large", wrong.vcpu.index)));
        }
        if request.vcpus.is_empty() {
            return Err(Kind::InvalidArgument.because(format!("0 vCPUs: give 1 to {MAX_VCPUS}")));
        }
        request.join();
        let (snapshot, _) = self.observe().await?;
        let pod = request.pod.clone();
        let known = find(&snapshot, &pod).ok_or_else(|| no_instance(&pod))?;
        match known.record.phase {
            Phase::Registered => return Err(Kind::Busy.because(format!("pod {pod} is still being registered"))),
            Phase::Leaving => return Err(no_instance(&pod)),
            _ => {}
        }
        let former = known.record.clone();
        let scope = known.scope.clone();
        if former.qos().is_some_and(|qos| !qos.is_exclusive()) {
            return self.attach_shared(scope, request).await;
        }
        let tasks = {
            let (scope, request) = (scope.clone(), request);
            self.blocking(move |system| resolve(system, &scope, &request).map(|tasks| (tasks, request.vcpus)))
                .await??
        };
        let next = self.attached(&snapshot, known, tasks);
        let (partition, placement) = (next.partition, next.placement);
        let threads = next.vcpus.clone();
        self.record_vcpus(&scope, next).await?;
        let (mut after, mut report) = self.pass(Trigger::Call).await;
        let refused = |after: &Option<Snapshot>| {
            let now = after.as_ref().and_then(|after| find(after, &pod))?;
            let text = now.vcpu()?.partition.clone();
            (now.record.phase == Phase::Attaching
                && now.record.partition != Partition::Member
                && text != now.record.partition.name())
            .then(|| (now.record.clone(), text))
        };
        if let Some((record, text)) = refused(&after) {
            tracing::warn!(
                MESSAGE_ID = journal::PARTITION_REFUSED, STELIA_POD_UID = %pod, STELIA_CPUSET = %record.exclusive,
                STELIA_PARTITION = text,
                "the kernel gives pod {pod} no {} partition ({text:?}): contained instead", record.partition.name()
            );
            let record = Record {
                partition: Partition::Member,
                ..record
            };
            self.record_vcpus(&scope, record).await?;
            (after, report) = self.pass(Trigger::Call).await;
        }
        let now = after.as_ref().and_then(|after| find(after, &pod));
        let alive = now.is_some_and(|now| now.vcpus.iter().all(Option::is_some));
        if let Some(now) = now
            && alive
            && matches!(now.record.phase, Phase::Isolated | Phase::Contained)
        {
            let state = now.record.phase.name();
            let id = match now.record.phase {
                Phase::Isolated => journal::ISOLATED,
                _ => journal::CONTAINED,
            };
            let float = now.inner.as_ref().and_then(|inner| inner.float.as_ref());
            tracing::info!(
                MESSAGE_ID = id, STELIA_POD_UID = %pod, STELIA_CPUSET = %now.record.exclusive,
                STELIA_FLOAT = float.map(|leaf| leaf.cpus.to_string()),
                "{state} pod {pod} ({}): {} moves, {} writes", placement.name(), report.moves, report.writes
            );
            let attached = threads.iter().map(|thread| thread.task.id).collect();
            late::look(self.system.clone(), now.vcpu_path(), attached, self.wake_sender.clone());
            let placed = |thread: &VcpuThread| Placed {
                vcpu: thread.index,
                thread: thread.task.id,
                cpu: thread.cpu,
            };
            return Ok(threads.iter().map(placed).collect());
        }
        let mut causes = report.degraded;
        let now = now.and_then(|now| Some(now.vcpu()?.partition.clone()));
        if let Some(text) = now.filter(|text| partition != Partition::Member && text != partition.name()) {
            causes.push(format!("the kernel gives no {} partition: {text:?}", partition.name()));
        }
        let phase = if former.vcpus.is_empty() {
            Phase::Floating
        } else {
            former.phase
        };
        self.record_vcpus(&scope, Record { phase, ..former }).await?;
        self.pass(Trigger::Call).await;
        Err(Kind::Failed.because(format!("isolation of pod {pod}: {}", causes.join("; "))))
    }

    /// vCPUs of a class without CPUs of its own stay in float, on its pool: nothing is recorded or moved.
    async fn attach_shared(&self, scope: CgroupPath, request: AttachRequest) -> Result<Vec<Placed>, Refusal> {
        let tasks = self.blocking(move |system| resolve(system, &scope, &request)).await??;
        let placed = |(vcpu, task): (u32, TaskId)| Placed {
            vcpu,
            thread: task.id,
            cpu: None,
        };
        Ok(tasks
            .into_iter()
            .filter(|(vcpu, _)| !is_iothread(*vcpu))
            .map(placed)
            .collect())
    }

    /// The record of an instance with these threads attached.
    fn attached(
        &self,
        snapshot: &Snapshot,
        known: &Instance,
        (tasks, requests): (BTreeMap<u32, TaskId>, Vec<VcpuRequest>),
    ) -> Record {
        let former = &known.record;
        let policies = self.policies();
        let guest: Vec<Vcpu> = requests.into_iter().map(|request| request.vcpu).collect();
        let placement = place(policies.placement, &guest, &former.exclusive, &snapshot.topology);
        if let Some(note) = &placement.note {
            tracing::warn!(MESSAGE_ID = journal::PLACEMENT, STELIA_POD_UID = %former.pod, STELIA_REASON = %note, "placement of pod {}: {note}", former.pod);
        }
        let threads: Vec<VcpuThread> = tasks
            .into_iter()
            .map(|(index, task)| VcpuThread { index, task, cpu: None })
            .collect();
        // BE may run on LSR's CPUs: no partition may keep it out.
        let wanted = if snapshot.has_partitions() && former.qos() != Some(Qos::Lsr) {
            policies.partition
        } else {
            Partition::Member
        };
        let (vcpus, partition) = placed(&threads, &placement.pins, wanted);
        let next = Record {
            vcpus,
            partition,
            props: guest
                .into_iter()
                .filter(|vcpu| !is_iothread(vcpu.index))
                .map(|vcpu| (vcpu.index, vcpu.props))
                .collect(),
            placement: policies.placement,
            ..former.clone()
        };
        // The same list again moves nothing, nor does one without the threads that ended (a vCPU was unplugged): the promise
        // was not interrupted, so the state does not say so. What was refused a partition stays contained.
        let living: Vec<VcpuThread> = former
            .vcpus
            .iter()
            .zip(&known.vcpus)
            .filter_map(|(thread, now)| now.is_some().then_some(*thread))
            .collect();
        let same = (next.vcpus == former.vcpus || next.vcpus == living)
            && (next.partition == former.partition || former.phase == Phase::Contained);
        if same && matches!(former.phase, Phase::Isolated | Phase::Contained) {
            return Record {
                vcpus: next.vcpus,
                props: next.props,
                ..former.clone()
            };
        }
        Record {
            phase: Phase::Attaching,
            ..next
        }
    }

    /// Write what attaching changes, the phase last: a daemon that dies in between has lost nothing it had promised.
    async fn record_vcpus(&mut self, scope: &CgroupPath, record: Record) -> Result<(), Refusal> {
        let scope = scope.clone();
        self.blocking(move |system| {
            [
                (PROPS_ATTRIBUTE, props_text(&record.props)),
                (PLACEMENT_ATTRIBUTE, record.placement.name().to_owned()),
                (PARTITION_ATTRIBUTE, record.partition.name().to_owned()),
                (VCPUS_ATTRIBUTE, vcpus_text(&record.vcpus)),
                (PHASE_ATTRIBUTE, record.phase.name().to_owned()),
            ]
            .into_iter()
            .try_for_each(|(name, value)| {
                system.failpoint.here();
                system.cgroups.set_attribute(&scope, name, &value)
            })
        })
        .await?
        .map_err(|error| Kind::Failed.because(error.to_string()))
    }
}

/// The host's threads for the caller's thread numbers, by vCPU index.
fn resolve(
    system: &super::System,
    scope: &CgroupPath,
    request: &AttachRequest,
) -> Result<BTreeMap<u32, TaskId>, Refusal> {
    let vcpus = &request.vcpus;
    if vcpus.is_empty() || vcpus.len() > MAX_VCPUS {
        return Err(Kind::InvalidArgument.because(format!("{} vCPUs: give 1 to {MAX_VCPUS}", vcpus.len())));
    }
    let indexes: BTreeSet<u32> = vcpus.iter().map(|vcpu| vcpu.vcpu.index).collect();
    if indexes.len() != vcpus.len() {
        return Err(Kind::InvalidArgument.because("a vCPU index is given twice"));
    }
    // A name is a key of the instance's record: one that the record cannot hold would make it unreadable.
    if let Some(name) = vcpus
        .iter()
        .flat_map(|vcpu| vcpu.vcpu.props.keys())
        .find(|name| !is_prop_name(name))
    {
        let text = format!(
            "property {:?} of a vCPU: a name is up to 64 letters, digits, -, _ and .",
            excerpt(name)
        );
        return Err(Kind::InvalidArgument.because(text));
    }
    let numbers: BTreeSet<i32> = vcpus.iter().map(|vcpu| vcpu.thread).collect();
    if numbers.len() != vcpus.len() {
        let text = "two vCPUs or I/O threads have the same thread: single-threaded emulation (-accel tcg,thread=single) cannot be isolated";
        return Err(Kind::InvalidArgument.because(text));
    }
    let foreign = |text: String| Kind::ForeignProcess.because(text);
    let qemu = identify_pidfd(system, &request.qemu).map_err(|cause| foreign(format!("qemu_pidfd: {cause}")))?;
    let cgroup = system
        .procs
        .cgroup(qemu.id)
        .map_err(|cause| foreign(format!("qemu_pidfd: {cause}")))?;
    if !cgroup.is_within(scope) {
        let text = format!(
            "process {} of qemu_pidfd does not belong to pod {}",
            qemu.id, request.pod
        );
        return Err(foreign(text));
    }
    let threads = system
        .procs
        .threads(qemu.id)
        .map_err(|cause| foreign(format!("qemu_pidfd: {cause}")))?;
    let by_number: BTreeMap<i32, TaskId> = threads
        .iter()
        .filter_map(|thread| Some((*thread.numbers.last()?, thread.task)))
        .collect();
    vcpus
        .iter()
        .map(|vcpu| match by_number.get(&vcpu.thread) {
            Some(task) => Ok((vcpu.vcpu.index, *task)),
            None => Err(foreign(format!(
                "thread {} of vCPU {} is no thread of the QEMU process handed over",
                vcpu.thread, vcpu.vcpu.index
            ))),
        })
        .collect()
}
