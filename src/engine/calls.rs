//! Calls that wait: for an instance to reach what was asked for, or for a refusal's cause to pass.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use stelia_api::{Amiss, Error, ErrorKind, Reason};
use stelia_cpus::CpuSet;
use stelia_kubelet::{CpuManagerState, PodName, PodUid};
use stelia_node::cgroup::CgroupPath;
use stelia_node::holder::Hold;
use stelia_record::Phase;

use super::attach::Attaching;
use super::handle::{Command, Reply};
use super::inbox::Asker;
use super::leave::log_deregistered;
use super::own_audits::OwnAudits;
use super::pass::Numbers;
use super::reconcile::{Sweep, SweepAnswer};
use super::register::Waiting;
use super::task::Engine;
use super::{Report, Trigger};

/// How long a call of Deregister is kept waiting; below the 25 s after which busctl gives up.
pub(super) const DEREGISTRATION_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a registration waits where the cause of a refusal may pass: kubelet's second write, an old scope's end.
pub(crate) const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(5);

/// What a caller waits for.
pub(super) enum Goal {
    /// Everything but the anchor is in float.
    Registered {
        reply: Reply<(PodUid, CgroupPath)>,
        /// What was made for it; `None` where the instance was there before.
        made: Option<Made>,
    },
    /// A registration that failed is undone.
    Undone {
        reply: Reply<(PodUid, CgroupPath)>,
        causes: Vec<Reason>,
    },
    /// The vCPUs are isolated, or contained.
    Attached(Box<Attaching>),
    /// An attach that failed is undone.
    Detached {
        attaching: Box<Attaching>,
        causes: Vec<Reason>,
    },
    /// The scope is gone.
    Gone {
        replies: Vec<Reply<()>>,
        exclusive: CpuSet,
        name: Option<PodName>,
        deadline: Instant,
    },
    /// The instance was read by an audit.
    Audited {
        replies: Vec<Reply<Report>>,
        before: Numbers,
    },
}

/// What a registration made.
pub(super) enum Made {
    /// A scope, which the holder keeps alive.
    Scope { _holder: Box<dyn Hold> },
    /// The record on the pod's cgroup.
    InPlace,
}

pub(super) struct Call {
    pub(super) asker: Asker,
    pub(super) goal: Goal,
}

/// The calls under way.
#[derive(Default)]
pub(super) struct Calls {
    of: BTreeMap<PodUid, Vec<Call>>,
    /// Of instances that are gone while their CPUs are still in the slice's list.
    gone: Vec<(PodUid, Call)>,
    pub(super) waiting: BTreeMap<PodUid, Vec<Waiting>>,
    pub(super) sweeps: Vec<Sweep>,
    pub(super) own_audits: OwnAudits,
}

impl Calls {
    /// The next deadline of a call.
    pub(super) fn next(&self) -> Option<Instant> {
        let goals = self.of.values().flatten().filter_map(|call| match &call.goal {
            Goal::Gone { deadline, .. } => Some(*deadline),
            _ => None,
        });
        let waiting = self.waiting.values().flatten().map(|waiting| waiting.deadline);
        goals.chain(waiting).chain(self.own_audits.next()).min()
    }

    /// The pods whose VMs start.
    pub(super) fn starting(&self) -> Vec<&PodUid> {
        let starts = |call: &Call| matches!(call.goal, Goal::Registered { .. } | Goal::Attached(_));
        let these = self.of.iter().filter(|(_, calls)| calls.iter().any(starts));
        these.map(|(pod, _)| pod).collect()
    }
}

impl Engine {
    /// Answer a call, however many callers joined it; the next one of its pod may begin.
    pub(super) fn finish<T: Clone>(
        &mut self,
        asker: &Asker,
        replies: impl IntoIterator<Item = Reply<T>>,
        answer: Result<T, Error>,
    ) {
        for reply in replies {
            // The caller may have left.
            let _ = reply.send(answer.clone());
        }
        self.inbox.release(asker);
    }

    pub(super) fn come_in(&mut self, asker: Asker, command: Command) {
        if let Command::ShowUnadopted(unadopted) = command {
            return self.view_writer.show_unadopted(unadopted);
        }
        if let Command::ShowQuiet(quiet) = command {
            return self.show_quiet(*quiet);
        }
        if let Command::ShowLedger(ledger) = command {
            return self.view_writer.show_ledger(*ledger);
        }
        if let Command::ShowPublishing(publishing) = command {
            return self.view_writer.show_publishing(publishing);
        }
        // A second Deregister waits with the first.
        if let Command::Deregister(pod, more) = command {
            let under_way = self.calls.of.get_mut(&pod).into_iter().flatten();
            let mut gone = under_way.filter_map(|call| match &mut call.goal {
                Goal::Gone { replies, .. } => Some(replies),
                _ => None,
            });
            match gone.next() {
                Some(replies) => replies.extend(more),
                None => self.inbox.push(asker, Command::Deregister(pod, more)),
            }
            return;
        }
        self.inbox.push(asker, command);
    }

