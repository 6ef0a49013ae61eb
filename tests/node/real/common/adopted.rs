//! Whether a VM that a rule adopts is isolated, and whether its CPUs are given back.

use std::path::Path;

use stelia_cpus::CpuSet;

use crate::adopted::refused;
use crate::support::host::{CGROUP, cpus, kind, partitioned, read, wait_until, wait_until_or};
use crate::support::pods::Pod;
use crate::support::promise::{near_pool, state};

/// Whether each vCPU thread is alone on a CPU of the pod's, and everything else floats.
pub fn is_adopted(pod: &Pod) -> bool {
    let threads = pod.threads();
    let mut used = CpuSet::new();
    for vcpu in threads
        .vcpus
        .iter()
        .filter(|vcpu| vcpu.cgroup == pod.vcpu() && vcpu.allowed.len() == 1)
    {
        used = used.union(&vcpu.allowed);
    }
    let shared = near_pool(pod);
    let is_first = |tid: u32| tid == pod.pid && !pod.is_in_place();
    let others = threads.others.iter().filter(|thread| !is_first(thread.tid));
    state(pod).as_deref() == Some("isolated")
        && threads.vcpus.len() == 2
        && used == pod.exclusive()
        && others.clone().count() >= 3
        && others
            .into_iter()
            .all(|thread| thread.cgroup == pod.float() && thread.allowed == shared)
        && read(pod.vcpu().join("cpuset.cpus.partition")) == kind()
        && cpus(&read(pod.vcpu().join("cpuset.cpus.effective"))) == pod.exclusive()
        && pod.exclusive().is_subset(&partitioned())
}

pub fn until_adopted(pod: &Pod) {
    let seen = || format!(": {:?}, {:#?}", refused(pod), pod.threads());
    wait_until_or(&format!("{} is adopted", pod.name), seen, || {
        is_adopted(pod).then_some(())
    });
}

pub fn until_given_back(pod: &Pod) {
    wait_until("its CPUs are given back", || state(pod).is_none().then_some(()));
    wait_until("its cgroups are gone", || {
        (!pod.vcpu().exists() && !pod.scope().exists()).then_some(())
    });
    assert!(pod.exclusive().is_disjoint(&partitioned()));
    assert_eq!(read(pod.origin().join("cgroup.type")), "domain");
    for level in pod.origin().ancestors().take_while(|level| *level != Path::new(CGROUP)) {
        assert_eq!(read(level.join("cpuset.cpus.exclusive")), "", "{}", level.display());
    }
}
