//! The calls that make a VM an instance.

use stelia_api::Error;
use stelia_kubelet::PodUid;
use stelia_node::cgroup::CgroupPath;

use super::scan::AdoptableVm;
use crate::engine::{Adopting, AttachRequest, Claim, Handle, REGISTRATION_TIMEOUT, RegisterRequest, VcpuRequest, Vmm};

/// Why a VM is no instance.
pub(super) struct Refusal {
    pub(super) error: Error,
    /// It had been registered, and was deregistered again.
    pub(super) is_undone: bool,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self {
            error,
            is_undone: false,
        }
    }
}

/// Register the container and attach its vCPUs. What was made for it is undone where its vCPUs cannot be isolated.
pub(super) async fn adopt(engine: &Handle, origin: &CgroupPath, pod: &PodUid, vm: &AdoptableVm) -> Result<(), Refusal> {
    // In turn with the pod's own calls: what one pod has to wait for delays no other.
    let engine = engine.on_behalf_of(pod);
    let before = engine
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
        .await?;
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
    let Err(error) = attached else { return Ok(()) };
    if !before {
        // It goes on by itself where it takes longer, and the next start of the daemon goes on where that died.
        let _ = engine.deregister(pod.clone()).await;
    }
    Err(Refusal {
        error,
        is_undone: !before,
    })
}
