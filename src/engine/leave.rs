//! Deregistering: the phase is recorded, the turns undo the instance, and the caller is answered when its scope is gone.

use std::time::Instant;

use stelia_api::{Error, ErrorKind};
use stelia_cpus::CpuSet;
use stelia_kubelet::{PodName, PodUid};
use stelia_record::{Phase, Record};

use super::calls::{Call, DEREGISTRATION_TIMEOUT, Goal, failed, no_instance};
use super::handle::Reply;
use super::inbox::Asker;
use super::task::Engine;
use crate::journal::{self, Pod, about};

impl Engine {
    pub(super) fn deregister(&mut self, asker: Asker, pod: &PodUid, replies: Vec<Reply<()>>) {
        let known = self.picture.find(pod);
        let known = known.map(|known| (known.record.exclusive.clone(), known.pod_name.clone()));
        let begun = known.ok_or_else(|| no_instance(pod)).and_then(|known| {
            self.leave(pod)?;
            Ok(known)
        });
        match begun {
            Ok((exclusive, name)) => {
                let deadline = Instant::now() + DEREGISTRATION_TIMEOUT;
                let goal = Goal::Gone {
                    replies,
                    exclusive,
                    name,
                    deadline,
                };
                self.wait(pod, asker, goal);
            }
            Err(refusal) => {
                self.finish(&asker, replies, Err(refusal));
            }
        }
    }

    /// Record that an instance leaves; the turns undo it.
    pub(super) fn leave(&mut self, pod: &PodUid) -> Result<(), Error> {
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

    /// No step remains for an instance that leaves, and its scope is still there.
    pub(super) fn settle_leaving(&mut self, pod: &PodUid, call: Call) {
        let Some(instance) = self.picture.find(pod) else { return };
        let stays = instance.origin_procs.is_none();
        match call.goal {
            Goal::Gone { replies, .. } if stays => {
                let text = format!(
                    "pod {pod}: its CPUs are given back, but the container's own cgroup is gone: its processes stay in float"
                );
                self.finish(&call.asker, replies, Err(ErrorKind::Failed.because(text).of(pod)));
            }
            Goal::Undone { reply, causes } if stays => {
                self.finish(&call.asker, [reply], Err(failed(pod, "registration", causes)));
            }
            goal => self.wait(pod, call.asker, goal),
        }
    }

    /// Answer a caller that has waited too long with `Busy`; deregistering goes on.
    pub(super) fn give_up_leaving(&mut self, pod: &PodUid, call: Call) {
        if let Goal::Gone { replies, .. } = call.goal {
            let text = format!(
                "the instance of pod {pod} is not gone after {} s and goes on leaving",
                DEREGISTRATION_TIMEOUT.as_secs()
            );
            let refusal = ErrorKind::Busy.because(text).of(pod).with(self.amiss(pod));
            self.finish(&call.asker, replies, Err(refusal));
        }
    }
}

/// Its name is passed in, because the instance is gone.
pub(super) fn log_deregistered(pod: &PodUid, name: Option<&PodName>, exclusive: &CpuSet) {
    let pod = Pod::new(pod.as_str(), name);
    about!(info, journal::DEREGISTERED, pod, STELIA_CPUSET = %exclusive, "deregistered pod {pod}");
}
