//! Resize: an instance whose CPUs steliad chose is to have another number of them, or what would be done is answered.

use stelia_api::{Error, ErrorKind};
use stelia_cpus::CpuSet;
use stelia_decide::allocator;
use stelia_decide::entitlement::waits_for_vcpus;
use stelia_kubelet::PodUid;
use stelia_record::Record;

use super::{Asker, Call, Reply, no_instance};
use crate::engine::handle::Handle;
use crate::engine::state::State;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResizeRequest {
    pub pod: PodUid,
    /// How many CPUs the instance is to have.
    pub cpus: u32,
    /// Answer what would be done without doing it.
    pub dry_run: bool,
}

/// The CPUs that the instance is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResizeAnswer {
    pub cpus: CpuSet,
    /// It leaves its other CPUs when enough vCPUs are unplugged.
    pub waits: bool,
}

struct ResizeCall {
    request: ResizeRequest,
    reply: Reply<ResizeAnswer>,
}

impl Handle {
    /// Give an instance another number of CPUs.
    ///
    /// # Errors
    /// The [`Error`]; nothing has changed then.
    pub(crate) async fn resize(&self, request: ResizeRequest) -> Result<ResizeAnswer, Error> {
        self.call(|reply| ResizeCall { request, reply }).await
    }
}

impl Call for ResizeCall {
    fn begin(self: Box<Self>, state: &mut State, asker: Asker) {
        let answer = state.resize(&self.request);
        state.finish(&asker, [self.reply], answer);
    }

    fn is_given_up(&self) -> bool {
        self.reply.is_closed()
    }
}

impl State {
    fn resize(&mut self, request: &ResizeRequest) -> Result<ResizeAnswer, Error> {
        let pod = &request.pod;
        let (snapshot, facts) = (&self.picture.snapshot, &self.picture.facts);
        let instance = self.picture.find(pod).ok_or_else(|| no_instance(pod))?;
        let count = usize::try_from(request.cpus).map_err(ErrorKind::InvalidArgument.context("cpus"))?;
        let (cpus, allocation) =
            allocator::resize(instance, count, snapshot, facts, &self.settings.policies.allocator)?;
        if self.jobs.is_running() {
            return Err(ErrorKind::Busy.because("a rebind job runs"));
        }
        // More CPUs are given at once, also to a VM that has more vCPUs than those.
        let gives_up = cpus != instance.record.exclusive && cpus.is_subset(&instance.record.exclusive);
        let waits = gives_up && waits_for_vcpus(instance, cpus.len());
        let former = instance.record.clone();
        let answer = ResizeAnswer {
            cpus: cpus.clone(),
            waits,
        };
        if request.dry_run {
            return Ok(answer);
        }
        // A former resize that still waits is replaced.
        self.picture.snapshot.to_keep.remove(pod);
        if cpus == former.exclusive {
            self.dirty.plan.insert(pod.clone());
        } else if waits {
            self.picture.snapshot.to_keep.insert(pod.clone(), cpus);
            self.dirty.plan.insert(pod.clone());
        } else {
            let next = Record {
                exclusive: cpus.clone(),
                entry: cpus,
                allocation: Some(allocation),
                ..former
            };
            self.write_record(pod, next)?;
        }
        Ok(answer)
    }
}
