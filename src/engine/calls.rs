//! Calls that wait: for an instance to be where it was asked to be, for what may pass in a moment, or for everything.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use stelia_api::{Amiss, Error, ErrorKind, Reason};
use stelia_cpus::CpuSet;
use stelia_kubelet::{CpuManagerState, PodUid};
use stelia_node::cgroup::CgroupPath;
use stelia_node::holder::Hold;
use stelia_record::Phase;

use super::attach::Attaching;
use super::handle::{Command, Reply};
use super::inbox::Asker;
use super::pass::Numbers;
use super::reconcile::{Round, RoundAnswer};
use super::register::Waiting;
use super::task::Engine;
use super::{Report, Trigger};

/// How long a caller waits for its instance to be gone. busctl gives up after 25 s.
pub(super) const GONE_WITHIN: Duration = Duration::from_secs(20);

/// What a caller waits for.
pub(super) enum Goal {
    /// Everything but the anchor is in float.
    Registered {
        reply: Reply<(PodUid, CgroupPath)>,
        /// What keeps the scope until then.
        holder: Option<Box<dyn Hold>>,
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
        deadline: Instant,
    },
    /// It was looked at.
    Audited {
        replies: Vec<Reply<Report>>,
        before: Numbers,
    },
}

/// One call under way.
pub(super) struct Call {
    pub(super) asker: Asker,
    pub(super) goal: Goal,
}

/// The calls under way.
#[derive(Default)]
pub(super) struct Calls {
    of: BTreeMap<PodUid, Vec<Call>>,
    /// Instances that are gone, and the slice's list not narrowed yet.
    parting: Vec<(PodUid, Call)>,
    pub(super) waiting: BTreeMap<PodUid, Vec<Waiting>>,
    pub(super) rounds: Vec<Round>,
}

impl Calls {
    /// When a call is to be looked at although nothing happens.
    pub(super) fn next(&self) -> Option<Instant> {
        let goals = self.of.values().flatten().filter_map(|call| match &call.goal {
            Goal::Gone { deadline, .. } => Some(*deadline),
            _ => None,
        });
        let waiting = self.waiting.values().flatten().map(|waiting| waiting.deadline);
        goals.chain(waiting).min()
    }
}

