//! Whether a container becomes an instance, and where: what a registration reads and decides before anything is changed.

use std::time::Instant;

use stelia_api::{Error, ErrorKind};
use stelia_cpus::CpuSet;
use stelia_decide::admission::{
    CheckedClaim, HomeChoice, NewInstance, RuntimeCheck, admit, allow, check_no_partition, choose_home,
};
use stelia_decide::limits_of_scope;
use stelia_kernel::cgroup::{CgroupPath, Limits};
use stelia_kernel::clock::now_us;
use stelia_kernel::containers::partition_kind;
use stelia_kernel::oci::coping;
use stelia_koordinator::allocator::HostTables;
use stelia_kubelet::{PodName, PodUid};
use stelia_model::record::{Phase, Record};

use super::no_instance;
use crate::engine::container::{self, NOT_THE_CALLERS, Peer, RegisterRequest};
use crate::engine::read_cgroups::leftovers;
use crate::engine::read_limits::effective_limits;
use crate::engine::state::EngineState;
use crate::journal::{self, JournalPod, about};

/// What admission decided.
pub(super) enum Admitted {
    /// The pod has this instance already, for the same container.
    Existing(PodUid),
    New {
        record: Box<Record>,
        pod_name: Option<PodName>,
        limits: Box<Limits>,
    },
    /// The runtime of the pod's container must be checked first, by this unit.
    Unchecked(PodUid, String),
}

impl EngineState {
    /// Whether the container becomes an instance; `whose`: the pod, as soon as it is known.
    pub(super) fn admit(
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
        let chooses = self.picture.snapshot.source.allocates();
        let devices = if chooses {
            Some((&mut self.devices, self.picture.kubelet.path()))
        } else {
            None
        };
        let mut read = 0;
        let candidate = container::candidate(&self.system, request, origin, name.clone(), devices, &mut read);
        self.recent_looks.add(&name.pod, read, Instant::now());
        let mut candidate = candidate.map_err(own)?;
        let partition = partition_kind(&*self.system.cgroups, &candidate.origin);
        check_no_partition(partition.map_err(|error| own(Error::failed(error)))?).map_err(own)?;
        if chooses && !candidate.cpus.is_empty() {
            // The lists may have changed since the snapshot.
            let leftover = leftovers(&*self.system.cgroups, &self.picture.snapshot).map_err(Error::failed)?;
            candidate.left_behind = candidate.cpus.is_subset(&leftover);
        }
        let (snapshot, facts) = (&self.picture.snapshot, &self.picture.facts);
        let policies = &self.settings.policies;
        allow(&claim.quiet, &self.settings.quiet)?;
        let record = admit(&claim, &candidate, snapshot, facts, &policies.allocator)?;
        let record = Record {
            quiet: claim.quiet.clone(),
            registered_us: now_us(),
            ..record
        };
        let adopting = request.adopting.as_ref();
        let coping = || coping(self.system.root(), &self.system.run, &candidate.container.container_id);
        let instance = choose_home(record, &candidate, adopting, snapshot, policies, coping, runtime_check)?;
        let NewInstance { record, home } = instance;
        match home {
            HomeChoice::InPlace => {
                return Ok(Admitted::New {
                    record: Box::new(record),
                    pod_name: candidate.pod_name,
                    limits: Box::default(),
                });
            }
            HomeChoice::Unchecked(_) => {
                let unit = format!("steliad-try-runtime@{}.service", candidate.container.container_id);
                return Ok(Admitted::Unchecked(record.pod, unit));
            }
            HomeChoice::Slice(None) => {}
            HomeChoice::Slice(Some(reason)) => {
                let pod = JournalPod::new(record.pod.as_str(), candidate.pod_name.as_ref());
                about!(
                    info,
                    journal::NOT_IN_PLACE,
                    pod,
                    STELIA_REASON = reason,
                    "pod {pod} is not isolated in place but in stelia.slice: {reason}"
                );
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
        let own = |error| Error::failed(error).of(&record.pod);
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
        let isolation = known.record.home.isolation();
        if claim.isolation != isolation {
            let by = known.record.adopted.as_ref();
            let by = by
                .map(|adopted| format!(" by rule {}", adopted.rule))
                .unwrap_or_default();
            let text = format!(
                "pod {pod} has an instance already{by}, with isolation {:?}",
                isolation.name()
            );
            return Err(ErrorKind::InstanceExists.because(text).lasting());
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
        let nodes_of = |cpus: &CpuSet| HostTables::new(&self.picture.snapshot.topology).nodes_of(cpus);
        let schedule = &claim.request.schedule;
        let contradicts = allocation.and_then(|_| schedule.contradicts(&known.record.entry, nodes_of));
        if let Some(text) = contradicts {
            return Err(ErrorKind::CpusetMismatch.because(text).lasting());
        }
        match known.record.phase {
            Phase::Leaving => Err(ErrorKind::InstanceExists.because(format!("the instance of pod {pod} is leaving"))),
            _ => Ok(Admitted::Existing(pod.clone())),
        }
    }
}
