//! Deregistering: the intent is written down, the turns bring everything back, and the caller hears of it when it is gone.

use std::time::Instant;

use stelia_api::{Error, ErrorKind};
use stelia_cpus::CpuSet;
use stelia_kubelet::PodUid;
use stelia_record::{Phase, Record};

use super::calls::{Call, GONE_WITHIN, Goal, failed, no_instance};
use super::handle::Reply;
use super::inbox::Asker;
use super::store;
use super::task::Engine;
use crate::journal;

impl Engine {
    /// Give everything back.
    pub(super) fn deregister(&mut self, asker: Asker, pod: &PodUid, replies: Vec<Reply<()>>) {
        let known = self.picture.find(pod).map(|known| known.record.exclusive.clone());
        let begun = known.ok_or_else(|| no_instance(pod)).and_then(|exclusive| {
            self.leave(pod)?;
            Ok(exclusive)
        });
        match begun {
            Ok(exclusive) => {
                let deadline = Instant::now() + GONE_WITHIN;
                let goal = Goal::Gone {
                    replies,
                    exclusive,
                    deadline,
                };
                self.wait(pod, asker, goal);
            }
            Err(refusal) => {
                for reply in replies {
                    let _ = reply.send(Err(refusal.clone()));
                }
                self.inbox.release(&asker);
            }
        }
    }

    /// Write down that an instance leaves.
    pub(super) fn leave(&mut self, pod: &PodUid) -> Result<(), Error> {
        // What leaves on purpose is not missed.
        self.told.remove(pod);
        self.patience.wake(pod);
        let Some(before) = self.picture.snapshot.instances.get(pod).cloned() else {
            return Ok(());
        };
        let next = Record {
            phase: Phase::Leaving,
            ..before.record.clone()
        };
        match store::write(&self.system, before.scope(), Some(&before.record), &next) {
            // It ended by itself.
            Err(error) if error.is_gone() => {}
            result => result.map_err(|error| Error::from(error).of(pod))?,
        }
        if let Some(instance) = self.picture.snapshot.instances.get_mut(pod) {
            instance.record = next;
        }
        self.dirty.everyone |= self.picture.record(&self.settings.policies, &before);
        self.dirty.wrote(pod.clone());
        Ok(())
    }

    /// Nothing is left to do for an instance that leaves, and it is still there.
    pub(super) fn settle_leaving(&mut self, pod: &PodUid, call: Call) {
        let Some(instance) = self.picture.find(pod) else { return };
        let stays = instance.origin_procs.is_none();
        match call.goal {
            Goal::Gone { replies, .. } if stays => {
                let text = format!(
                    "pod {pod}: its CPUs are given back, but the container's own cgroup is gone: its processes stay in float"
                );
                for reply in replies {
                    let _ = reply.send(Err(ErrorKind::Failed.because(text.clone()).of(pod)));
                }
                self.inbox.release(&call.asker);
            }
            Goal::Undone { reply, causes } if stays => {
                let _ = reply.send(Err(failed(pod, "registration", causes)));
                self.inbox.release(&call.asker);
            }
            goal => self.wait(pod, call.asker, goal),
        }
    }

    /// A caller has waited long enough; the leaving goes on.
    pub(super) fn give_up_leaving(&mut self, pod: &PodUid, call: Call) {
        if let Goal::Gone { replies, .. } = call.goal {
            let text = format!(
                "the instance of pod {pod} is not gone after {} s and goes on leaving",
                GONE_WITHIN.as_secs()
            );
            let refusal = ErrorKind::Busy.because(text).of(pod).with(self.amiss(pod));
            for reply in replies {
                let _ = reply.send(Err(refusal.clone()));
            }
        }
        self.inbox.release(&call.asker);
    }

    pub(super) fn tell_deregistered(&self, pod: &PodUid, exclusive: &CpuSet) {
        tracing::info!(MESSAGE_ID = journal::DEREGISTERED, STELIA_POD_UID = %pod, STELIA_CPUSET = %exclusive, "deregistered pod {pod}");
    }
}
