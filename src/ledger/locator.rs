//! For which VMs a reading also has where their parts are: for all once an hour or less often, with the entry of all seats, and in between for those
//! that are new or changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stelia_cpus::located::Located;
use stelia_kubelet::PodUid;
use stelia_ledger::recorder::RecordedVm;
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
        vms: &mut BTreeMap<String, RecordedVm>,
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
            if let Some(vm) = vms.get_mut(pod.as_str()) {
                vm.located = Some(parts);
            }
        }
        // Also those that could not be read: they are read again when all are, and not at every change.
        let read = targets.iter().filter(|(pod, _)| wanted.contains(*pod));
        self.located
            .extend(read.map(|(pod, target)| (pod.clone(), target.clone())));
    }

    /// Where VMs are was not written: it is read again with the next change.
    pub(super) fn forget(&mut self) {
        self.located.clear();
    }
}

#[cfg(test)]
mod tests {
    use stelia_api::State;
    use stelia_kernel::cgroup::CgroupPath;
    use stelia_ledger::sample::{CounterSample, Seat};

    use super::*;

    /// Locates the VMs of these pods alone, and keeps which it was asked for.
    #[derive(Default)]
    struct Fake {
        known: BTreeSet<PodUid>,
        asked: Vec<BTreeSet<PodUid>>,
    }

    impl CounterReader for Fake {
        fn read(&mut self, _: &BTreeSet<Seat>) -> Result<CounterSample, String> {
            Ok(CounterSample::default())
        }

        fn clocks(&self) -> (u64, u64) {
            (0, 0)
        }

        fn devices(&self, _: &CgroupPath) -> BTreeSet<String> {
            BTreeSet::new()
        }

        fn located(
            &mut self,
            _: &model::Node,
            pods: &BTreeSet<PodUid>,
            _: &BTreeMap<String, Vec<Located>>,
        ) -> BTreeMap<PodUid, Vec<Located>> {
            self.asked.push(pods.clone());
            let known = pods.intersection(&self.known);
            known.map(|pod| (pod.clone(), vec![Located::default()])).collect()
        }
    }

    #[test]
    fn a_vm_that_could_not_be_located_is_tried_again_when_all_are_read() {
        let pods = [
            "00000000-0000-4000-8000-000000000001",
            "00000000-0000-4000-8000-000000000002",
        ];
        let pods = pods.map(|pod| PodUid::parse(pod).unwrap());
        let target = |cpu: u32| {
            let seat = Seat {
                cpus: [cpu].into_iter().collect(),
                threads: Vec::new(),
                cgroup: None,
            };
            Arc::new(VmTarget {
                name: String::new(),
                state: State::Isolated,
                seats: [seat].into(),
                origin: CgroupPath::root(),
                settled_us: 0,
                is_throttled: false,
            })
        };
        let mut targets: Targets = pods.iter().cloned().zip([target(2), target(3)]).collect();
        let views = watch::channel(Arc::new(model::Node::default())).1;
        let mut locator = Locator::new(views);
        let mut reader = Fake {
            known: [pods[0].clone()].into(),
            ..Fake::default()
        };
        let (settling, recorded) = (BTreeSet::new(), BTreeMap::new());
        let mut vms: BTreeMap<String, RecordedVm> = pods
            .iter()
            .map(|pod| (pod.to_string(), RecordedVm::default()))
            .collect();
        let mut locate = |locator: &mut Locator, targets: &Targets, all| {
            let reason = (ReadReason::Change, all);
            locator.locate(reason, targets, &settling, (&mut reader, &recorded), &mut vms);
            reader.asked.pop()
        };
        let both: BTreeSet<PodUid> = pods.iter().cloned().collect();
        assert_eq!(
            locate(&mut locator, &targets, false),
            Some(both.clone()),
            "both are new"
        );
        assert_eq!(locate(&mut locator, &targets, false), None);
        assert_eq!(locate(&mut locator, &targets, true), Some(both));
        targets.insert(pods[1].clone(), target(4));
        assert_eq!(
            locate(&mut locator, &targets, false),
            Some([pods[1].clone()].into()),
            "it changed"
        );
        assert_eq!(locate(&mut locator, &targets, false), None);
        let located: Vec<bool> = vms.values().map(|vm| vm.located.is_some()).collect();
        assert_eq!(located, [true, false]);
    }
}
