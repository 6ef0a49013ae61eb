mod consumers;
mod profiles;
mod schema;

use std::collections::BTreeMap;

use proptest::prelude::*;
use stelia_cpus::testing::{Shape, shapes};

use super::annotations::{
    CPU_MANAGER_POLICY, CPU_SHARED_POOLS, CPU_TOPOLOGY, CpuDetails, CpuSharedPool, POD_CPU_ALLOCS, PodCpuAlloc,
};
use super::testing::{facts, numa};
use super::*;
use schema::{definition, faults};

fn pretty(facts: &Facts, version: ApiVersion) -> String {
    serde_json::to_string_pretty(&report(facts, version)).unwrap()
}

#[test]
fn a_node_reads_as_the_documents_have_it() {
    insta::assert_snapshot!(pretty(&facts(), ApiVersion::V1Alpha1));
}

#[test]
fn the_second_version_has_attributes_instead_of_policies() {
    let object = report(&facts(), ApiVersion::V1Alpha2);
    assert_eq!(object.api_version, "topology.node.k8s.io/v1alpha2");
    assert_eq!(object.topology_policies, None);
    let attributes: Vec<_> = object
        .attributes
        .iter()
        .map(|one| (one.name.as_str(), one.value.as_str()))
        .collect();
    let expected = [
        ("topologyManagerPolicy", "single-numa-node"),
        ("topologyManagerScope", "pod"),
    ];
    assert_eq!(attributes, expected);
    let first = report(&facts(), ApiVersion::V1Alpha1);
    assert_eq!((object.metadata, object.zones), (first.metadata, first.zones));
}

#[test]
fn kubelets_alignment_has_the_apis_names() {
    for (policy, scope, name) in [
        ("none", "container", Some("None")),
        ("best-effort", "pod", Some("BestEffort")),
        ("restricted", "container", Some("Restricted")),
        ("single-numa-node", "pod", Some("SingleNUMANodePodLevel")),
        ("single-numa-node", "container", Some("SingleNUMANodeContainerLevel")),
        ("a-new-one", "pod", None),
    ] {
        let mut facts = facts();
        facts.kubelet.alignment = Some(Alignment {
            policy: policy.to_owned(),
            scope: scope.to_owned(),
        });
        let policies = report(&facts, ApiVersion::V1Alpha1).topology_policies.unwrap();
        assert_eq!(policies, Vec::from_iter(name.map(str::to_owned)), "{policy} {scope}");
    }
    let mut unknown = facts();
    unknown.kubelet.alignment = None;
    assert_eq!(
        report(&unknown, ApiVersion::V1Alpha1).topology_policies,
        Some(Vec::new())
    );
    assert!(report(&unknown, ApiVersion::V1Alpha2).attributes.is_empty());
}

#[test]
fn a_host_without_numa_is_one_zone_of_cpus_and_a_node_without_cpus_is_one_of_memory() {
    let mut facts = facts();
    facts.topology = Shape {
        nodes: 1,
        cores: 4,
        threads: 1,
        interleaved: false,
    }
    .topology();
    facts.numa = BTreeMap::new();
    let zones = report(&facts, ApiVersion::V1Alpha1).zones;
    assert_eq!(zones.len(), 1);
    assert!(zones[0].costs.is_empty());
    assert_eq!(zones[0].resources.len(), 1);
    facts.numa = numa(2);
    let zones = report(&facts, ApiVersion::V1Alpha1).zones;
    assert_eq!(zones[1].resources[0].capacity, "0");
    assert_eq!(zones[1].resources[1].name, "memory");
}

/// The API server bounds all annotations together, and client-side apply adds the object once more.
#[test]
fn the_annotations_of_a_large_host_fit_twice() {
    let mut facts = facts();
    facts.topology = Shape {
        nodes: 8,
        cores: 64,
        threads: 2,
        interleaved: true,
    }
    .topology();
    facts.numa = numa(8);
    let object = report(&facts, ApiVersion::V1Alpha1);
    let annotations = &object.metadata.annotations;
    let own: usize = annotations.iter().map(|(name, text)| name.len() + text.len()).sum();
    let applied = serde_json::to_string(&object).unwrap().len();
    assert!(own + applied < 256 << 10, "{own} + {applied}");
}

