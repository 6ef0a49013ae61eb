//! Register, attach, deregister: what a call writes down, and the passes that make it so.
//!
//! Each writes its intent into the scope's attributes first. A daemon that dies in between finds it there at its next
//! start, and the pass at start-up goes on from it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::apply::now_us;
use super::container::{self, RegisterRequest, identify_pidfd};
use super::observe::effective_limits;
use super::runtime;
use super::task::Engine;
use crate::cgroup::{CgroupPath, Limits};
use crate::journal;
use crate::kubelet::{ContainerCgroup, PodUid};
use crate::plan::admission::{Kind, Refusal, admit};
use crate::plan::partition::Partition;
use crate::plan::placement::{Vcpu, place};
use crate::plan::record::{
    PARTITION_ATTRIBUTE, PHASE_ATTRIBUTE, PLACEMENT_ATTRIBUTE, PROPS_ATTRIBUTE, VCPUS_ATTRIBUTE, props_text, vcpus_text,
};
use crate::plan::{Instance, Phase, Record, Snapshot, VcpuThread, placed};
use crate::proc::TaskId;
use crate::systemd::Devices;

/// More vCPUs than this in one call are refused: twice what QEMU's largest machine has.
const MAX_VCPUS: usize = 8192;
/// How long Deregister waits for systemd to remove the emptied scope.
const SCOPE_GONE: Duration = Duration::from_secs(20);

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

fn find<'a>(snapshot: &'a Snapshot, pod: &PodUid) -> Option<&'a Instance> {
    snapshot
        .instances
        .iter()
        .find(|instance| instance.record.pod == *pod && instance.populated)
}

fn no_instance(pod: &PodUid) -> Refusal {
    Kind::NoSuchInstance.because(format!("pod {pod} has no instance"))
}

impl Engine {
    /// Register a container.
    pub(super) async fn register(&mut self, request: RegisterRequest) -> Result<(PodUid, CgroupPath), Refusal> {
        let claim = request.claim.check()?;
        let (snapshot, kubelet) = self.observe().await?;
        if let Some((_, container::Peer::Instance(pod))) = &request.caller {
            return self.register_again(&snapshot, pod, &claim).await;
        }
        let (origin, name) = container::find_origin(&self.system, &request, &claim)?;
        if let Some(known) = find(&snapshot, &name.pod)
            && container::is_same(&known.record, &origin)
        {
            return self.register_again(&snapshot, &name.pod, &claim).await;
        }
        let candidate = self
            .blocking(move |system| container::candidate(system, &request, origin, name))
            .await??;
        let others: Vec<&Record> = snapshot.instances.iter().map(|instance| &instance.record).collect();
        let mut record = admit(&claim, &candidate, &kubelet, &others)?;
        record.registered_us = now_us();
        self.build(record).await
    }

    /// The same container asks again: answer what is, once it is whole.
    async fn register_again(
        &mut self,
        snapshot: &Snapshot,
        pod: &PodUid,
        claim: &crate::plan::admission::CheckedClaim,
    ) -> Result<(PodUid, CgroupPath), Refusal> {
        let known = find(snapshot, pod).ok_or_else(|| no_instance(pod))?;
        if claim.pod.as_ref().is_some_and(|claimed| claimed != pod) {
            return Err(Kind::NoSuchPod.because(container::NOT_THE_CALLERS));
        }
        if let Some(claimed) = &claim.cpuset
            && *claimed != known.record.entry
        {
            let text = format!("pod {pod} has the CPUs {}, not {claimed}", known.record.entry);
            return Err(Kind::CpusetMismatch.because(text));
        }
        match known.record.phase {
            Phase::Leaving => Err(Kind::InstanceExists.because(format!("the instance of pod {pod} is leaving"))),
            Phase::Registered => {
                let (after, report) = self.pass("call").await;
                match after.as_ref().and_then(|after| find(after, pod)) {
                    Some(now) if now.record.phase > Phase::Registered => Ok((pod.clone(), now.scope.clone())),
                    _ => Err(Kind::Failed.because(report.degraded.join("; "))),
                }
            }
            _ => Ok((pod.clone(), known.scope.clone())),
        }
    }