    /// Check and record what a call asks for; the turns bring the system there.
    pub(super) fn begin(&mut self, asker: Asker, command: Command) {
        self.passes.trigger.get_or_insert(Trigger::Call);
        match command {
            Command::Register(request, reply) => self.register(asker, *request, reply),
            Command::Attach(request, reply) => self.attach(asker, *request, reply),
            Command::Deregister(pod, replies) => self.deregister(asker, &pod, replies),
            Command::Audit(pod, replies) => self.audit_one_in_time(pod, asker, replies),
            Command::Reconcile(replies) => {
                self.audit(Trigger::Call);
                self.sweep(SweepAnswer::Reconcile(replies));
                self.inbox.release(&asker);
            }
            Command::Preview(reply) => {
                let preview = self.preview();
                self.finish(&asker, [reply], preview);
            }
            Command::Reload(settings, reply) => {
                self.reload(*settings);
                self.sweep(SweepAnswer::Reload(reply));
                self.inbox.release(&asker);
            }
            Command::ShowUnadopted(unadopted) => self.view_writer.show_unadopted(unadopted),
            Command::ShowQuiet(quiet) => self.show_quiet(*quiet),
            Command::ShowLedger(ledger) => self.view_writer.show_ledger(*ledger),
            Command::ShowPublishing(publishing) => self.view_writer.show_publishing(publishing),
            Command::Rebind(request, reply) => {
                let planned = self.rebind(&request);
                self.finish(&asker, [reply], planned);
            }
        }
    }

    pub(super) fn wait(&mut self, pod: &PodUid, asker: Asker, goal: Goal) {
        self.calls.of.entry(pod.clone()).or_default().push(Call { asker, goal });
    }

    /// Keep the holder of a new scope until its registration is answered.
    pub(super) fn hold(&mut self, pod: &PodUid, holder: Box<dyn Hold>) {
        for call in self.calls.of.get_mut(pod).into_iter().flatten() {
            if let Goal::Registered { made, .. } = &mut call.goal {
                *made = Some(Made::Scope { _holder: holder });
                return;
            }
        }
    }

    /// A registration failed before any process was moved.
    pub(super) fn refuse_registration(&mut self, pod: &PodUid, refusal: &Error) {
        for call in self.calls.of.remove(pod).into_iter().flatten() {
            match call.goal {
                Goal::Registered { reply, .. } => self.finish(&call.asker, [reply], Err(refusal.clone())),
                goal => self.wait(pod, call.asker, goal),
            }
        }
    }

    /// Go on with the calls of these instances, and of what all share (`None`), which are settled: no step remains, or
    /// none can be taken now.
    pub(super) fn answer(&mut self, settled: BTreeSet<Option<PodUid>>) {
        for pod in settled.iter().flatten() {
            for call in self.calls.of.remove(pod).into_iter().flatten() {
                self.settle(pod, call);
            }
        }
        if !self.dirty.slice && !self.dirty.shared {
            for (pod, call) in std::mem::take(&mut self.calls.gone) {
                self.answer_gone(&pod, call);
            }
        }
        if settled.is_empty() {
            return;
        }
        for sweep in std::mem::take(&mut self.calls.sweeps) {
            self.settle_sweep(sweep, &settled);
        }
    }

    /// Go on with a call of an instance for which no step remains.
    fn settle(&mut self, pod: &PodUid, call: Call) {
        let Call { asker, goal } = call;
        let Some(phase) = self.picture.find(pod).map(|instance| instance.record.phase) else {
            return self.settle_gone(pod, Call { asker, goal });
        };
        match goal {
            Goal::Registered { reply, made } => self.settle_registered(pod, asker, reply, made, phase),
            Goal::Attached(attaching) => self.settle_attached(pod, asker, attaching),
            Goal::Detached { attaching, causes } => {
                self.finish(&asker, [attaching.reply], Err(failed(pod, "isolation", causes)));
            }
            Goal::Audited { replies, before } => {
                let report = self.report_on(pod, before);
                self.finish(&asker, replies, Ok(report));
            }
            goal @ (Goal::Gone { .. } | Goal::Undone { .. }) => self.settle_leaving(pod, Call { asker, goal }),
        }
    }

