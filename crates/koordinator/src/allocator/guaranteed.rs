//! What becomes of Guaranteed pods of whole CPUs that are not VMs, where steliad chooses the CPUs.
//!
//! steliad gives exclusive CPUs to pods that register. Such a pod never does: it has them from kubelet's static policy,
//! or not at all.

use stelia_cpus::CpuSet;
use stelia_kubelet::{CpuManagerState, PodUid};

/// What keeps such pods on exclusive CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guaranteed {
    /// kubelet's static policy, which has assigned these CPUs to them, and to VMs whose CPUs it chose.
    Kubelet(CpuSet),
    /// kubelet assigned these CPUs to pods that still run, and its policy is `none` now. No VM gets them, but pods that
    /// start now may run there.
    Leftover(CpuSet),
    /// Nothing: they run on the shared pool.
    Shared,
}

/// By kubelet's state and the CPUs it left behind ([`leftover`]).
pub fn guaranteed(kubelet: &CpuManagerState, leftover: &CpuSet) -> Guaranteed {
    if kubelet.is_static() {
        Guaranteed::Kubelet(kubelet.assigned())
    } else if leftover.is_empty() {
        Guaranteed::Shared
    } else {
        Guaranteed::Leftover(leftover.clone())
    }
}

impl Guaranteed {
    /// In words, for the journal.
    pub fn in_words(&self) -> String {
        match self {
            Self::Kubelet(cpus) => format!(
                "Guaranteed pods that are not VMs keep CPUs of their own (now {}) only while kubelet's cpuManagerPolicy is static",
                if cpus.is_empty() {
                    "none".to_owned()
                } else {
                    cpus.to_string()
                }
            ),
            Self::Leftover(cpus) => format!(
                "Guaranteed pods that are not VMs run on the shared pool; CPUs {cpus}, which kubelet once gave to such pods, are given \
                 to no VM while these run, but pods that start now may run there"
            ),
            Self::Shared => {
                "Guaranteed pods that are not VMs run on the shared pool: nothing keeps them on CPUs of their own"
                    .to_owned()
            }
        }
    }
}

/// A running container's own CPU list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningContainer {
    /// The pod.
    pub pod: PodUid,
    /// Whether the pod is a Guaranteed one: only those ever had exclusive CPUs.
    pub guaranteed: bool,
    /// Whether the container is an instance: then its exclusive CPUs are in its record.
    pub instance: bool,
    /// The container's own CPU limit, thousandths of a CPU; `None` without one.
    pub limit_milli: Option<u64>,
    /// `cpuset.cpus`; empty where it is not restricted.
    pub cpus: CpuSet,
}

/// CPUs that kubelet's static policy, since switched off, assigned exclusively to a Guaranteed container that still
/// runs. kubelet does not take the lists back when its policy becomes `none`, and its file does not name them any more.
///
/// Exclusive CPUs were in no other pod's list, and as many as the container's limit. So a list that overlaps another
/// pod's was the shared pool, and so was one of another length. (A newer kubelet sets no limit where it gives out
/// CPUs.)
pub fn leftover(containers: &[RunningContainer]) -> CpuSet {
    let meets = |one: &RunningContainer| {
        let others = containers.iter().filter(|other| other.pod != one.pod);
        others.map(|other| &other.cpus).any(|cpus| !cpus.is_disjoint(&one.cpus))
    };
    let as_limited = |one: &RunningContainer| {
        one.limit_milli
            .is_none_or(|milli| milli == 1000 * one.cpus.len() as u64)
    };
    containers
        .iter()
        .filter(|one| one.guaranteed && !one.instance && as_limited(one) && !meets(one))
        .flat_map(|one| one.cpus.iter())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_keeps_a_guaranteed_pod_that_is_no_vm_is_told_at_every_stage() {
        let none = CpuSet::new();
        let pod = PodUid::parse("b9e4f71c-64a5-4f8d-8574-41363cbaf8e5").unwrap();
        let rules = CpuManagerState {
            policy: "static".into(),
            entries: [(pod, [("instance".to_owned(), "2-3".parse().unwrap())].into())].into(),
            ..CpuManagerState::absent()
        };
        assert_eq!(guaranteed(&rules, &none), Guaranteed::Kubelet("2-3".parse().unwrap()));
        let absent = CpuManagerState::absent();
        assert_eq!(guaranteed(&absent, &none), Guaranteed::Shared);
        let left: CpuSet = "4-5".parse().unwrap();
        assert_eq!(guaranteed(&absent, &left), Guaranteed::Leftover(left.clone()));
        assert!(guaranteed(&absent, &left).in_words().contains("CPUs 4-5"));
        let kubelets = Guaranteed::Kubelet(left).in_words();
        assert!(
            kubelets.contains("(now 4-5)") && kubelets.contains("only"),
            "{kubelets}"
        );
    }
}