    async fn build(&mut self, record: Record) -> Result<(PodUid, CgroupPath), Refusal> {
        let pod = record.pod.clone();
        let unit = pod.scope();
        let scope = CgroupPath::slice().child(&unit);
        if self.system.cgroups.exists(&scope) {
            // A daemon that died left it, if nobody is in it.
            self.pass("call").await;
        }
        if self.system.cgroups.exists(&scope) {
            let text = format!("{scope} exists: the former instance of pod {pod} has not ended yet");
            return Err(Kind::InstanceExists.because(text));
        }
        let (limits, devices) = self.limits(&record).await?;
        let holder = self.system.holders.start();
        let holder = holder.map_err(|cause| Kind::Failed.because(format!("start the scope's holder: {cause}")))?;
        let description = format!("Stelia instance of pod {pod}, container {}", record.container);
        self.system.failpoint.here();
        let started = self
            .system
            .systemd
            .start_scope(&unit, &description, holder.pid(), &limits, &devices)
            .await;
        started.map_err(|error| Kind::Failed.because(error.to_string()))?;
        let (target, attributes) = (scope.clone(), record.attributes());
        self.blocking(move |system| {
            attributes.iter().try_for_each(|(name, value)| {
                system.failpoint.here();
                system.cgroups.set_attribute(&target, name, value)
            })
        })
        .await?
        .map_err(|error| Kind::Failed.because(error.to_string()))?;

        let (after, report) = self.pass("call").await;
        drop(holder);
        let reached = after
            .as_ref()
            .and_then(|after| find(after, &pod))
            .map(|now| now.record.phase);
        if reached >= Some(Phase::Floating) {
            tracing::info!(STELIA_POD_UID = %pod, STELIA_CPUSET = %record.exclusive, "registered pod {pod}: {} moves, {} writes", report.moves, report.writes);
            return Ok((pod, scope));
        }
        // Nothing half-done: what was moved goes back.
        tracing::warn!(STELIA_POD_UID = %pod, "registration of pod {pod} failed: {}", report.degraded.join("; "));
        let undone = self.leave(&pod, &scope).await;
        let cause = report.degraded.join("; ");
        match undone {
            Ok(()) => Err(Kind::Failed.because(format!("registration of pod {pod}: {cause}"))),
            Err(also) => Err(Kind::Failed.because(format!("registration of pod {pod}: {cause}; undoing it: {also}"))),
        }
    }

