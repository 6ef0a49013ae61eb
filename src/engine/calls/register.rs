//! Registering: admission, the scope, the record. The record is written before a process is moved, so that a daemon which
//! starts in between goes on.

use std::any::Any;
use std::time::{Duration, Instant};

use stelia_api::reason::joined;
use stelia_api::{Error, Reason, ReasonCode};
use stelia_decide::Registration;
use stelia_decide::admission::RuntimeCheck;
use stelia_kernel::cgroup::CgroupPath;
use stelia_kernel::holder::Hold;
use stelia_koordinator::allocator::{Allocation, Exclusivity, Qos};
use stelia_kubelet::{CpuManagerState, PodName, PodUid};
use stelia_model::record::{Home, Phase, Record};

use super::admission::Admitted;
use super::rollback::{CallChange, RollbackError};
use super::{Asker, Call, Goal, Postponed, Reply, failed, no_instance};
use crate::engine::container::RegisterRequest;
use crate::engine::handle::Handle;
use crate::engine::state::EngineState;
use crate::engine::systemd_calls::RUNTIME_CHECK_TIMEOUT;
use crate::engine::{in_place, record_writer};
use crate::journal::{self, JournalPod, about};

/// A registration that has not begun, or waits because its refusal may pass.
struct RegisterCall {
    request: RegisterRequest,
    reply: Reply<(PodUid, CgroupPath)>,
    /// Until when it is tried again; `None` until it begins.
    deadline: Option<Instant>,
    /// How the check of the container's runtime ended, if the registration waited for one.
    runtime_check: Option<RuntimeCheck>,
}

/// How long a registration waits where the cause of a refusal may pass: kubelet's second write, an old scope's end.
pub(crate) const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(5);

impl RegisterCall {
    /// The pod whose rate this registration counts against. Adoption limits how often it scans a container (`crate::adoption`), but not how
    /// often it adopts a whole one: a pod could deregister it again and again.
    fn rated_pod(&self, asker: &Asker) -> Option<PodUid> {
        let adopting = self.request.adopting.as_ref();
        asker
            .clone()
            .filter(|_| adopting.is_none_or(|adopting| adopting.vmm.is_none()))
    }
}

impl Handle {
    /// Register a container. A refusal whose cause may pass is held back for [`RegisterRequest::timeout`]. Where its pod has registered
    /// too often, the call waits before that.
    ///
    /// # Errors
    /// The [`Error`]; nothing has changed then.
    pub async fn register(&self, request: RegisterRequest) -> Result<(PodUid, CgroupPath), Error> {
        let call = |reply| RegisterCall {
            request,
            reply,
            deadline: None,
            runtime_check: None,
        };
        self.call(call).await
    }
}

impl Call for RegisterCall {
    fn begin(mut self: Box<Self>, state: &mut EngineState, asker: Asker) {
        let own = self.rated_pod(&asker).filter(|_| self.deadline.is_none());
        if let Some(own) = own
            && let Err(due) = state.rates.registrations.count(&own, Instant::now())
        {
            return state.postpone(own, asker, *self, due);
        }
        let deadline = *self.deadline.get_or_insert(Instant::now() + self.request.timeout);
        state.try_to_register(asker, *self, deadline);
    }

    fn is_given_up(&self) -> bool {
        self.reply.is_closed()
    }
}

impl EngineState {
    /// Register, refuse, or wait where the cause may pass.
    fn try_to_register(&mut self, asker: Asker, call: RegisterCall, deadline: Instant) {
        if call.reply.is_closed() {
            return self.inbox.release(&asker);
        }
        if let Some(own) = &asker {
            // Admission reads as much as a look. The processes that it reads are counted where they are read.
            self.recent_looks.add(own, 0, Instant::now());
        }
        // kubelet may have written since the last event was read.
        self.dirty.kubelet = true;
        // The cgroup of all pods may be newer than the last look.
        let pods = self.picture.snapshot.kubepods.as_ref();
        self.dirty.slice |= pods.is_none_or(|level| level.exclusive.is_none());
        self.look_at_node();
        let mut pod = None;
        match self.admit(&call.request, call.runtime_check.as_ref(), &mut pod) {
            Ok(Admitted::Existing(pod)) if call.request.caller.is_some() && self.is_adopted(&pod) => {
                let taken_over = self.take_over(&pod);
                self.finish(&asker, [call.reply], taken_over);
            }
            Ok(Admitted::Existing(pod)) if self.is_registering(&pod) => {
                self.dirty.changed(pod.clone());
                let (reply, made) = (call.reply, None);
                self.wait(&pod, asker, UntilRegistered { reply, made });
            }
            Ok(Admitted::Existing(pod)) => {
                let known = self.picture.find(&pod).map(|known| known.scope().clone());
                let scope = known.unwrap_or_else(|| CgroupPath::slice().child(&pod.scope()));
                self.finish(&asker, [call.reply], Ok((pod, scope)));
            }
            Ok(Admitted::New {
                record,
                pod_name,
                limits,
            }) => {
                let pod = record.pod.clone();
                if let Some(own) = call.rated_pod(&asker)
                    && let Err(due) = self.rates.instances.count(&own, Instant::now())
                {
                    // The timeout starts when the registration may begin. It is counted as a registration again then: a pod that makes instances all
                    // the time gets fewer of both.
                    let call = RegisterCall { deadline: None, ..call };
                    return self.postpone(pod, asker, call, due);
                }
                let mut made = None;
                if record.home != Home::Scope {
                    if let Err(refusal) = self.begin_in_place(&record, pod_name) {
                        return self.finish(&asker, [call.reply], Err(refusal));
                    }
                    made = Some(Made::InPlace);
                } else {
                    self.systemd_calls.start(&self.system, &record, *limits);
                    let policies = &self.settings.policies;
                    self.picture.admit(policies, *record, pod_name, &mut self.dirty);
                }
                let reply = call.reply;
                self.wait(&pod, asker, UntilRegistered { reply, made });
            }
            Ok(Admitted::Unchecked(pod, unit)) => {
                if !self.systemd_calls.has(&unit) {
                    self.systemd_calls.check_runtime(&self.system, pod.clone(), unit);
                }
                self.postpone_until(pod, asker, call, Instant::now() + RUNTIME_CHECK_TIMEOUT);
            }
            Err(refusal) => match pod {
                Some(pod) if refusal.may_pass && Instant::now() < deadline => {
                    self.postpone_until(pod, asker, call, deadline);
                }
                _ => self.finish(&asker, [call.reply], Err(refusal)),
            },
        }
    }