/// An annotation, parsed as its reader does.
fn annotation<T: serde::de::DeserializeOwned>(object: &NodeResourceTopology, name: &str) -> T {
    serde_json::from_str(&object.metadata.annotations[name]).unwrap()
}

proptest! {
    #[test]
    fn every_node_is_valid_and_adds_up(
        shape in shapes(), kinds in proptest::collection::vec(0u8..4, 64), second in any::<bool>(),
    ) {
        let topology = shape.topology();
        let of = |kind: u8| -> CpuSet {
            topology.online().iter().filter(|cpu| kinds[*cpu as usize % 64] == kind).collect()
        };
        let (reserved, exclusive) = (of(0), of(1).union(&of(2)));
        let allocations = [(1, true), (2, false)].into_iter().filter(|(kind, _)| !of(*kind).is_empty());
        let allocations = allocations.map(|(kind, by_kubelet)| PodAllocation {
            pod: PodUid::parse("3ceda12c-3ee9-40fa-9f42-61428fe654a6").unwrap(),
            name: by_kubelet.then(|| PodName::new("team-a", "vm").unwrap()), cpus: of(kind), by_kubelet,
        });
        let facts = Facts {
            shared: topology.online().difference(&exclusive),
            allocations: allocations.collect(),
            numa: numa(shape.nodes),
            topology: topology.clone(), reserved, exclusive,
            ..facts()
        };
        let version = if second { ApiVersion::V1Alpha2 } else { ApiVersion::V1Alpha1 };
        let object = report(&facts, version);
        let json = serde_json::to_value(&object).unwrap();
        prop_assert_eq!(faults(&definition(version), &json, ""), Vec::<String>::new());
        prop_assert_eq!(&serde_json::from_value::<NodeResourceTopology>(json).unwrap(), &object);

        let amounts = object.zones.iter().map(|zone| {
            let cpu = &zone.resources[0];
            [&cpu.capacity, cpu.allocatable(), &cpu.available].map(|text| text.parse::<usize>().unwrap())
        });
        let sums = amounts.fold([0; 3], |sum, one| std::array::from_fn(|at| sum[at] + one[at]));
        prop_assert_eq!(sums, [topology.cpus.len(), topology.cpus.len() - of(0).len(), of(3).len()]);
        for zone in &object.zones {
            prop_assert_eq!(zone.costs.len(), object.zones.len());
            prop_assert!(zone.costs.iter().all(|cost| object.zones.iter().any(|zone| zone.name == cost.name)));
        }

        // The pools and the allocated CPUs are all CPUs, and are disjoint.
        let pools: Vec<CpuSharedPool> = annotation(&object, CPU_SHARED_POOLS);
        let together = |lists: Vec<&String>| {
            lists.into_iter().fold(CpuSet::new(), |all, list| all.union(&list.parse().unwrap()))
        };
        let pooled = together(pools.iter().map(|pool| &pool.cpuset).collect());
        let allocs: Vec<PodCpuAlloc> = annotation(&object, POD_CPU_ALLOCS);
        let allocated = together(allocs.iter().map(|alloc| &alloc.cpuset).collect());
        prop_assert!(pooled.is_disjoint(&allocated));
        prop_assert_eq!(pooled.union(&allocated), topology.online());
        // Siblings have the same core, and no other CPUs have it.
        let detail = annotation::<CpuDetails>(&object, CPU_TOPOLOGY).detail;
        for info in detail.iter().take(8) {
            let same = detail.iter().filter(|other| other.core == info.core);
            prop_assert_eq!(same.map(|other| other.id).collect::<CpuSet>(), topology.siblings(info.id));
        }
        prop_assert!(object.metadata.annotations.contains_key(CPU_MANAGER_POLICY));
    }
}
