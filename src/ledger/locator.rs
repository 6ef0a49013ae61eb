//! For which VMs a reading also has where their parts are: for all once an hour or less often, with the entry of all seats, and in between for those
//! that are new or changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stelia_api::located::Located;
use stelia_kubelet::PodUid;
use stelia_ledger::recorder::Vm;
use stelia_model as model;
use tokio::sync::watch;

use super::counter_reader::CounterReader;
use super::queue::ReadReason;
use super::target::{Targets, VmTarget};

pub(super) struct Locator {
    views: watch::Receiver<Arc<model::Node>>,
    /// The target of each VM when its parts were last read.
    located: BTreeMap<PodUid, Arc<VmTarget>>,
}

impl Locator {
    pub(super) fn new(views: watch::Receiver<Arc<model::Node>>) -> Self {
        Self {
            views,
            located: BTreeMap::new(),
        }
    }

    /// Read where the parts of VMs are. `all`: of all that have CPUs of their own and whose threads have settled. `reader` is also given the last
    /// record of each.
    pub(super) fn locate(
        &mut self,
        (reason, all): (ReadReason, bool),
        targets: &Targets,
        settling: &BTreeSet<String>,
        (reader, recorded): (&mut dyn CounterReader, &BTreeMap<String, Vec<Located>>),
        vms: &mut BTreeMap<String, Vm>,
    ) {
        self.located.retain(|pod, _| targets.contains_key(pod));
        let wanted = targets.iter().filter(|(pod, vm)| {
            let changed = || reason == ReadReason::Change && self.located.get(*pod) != Some(*vm);
            !vm.seats.is_empty() && !settling.contains(pod.as_str()) && (all || changed())
        });
        let wanted: BTreeSet<PodUid> = wanted.map(|(pod, _)| pod.clone()).collect();
        if wanted.is_empty() {
            return;
        }
        let view = self.views.borrow().clone();
        for (pod, parts) in reader.located(&view, &wanted, recorded) {
            if let (Some(vm), Some(target)) = (vms.get_mut(pod.as_str()), targets.get(&pod)) {
                vm.located = Some(parts);
                self.located.insert(pod, target.clone());
            }
        }
    }

    /// Where VMs are was not written: it is read again with the next change.
    pub(super) fn forget(&mut self) {
        self.located.clear();
    }
}
