//! The end of a VMM whose container's own cgroup is the partition.
//!
//! vCPU threads in a cgroup of their own leave it empty, of which its `cgroup.events` tells. Here other processes of the container are in the
//! same cgroup, so none of its files tells of the end. A pidfd of the VMM's process does: the kernel makes it readable when all
//! threads of the process have ended. It only wakes the engine, which then reads the instance.

use std::collections::BTreeMap;

use stelia_decide::Instance;
use stelia_kubelet::PodUid;
use stelia_node::proc::{Procs, TaskId, ended};
use tokio_util::task::AbortOnDropHandle;

/// A VMM, by one of its vCPU threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Vmm {
    vcpu: TaskId,
    process: i32,
}

impl Vmm {
    /// The VMM that is to be watched. Who registered itself deregisters itself.
    pub(super) fn of(instance: &Instance) -> Option<Self> {
        let record = &instance.record;
        if !record.is_container() || record.adopted.is_none() {
            return None;
        }
        let mut threads = record.vcpus.iter().zip(&instance.vcpus);
        threads.find_map(|(thread, now)| {
            Some(Self {
                vcpu: thread.task,
                process: now.as_ref()?.process,
            })
        })
    }
}

/// The VMMs that are watched.
#[derive(Debug, Default)]
pub(super) struct WatchedVmms(BTreeMap<PodUid, Watched>);

#[derive(Debug)]
struct Watched {
    vmm: Vmm,
    /// `None` if the process had ended before it was watched.
    _task: Option<AbortOnDropHandle<()>>,
}

impl WatchedVmms {
    /// Watch this VMM of the pod and no other; `wake` is called once, when it has ended. Belongs to the runtime it is called in.
    ///
    /// # Errors
    /// Why it is not watched.
    pub(super) fn watch(
        &mut self,
        procs: &dyn Procs,
        pod: &PodUid,
        vmm: Option<Vmm>,
        wake: impl FnOnce() + Send + 'static,
    ) -> Result<(), String> {
        if self.0.get(pod).map(|watched| watched.vmm) == vmm {
            return Ok(());
        }
        self.0.remove(pod);
        let Some(vmm) = vmm else { return Ok(()) };
        let pidfd = match procs.open_pidfd(vmm.process) {
            Ok(pidfd) => Some(pidfd),
            Err(error) if error.is_gone() => None,
            Err(error) => {
                return Err(format!(
                    "the end of its VMM is not watched, it is found by the audit only: {error}"
                ));
            }
        };
        // The process could have ended before its pidfd was opened, and its number been reused. While the thread that belongs to it lives,
        // it was not.
        let is_its = procs.identify(vmm.vcpu.id).is_ok_and(|now| now == vmm.vcpu);
        let task = match pidfd.filter(|_| is_its) {
            Some(pidfd) => Some(tokio::spawn(async move {
                if ended(pidfd).await.is_ok() {
                    wake();
                }
            })),
            None => {
                wake();
                None
            }
        };
        let _task = task.map(AbortOnDropHandle::new);
        self.0.insert(pod.clone(), Watched { vmm, _task });
        Ok(())
    }

    pub(super) fn forget(&mut self, pod: &PodUid) {
        self.0.remove(pod);
    }
}
