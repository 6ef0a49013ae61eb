//! Detects the end of an adopted VM whose VMM keeps running, as Cloud Hypervisor does when its guest shuts down, where the container's own
//! cgroup is the partition. The engine detects the other ends: by the vCPU threads' own cgroup, or by the end of the VMM's process.
//!
//! A KVM event only starts a check of the threads: the container may have other VMs, and a pod can create and destroy any number of them.

use std::collections::BTreeMap;
use std::time::Duration;

use stelia_kernel::cgroup::CgroupPath;
use stelia_kernel::proc::TaskId;
use stelia_kubelet::PodUid;
use stelia_model as model;
use stelia_settings::Isolation;
use tokio::time::sleep;

use crate::engine::{Handle, Peer};

/// The pauses before the checks of the threads. A thread that has ended may stay in `/proc` for a moment, and Cloud Hypervisor reboots a guest
/// by creating a new VM as soon as the old one has ended.
const READ_PAUSES: [Duration; 3] = [
    Duration::from_millis(200),
    Duration::from_millis(200),
    Duration::from_secs(1),
];

/// The instances whose threads are being checked, and whether another VM was destroyed meanwhile.
#[derive(Debug, Default)]
pub(super) struct EndChecks(BTreeMap<PodUid, bool>);

impl EndChecks {
    /// Whether to start a check. One that is running for this pod is repeated when it ends.
    pub(super) fn begin(&mut self, pod: &PodUid) -> bool {
        let is_again = self.0.get_mut(pod).map(|again| *again = true).is_some();
        if !is_again {
            self.0.insert(pod.clone(), false);
        }
        !is_again
    }

    /// A check ended; whether to start another one.
    pub(super) fn finish(&mut self, pod: &PodUid) -> bool {
        self.0.remove(pod).unwrap_or_default()
    }

    /// A check ended, and it is not known which.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// The pod whose adopted VM may have ended when a VM is destroyed that a thread in this cgroup created.
pub(super) fn pod(cgroup: CgroupPath, view: &model::Node) -> Option<PodUid> {
    let pod = Peer::of(cgroup).pod()?.clone();
    instance(&pod, view).map(|_| pod)
}

/// The pods with an adopted VM whose end is to be detected here.
pub(super) fn all(view: &model::Node) -> Vec<PodUid> {
    let pods = view.instances.keys();
    pods.filter(|pod| instance(pod, view).is_some()).cloned().collect()
}

/// The adopted VM of this pod, if its container's cgroup is the partition.
pub(super) fn instance<'a>(pod: &PodUid, view: &'a model::Node) -> Option<&'a model::Instance> {
    let known = view.instances.get(pod)?;
    let is_partition = known.isolation == Isolation::Container;
    (is_partition && known.adopted_by.is_some() && !known.vcpus.is_empty()).then_some(known)
}

/// Whether all vCPU threads of this pod's instance have ended, or end soon.
pub(super) async fn has_ended(engine: &Handle, pod: &PodUid) -> bool {
    for pause in READ_PAUSES {
        sleep(pause).await;
        let (procs, view) = (&engine.system().procs, engine.view());
        let Some(instance) = instance(pod, &view) else {
            return false;
        };
        let is_alive = |task: TaskId| procs.identify(task.id).is_ok_and(|now| now == task);
        if !instance.vcpus.iter().any(|vcpu| is_alive(vcpu.thread.task)) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "b9e4f71c-64a5-4f8d-8574-41363cbaf8e5";

    fn container() -> CgroupPath {
        let text = format!(
            "/kubepods.slice/kubepods-pod{}.slice/cri-containerd-a1.scope",
            POD.replace('-', "_")
        );
        CgroupPath::parse(&text).unwrap()
    }

    fn view(change: impl FnOnce(&mut model::Instance)) -> model::Node {
        let uid = PodUid::parse(POD).unwrap();
        let mut instance = model::Instance {
            isolation: Isolation::Container,
            adopted_by: Some("kubevirt".to_owned()),
            vcpus: vec![model::PinnedThread::default()],
            ..crate::engine::registered(uid.clone())
        };
        change(&mut instance);
        let mut view = model::Node::default();
        view.instances.insert(uid, instance.into());
        view
    }

    #[test]
    fn an_event_concerns_the_adopted_vm_in_whose_container_the_maker_of_the_vm_is() {
        for below in ["", "/container", "/housekeeping"] {
            let cgroup = CgroupPath::parse(&format!("{}{below}", container())).unwrap();
            assert_eq!(pod(cgroup, &view(|_| {})).unwrap().as_str(), POD, "{below:?}");
        }
        let elsewhere = CgroupPath::parse("/system.slice/libvirtd.service").unwrap();
        assert_eq!(pod(elsewhere, &view(|_| {})), None);
        let other = container().as_str().replace("f8e5", "f8e6");
        assert_eq!(
            pod(CgroupPath::parse(&other).unwrap(), &view(|_| {})),
            None,
            "no instance"
        );
    }

    #[test]
    fn vms_that_the_engine_hears_of_itself_and_whole_containers_are_not_checked() {
        let changes: [fn(&mut model::Instance); 3] = [
            |one| one.isolation = Isolation::Vcpus,
            |one| one.adopted_by = None,
            |one| one.vcpus.clear(),
        ];
        for change in changes {
            assert_eq!(pod(container(), &view(change)), None);
        }
    }

    #[test]
    fn events_during_a_check_are_one_more_check() {
        let (mut checks, uid) = (EndChecks::default(), PodUid::parse(POD).unwrap());
        assert!(checks.begin(&uid));
        assert!(!checks.begin(&uid) && !checks.begin(&uid));
        assert!(checks.finish(&uid));
        assert!(checks.begin(&uid));
        assert!(!checks.finish(&uid));
    }
}
