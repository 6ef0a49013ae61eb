//! Deregistering: the phase is recorded, the turns undo the instance, and the caller is answered when its scope is gone.

use std::any::Any;
use std::time::{Duration, Instant};

use stelia_api::{Error, ErrorKind};
use stelia_cpus::CpuSet;
use stelia_kubelet::{PodName, PodUid};
use stelia_model::record::{Phase, Record};

use super::{Asker, Call, Calls, Goal, Reply, all_closed, no_instance};
use crate::engine::handle::Handle;
use crate::engine::state::EngineState;
use crate::journal::{self, JournalPod, about};

/// How long a call of Deregister is kept waiting; below the 25 s after which busctl gives up.
const DEREGISTRATION_TIMEOUT: Duration = Duration::from_secs(20);

struct DeregisterCall {
    pod: PodUid,
    replies: Vec<Reply<()>>,
}

impl Handle {
    /// Deregister; answers when the scope is gone, or with `Busy` after 20 s while deregistering goes on.
    pub(crate) async fn deregister(&self, pod: PodUid) -> Result<(), Error> {
        let call = |reply| DeregisterCall {
            pod,
            replies: vec![reply],
        };
        self.call(call).await
    }
}

impl Call for DeregisterCall {
    fn begin(self: Box<Self>, state: &mut EngineState, asker: Asker) {
        let Self { pod, replies } = *self;
        let known = state.picture.find(&pod);
        let known = known.map(|known| (known.record.exclusive.clone(), known.pod_name.clone()));
        let begun = known.ok_or_else(|| no_instance(&pod)).and_then(|known| {
            state.leave(&pod)?;
            Ok(known)
        });
        match begun {
            Ok((exclusive, name)) => {
                let goal = UntilGone {
                    replies,
                    exclusive,
                    name,
                    deadline: Instant::now() + DEREGISTRATION_TIMEOUT,
                };
                state.wait(&pod, asker, goal);
            }
            Err(refusal) => state.finish(&asker, replies, Err(refusal)),
        }
    }

    fn is_given_up(&self) -> bool {
        all_closed(&self.replies)
    }

    fn join(&mut self, other: &mut (dyn Call + 'static)) -> bool {
        let other: &mut dyn Any = other;
        let same = other.downcast_mut::<Self>().filter(|other| other.pod == self.pod);
        same.map(|same| self.replies.append(&mut same.replies)).is_some()
    }

    /// A second Deregister waits with the first.
    fn join_under_way(&mut self, calls: &mut Calls) -> bool {
        let Some(goal) = calls.goals::<UntilGone>(&self.pod).next() else {
            return false;
        };
        goal.replies.append(&mut self.replies);
        true
    }
}

/// The scope is gone.
struct UntilGone {
    replies: Vec<Reply<()>>,
    exclusive: CpuSet,
    name: Option<PodName>,
    deadline: Instant,
}

impl Goal for UntilGone {
    fn settle(self: Box<Self>, state: &mut EngineState, pod: &PodUid, asker: Asker) {
        if !state.stays_in_float(pod) {
            return state.put_back(pod, asker, self);
        }
        let text = format!(
            "pod {pod}: its CPUs are given back, but the container's own cgroup is gone: its processes stay in float"
        );
        state.finish(&asker, self.replies, Err(ErrorKind::Failed.because(text).of(pod)));
    }

    fn ended(self: Box<Self>, state: &mut EngineState, pod: &PodUid, asker: Asker) {
        state.wait_for_release(pod, asker, self);
    }

    fn released(self: Box<Self>, state: &mut EngineState, pod: &PodUid, asker: Asker) {
        log_deregistered(pod, self.name.as_ref(), &self.exclusive);
        state.finish(&asker, self.replies, Ok(()));
    }

    /// The caller is answered with `Busy`; deregistering goes on.
    fn timed_out(self: Box<Self>, state: &mut EngineState, pod: &PodUid, asker: Asker) {
        let text = format!(
            "the VM of pod {pod} is not released after {} s and goes on leaving: steliactl list",
            DEREGISTRATION_TIMEOUT.as_secs()
        );
        let refusal = ErrorKind::Busy.because(text).of(pod).with(state.amiss(pod));
        state.finish(&asker, self.replies, Err(refusal));
    }

    fn deadline(&self) -> Option<Instant> {
        Some(self.deadline)
    }
}

impl EngineState {
    /// Record that an instance leaves; the turns undo it.
    pub(in crate::engine) fn leave(&mut self, pod: &PodUid) -> Result<(), Error> {
        self.instance_log.forget(pod);
        let Some(known) = self.picture.find(pod) else {
            return Ok(());
        };
        let next = Record {
            phase: Phase::Leaving,
            ..known.record.clone()
        };
        match self.write_record(pod, next) {
            // It ended by itself.
            Err(refusal) if refusal.kind == ErrorKind::NoSuchInstance => Ok(()),
            written => written,
        }
    }

    /// Whether the processes of an instance that leaves have no cgroup to go back to.
    pub(super) fn stays_in_float(&self, pod: &PodUid) -> bool {
        let instance = self.picture.find(pod);
        instance.is_some_and(|instance| instance.origin_procs.is_none())
    }
}

/// Log that an instance was deregistered. Its name is passed in, because the instance is gone.
fn log_deregistered(pod: &PodUid, name: Option<&PodName>, exclusive: &CpuSet) {
    let pod = JournalPod::new(pod.as_str(), name);
    about!(info, journal::DEREGISTERED, pod, STELIA_CPUSET = %exclusive, "deregistered pod {pod}");
}
