//! What is wrong on the node, whichever VMs it has.

use stelia_api::{Reason, ReasonCode};

use crate::{Instance, Node, PinnedReason};

impl Node {
    /// What is wrong on the node: each with its code, a fact and a fix, the worst first. A VM is not degraded by it.
    pub fn problems(&self) -> Vec<Reason> {
        let is_empty = self.pool.as_ref().is_some_and(stelia_cpus::CpuSet::is_empty);
        let has_no_shared_cpu = is_empty && !self.cpu_source.leaves_a_shared_cpu();
        // Those that a setting, a rule or their class pins are as somebody wants them.
        let lacks_partitions = |vm: &Instance| vm.pinned_reason == Some(PinnedReason::NoPartitions);
        let lacks_partitions = self.instances.values().any(|vm| lacks_partitions(vm));
        let all = [
            (ReasonCode::KubeletUnusable, self.kubelet_problem.clone()),
            (
                ReasonCode::NoSharedCpus,
                has_no_shared_cpu.then(|| "kubelet's shared pool is empty".to_owned()),
            ),
            (ReasonCode::SystemdSilent, self.systemd_problem.clone()),
            (
                ReasonCode::OldKernel,
                lacks_partitions.then(|| "this kernel has no cpuset partitions (cpuset.cpus.exclusive)".to_owned()),
            ),
            (ReasonCode::NotSteered, self.quiet.problem.clone()),
            (
                ReasonCode::LedgerNotKept,
                self.ledger.problem.clone().filter(|_| self.ledger.enabled),
            ),
            (ReasonCode::NotPublished, self.publishing.problem.clone()),
            (ReasonCode::NotWatched, self.watch_problem.clone()),
            (ReasonCode::KvmNotHeard, self.kvm_problem.clone()),
            (
                ReasonCode::KubeletUnknownKeys,
                (!self.kubelet_unknown_keys.is_empty()).then(|| {
                    let keys = self.kubelet_unknown_keys.join(", ");
                    format!("cpu_manager_state has keys that steliad does not know: {keys}")
                }),
            ),
        ];
        let unreadable = self
            .unreadable
            .iter()
            .map(|(scope, why)| Reason::of_node(ReasonCode::RecordUnreadable, format!("{scope}: {why}")));
        let found = all
            .into_iter()
            .filter_map(|(code, text)| Some(Reason::of_node(code, text?)));
        found.chain(unreadable).collect()
    }
}

#[cfg(test)]
mod tests {
    use stelia_cpus::CpuSet;

    use stelia_koordinator::allocator::CpuSource;

    use super::*;

    #[test]
    fn a_problem_of_the_node_has_one_reason_and_a_calm_node_none() {
        let calm = Node {
            pool: Some(CpuSet::below(2)),
            ..Node::default()
        };
        assert_eq!(calm.problems(), []);
        let broken = Node {
            pool: None,
            kubelet_problem: Some("checksum mismatch (stored 1, computed 2)".to_owned()),
            kubelet_unknown_keys: vec!["slices".to_owned()],
            systemd_problem: Some("no answer about 7.scope".to_owned()),
            unreadable: vec![("7.scope".to_owned(), "version 9".to_owned())],
            ..calm.clone()
        };
        let codes: Vec<&str> = broken.problems().iter().map(|reason| reason.code.name()).collect();
        let expected = [
            "kubelet-unusable",
            "systemd-silent",
            "kubelet-unknown-keys",
            "record-unreadable",
        ];
        assert_eq!(codes, expected);
        assert!(broken.problems()[0].fix.starts_with("drain the node"));
        let full = |cpu_source| Node {
            pool: Some(CpuSet::new()),
            cpu_source,
            ..calm.clone()
        };
        assert_eq!(full(CpuSource::Kubelet).problems()[0].code, ReasonCode::NoSharedCpus);
        assert_eq!(full(CpuSource::Steliad).problems(), []);
    }

    #[test]
    fn a_kernel_without_partitions_is_a_problem_unless_somebody_wants_its_vms_pinned() {
        for why in PinnedReason::ALL {
            let vm = Instance {
                pinned_reason: Some(why),
                ..Instance::default()
            };
            let node = Node {
                instances: [(vm.pod.clone(), vm.into())].into(),
                ..Node::default()
            };
            let codes: Vec<ReasonCode> = node.problems().iter().map(|reason| reason.code).collect();
            let is_found = codes == [ReasonCode::OldKernel];
            assert_eq!(is_found, why == PinnedReason::NoPartitions, "{codes:?}");
        }
    }

    #[test]
    fn a_ledger_that_is_off_is_no_problem() {
        let mut node = Node::default();
        let ledger = std::sync::Arc::make_mut(&mut node.ledger);
        ledger.problem = Some("No space left on device".to_owned());
        assert_eq!(node.problems(), []);
        std::sync::Arc::make_mut(&mut node.ledger).enabled = true;
        assert_eq!(node.problems()[0].code, ReasonCode::LedgerNotKept);
    }
}
