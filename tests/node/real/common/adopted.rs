//! Whether a VM that a rule adopts is isolated, and whether its CPUs are given back.

use stelia_cpus::CpuSet;

use crate::support::*;

/// Whether each vCPU thread is alone on a CPU of the pod's, and everything else floats.
pub fn is_adopted(pod: &Pod) -> bool {
    let threads = pod.threads();
    let seated = threads
        .vcpus
        .iter()
        .filter(|vcpu| vcpu.cgroup == pod.vcpu() && vcpu.allowed.len() == 1);
    let used = seated.fold(CpuSet::new(), |used, vcpu| used.union(&vcpu.allowed));
    let shared = near_pool(pod);
    let is_first = |tid: u32| tid == pod.pid && !pod.is_in_place();
    let others = threads.others.iter().filter(|thread| !is_first(thread.tid));
    pod.is("isolated")
        && threads.vcpus.len() == 2
        && used == pod.exclusive()
        && others.clone().count() >= 3
        && others
            .into_iter()
            .all(|thread| thread.cgroup == pod.float() && thread.allowed == shared)
        && pod.partition() == kind()
        && pod.effective() == pod.exclusive()
        && pod.exclusive().is_subset(&partitioned())
}

pub fn until_adopted(pod: &Pod) {
    let seen = || format!(": {:?}, {:#?}", refused(pod), pod.threads());
    wait_until_or(&format!("{} is adopted", pod.name), seen, || is_adopted(pod));
}

pub fn until_given_back(pod: &Pod) {
    until_adoption_ended(pod);
    assert!(
        lists_above(&pod.origin()).iter().all(String::is_empty),
        "{:?}",
        lists_above(&pod.origin())
    );
}
