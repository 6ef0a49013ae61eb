//! Calls the engine to make a VM or a whole container an instance.

use stelia_api::ErrorKind;
use stelia_kernel::cgroup::CgroupPath;
use stelia_kubelet::PodUid;
use stelia_settings::Isolation;

use crate::engine::{
    Adopting, AttachRequest, CallChange, Claim, Handle, REGISTRATION_TIMEOUT, RegisterRequest, RollbackError,
    VcpuRequest, Vmm,
};

/// Register the container and attach its vCPUs. If the vCPUs cannot be isolated, the registration is undone.
pub(super) async fn adopt(
    engine: &Handle,
    origin: &CgroupPath,
    pod: &PodUid,
    adopting: &Adopting,
) -> Result<(), RollbackError> {
    // Queued with the pod's own calls, so that waiting delays no other pod.
    let engine = engine.on_behalf_of(pod);
    let was_attached = engine
        .view()
        .instances
        .get(pod)
        .is_some_and(|known| !known.vcpus.is_empty());
    let known_isolation = {
        let view = engine.view();
        let known = view.instances.get(pod).filter(|known| known.adopted_by.is_some());
        known.map(|known| known.isolation)
    };
    // What is adopted already stays as it is, whatever the rule says by now.
    let isolation = known_isolation.unwrap_or(adopting.rule.isolation);
    engine
        .register(registration(origin, adopting, isolation))
        .await
        .map_err(|cause| RollbackError::new(pod, cause))?;
    let Some(vmm) = adopting.vmm else { return Ok(()) };
    let vcpu = |vcpu: &stelia_model::record::Vcpu| {
        Some(VcpuRequest {
            thread: adopting.threads.get(&vcpu.index)?.id,
            vcpu: vcpu.clone(),
        })
    };
    let attached = engine
        .attach(AttachRequest {
            pod: pod.clone(),
            vmm: Vmm::OnHost(vmm, adopting.wanted.clone()),
            vcpus: adopting.guest.iter().filter_map(vcpu).collect(),
            iothreads: Vec::new(),
        })
        .await;
    let Err(cause) = attached else { return Ok(()) };
    let failed = RollbackError::new(pod, cause);
    if was_attached {
        return Err(failed);
    }
    Err(match engine.deregister(pod.clone()).await {
        // A deregistration that takes longer is completed later, if necessary by the next daemon.
        Err(why) if why.kind != ErrorKind::NoSuchInstance => failed.not_undone(CallChange::Registration, why),
        _ => failed.undone(CallChange::Registration),
    })
}

fn registration(origin: &CgroupPath, adopting: &Adopting, isolation: Isolation) -> RegisterRequest {
    RegisterRequest {
        claim: Claim {
            isolation,
            ..Claim::default()
        },
        caller: None,
        origin: Some(origin.clone()),
        anchor: None,
        timeout: REGISTRATION_TIMEOUT,
        adopting: Some(adopting.clone()),
    }
}
