//! What an instance waits for before it gets its CPUs or enters its next phase.

use std::collections::BTreeMap;

use stelia_kubelet::PodUid;
use stelia_model::record::Phase;

use super::outside_units::{restrict, withholds_any};
use super::shared_lists::SharedLists;
use super::{Step, ThreadPlacement, limits, thread_placement};
use crate::home::Above;
use crate::{Assessment, Derived, Instance, Snapshot};

/// What an instance waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Another instance's cgroups still have its CPUs. `leaves`: that one is about to leave them; where kubelet's file gives the CPUs to
    /// both it is not.
    OtherInstance { leaves: bool },
    /// The exclusive list of the other home still has its CPUs, without an instance that can be used.
    ListBeside(Above),
    /// Units outside stelia.slice are still on its CPUs.
    OutsideUnits,
    /// Its scope has no limits of huge pages yet.
    HugePages,
}

impl Wait {
    /// Whether a step that all share, or one of another instance, ends it.
    pub fn others_end_it(self) -> bool {
        !matches!(self, Self::OtherInstance { leaves: false } | Self::ListBeside(_))
    }

    /// The fact, for the operator and for the pod itself.
    pub fn text(self) -> String {
        match self {
            Self::OtherInstance { .. } => "another VM's cgroups still have the VM's CPUs".to_owned(),
            Self::ListBeside(other) => format!("cpuset.cpus.exclusive of {} still has the VM's CPUs", other.name()),
            Self::OutsideUnits => "units outside stelia.slice still run on the VM's CPUs".to_owned(),
            Self::HugePages => "the scope has no limits of huge pages yet".to_owned(),
        }
    }
}

/// The wait of each assessed instance that cannot go on now.
pub fn waits(snapshot: &Snapshot, facts: &Derived, assessed: &BTreeMap<PodUid, Assessment>) -> BTreeMap<PodUid, Wait> {
    // Without an instance to plan for, what all share need not be compared.
    if assessed.is_empty() {
        return BTreeMap::new();
    }
    let node = NodeNow {
        snapshot,
        facts,
        lists: SharedLists::of(snapshot, facts.totals()),
        restrictions: restrict(snapshot, facts),
    };
    let instances = &snapshot.instances;
    let live = assessed.iter().filter_map(|(pod, assessment)| {
        let instance = instances.get(pod).filter(|instance| instance.populated)?;
        Some((pod.clone(), node.wait_of(instance, assessment)?))
    });
    live.collect()
}

/// What all instances share, as far as they wait for it.
struct NodeNow<'a> {
    snapshot: &'a Snapshot,
    facts: &'a Derived,
    lists: SharedLists<'a>,
    restrictions: Vec<Step>,
}

impl NodeNow<'_> {
    fn wait_of(&self, instance: &Instance, assessment: &Assessment) -> Option<Wait> {
        match thread_placement(instance, assessment.must_float) {
            ThreadPlacement::Hold => self.wait_for_cpus(instance, assessment),
            _ if instance.record.phase == Phase::Registered && !limits::huge_pages_are_limited(instance) => {
                Some(Wait::HugePages)
            }
            _ => None,
        }
    }

    fn wait_for_cpus(&self, instance: &Instance, assessment: &Assessment) -> Option<Wait> {
        if let Some(other) = &assessment.blocked {
            return Some(Wait::OtherInstance { leaves: other.leaves });
        }
        if !instance.record.has_partition() {
            let withholds_its =
                |step: &Step| withholds_any(self.snapshot, self.facts, step, &instance.record.exclusive);
            return self
                .restrictions
                .iter()
                .any(withholds_its)
                .then_some(Wait::OutsideUnits);
        }
        let beside = instance.above().other();
        let is_there = !instance.needed().is_disjoint(self.lists.remaining(beside));
        is_there.then_some(Wait::ListBeside(beside))
    }
}
