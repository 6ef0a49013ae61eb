//! Laws of kubelet's assignments, which hold whenever nothing is left to do.

use stelia_api::{Reason, ReasonCode};

use super::*;

impl Node {
    /// What the record says is what kubelet's file says, or it is said why not; and who could have its CPUs has them.
    pub(super) fn check_entitlement(&self, snapshot: &stelia_decide::Snapshot) {
        let Ok(state) = &snapshot.kubelet else { return };
        for instance in snapshot.live() {
            let (record, assessment) = (&instance.record, snapshot.assess(&self.settings.policies, instance));
            let entry = state
                .entries
                .get(&record.pod)
                .and_then(|own| own.get(&record.container));
            let follows = record.allocation.is_some() || entry == Some(&record.entry);
            // Where steliad chooses, a VM keeps what kubelet gave it before.
            let keeps = entry.is_none() && snapshot.source == stelia_koordinator::allocator::CpuSource::Steliad;
            let said = |reason: &Reason| matches!(reason.code, ReasonCode::Evicted | ReasonCode::NoAssignment);
            assert!(
                follows || keeps || assessment.degraded.iter().any(said),
                "{} has {}, kubelet's entry is {entry:?}",
                record.pod,
                record.entry
            );
            assert!(
                assessment.eviction.as_ref().is_none_or(|eviction| eviction.lasts),
                "{} could leave its CPUs and have others: {:?}",
                record.pod,
                assessment.eviction
            );
            assert_eq!(assessment.blocked, None, "{}", record.pod);
        }
    }

    /// No task of a VM's container runs on CPUs that kubelet gave to another pod, whether that is a VM or not.
    pub(super) fn check_other_pods(&self, snapshot: &stelia_decide::Snapshot) {
        let Ok(state) = &snapshot.kubelet else { return };
        // What is in a container whose own cgroup is the partition is never confined. Where none of the CPUs that kubelet gave it is left to it,
        // because all are offline or another pod's, it runs where the kernel lets it, as without steliad.
        let is_left = |instance: &&stelia_decide::Instance| {
            let must_float = snapshot.assess(&self.settings.policies, instance).must_float;
            instance.record.home != Home::Container || !must_float
        };
        for instance in snapshot.live().filter(is_left) {
            let record = &instance.record;
            let others = state.entries.iter().filter(|(pod, _)| **pod != record.pod);
            let others: CpuSet = others
                .flat_map(|(_, own)| own.values())
                .flat_map(CpuSet::iter)
                .collect();
            let own = state
                .entries
                .get(&record.pod)
                .and_then(|own| own.get(&record.container));
            // As long as the runtime has not written a container's new CPUs, its own cpuset has those of others.
            let levels = stelia_kernel::containers::container_levels(&record.origin);
            let has_others = |level: &CgroupPath| {
                let list = self.model.read(level, File::Cpus).unwrap_or_default();
                !cpus(&list).is_disjoint(&others)
            };
            let outdated = levels.iter().any(has_others);
            for (tid, cgroup, runs_on) in self.model.tasks() {
                let in_origin = cgroup == record.origin;
                let is_its = in_origin || cgroup.is_within(instance.scope());
                let by_kubelet = outdated && (in_origin || instance.tree.pod().is_some());
                if is_its && !by_kubelet {
                    let mine = own.cloned().unwrap_or_default();
                    let meets = runs_on.intersection(&others).difference(&mine);
                    assert!(
                        meets.is_empty(),
                        "thread {tid} of {cgroup} runs on {meets}, other pods' CPUs"
                    );
                }
            }
        }
    }
}
