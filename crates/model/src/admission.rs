//! Whether the daemon would admit a VM: one answer for the bus, for kubelet's device plugin and for the cluster.

use stelia_allocator::CpuSource;
use stelia_api::ErrorKind;
use stelia_text::excerpt;

use crate::Node;

/// Why no VM would be admitted at present, whichever pod it is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdmissionProblem {
    /// kubelet's file cannot be used, with the reason.
    KubeletStateUnusable(String),
    KubeletStateUnread,
    /// kubelet assigned every CPU: other tasks would have none.
    NoSharedCpus,
    /// kubelet chooses the CPUs, and its policy, which is named here, assigns none.
    NoExclusiveCpus(String),
    /// systemd, which starts each VM's scope, does not answer, and about which unit.
    SystemdNotAnswering(String),
}

impl AdmissionProblem {
    /// The reason as a condition of Kubernetes has it: one word in upper camel case.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::KubeletStateUnusable(_) | Self::KubeletStateUnread | Self::NoSharedCpus => "KubeletStateUnusable",
            Self::NoExclusiveCpus(_) => "NoExclusiveCpus",
            Self::SystemdNotAnswering(_) => "SystemdNotAnswering",
        }
    }

    /// The reason in words for the operator: it may name pods.
    pub fn detail(&self) -> String {
        match self {
            Self::KubeletStateUnusable(detail) | Self::SystemdNotAnswering(detail) => detail.clone(),
            _ => self.text(),
        }
    }

    /// The reason as one line that every pod may read: it names no pod. The details are in the view.
    pub fn text(&self) -> String {
        match self {
            Self::KubeletStateUnusable(_) => ErrorKind::KubeletStateUnusable.says().to_owned(),
            Self::KubeletStateUnread => "kubelet's state file was not read yet".to_owned(),
            Self::NoSharedCpus => "kubelet's shared pool is empty".to_owned(),
            Self::NoExclusiveCpus(policy) => format!(
                "kubelet's CPU manager policy is {}, which assigns no exclusive CPUs; it must be {STATIC}",
                excerpt::name(policy)
            ),
            Self::SystemdNotAnswering(_) => "systemd (PID 1) does not answer".to_owned(),
        }
    }
}

impl Node {
    /// Why no VM would be admitted; `None` while one would be, if it gets CPUs.
    pub fn admission_problem(&self) -> Option<AdmissionProblem> {
        if let Some(problem) = &self.kubelet_problem {
            return Some(AdmissionProblem::KubeletStateUnusable(problem.clone()));
        }
        // Either pool is known from the first reading on.
        let Some(pool) = &self.pool else {
            return Some(AdmissionProblem::KubeletStateUnread);
        };
        if self.cpu_source == CpuSource::Kubelet {
            if let Some(policy) = self.kubelet_policy.as_ref().filter(|policy| *policy != STATIC) {
                return Some(AdmissionProblem::NoExclusiveCpus(policy.clone()));
            }
            if pool.is_empty() {
                return Some(AdmissionProblem::NoSharedCpus);
            }
        }
        let problem = self.systemd_problem.clone();
        problem.map(AdmissionProblem::SystemdNotAnswering)
    }

    /// The text of [`Self::admission_problem`]; empty without one.
    pub fn admission_text(&self) -> String {
        let problem = self.admission_problem();
        problem.map(|problem| problem.text()).unwrap_or_default()
    }
}

/// kubelet's CPU manager policy that assigns exclusive CPUs.
const STATIC: &str = "static";

#[cfg(test)]
mod tests {
    use stelia_cpus::CpuSet;

    use super::*;

    fn good() -> Node {
        Node {
            cpu_source: CpuSource::Kubelet.into(),
            pool: Some(CpuSet::below(2)),
            kubelet_policy: Some(STATIC.to_owned()),
            ..Node::default()
        }
    }

    #[test]
    fn a_vm_is_admitted_while_kubelets_state_can_be_used_and_systemd_answers() {
        assert_eq!(
            (good().admission_problem(), good().admission_text()),
            (None, String::new())
        );
        let unread = Node { pool: None, ..good() };
        let broken = Node {
            kubelet_problem: Some("pod 7:\nwrong checksum".to_owned()),
            pool: None,
            systemd_problem: Some("no answer about 7.scope".to_owned()),
            ..good()
        };
        let slow = Node {
            systemd_problem: Some("no answer about 7.scope".to_owned()),
            ..good()
        };
        let full = Node {
            pool: Some(CpuSet::new()),
            ..good()
        };
        let (unusable, unanswered) = ("KubeletStateUnusable", "SystemdNotAnswering");
        for (node, reason, detail) in [
            (unread, unusable, "kubelet's state file was not read yet"),
            (broken, unusable, "pod 7:\nwrong checksum"),
            (full, unusable, "kubelet's shared pool is empty"),
            (slow, unanswered, "no answer about 7.scope"),
        ] {
            let problem = node.admission_problem().unwrap();
            assert_eq!((problem.reason(), problem.detail().as_str()), (reason, detail));
            let text = problem.text();
            assert!(!text.contains(['7', '\n']) && !text.is_empty(), "{text}");
        }
    }

    #[test]
    fn another_policy_than_static_keeps_vms_out_only_where_kubelet_chooses() {
        let none = Node {
            kubelet_policy: Some("none".to_owned()),
            ..good()
        };
        let problem = none.admission_problem().unwrap();
        assert_eq!(problem.reason(), "NoExclusiveCpus");
        assert!(problem.text().contains("policy is none"), "{problem:?}");
        assert_eq!(problem.detail(), problem.text());
        let steliads = Node {
            cpu_source: CpuSource::Steliad.into(),
            // All CPUs are assigned: the VM that comes next is refused by the allocator, as it would be by kubelet.
            pool: Some(CpuSet::new()),
            ..none
        };
        assert_eq!(steliads.admission_problem(), None);
    }
}
