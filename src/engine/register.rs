//! Registering: admission, the scope, the record. The record is written before a process is moved, so that a daemon which
//! starts in between goes on.

use std::time::{Duration, Instant};

use stelia_adopt::Movable;
use stelia_allocator::{Allocation, Exclusivity, Host, Qos};
use stelia_api::reason::joined;
use stelia_api::{Error, ErrorKind};
use stelia_kubelet::{PodName, PodUid};
use stelia_node::cgroup::{CgroupPath, Limits};
use stelia_node::holder::Hold;
use stelia_record::{Adopted, Phase, Record};
use stelia_settings::{AdoptPartition, AdoptPlacement, AdoptTree, TreeHome};

use super::apply::now_us;
use super::calls::{Goal, Made, failed, no_instance, undoing};
use super::container::{self, NOT_THE_CALLERS, Peer, RegisterRequest};
use super::handle::Reply;
use super::home::{Home, RuntimeCheck};
use super::inbox::Asker;
use super::limits::effective_limits;
use super::task::Engine;
use super::{in_place, store};
use crate::decide::admission::{CheckedClaim, admit, allow};
use crate::decide::limits_of_scope;
use crate::journal::{self, Pod, about};

/// A registration whose refusal may pass: it waits for kubelet's second write, or an old scope's end.
pub(super) struct Waiting {
    pub(super) asker: Asker,
    pub(super) request: RegisterRequest,
    pub(super) reply: Reply<(PodUid, CgroupPath)>,
    pub(super) deadline: Instant,
    /// How the check of the container's runtime ended, if the registration waited for one.
    pub(super) runtime_check: Option<RuntimeCheck>,
}

/// How long a runtime's check may take; its unit has the same bound.
const RUNTIME_CHECK_TIMEOUT: Duration = Duration::from_secs(60);

enum Admitted {
    /// The pod has this instance already, for the same container.
    Known(PodUid),
    New {
        record: Box<Record>,
        pod_name: Option<PodName>,
        limits: Box<Limits>,
    },
    /// The runtime of the pod's container is to be tried first, by this unit.
    Untried(PodUid, String),
}

impl Engine {
    pub(super) fn register(&mut self, asker: Asker, request: RegisterRequest, reply: Reply<(PodUid, CgroupPath)>) {
        let deadline = Instant::now() + request.timeout;
        self.try_to_register(Waiting {
            asker,
            request,
            reply,
            deadline,
            runtime_check: None,
        });
    }

    /// Register, refuse, or wait where the cause may pass.
    pub(super) fn try_to_register(&mut self, waiting: Waiting) {
        if waiting.reply.is_closed() {
            return self.inbox.release(&waiting.asker);
        }
        if let Some(own) = &waiting.asker {
            // Admission reads as much as a look.
            self.recent_looks.add(own, Instant::now());
        }
        // kubelet may have written since the last event was read.
        self.dirty.kubelet = true;
        // The cgroup of all pods may be newer than the last look.
        let pods = self.picture.snapshot.kubepods.as_ref();
        self.dirty.slice |= pods.is_none_or(|level| level.exclusive.is_none());
        let mut found = Default::default();
        self.dirty.everyone |= self.look_at_node(&mut found);
        self.dirty.plan.extend(found);
        let mut pod = None;
        match self.admit(&waiting.request, waiting.runtime_check.as_ref(), &mut pod) {
            Ok(Admitted::Known(pod)) if waiting.request.caller.is_some() && self.is_adopted(&pod) => {
                let taken_over = self.take_over(&pod);
                self.finish(&waiting.asker, [waiting.reply], taken_over);
            }
            Ok(Admitted::Known(pod)) if self.is_registering(&pod) => {
                self.dirty.changed(pod.clone());
                let (reply, made) = (waiting.reply, None);
                self.wait(&pod, waiting.asker, Goal::Registered { reply, made });
            }
            Ok(Admitted::Known(pod)) => {
                let known = self.picture.find(&pod).map(|known| known.scope().clone());
                let scope = known.unwrap_or_else(|| CgroupPath::slice().child(&pod.scope()));
                self.finish(&waiting.asker, [waiting.reply], Ok((pod, scope)));
            }
            Ok(Admitted::New {
                record,
                pod_name,
                limits,
            }) => {
                let pod = record.pod.clone();
                let mut made = None;
                if record.home == TreeHome::InPlace {
                    if let Err(refusal) = self.begin_in_place(&record, pod_name) {
                        return self.finish(&waiting.asker, [waiting.reply], Err(refusal));
                    }
                    made = Some(Made::InPlace);
                } else {
                    self.systemd_calls.start(&self.system, &record, *limits);
                    self.dirty.everyone |= self.picture.admit(&self.settings.policies, *record, pod_name);
                }
                let reply = waiting.reply;
                self.wait(&pod, waiting.asker, Goal::Registered { reply, made });
            }
            Ok(Admitted::Untried(pod, unit)) => {
                if !self.systemd_calls.has(&unit) {
                    self.systemd_calls.try_runtime(&self.system, pod.clone(), unit);
                }
                let deadline = Instant::now() + RUNTIME_CHECK_TIMEOUT;
                let waiting = Waiting { deadline, ..waiting };
                self.calls.waiting.entry(pod).or_default().push(waiting);
            }
            Err(refusal) => match pod {
                Some(pod) if refusal.may_pass && Instant::now() < waiting.deadline => {
                    self.calls.waiting.entry(pod).or_default().push(waiting);
                }
                _ => self.finish(&waiting.asker, [waiting.reply], Err(refusal)),
            },
        }
    }

