//! Releases the CPUs of an adopted VM when its VMM ends, where the container's own cgroup is the partition.
//!
//! Elsewhere the vCPU threads have a cgroup of their own, whose `cgroup.events` reports when it becomes empty. Here the cgroup also has the
//! container's other processes, so no cgroup file reports the end. A pidfd of the VMM does: it becomes readable when all threads of the
//! process have ended. That only wakes the engine, which then reads the instance.

use std::collections::BTreeMap;
use std::fmt::Display;

use stelia_decide::Instance;
use stelia_kernel::proc::{Procs, TaskId, ended};
use stelia_kubelet::PodUid;
use tokio_util::task::AbortOnDropHandle;

/// A VMM, by one of its vCPU threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Vmm {
    vcpu: TaskId,
    process: i32,
}

impl Vmm {
    /// The VMM to watch, if the instance was adopted. A runner that registers its VM also deregisters it, so its VMM is not watched.
    pub(super) fn of(instance: &Instance) -> Option<Self> {
        let record = &instance.record;
        if instance.tree.has_float() || record.adopted.is_none() {
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
        let unwatched =
            |error: &dyn Display| format!("the end of its VMM is not watched; only the audit finds it: {error}");
        let pidfd = match procs.open_pidfd(vmm.process) {
            Ok(pidfd) => Some(pidfd),
            Err(error) if error.is_gone() => None,
            Err(error) => return Err(unwatched(&error)),
        };
        // The process may have ended before the pidfd was opened, and its PID may have been reused. It was not if the vCPU thread still
        // exists.
        let is_same_process = match procs.identify(vmm.vcpu.id) {
            Ok(now) => now == vmm.vcpu,
            Err(error) if error.is_gone() => false,
            Err(error) => return Err(unwatched(&error)),
        };
        let task = match pidfd.filter(|_| is_same_process) {
            Some(pidfd) => {
                let end = ended(pidfd).map_err(|error| unwatched(&error))?;
                Some(tokio::spawn(async move {
                    if end.await.is_ok() {
                        wake();
                    }
                }))
            }
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
