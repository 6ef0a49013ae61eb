//! What is special about an instance that its pod did not register: the administrator's rule made it.

use stelia_api::Error;
use stelia_kubelet::PodUid;
use stelia_node::cgroup::CgroupPath;
use stelia_record::Record;

use super::calls::no_instance;
use super::container::Adopting;
use super::state::State;
use crate::decide::{Instance, Tree, attached};

impl State {
    /// The record of a VM that is adopted in place has its vCPUs from the beginning. They stay where they are until their partition
    /// is made, pinned as they were found: a daemon that dies in between leaves the pins to the next one.
    pub(super) fn with_vcpus(&self, record: Record, adopting: &Adopting) -> Record {
        let tree = Tree::of(&record);
        let blank = Instance::admitted(record, None, tree);
        let tasks = adopting.threads.iter().map(|(index, task)| ((*index).into(), *task));
        let (snapshot, policies) = (&self.picture.snapshot, &self.settings.policies);
        let guest = adopting.guest.clone();
        attached(snapshot, policies, &blank, tasks.collect(), guest, &adopting.wanted).0
    }

    pub(super) fn is_adopted(&self, pod: &PodUid) -> bool {
        self.picture
            .find(pod)
            .is_some_and(|known| known.record.adopted.is_some())
    }

    /// A pod registers itself that was adopted: it is its own affair from now on.
    pub(super) fn take_over(&mut self, pod: &PodUid) -> Result<(PodUid, CgroupPath), Error> {
        let known = self.picture.find(pod).ok_or_else(|| no_instance(pod))?;
        let scope = known.scope().clone();
        let next = Record {
            adopted: None,
            ..known.record.clone()
        };
        self.write_record(pod, next)?;
        Ok((pod.clone(), scope))
    }
}
