//! Whether the daemon would admit a VM: one answer for the bus, for kubelet's device plugin and for the cluster.

use crate::Node;

/// Why no VM would be admitted at present, whichever pod it is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdmissionProblem {
    /// kubelet's file cannot be used, with the reason: it may be absent, damaged, of another policy than static, or beside a DRA driver.
    KubeletStateUnusable(String),
    KubeletStateUnread,
    /// kubelet chooses the CPUs and assigned every one: other tasks would have none.
    NoSharedCpus,
    /// systemd, which starts each VM's scope, does not answer, and about which unit.
    SystemdNotAnswering(String),
}

impl AdmissionProblem {
    /// The reason as a condition of Kubernetes has it: one word in upper camel case.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::KubeletStateUnusable(_) | Self::KubeletStateUnread | Self::NoSharedCpus => "KubeletStateUnusable",
            Self::SystemdNotAnswering(_) => "SystemdNotAnswering",
        }
    }

    /// The reason in words for the operator: it may name pods.
    pub fn detail(&self) -> &str {
        match self {
            Self::KubeletStateUnusable(detail) | Self::SystemdNotAnswering(detail) => detail,
            _ => self.text(),
        }
    }

    /// The reason as one line that every pod may read: it names no pod. The details are in the view.
    pub fn text(&self) -> &'static str {
        match self {
            Self::KubeletStateUnusable(_) => "kubelet's CPU manager state cannot be used",
            Self::KubeletStateUnread => "kubelet's CPU manager state was not read yet",
            Self::NoSharedCpus => "kubelet's shared pool is empty",
            Self::SystemdNotAnswering(_) => "systemd (PID 1) does not answer",
        }
    }
}

impl Node {
    /// Why no VM would be admitted; `None` while one would be, if there are CPUs for it.
    pub fn admission_problem(&self) -> Option<AdmissionProblem> {
        if let Some(problem) = &self.kubelet_problem {
            return Some(AdmissionProblem::KubeletStateUnusable(problem.clone()));
        }
        match &self.pool {
            // Either pool is known from the first reading on.
            None => Some(AdmissionProblem::KubeletStateUnread),
            Some(pool) if pool.is_empty() && !self.cpu_source.leaves_a_shared_cpu() => {
                Some(AdmissionProblem::NoSharedCpus)
            }
            Some(_) => {
                let problem = self.systemd_problem.clone();
                problem.map(AdmissionProblem::SystemdNotAnswering)
            }
        }
    }

    /// The text of [`Self::admission_problem`]; empty without one.
    pub fn admission_text(&self) -> String {
        let problem = self.admission_problem();
        problem.map(|problem| problem.text().to_owned()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use stelia_cpus::CpuSet;

    use stelia_koordinator::allocator::CpuSource;

    use super::*;

    fn good() -> Node {
        Node {
            cpu_source: CpuSource::Kubelet,
            pool: Some(CpuSet::below(2)),
            ..Node::default()
        }
    }

    #[test]
    fn a_vm_is_admitted_while_kubelets_state_can_be_used_and_systemd_answers() {
        assert_eq!(good().admission_problem(), None);
        assert_eq!(good().admission_text(), "");
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
            (unread, unusable, "kubelet's CPU manager state was not read yet"),
            (broken, unusable, "pod 7:\nwrong checksum"),
            (full, unusable, "kubelet's shared pool is empty"),
            (slow, unanswered, "no answer about 7.scope"),
        ] {
            let problem = node.admission_problem().unwrap();
            assert_eq!((problem.reason(), problem.detail()), (reason, detail));
            let text = node.admission_text();
            assert!(!text.contains(['7', '\n']) && !text.is_empty(), "{text}");
        }
    }

    #[test]
    fn where_steliad_chooses_a_node_without_shared_cpus_is_not_refused_beforehand() {
        let steliads = Node {
            cpu_source: CpuSource::Steliad,
            pool: Some(CpuSet::new()),
            ..good()
        };
        assert_eq!(steliads.admission_problem(), None);
    }
}
