//! Register, attach, deregister: what a call writes down, and the passes that make it so.
//!
//! Each writes its intent into the scope's attributes first. A daemon that dies in between finds it there at its next
//! start, and the pass at start-up goes on from it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::apply::now_us;
use super::container::{self, RegisterRequest, identify_pidfd};
use super::task::Engine;
use crate::cgroup::CgroupPath;
use crate::kubelet::PodUid;
use crate::plan::admission::{Kind, Refusal, admit};
use crate::plan::placement::{Vcpu, place};
use crate::plan::record::{PHASE_ATTRIBUTE, VCPUS_ATTRIBUTE, vcpus_text};
use crate::plan::{Instance, Phase, Record, Snapshot, VcpuThread};
use crate::topology::Topology;

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
    /// CPU.
    pub cpu: u32,
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
            && *claimed != known.record.exclusive
        {
            let text = format!("pod {pod} has the CPUs {}, not {claimed}", known.record.exclusive);
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
            let text = format!("{scope} exists: the former instance of pod {pod} has not ended yet");
            return Err(Kind::InstanceExists.because(text));
        }
        let limits = self.system.systemd.limits(record.origin.name()).await;
        let mut limits = limits.map_err(|error| Kind::Failed.because(error.to_string()))?;
        let origin = record.origin.clone();
        limits.tasks_max = self
            .blocking(move |system| container::tasks_max(system, origin))
            .await?
            .or(limits.tasks_max);
        let holder = self.system.holders.start();
        let holder = holder.map_err(|cause| Kind::Failed.because(format!("start the scope's holder: {cause}")))?;
        let description = format!("Stelia instance of pod {pod}, container {}", record.container);
        let started = self
            .system
            .systemd
            .start_scope(&unit, &description, holder.pid(), &limits)
            .await;
        started.map_err(|error| Kind::Failed.because(error.to_string()))?;
        let (target, attributes) = (scope.clone(), record.attributes());
        self.blocking(move |system| {
            attributes
                .iter()
                .try_for_each(|(name, value)| system.cgroups.set_attribute(&target, name, value))
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
        let (scope, exclusive) = (known.scope.clone(), known.record.exclusive.clone());
        let former = (known.record.phase, known.record.vcpus.clone());
        let threads = {
            let scope = scope.clone();
            let policy = self.placement();
            self.blocking(move |system| {
                let tasks = resolve(system, &scope, &request)?;
                let topology = Topology::read(&system.sys)
                    .map_err(|cause| Kind::Failed.because(format!("read the CPU topology: {cause}")))?;
                let vcpus: Vec<Vcpu> = request.vcpus.iter().map(|request| request.vcpu.clone()).collect();
                let placed = place(policy, &vcpus, &exclusive, &topology)
                    .map_err(|cause| Kind::InvalidArgument.because(cause.to_string()))?;
                let thread = |(index, cpu): (u32, u32)| {
                    Some(VcpuThread {
                        index,
                        task: *tasks.get(&index)?,
                        cpu,
                    })
                };
                Ok(placed.into_iter().filter_map(thread).collect::<Vec<_>>())
            })
            .await??
        };
        let phase = if former == (Phase::Isolated, threads.clone()) {
            Phase::Isolated
        } else {
            Phase::Attaching
        };
        self.record_vcpus(&scope, phase, threads.clone()).await?;
        let (after, report) = self.pass("call").await;
        let now = after.as_ref().and_then(|after| find(after, &pod));
        let alive = now.is_some_and(|now| now.vcpus.iter().all(Option::is_some));
        if alive && now.is_some_and(|now| now.record.phase == Phase::Isolated) {
            tracing::info!(STELIA_POD_UID = %pod, "isolated pod {pod}: {} moves, {} writes", report.moves, report.writes);
            let placed = |thread: &VcpuThread| Placed {
                vcpu: thread.index,
                thread: thread.task.id,
                cpu: thread.cpu,
            };
            return Ok(threads.iter().map(placed).collect());
        }
        let partition = now
            .and_then(|now| now.inner.as_ref()?.vcpu.as_ref())
            .map(|vcpu| vcpu.partition.clone());
        let mut causes = report.degraded;
        if let Some(partition) = partition.filter(|partition| partition != "isolated") {
            causes.push(format!("the kernel gives no isolated partition: {partition:?}"));
        }
        let phase = if former.1.is_empty() { Phase::Floating } else { former.0 };
        self.record_vcpus(&scope, phase, former.1).await?;
        self.pass("call").await;
        Err(Kind::Failed.because(format!("isolation of pod {pod}: {}", causes.join("; "))))
    }

    /// Write the vCPU threads, then the phase: a daemon that dies in between has lost nothing it had promised.
    async fn record_vcpus(&mut self, scope: &CgroupPath, phase: Phase, vcpus: Vec<VcpuThread>) -> Result<(), Refusal> {
        let scope = scope.clone();
        self.blocking(move |system| {
            system
                .cgroups
                .set_attribute(&scope, VCPUS_ATTRIBUTE, &vcpus_text(&vcpus))?;
            system.cgroups.set_attribute(&scope, PHASE_ATTRIBUTE, phase.name())
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
) -> Result<BTreeMap<u32, crate::proc::TaskId>, Refusal> {
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
    let by_number: BTreeMap<i32, crate::proc::TaskId> = threads
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