    /// Try a registration again when something changes for its pod, and for the last time at this time.
    fn postpone_until(&mut self, pod: PodUid, asker: Asker, call: RegisterCall, deadline: Instant) {
        let call = RegisterCall {
            deadline: Some(deadline),
            ..call
        };
        self.postpone(pod, asker, call, deadline);
    }

    /// Try a registration again when something changes for its pod, and at this time.
    fn postpone(&mut self, pod: PodUid, asker: Asker, call: RegisterCall, due: Instant) {
        let call = Box::new(call);
        let waiting = self.calls.registrations.entry(pod).or_default();
        waiting.push(Postponed { due, asker, call });
    }

    /// A runtime was checked: the registrations of this pod that waited for it are tried again.
    pub(in crate::engine) fn runtime_checked(&mut self, pod: &PodUid, check: &RuntimeCheck) {
        for waiting in self.calls.registrations.get_mut(pod).into_iter().flatten() {
            let any: &mut dyn Any = &mut *waiting.call;
            if let Some(call) = any.downcast_mut::<RegisterCall>() {
                call.runtime_check = Some(check.clone());
            }
        }
        self.retry_pod(pod);
    }

    /// Write the record on the pod's cgroup: the instance is made.
    fn begin_in_place(&mut self, record: &Record, pod_name: Option<PodName>) -> Result<(), Error> {
        let pod = &record.pod;
        in_place::register(&self.system, record).map_err(|error| error.of(pod))?;
        let policies = &self.settings.policies;
        self.picture
            .admit_in_place(policies, record.clone(), pod_name, &mut self.dirty);
        self.watcher.forget(pod);
        self.dirty.made(pod.clone());
        self.dirty.wrote_slice();
        Ok(())
    }

    /// systemd answered whether the scope was made.
    pub(in crate::engine) fn started(&mut self, pod: &PodUid, result: Result<Box<dyn Hold>, Error>) {
        self.picture.starting.remove(pod);
        let written = result.and_then(|holder| {
            let instance = self
                .picture
                .snapshot
                .instances
                .get(pod)
                .ok_or_else(|| no_instance(pod))?;
            record_writer::write(&self.system, instance.tree.place(), None, &instance.record)
                .map_err(|error| Error::failed(error).of(pod))?;
            Ok(holder)
        });
        match written {
            Ok(holder) => {
                self.watcher.forget(pod);
                self.dirty.made(pod.clone());
                self.dirty.wrote_slice();
                // The holder keeps the scope until the registration is answered.
                if let Some(goal) = self.calls.goals::<UntilRegistered>(pod).next() {
                    goal.made = Some(Made::Scope { _holder: holder });
                }
            }
            Err(refusal) => {
                self.picture.remove(&self.settings.policies, pod, &mut self.dirty);
                // No process was moved yet.
                for (asker, goal) in self.take_goals::<UntilRegistered>(pod) {
                    self.finish(&asker, [goal.reply], Err(refusal.clone()));
                }
            }
        }
    }

    /// Try again the registrations that wait for a change of kubelet's file, where it changed for their pod.
    pub(in crate::engine) fn retry_waiting(&mut self, before: &Result<CpuManagerState, String>) {
        let now = &self.picture.snapshot.kubelet;
        let differs = |pod: &PodUid| match (before, now) {
            (Ok(before), Ok(now)) => {
                before.entries.get(pod) != now.entries.get(pod)
                    || before.pod_entries.get(pod) != now.pod_entries.get(pod)
                    || before.policy != now.policy
            }
            _ => true,
        };
        let pods: Vec<PodUid> = self
            .calls
            .registrations
            .keys()
            .filter(|pod| differs(pod))
            .cloned()
            .collect();
        for pod in pods {
            self.retry_pod(&pod);
        }
    }