    /// Go on with a call of an instance that is gone.
    fn settle_gone(&mut self, pod: &PodUid, call: Call) {
        match call.goal {
            // Empty, and systemd has not removed it yet.
            Goal::Gone { .. } | Goal::Undone { .. } if self.picture.snapshot.instances.contains_key(pod) => {
                self.calls.of.entry(pod.clone()).or_default().push(call);
            }
            // One more look at what all share: stelia.slice's list is narrowed too.
            Goal::Gone { .. } | Goal::Undone { .. } => {
                self.dirty.shared = true;
                self.calls.gone.push((pod.clone(), call));
            }
            Goal::Registered { reply, .. } => {
                let ended = vec![Reason::of(pod, Amiss::OriginGone, "its container ended")];
                self.finish(&call.asker, [reply], Err(failed(pod, "registration", ended)));
            }
            Goal::Attached(attaching) | Goal::Detached { attaching, .. } => {
                self.finish(&call.asker, [attaching.reply], Err(no_instance(pod)));
            }
            Goal::Audited { replies, .. } => self.finish(&call.asker, replies, Err(no_instance(pod))),
        }
    }

    /// The instance is gone, and its CPUs are out of the slice's list.
    fn answer_gone(&mut self, pod: &PodUid, call: Call) {
        match call.goal {
            Goal::Gone {
                replies,
                exclusive,
                name,
                ..
            } => {
                log_deregistered(pod, name.as_ref(), &exclusive);
                self.finish(&call.asker, replies, Ok(()));
            }
            Goal::Undone { reply, causes } => {
                self.finish(&call.asker, [reply], Err(failed(pod, "registration", causes)));
            }
            _ => self.inbox.release(&call.asker),
        }
    }

    /// Calls whose deadline has passed, and audits whose time has come.
    pub(super) fn calls_in_time(&mut self, now: Instant) {
        self.later_audits_in_time(now);
        let late = |call: &Call| matches!(&call.goal, Goal::Gone { deadline, .. } if *deadline <= now);
        let mut given_up = Vec::new();
        self.calls.of.retain(|pod, calls| {
            given_up.extend(calls.extract_if(.., |call| late(call)).map(|call| (pod.clone(), call)));
            !calls.is_empty()
        });
        for (pod, call) in given_up {
            self.give_up_leaving(&pod, call);
        }
        let waiting = self.calls.waiting.iter();
        let due = waiting.filter(|(_, waiting)| waiting.iter().any(|one| one.deadline <= now));
        let due: Vec<PodUid> = due.map(|(pod, _)| pod.clone()).collect();
        for pod in due {
            self.retry_pod(&pod);
        }
    }

    /// Try again the registrations that wait for a change of kubelet's file, where it changed for their pod.
    pub(super) fn retry_waiting(&mut self, before: &Result<CpuManagerState, String>) {
        let now = &self.picture.snapshot.kubelet;
        let differs = |pod: &PodUid| match (before, now) {
            (Ok(before), Ok(now)) => {
                before.entries.get(pod) != now.entries.get(pod)
                    || before.pod_entries.get(pod) != now.pod_entries.get(pod)
                    || before.container_entries != now.container_entries
                    || before.policy != now.policy
            }
            _ => true,
        };
        let pods: Vec<PodUid> = self.calls.waiting.keys().filter(|pod| differs(pod)).cloned().collect();
        for pod in pods {
            self.retry_pod(&pod);
        }
    }

    /// Try the waiting registrations of this pod again.
    pub(super) fn retry_pod(&mut self, pod: &PodUid) {
        for waiting in self.calls.waiting.remove(pod).into_iter().flatten() {
            self.inbox.again(waiting);
        }
    }

    pub(super) fn is_registering(&self, pod: &PodUid) -> bool {
        self.picture.starting.contains(pod)
            || self
                .picture
                .find(pod)
                .is_some_and(|one| one.record.phase == Phase::Registered)
    }
}

pub(super) fn no_instance(pod: &PodUid) -> Error {
    ErrorKind::NoSuchInstance.because(format!("pod {pod} has no instance"))
}

/// The reason that what failed could not be undone either, readable by the instance's pod.
pub(super) fn undoing(pod: &PodUid, also: &Error) -> Reason {
    Reason::of(pod, Amiss::NotDone, format!("undoing it: {also}"))
}

pub(super) fn failed(pod: &PodUid, what: &str, causes: Vec<Reason>) -> Error {
    ErrorKind::Failed
        .because(format!("{what} of pod {pod}"))
        .of(pod)
        .with(causes)
}