    /// Whether the container becomes an instance; `whose`: the pod, as soon as it is known.
    fn admit(
        &mut self,
        request: &RegisterRequest,
        runtime_check: Option<&RuntimeCheck>,
        whose: &mut Option<PodUid>,
    ) -> Result<Admitted, Error> {
        let claim = request.claim.check()?;
        if let Some((_, Peer::Instance(pod))) = &request.caller {
            return self.admit_again(pod, &claim);
        }
        let (origin, name) = container::find_origin(&self.system, request, &claim)?;
        *whose = Some(name.pod.clone());
        let known = self.picture.snapshot.instances.get(&name.pod);
        let known = known.filter(|known| known.populated || self.picture.starting.contains(&name.pod));
        if known.is_some_and(|known| known.record.origin == origin) {
            return self.admit_again(&name.pod, &claim);
        }
        let own = |refusal: Error| refusal.of(&name.pod);
        let candidate = container::candidate(&self.system, request, origin, name.clone()).map_err(own)?;
        let (snapshot, facts) = (&self.picture.snapshot, &self.picture.facts);
        allow(&claim.quiet, &self.settings.quiet)?;
        let mut record = admit(&claim, &candidate, snapshot, facts, &self.settings.policies.allocator)?;
        record.quiet = claim.quiet.clone();
        record.registered_us = now_us();
        let policies = &self.settings.policies;
        let rule = request.adopting.as_ref().map(|adopting| &adopting.rule);
        record.adopted = rule.map(|rule| Adopted {
            rule: rule.name.clone(),
            keeps: rule.placement == AdoptPlacement::Keep,
            contained: rule.partition == AdoptPartition::Member,
        });
        let wanted = match rule.map(|rule| rule.tree) {
            None => policies.tree,
            Some(AdoptTree::Slice) => TreeHome::Slice,
            Some(AdoptTree::Auto | AdoptTree::InPlace) => TreeHome::InPlace,
        };
        let in_place = Record {
            home: TreeHome::InPlace,
            anchor: None,
            ..record.clone()
        };
        // With its vCPUs, because their pins decide which of its CPUs are spare.
        let in_place = match &request.adopting {
            Some(adopting) => self.with_vcpus(in_place, adopting),
            None => in_place,
        };
        match Home::choose(
            &self.system,
            &self.picture.snapshot,
            policies,
            wanted,
            &in_place,
            runtime_check,
        ) {
            Home::InPlace => {
                return Ok(Admitted::New {
                    record: Box::new(in_place),
                    pod_name: candidate.pod_name,
                    limits: Box::default(),
                });
            }
            Home::Untried(unit) => return Ok(Admitted::Untried(record.pod, unit)),
            Home::Slice(reason) => {
                if let Some(rule) = rule {
                    let movable = Movable {
                        rule,
                        housekeeping: candidate.housekeeping,
                        spare: in_place.spare.clone(),
                        has_anchor: record.anchor.is_some(),
                    };
                    let refused = movable.in_slice(reason.as_deref());
                    refused.map_err(|(kind, text)| kind.because(text).of(&record.pod))?;
                }
                if let Some(reason) = reason {
                    let pod = Pod::new(record.pod.as_str(), candidate.pod_name.as_ref());
                    about!(
                        info,
                        journal::NOT_IN_PLACE,
                        pod,
                        STELIA_REASON = reason,
                        "pod {pod} is not isolated in place but in stelia.slice: {reason}"
                    );
                }
            }
        }
        let scope = CgroupPath::slice().child(&record.pod.scope());
        if self.system.cgroups.exists(&scope) {
            // It may be empty and left by a daemon that died.
            self.dirty.unknown.insert(record.pod.clone());
            let text = format!(
                "{scope} exists: the former instance of pod {} has not ended yet",
                record.pod
            );
            return Err(ErrorKind::InstanceExists.because(text));
        }
        // systemd has yet to stop the former scope, whose cgroup is gone: it must not stop the new one instead.
        if self.systemd_calls.has(scope.name()) {
            let text = format!("systemd has not stopped the former {} yet", scope.name());
            return Err(ErrorKind::InstanceExists.because(text));
        }
        let own = |error| Error::from(error).of(&record.pod);
        let limits = effective_limits(&*self.system.cgroups, &record, &self.picture.limit_files).map_err(own)?;
        let limits = limits_of_scope(&record, &limits.unwrap_or_default());
        Ok(Admitted::New {
            record: Box::new(record),
            pod_name: candidate.pod_name,
            limits: Box::new(limits),
        })
    }