    fn is_registering(&self, pod: &PodUid) -> bool {
        let known = self.picture.find(pod);
        self.picture.starting.contains(pod) || known.is_some_and(|one| one.registration() == Registration::Running)
    }

    fn log_registered(&self, pod: &PodUid) {
        let Some(instance) = self.picture.find(pod) else { return };
        let record = &instance.record;
        let did = self.passes.did_for(pod);
        let class = record
            .qos()
            .map(|qos| format!(" as {}", qos.name()))
            .unwrap_or_default();
        let pod = self.named(pod);
        let rule = record.adopted.as_ref().map(|adopted| adopted.rule.as_str());
        let by = rule.map(|rule| format!(" by rule {rule}")).unwrap_or_default();
        about!(
            info, journal::REGISTERED, pod, STELIA_CPUSET = %record.exclusive, STELIA_CONTAINER = record.container,
            STELIA_QOS = record.qos().map(Qos::name), STELIA_RULE = rule,
            "registered pod {pod}{class}{by}: {} moves, {} writes", did.moves, did.writes
        );
        log_downgraded_policy(pod, record.allocation.as_ref());
    }
}

/// Log an exclusive policy that could not be kept.
fn log_downgraded_policy(pod: JournalPod<'_>, allocation: Option<&Allocation>) {
    let Some(allocation) = allocation else { return };
    if matches!(allocation.exclusivity, Exclusivity::Downgraded | Exclusivity::Dropped) {
        let reason = allocation.explanation.last().map_or("", String::as_str);
        about!(
            warn,
            journal::COMPANY,
            pod,
            STELIA_REASON = reason,
            "pod {pod}: {reason}"
        );
    }
}

/// What a registration made.
enum Made {
    /// A scope, which the holder keeps alive.
    Scope { _holder: Box<dyn Hold> },
    /// The record on the pod's cgroup.
    InPlace,
}

/// Everything but the anchor is in float.
struct UntilRegistered {
    reply: Reply<(PodUid, CgroupPath)>,
    /// What was made for it; `None` where the instance was there before.
    made: Option<Made>,
}

impl Goal for UntilRegistered {
    fn settle(self: Box<Self>, state: &mut EngineState, pod: &PodUid, asker: Asker) {
        let Some(instance) = state.picture.find(pod) else {
            return;
        };
        let (scope, phase) = (instance.scope().clone(), instance.record.phase);
        let Self { reply, made } = *self;
        let first = made.is_some();
        if instance.registration() == Registration::Done {
            if first {
                state.log_registered(pod);
            }
            return state.finish(&asker, [reply], Ok((pod.clone(), scope)));
        }
        let causes = state.amiss(pod);
        if !first || phase == Phase::Leaving {
            return state.finish(&asker, [reply], Err(failed(pod, "registration", causes)));
        }
        // A registration that cannot be completed is undone.
        let cause = joined(&causes);
        let named = state.named(pod);
        about!(
            warn,
            journal::REGISTRATION_FAILED,
            named,
            STELIA_REASON = cause,
            "registration of pod {named} failed: {cause}"
        );
        let failed = RollbackError::new(pod, failed(pod, "registration", causes));
        match state.leave(pod) {
            Ok(()) => state.wait(pod, asker, UntilUndone { reply, failed }),
            Err(why) => {
                let failed = failed.not_undone(CallChange::Registration, why);
                state.finish(&asker, [reply], Err(failed.into()));
            }
        }
    }

    fn ended(self: Box<Self>, state: &mut EngineState, pod: &PodUid, asker: Asker) {
        let ended = vec![Reason::of(pod, ReasonCode::CgroupGone, "its container ended")];
        state.finish(&asker, [self.reply], Err(failed(pod, "registration", ended)));
    }

    fn is_start(&self) -> bool {
        true
    }
}

/// A registration that failed is undone.
struct UntilUndone {
    reply: Reply<(PodUid, CgroupPath)>,
    failed: RollbackError,
}

impl Goal for UntilUndone {
    fn settle(self: Box<Self>, state: &mut EngineState, pod: &PodUid, asker: Asker) {
        if state.stays_in_float(pod) {
            self.released(state, pod, asker);
        } else {
            state.put_back(pod, asker, self);
        }
    }

    fn ended(self: Box<Self>, state: &mut EngineState, pod: &PodUid, asker: Asker) {
        state.wait_for_release(pod, asker, self);
    }

    fn released(self: Box<Self>, state: &mut EngineState, _: &PodUid, asker: Asker) {
        let failed = self.failed.undone(CallChange::Registration);
        state.finish(&asker, [self.reply], Err(failed.into()));
    }
}
