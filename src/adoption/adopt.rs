//! Calls the engine to make a VM an instance.

use stelia_api::ErrorKind;
use stelia_kubelet::PodUid;
use stelia_node::cgroup::CgroupPath;

use super::scan::AdoptableVm;
use crate::engine::{
    Adopting, AttachRequest, CallChange, Claim, Handle, REGISTRATION_TIMEOUT, RegisterRequest, RollbackError,
    VcpuRequest, Vmm,
};

/// Register the container and attach its vCPUs. If the vCPUs cannot be isolated, the registration is undone.
pub(super) async fn adopt(
    engine: &Handle,
    origin: &CgroupPath,
    pod: &PodUid,
    vm: &AdoptableVm,
) -> Result<(), RollbackError> {
    // Queued with the pod's own calls, so that waiting delays no other pod.
    let engine = engine.on_behalf_of(pod);
    let was_attached = engine
        .view()
        .instances
        .get(pod)
        .is_some_and(|known| !known.vcpus.is_empty());
    engine
        .register(RegisterRequest {
            claim: Claim::default(),
            caller: None,
            origin: Some(origin.clone()),
            anchor: None,
            timeout: REGISTRATION_TIMEOUT,
            adopting: Some(Adopting {
                rule: vm.rule.clone(),
                vmm: vm.process,
                threads: vm.threads.clone(),
                guest: vm.guest.clone(),
                wanted: vm.wanted.clone(),
            }),
        })
        .await
        .map_err(|cause| RollbackError::new(pod, cause))?;
    let vcpu = |vcpu: &stelia_record::Vcpu| {
        Some(VcpuRequest {
            thread: vm.threads.get(&vcpu.index)?.id,
            vcpu: vcpu.clone(),
        })
    };
    let attached = engine
        .attach(AttachRequest {
            pod: pod.clone(),
            vmm: Vmm::OnHost(vm.process, vm.wanted.clone()),
            vcpus: vm.guest.iter().filter_map(vcpu).collect(),
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