    /// Attach vCPU threads.
    pub(super) async fn attach(&mut self, request: AttachRequest) -> Result<Vec<Placed>, Refusal> {
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
        let tasks = {
            let (scope, request) = (scope.clone(), request);
            self.blocking(move |system| resolve(system, &scope, &request).map(|tasks| (tasks, request.vcpus)))
                .await??
        };
        let next = self.attached(&snapshot, &former, tasks);
        let (partition, placement) = (next.partition, next.placement);
        let threads = next.vcpus.clone();
        self.record_vcpus(&scope, next).await?;
        let (mut after, mut report) = self.pass("call").await;
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
                STELIA_POD_UID = %pod,
                "the kernel gives pod {pod} no {} partition ({text:?}): contained instead", record.partition.name()
            );
            let record = Record {
                partition: Partition::Member,
                ..record
            };
            self.record_vcpus(&scope, record).await?;
            (after, report) = self.pass("call").await;
        }
        let now = after.as_ref().and_then(|after| find(after, &pod));
        let alive = now.is_some_and(|now| now.vcpus.iter().all(Option::is_some));
        if let Some(now) = now
            && alive
            && matches!(now.record.phase, Phase::Isolated | Phase::Contained)
        {
            let state = now.record.phase.name();
            tracing::info!(
                MESSAGE_ID = journal::ISOLATED, STELIA_POD_UID = %pod, STELIA_CPUSET = %now.record.exclusive,
                "{state} pod {pod} ({}): {} moves, {} writes", placement.name(), report.moves, report.writes
            );
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
        self.pass("call").await;
        Err(Kind::Failed.because(format!("isolation of pod {pod}: {}", causes.join("; "))))
    }

    /// The record of an instance with these threads attached.
    fn attached(
        &self,
        snapshot: &Snapshot,
        former: &Record,
        (tasks, requests): (BTreeMap<u32, TaskId>, Vec<VcpuRequest>),
    ) -> Record {
        let policies = self.policies();
        let guest: Vec<Vcpu> = requests.into_iter().map(|request| request.vcpu).collect();
        let placement = place(policies.placement, &guest, &former.exclusive, &snapshot.topology);
        if let Some(note) = &placement.note {
            tracing::warn!(STELIA_POD_UID = %former.pod, "placement of pod {}: {note}", former.pod);
        }
        let threads: Vec<VcpuThread> = tasks
            .into_iter()
            .map(|(index, task)| VcpuThread { index, task, cpu: None })
            .collect();
        let wanted = if snapshot.has_partitions() {
            policies.partition
        } else {
            Partition::Member
        };
        let (vcpus, partition) = placed(&threads, &placement.pins, wanted);
        let next = Record {
            vcpus,
            partition,
            props: guest.into_iter().map(|vcpu| (vcpu.index, vcpu.props)).collect(),
            placement: policies.placement,
            ..former.clone()
        };
        // The same list again changes nothing, so it starts nothing over. What was refused a partition stays contained.
        let same =
            next.vcpus == former.vcpus && (next.partition == former.partition || former.phase == Phase::Contained);
        if same && matches!(former.phase, Phase::Isolated | Phase::Contained) {
            return former.clone();
        }
        Record {
            phase: Phase::Attaching,
            ..next
        }
    }

    /// The limits and devices of a container.
    async fn limits(&self, record: &Record) -> Result<(Limits, Devices), Refusal> {
        let origin = record.origin.clone();
        let limits = self
            .blocking(move |system| effective_limits(&*system.cgroups, &origin))
            .await?
            .map_err(|error| Kind::Failed.because(error.to_string()))?;
        let origin = record.origin.name();
        let unit = if origin.ends_with(".scope") {
            let unit = self.system.systemd.devices(origin).await;
            unit.map_err(|error| Kind::Failed.because(error.to_string()))?
        } else {
            None
        };
        let devices = match unit {
            Some(devices) => devices,
            None => {
                let id = ContainerCgroup::parse(record.origin.as_str()).map(|container| container.container_id);
                let found = self.blocking(move |system| {
                    let numbers = std::fs::read_to_string("/proc/devices").unwrap_or_default();
                    runtime::devices(&system.run, &id?, &numbers)
                });
                found.await?.ok_or_else(|| {
                    Kind::Failed.because(format!(
                        "neither systemd nor the runtime's configuration tells the devices of {origin}"
                    ))
                })?
            }
        };
        Ok((limits.unwrap_or_default(), devices))
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

    /// Give everything back.
    pub(super) async fn deregister(&mut self, pod: &PodUid) -> Result<(), Refusal> {
        let (snapshot, _) = self.observe().await?;
        let known = find(&snapshot, pod).ok_or_else(|| no_instance(pod))?;
        let scope = known.scope.clone();
        let origin_is_gone = known.origin_procs.is_none();
        self.leave(pod, &scope).await?;
        if origin_is_gone {
            let text = format!(
                "pod {pod}: its CPUs are given back, but the container's own cgroup is gone: its processes stay in float"
            );
            return Err(Kind::Failed.because(text));
        }
        tracing::info!(STELIA_POD_UID = %pod, "deregistered pod {pod}");
        Ok(())
    }

    async fn leave(&mut self, pod: &PodUid, scope: &CgroupPath) -> Result<(), Refusal> {
        let target = scope.clone();
        let marked = self
            .blocking(move |system| {
                system.failpoint.here();
                system
                    .cgroups
                    .set_attribute(&target, PHASE_ATTRIBUTE, Phase::Leaving.name())
            })
            .await?;
        match marked {
            Err(error) if error.is_gone() => return Ok(()),
            result => result.map_err(|error| Kind::Failed.because(error.to_string()))?,
        }
        let deadline = tokio::time::Instant::now() + SCOPE_GONE;
        loop {
            let (after, report) = self.pass("call").await;
            let Some(after) = after else {
                return Err(Kind::Failed.because(report.degraded.join("; ")));
            };
            let known = after.instances.iter().find(|instance| instance.record.pod == *pod);
            match known {
                // One more pass has seen the scope gone: stelia.slice's list is narrowed too.
                None => return Ok(()),
                Some(known) if known.origin_procs.is_none() && known.populated => return Ok(()),
                Some(_) if tokio::time::Instant::now() > deadline => {
                    let text = format!(
                        "{scope} is not gone after {} s: {}",
                        SCOPE_GONE.as_secs(),
                        report.degraded.join("; ")
                    );
                    return Err(Kind::Failed.because(text));
                }
                Some(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
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
    let numbers: BTreeSet<i32> = vcpus.iter().map(|vcpu| vcpu.thread).collect();
    if numbers.len() != vcpus.len() {
        let text =
            "two vCPUs have the same thread: single-threaded emulation (-accel tcg,thread=single) cannot be isolated";
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
