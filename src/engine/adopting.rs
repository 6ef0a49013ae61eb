//! What is special about an instance that its pod did not register: the administrator's rule made it.

use stelia_api::Error;
use stelia_kernel::cgroup::CgroupPath;
use stelia_kubelet::PodUid;
use stelia_model::record::Record;

use super::calls::no_instance;
use super::state::EngineState;

impl EngineState {
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
