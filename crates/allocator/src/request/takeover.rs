//! What becomes of Guaranteed pods of whole CPUs that are no VM, where steliad chooses the CPUs.
//!
//! steliad gives CPUs to who registers. Such a pod never does: kubelet's static policy gave it CPUs of its own, or nobody.

use stelia_cpus::CpuSet;
use stelia_kubelet::CpuManagerState;

/// Who keeps such pods on CPUs of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guaranteed {
    /// kubelet's static policy still does, and these CPUs are theirs (and those of VMs that kubelet gave CPUs).
    Kubelet(CpuSet),
    /// Nobody any more: kubelet once gave these CPUs to pods that still run. They are not given to a VM, but pods that start
    /// now may run there.
    Leftover(CpuSet),
    /// Nobody: they run on the shared pool.
    Nobody,
}

/// Who does, by kubelet's state and what it left behind.
pub fn guaranteed(kubelet: &CpuManagerState, leftover: &CpuSet) -> Guaranteed {
    match kubelet.is_static() {
        true => Guaranteed::Kubelet(kubelet.assigned()),
        false if leftover.is_empty() => Guaranteed::Nobody,
        false => Guaranteed::Leftover(leftover.clone()),
    }
}

impl Guaranteed {
    /// In words, for the journal and for `steliactl doctor`.
    pub fn in_words(&self) -> String {
        match self {
            Self::Kubelet(cpus) => format!(
                "Guaranteed pods that are no VM keep CPUs of their own (now {}) only while kubelet's cpuManagerPolicy is static",
                if cpus.is_empty() {
                    "none".to_owned()
                } else {
                    cpus.to_string()
                }
            ),
            Self::Leftover(cpus) => format!(
                "Guaranteed pods that are no VM run on the shared pool; CPUs {cpus}, which kubelet once gave to such pods, are given \
                 to no VM while these run, but pods that start now may run there"
            ),
            Self::Nobody => {
                "Guaranteed pods that are no VM run on the shared pool: nobody keeps them on CPUs of their own"
                    .to_owned()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_keeps_a_guaranteed_pod_that_is_no_vm_is_told_at_every_stage() {
        let none = CpuSet::new();
        let pod = stelia_kubelet::PodUid::parse("b9e4f71c-64a5-4f8d-8574-41363cbaf8e5").unwrap();
        let rules = CpuManagerState {
            policy: "static".into(),
            entries: [(pod, [("instance".to_owned(), "2-3".parse().unwrap())].into())].into(),
            ..CpuManagerState::absent()
        };
        assert_eq!(guaranteed(&rules, &none), Guaranteed::Kubelet("2-3".parse().unwrap()));
        let absent = CpuManagerState::absent();
        assert_eq!(guaranteed(&absent, &none), Guaranteed::Nobody);
        let left: CpuSet = "4-5".parse().unwrap();
        assert_eq!(guaranteed(&absent, &left), Guaranteed::Leftover(left.clone()));
        assert!(guaranteed(&absent, &left).in_words().contains("CPUs 4-5"));
        let kubelets = Guaranteed::Kubelet(left).in_words();
        assert!(
            kubelets.contains("(now 4-5)") && kubelets.contains("only while"),
            "{kubelets}"
        );
    }
}
