//! Register and deregister: what a call writes down, and the passes that make it so.
//!
//! Each writes its intent into the scope's attributes first. A daemon that dies in between finds it there at its next
//! start, and the pass at start-up goes on from it.

use std::time::Duration;

use super::apply::now_us;
use super::container::{self, RegisterRequest};
use super::metrics::Trigger;
use super::observe::effective_limits;
use super::runtime;
use super::task::Engine;
use crate::alloc::{Exclusivity, Qos};
use crate::cgroup::{CgroupPath, Limits};
use crate::journal;
use crate::kubelet::{ContainerCgroup, PodUid};
use crate::plan::admission::{Kind, Refusal, admit};
use crate::plan::allocator::Allocation;
use crate::plan::record::PHASE_ATTRIBUTE;
use crate::plan::{Instance, Phase, Record, Snapshot};
use crate::systemd::Devices;

/// How long Deregister waits for systemd to remove the emptied scope.
const SCOPE_GONE: Duration = Duration::from_secs(20);

pub(super) fn find<'a>(snapshot: &'a Snapshot, pod: &PodUid) -> Option<&'a Instance> {
    snapshot
        .instances
        .iter()
        .find(|instance| instance.record.pod == *pod && instance.populated)
}

pub(super) fn no_instance(pod: &PodUid) -> Refusal {
    Kind::NoSuchInstance.because(format!("pod {pod} has no instance"))
}

impl Engine {
    /// Register a container.
    pub(super) async fn register(&mut self, request: RegisterRequest) -> Result<(PodUid, CgroupPath), Refusal> {
        let claim = request.claim.check()?;
        let (snapshot, _) = self.observe().await?;
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
        let mut record = admit(&claim, &candidate, &snapshot, &self.settings.policies.allocator)?;
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
        let differs = known
            .record
            .allocation
            .as_ref()
            .and_then(|allocation| allocation.differs(&claim.wish));
        if let Some(option) = differs {
            let text = format!("pod {pod} has an instance already, registered with another {option}");
            return Err(Kind::InstanceExists.because(text));
        }
        match known.record.phase {
            Phase::Leaving => Err(Kind::InstanceExists.because(format!("the instance of pod {pod} is leaving"))),
            Phase::Registered => {
                let (after, report) = self.pass(Trigger::Call).await;
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
            self.pass(Trigger::Call).await;
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

        let (after, report) = self.pass(Trigger::Call).await;
        drop(holder);
        let reached = after
            .as_ref()
            .and_then(|after| find(after, &pod))
            .map(|now| now.record.phase);
        if reached >= Some(Phase::Floating) {
            let class = record
                .qos()
                .map(|qos| format!(" as {}", qos.name()))
                .unwrap_or_default();
            tracing::info!(MESSAGE_ID = journal::REGISTERED, STELIA_POD_UID = %pod, STELIA_CPUSET = %record.exclusive, STELIA_CONTAINER = record.container, STELIA_QOS = record.qos().map(Qos::name), "registered pod {pod}{class}: {} moves, {} writes", report.moves, report.writes);
            tell_company(&pod, record.allocation.as_ref());
            return Ok((pod, scope));
        }
        // Nothing half-done: what was moved goes back.
        let cause = report.degraded.join("; ");
        tracing::warn!(MESSAGE_ID = journal::REGISTRATION_FAILED, STELIA_POD_UID = %pod, STELIA_REASON = cause, "registration of pod {pod} failed: {cause}");
        let undone = self.leave(&pod, &scope).await;
        match undone {
            Ok(()) => Err(Kind::Failed.because(format!("registration of pod {pod}: {cause}"))),
            Err(also) => Err(Kind::Failed.because(format!("registration of pod {pod}: {cause}; undoing it: {also}"))),
        }
    }

    /// The limits and devices of a container.
    async fn limits(&self, record: &Record) -> Result<(Limits, Devices), Refusal> {
        let origin = record.origin.clone();
        let limits = self
            .blocking(move |system| effective_limits(&*system.cgroups, &origin))
            .await?
            .map_err(|error| Kind::Failed.because(error.to_string()))?;
        Ok((limits.unwrap_or_default(), self.devices(&record.origin).await?))
    }

    /// The devices a container may open: as systemd says it of the unit, or as the runtime's configuration has it.
    async fn devices(&self, origin: &CgroupPath) -> Result<Devices, Refusal> {
        let whole = container::whole(origin);
        if whole.name().ends_with(".scope") {
            let unit = self.system.systemd.devices(whole.name()).await;
            let unit = unit.map_err(|error| Kind::Failed.because(error.to_string()))?;
            if let Some(devices) = unit.filter(Devices::restrict) {
                return Ok(devices);
            }
        }
        // No unit (cgroupfs driver), or one that restricts nothing: of a privileged container, or of crun, which has a
        // program of its own for it.
        let id = ContainerCgroup::parse(origin.as_str()).map(|container| container.container_id);
        let found = self.blocking(move |system| {
            let numbers = std::fs::read_to_string("/proc/devices").unwrap_or_default();
            runtime::devices(&system.run, &id?, &numbers)
        });
        found.await?.ok_or_else(|| {
            Kind::Failed.because(format!(
                "neither systemd nor the runtime's configuration tells the devices of {whole}"
            ))
        })
    }

    /// Give everything back.
    pub(super) async fn deregister(&mut self, pod: &PodUid) -> Result<(), Refusal> {
        let (snapshot, _) = self.observe().await?;
        let known = find(&snapshot, pod).ok_or_else(|| no_instance(pod))?;
        let (scope, exclusive) = (known.scope.clone(), known.record.exclusive.clone());
        let origin_is_gone = known.origin_procs.is_none();
        self.leave(pod, &scope).await?;
        if origin_is_gone {
            let text = format!(
                "pod {pod}: its CPUs are given back, but the container's own cgroup is gone: its processes stay in float"
            );
            return Err(Kind::Failed.because(text));
        }
        tracing::info!(MESSAGE_ID = journal::DEREGISTERED, STELIA_POD_UID = %pod, STELIA_CPUSET = %exclusive, "deregistered pod {pod}");
        Ok(())
    }

    async fn leave(&mut self, pod: &PodUid, scope: &CgroupPath) -> Result<(), Refusal> {
        // What leaves on purpose is not missed.
        self.told.remove(pod);
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
            let (after, report) = self.pass(Trigger::Call).await;
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

/// An exclusive policy that could not be kept is nothing to find out later.
fn tell_company(pod: &PodUid, allocation: Option<&Allocation>) {
    let Some(allocation) = allocation else { return };
    if matches!(allocation.exclusivity, Exclusivity::Downgraded | Exclusivity::Dropped) {
        let reason = allocation.explanation.last().map_or("", String::as_str);
        tracing::warn!(MESSAGE_ID = journal::COMPANY, STELIA_POD_UID = %pod, STELIA_REASON = reason, "pod {pod}: {reason}");
    }
}
