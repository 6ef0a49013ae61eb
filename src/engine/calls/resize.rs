//! Resize: an instance whose CPUs steliad chose is to have another number of them, or what would be done is answered.

use stelia_api::{Error, ErrorKind};
use stelia_cpus::CpuSet;
use stelia_decide::allocator;
use stelia_decide::entitlement::waits_for_vcpus;
use stelia_kubelet::PodUid;
use stelia_model::record::Record;

use super::{Asker, Call, Reply, no_instance};
use crate::engine::handle::Handle;
use crate::engine::state::EngineState;

/// The request of Resize (io.stelia.Isolation1(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResizeRequest {
    pub pod: PodUid,
    /// How many CPUs the instance is to have.
    pub cpus: u32,
    /// Answer what would be done without doing it.
    pub dry_run: bool,
}

/// The answer of Resize (io.stelia.Isolation1(5)): the CPUs that the instance is to have.
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
    fn begin(self: Box<Self>, state: &mut EngineState, asker: Asker) {
        let answer = state.resize(&self.request);
        state.finish(&asker, [self.reply], answer);
    }

    fn is_given_up(&self) -> bool {
        self.reply.is_closed()
    }
}

impl EngineState {
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
        if waits && self.settings.unplug_timeout.is_zero() {
            let text = format!(
                "the VM has more vCPUs than {} CPUs, and unplug-timeout-s is 0: its guest has no time to give them up",
                cpus.len()
            );
            return Err(ErrorKind::InvalidArgument.because(text));
        }
        let former = instance.record.clone();
        let answer = ResizeAnswer {
            cpus: cpus.clone(),
            waits,
        };
        if request.dry_run {
            return Ok(answer);
        }
        if !waits && cpus != former.exclusive {
            let next = Record {
                exclusive: cpus.clone(),
                entry: cpus.clone(),
                allocation: Some(allocation),
                ..former
            };
            self.write_record(pod, next)?;
        }
        // A former resize that still waits is replaced.
        self.picture.keep(pod, waits.then_some(cpus));
        self.dirty.plan.insert(pod.clone());
        Ok(answer)
    }
}