    /// The same container asks again.
    fn admit_again(&self, pod: &PodUid, claim: &CheckedClaim) -> Result<Admitted, Error> {
        let known = self
            .picture
            .snapshot
            .instances
            .get(pod)
            .ok_or_else(|| no_instance(pod))?;
        if claim.pod.as_ref().is_some_and(|claimed| claimed != pod) {
            return Err(ErrorKind::NoSuchPod.because(NOT_THE_CALLERS));
        }
        if let Some(claimed) = &claim.cpuset
            && *claimed != known.record.entry
        {
            let text = format!("pod {pod} has the CPUs {}, not {claimed}", known.record.entry);
            return Err(ErrorKind::CpusetMismatch.because(text));
        }
        let allocation = known.record.allocation.as_ref();
        if let Some(option) = allocation.and_then(|allocation| allocation.differs(&claim.request)) {
            let text = format!("pod {pod} has an instance already, registered with another {option}");
            return Err(ErrorKind::InstanceExists.because(text));
        }
        // CPUs that kubelet gave may have changed by a resize: then its file counts, not what the scheduler chose.
        let host = Host::new(&self.picture.snapshot.topology);
        let schedule = &claim.request.schedule;
        let contradicts = allocation.and_then(|_| schedule.contradicts(&host, &known.record.entry));
        if let Some(text) = contradicts {
            return Err(ErrorKind::CpusetMismatch.because(text).lasting());
        }
        match known.record.phase {
            Phase::Leaving => Err(ErrorKind::InstanceExists.because(format!("the instance of pod {pod} is leaving"))),
            _ => Ok(Admitted::Known(pod.clone())),
        }
    }

    /// Write the record on the pod's cgroup: the instance is made.
    fn begin_in_place(&mut self, record: &Record, pod_name: Option<PodName>) -> Result<(), Error> {
        let pod = &record.pod;
        in_place::register(&self.system, record).map_err(|error| error.of(pod))?;
        self.dirty.everyone |= self
            .picture
            .admit_in_place(&self.settings.policies, record.clone(), pod_name);
        self.watcher.forget(pod);
        self.dirty.made(pod.clone());
        self.dirty.slice = true;
        self.dirty.wrote_shared = true;
        Ok(())
    }

    /// systemd answered whether the scope was made.
    pub(super) fn started(&mut self, pod: &PodUid, result: Result<Box<dyn Hold>, Error>) {
        self.picture.starting.remove(pod);
        let written = result.and_then(|holder| {
            let instance = self
                .picture
                .snapshot
                .instances
                .get(pod)
                .ok_or_else(|| no_instance(pod))?;
            store::write(&self.system, instance.tree.place(), None, &instance.record)
                .map_err(|error| Error::from(error).of(pod))?;
            Ok(holder)
        });
        match written {
            Ok(holder) => {
                self.watcher.forget(pod);
                self.dirty.made(pod.clone());
                self.dirty.slice = true;
                self.dirty.wrote_shared = true;
                self.hold(pod, holder);
            }
            Err(refusal) => {
                self.dirty.everyone |= self.picture.remove(&self.settings.policies, pod);
                self.refuse_registration(pod, &refusal);
            }
        }
    }

    /// Everything but the anchor is in float, or it cannot be.
    pub(super) fn settle_registered(
        &mut self,
        pod: &PodUid,
        asker: Asker,
        reply: Reply<(PodUid, CgroupPath)>,
        made: Option<Made>,
        phase: Phase,
    ) {
        let Some(instance) = self.picture.find(pod) else { return };
        let scope = instance.scope().clone();
        let first = made.is_some();
        if phase >= Phase::Floating && phase != Phase::Leaving {
            if first {
                self.log_registered(pod);
            }
            return self.finish(&asker, [reply], Ok((pod.clone(), scope)));
        }
        let mut causes = self.amiss(pod);
        if !first || phase == Phase::Leaving {
            return self.finish(&asker, [reply], Err(failed(pod, "registration", causes)));
        }
        // A registration that cannot be completed is undone.
        let cause = joined(&causes);
        let named = self.named(pod);
        about!(
            warn,
            journal::REGISTRATION_FAILED,
            named,
            STELIA_REASON = cause,
            "registration of pod {named} failed: {cause}"
        );
        match self.leave(pod) {
            Ok(()) => self.wait(pod, asker, Goal::Undone { reply, causes }),
            Err(also) => {
                causes.push(undoing(pod, &also));
                self.finish(&asker, [reply], Err(failed(pod, "registration", causes)));
            }
        }
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
fn log_downgraded_policy(pod: Pod<'_>, allocation: Option<&Allocation>) {
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