impl Engine {
    /// A call comes in.
    pub(super) fn come_in(&mut self, asker: Asker, command: Command) {
        // Who asks again for what is under way already waits with the first.
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

    /// Begin with a call: what it says is looked at and written down; the turns do the rest.
    pub(super) fn begin(&mut self, asker: Asker, command: Command) {
        self.trigger.get_or_insert(Trigger::Call);
        match command {
            Command::Register(request, reply) => self.register(asker, *request, reply),
            Command::Attach(request, reply) => self.attach(asker, *request, reply),
            Command::Deregister(pod, replies) => self.deregister(asker, &pod, replies),
            Command::Audit(pod, replies) => {
                if self.picture.find(&pod).is_none() {
                    for reply in replies {
                        let _ = reply.send(Err(no_instance(&pod)));
                    }
                    return self.inbox.release(&asker);
                }
                // It is looked at as by the audit: a rest is not cut short, or a tenant could ask for ever.
                self.dirty.audit.insert(pod.clone());
                let before = self.numbers.get(&pod).copied().unwrap_or_default();
                self.wait(&pod, asker, Goal::Audited { replies, before });
            }
            Command::Reconcile(replies) => {
                self.audit(Trigger::Call);
                self.round(RoundAnswer::Reconcile(replies));
                self.inbox.release(&asker);
            }
            Command::Preview(reply) => {
                let _ = reply.send(self.preview());
                self.inbox.release(&asker);
            }
            Command::Reload(settings, reply) => {
                self.reload(*settings);
                self.round(RoundAnswer::Reload(reply));
                self.inbox.release(&asker);
            }
            Command::Rebind(request, reply) => {
                let _ = reply.send(self.rebind(&request));
                self.inbox.release(&asker);
            }
        }
    }

    /// A caller waits.
    pub(super) fn wait(&mut self, pod: &PodUid, asker: Asker, goal: Goal) {
        self.calls.of.entry(pod.clone()).or_default().push(Call { asker, goal });
    }

    /// Keep the process that keeps a new scope until its registration is answered.
    pub(super) fn hold(&mut self, pod: &PodUid, keeps: Box<dyn Hold>) {
        for call in self.calls.of.get_mut(pod).into_iter().flatten() {
            if let Goal::Registered { holder, .. } = &mut call.goal {
                *holder = Some(keeps);
                return;
            }
        }
    }

    /// A registration came to nothing before anything was moved.
    pub(super) fn refuse_registration(&mut self, pod: &PodUid, refusal: &Error) {
        for call in self.calls.of.remove(pod).into_iter().flatten() {
            match call.goal {
                Goal::Registered { reply, .. } => {
                    let _ = reply.send(Err(refusal.clone()));
                    self.inbox.release(&call.asker);
                }
                goal => self.wait(pod, call.asker, goal),
            }
        }
    }

    /// Those instances, and what all share (`None`), are settled: nothing is left to do, or nothing more can be done.
    pub(super) fn answer(&mut self, settled: BTreeSet<Option<PodUid>>) {
        for pod in settled.iter().flatten() {
            for call in self.calls.of.remove(pod).into_iter().flatten() {
                self.settle(pod, call);
            }
        }
        if !self.dirty.slice && !self.dirty.shared {
            for (pod, call) in std::mem::take(&mut self.calls.parting) {
                self.part(&pod, call);
            }
        }
        if settled.is_empty() {
            return;
        }
        for round in std::mem::take(&mut self.calls.rounds) {
            self.settle_round(round, &settled);
        }
    }

    /// An instance is settled: what is that to a call?
    fn settle(&mut self, pod: &PodUid, call: Call) {
        let Call { asker, goal } = call;
        let Some(phase) = self.picture.find(pod).map(|instance| instance.record.phase) else {
            return self.settle_gone(pod, Call { asker, goal });
        };
        match goal {
            Goal::Registered { reply, holder } => self.settle_registered(pod, asker, reply, holder, phase),
            Goal::Attached(attaching) => self.settle_attached(pod, asker, attaching),
            Goal::Detached { attaching, causes } => {
                let _ = attaching.reply.send(Err(failed(pod, "isolation", causes)));
                self.inbox.release(&asker);
            }
            Goal::Audited { replies, before } => {
                let report = self.report_on(pod, before);
                for reply in replies {
                    let _ = reply.send(Ok(report.clone()));
                }
                self.inbox.release(&asker);
            }
            goal @ (Goal::Gone { .. } | Goal::Undone { .. }) => self.settle_leaving(pod, Call { asker, goal }),
        }
    }

    /// The instance is gone: what is that to a call?
    fn settle_gone(&mut self, pod: &PodUid, call: Call) {
        match call.goal {
            Goal::Gone { .. } | Goal::Undone { .. } => {
                let here = self.picture.snapshot.instances.contains_key(pod);
                match here {
                    // Empty, and systemd has not removed it yet.
                    true => self.calls.of.entry(pod.clone()).or_default().push(call),
                    // One more look at what all share: stelia.slice's list is narrowed too.
                    false => {
                        self.dirty.shared = true;
                        self.calls.parting.push((pod.clone(), call));
                    }
                }
            }
            Goal::Registered { reply, .. } => {
                let ended = vec![Reason::of(pod, Amiss::OriginGone, "its container ended")];
                let _ = reply.send(Err(failed(pod, "registration", ended)));
                self.inbox.release(&call.asker);
            }
            Goal::Attached(attaching) | Goal::Detached { attaching, .. } => {
                let _ = attaching.reply.send(Err(no_instance(pod)));
                self.inbox.release(&call.asker);
            }
            Goal::Audited { replies, .. } => {
                for reply in replies {
                    let _ = reply.send(Err(no_instance(pod)));
                }
                self.inbox.release(&call.asker);
            }
        }
    }

    /// An instance is gone, and its CPUs are everybody's.
    fn part(&mut self, pod: &PodUid, call: Call) {
        match call.goal {
            Goal::Gone { replies, exclusive, .. } => {
                self.tell_deregistered(pod, &exclusive);
                for reply in replies {
                    let _ = reply.send(Ok(()));
                }
            }
            Goal::Undone { reply, causes } => drop(reply.send(Err(failed(pod, "registration", causes)))),
            _ => {}
        }
        self.inbox.release(&call.asker);
    }

    /// Deadlines: of those who leave, and of those who wait for what may pass.
    pub(super) fn calls_in_time(&mut self, now: Instant) {
        let late = |call: &Call| matches!(&call.goal, Goal::Gone { deadline, .. } if *deadline <= now);
        let pods: Vec<PodUid> = self
            .calls
            .of
            .iter()
            .filter(|(_, calls)| calls.iter().any(late))
            .map(|(pod, _)| pod.clone())
            .collect();
        for pod in pods {
            let (late, rest): (Vec<Call>, Vec<Call>) = self
                .calls
                .of
                .remove(&pod)
                .into_iter()
                .flatten()
                .partition(|call| late(call));
            if !rest.is_empty() {
                self.calls.of.insert(pod.clone(), rest);
            }
            for call in late {
                self.give_up_leaving(&pod, call);
            }
        }
        let due: Vec<PodUid> = self
            .calls
            .waiting
            .iter()
            .filter(|(_, waiting)| waiting.iter().any(|one| one.deadline <= now))
            .map(|(pod, _)| pod.clone())
            .collect();
        for pod in due {
            self.retry_pod(&pod);
        }
    }

    /// kubelet's file says something else: whoever waited for its word on one's own pod is tried again.
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

    /// Whoever waits for something of this pod is tried again.
    pub(super) fn retry_pod(&mut self, pod: &PodUid) {
        for waiting in self.calls.waiting.remove(pod).into_iter().flatten() {
            self.inbox.again(waiting);
        }
    }

    /// The phase an instance that is asked about again is in, for one that is being registered.
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

/// What failed could not be undone either; that is the instance's own matter.
pub(super) fn undoing(pod: &PodUid, also: &Error) -> Reason {
    Reason::of(pod, Amiss::NotDone, format!("undoing it: {also}"))
}

pub(super) fn failed(pod: &PodUid, what: &str, causes: Vec<Reason>) -> Error {
    ErrorKind::Failed
        .because(format!("{what} of pod {pod}"))
        .of(pod)
        .with(causes)
}
