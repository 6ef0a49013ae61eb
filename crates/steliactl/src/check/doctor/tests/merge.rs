//! The duration of kubelet's merge of hints.

use super::*;

/// Eight NUMA nodes with huge pages, one of them without CPUs; static managers, and this policy.
fn large(policy: &str) -> Facts {
    let mut facts = fit();
    let pages = Pages {
        total: 512,
        reserved: 0,
        free: 512,
    };
    let node = KernelNumaNode {
        huge_pages: [(2 << 20, pages)].into(),
        ..KernelNumaNode::default()
    };
    facts.files.numa = Ok((0..8).map(|id| (id, node.clone())).collect());
    facts.topology = Ok(shape(8, 1, 1));
    let kubelet = told(&mut facts);
    kubelet.memory_manager_policy = "Static".into();
    kubelet.topology_manager_policy = policy.into();
    facts
}

fn devices(facts: &mut Facts, resources: &[&str]) {
    let registered = resources.iter().map(|name| ((*name).to_owned(), [].into()));
    // The last resource's plugin reports no NUMA node.
    let entries = resources.last().map(|name| DeviceEntry {
        pod: PodUid::parse(POD).unwrap(),
        container: "vm".to_owned(),
        resource: (*name).to_owned(),
        devices: [(None, ["0".to_owned()].into())].into(),
        files: [].into(),
    });
    facts.files.devices = Ok(Some(DeviceManagerState {
        entries: entries.into_iter().collect(),
        registered: registered.collect(),
    }));
}

#[rstest]
#[case::three_kinds("restricted", &[], Verdict::Ok, "1.7e7 combinations for a pod with cpu, memory, huge pages, about 5 s")]
#[case::a_gpu("restricted", &["nvidia.com/gpu", "devices.kubevirt.io/kvm"], Verdict::Warning, "8 NUMA nodes, restricted: up to 4.2e9 combinations for a pod with cpu, memory, huge pages, nvidia.com/gpu, about 21 min")]
#[case::a_nic_too("best-effort", &["nvidia.com/gpu", "example.com/nic", "kvm"], Verdict::Warning, "about 4 days")]
#[case::one_node_each("single-numa-node", &["nvidia.com/gpu", "kvm"], Verdict::Ok, "4096 combinations")]
#[case::not_aligned("none", &["nvidia.com/gpu", "kvm"], Verdict::Ok, "topology manager none")]
fn a_merge_that_takes_minutes_is_warned_of(
    #[case] policy: &str,
    #[case] resources: &[&str],
    #[case] verdict: Verdict,
    #[case] found: &str,
) {
    let mut facts = large(policy);
    devices(&mut facts, resources);
    let check = named(&facts, "hint-merge");
    assert_eq!(check.verdict, verdict, "{check:?}");
    says(&check.found, &[found]);
    let is_cured = check.cure.contains("single-numa-node");
    assert_eq!(is_cured, verdict == Verdict::Warning, "{check:?}");
}

#[test]
fn many_numa_nodes_are_too_many_for_two_resources_already() {
    let mut facts = large("restricted");
    facts.files.numa = Ok(numa_nodes(34));
    let (verdict, found) = said(&facts, "hint-merge");
    assert_eq!(verdict, Verdict::Warning);
    // 2^8 - 1 of CPUs, 2^34 - 1 of memory: nodes of memory alone count for that.
    says(&found, &["34 NUMA nodes, restricted: up to 4.4e12", "about 15 days"]);
}

/// NVIDIA GB200: two NUMA nodes with CPUs, 32 without, which no setting of the firmware removes.
#[test]
fn a_gb200_with_static_memory_is_warned_of_with_any_policy() {
    for policy in ["none", "single-numa-node", "best-effort"] {
        let mut facts = fit();
        facts.files.numa = Ok(numa_nodes(34));
        told(&mut facts).topology_manager_policy = policy.into();
        devices(&mut facts, &["nvidia.com/gpu", "kvm"]);
        assert_eq!(named(&facts, "hint-merge").verdict, Verdict::Ok, "without it");
        told(&mut facts).memory_manager_policy = "Static".into();
        let check = named(&facts, "hint-merge");
        assert_eq!(check.verdict, Verdict::Warning, "{check:?}");
        says(&check.found, &["1.7e10 sets of 34 NUMA nodes"]);
        let cure = "memoryManagerPolicy: None; the 32 NUMA nodes without CPUs";
        assert!(check.cure.starts_with(cure), "{check:?}");
    }
}
