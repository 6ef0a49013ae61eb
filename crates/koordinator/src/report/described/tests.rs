use crate::allocator::{
    AllocatorPolicies, CpuBindPolicy, CpuExclusivePolicy, CpuSource, HeldCpus, NumaAllocateStrategy,
    NumaTopologyAlignmentPolicy, Qos, RequiredBind, evaluate,
};
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};
use stelia_cpus::testing::{Shape, shapes};

use super::*;
use crate::report::testing::{cpus, facts, numa};

fn json(facts: &Facts, version: ApiVersion) -> String {
    serde_json::to_string(&report(facts, version)).unwrap()
}

fn yaml(facts: &Facts, version: ApiVersion) -> String {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    serde_saphyr::to_string_with_options(&report(facts, version), options).unwrap()
}

fn allocator() -> Allocator {
    Allocator {
        policies: AllocatorPolicies {
            source: CpuSource::Steliad,
            reserved: cpus("0"),
            qos: Qos::Lsr,
            bind: CpuBindPolicy::FullPcpus,
            required: RequiredBind::FullPcpusOnly,
            exclusive: CpuExclusivePolicy::PcpuLevel,
            strategy: NumaAllocateStrategy::DistributeEvenly,
            alignment: NumaTopologyAlignmentPolicy::SingleNumaNode,
        },
        held: HeldCpus {
            pcpu_level: cpus("4"),
            numa_node_level: cpus("5"),
            unreadable: Some(("x.scope".to_owned(), "no JSON".to_owned())),
        },
        lsr: cpus("4-5"),
    }
}

#[rstest]
#[case::kubelet(None)]
#[case::steliad(Some(allocator()))]
fn what_is_printed_is_read_as_it_was(#[case] allocator: Option<Allocator>) {
    let mut facts = Facts { allocator, ..facts() };
    facts.allocations[0].name = PodName::new("team-a", "vm");
    facts.problems = vec!["memory_manager_state: no JSON".to_owned()];
    for node in facts.numa.values_mut() {
        let memory = node.memory.as_mut().unwrap();
        (memory.reserved, memory.assigned) = (1 << 30, 3 << 30);
        node.huge_pages.get_mut(&(2 << 20)).unwrap().reserved = 24;
    }
    for version in ApiVersion::ALL {
        assert_eq!(read(&json(&facts, version)).unwrap(), rank_cores(&facts));
        assert_eq!(read(&yaml(&facts, version)).unwrap(), rank_cores(&facts));
    }
}

/// Cores numbered over the whole host: here two per socket.
fn rank_cores(facts: &Facts) -> Facts {
    let mut facts = facts.clone();
    for cpu in facts.topology.cpus.values_mut() {
        cpu.core += 2 * cpu.package;
    }
    facts
}

#[test]
fn a_host_without_numa_and_kubelet_without_configuration_are_read() {
    let shape = Shape {
        nodes: 1,
        cores: 4,
        threads: 1,
        interleaved: false,
    };
    let facts = Facts {
        topology: shape.topology(),
        numa: BTreeMap::new(),
        reserved: CpuSet::new(),
        exclusive: CpuSet::new(),
        // Under the policy none kubelet's default set is empty.
        shared: CpuSet::new(),
        allocations: Vec::new(),
        kubelet: Kubelet::default(),
        ..facts()
    };
    for version in ApiVersion::ALL {
        assert_eq!(read(&json(&facts, version)).unwrap(), facts);
    }
}

/// The report of a node with the value at `pointer` replaced.
fn spoiled(pointer: &str, value: Value) -> String {
    let facts = Facts {
        allocator: Some(allocator()),
        ..facts()
    };
    let mut object = serde_json::to_value(report(&facts, ApiVersion::V1Alpha1)).unwrap();
    *object.pointer_mut(pointer).unwrap() = value;
    object.to_string()
}

#[rstest]
#[case("/apiVersion", json!("topology.node.k8s.io/v1"), "apiVersion is \"topology.node.k8s.io/v1\": that version")]
#[case("/kind", json!("Node"), "kind is \"Node\"")]
#[case("/metadata/name", json!("A\n"), "metadata.name is \"A\\n\"")]
#[case("/metadata/labels", json!({"a": "b"}), "written by another program (it has no label app.kubernetes.io/managed-by)")]
#[case("/topologyPolicies", json!(["Some"]), "topologyPolicies[0] is \"Some\"")]
#[case("/topologyPolicies", json!(["None", "None"]), "topologyPolicies[1]")]
#[case("/topologyPolicies", json!(7), "not a NodeResourceTopology")]
#[case("/zones/0/name", json!("node-1"), "zones[1].name is \"node-1\": the zone is there twice")]
#[case("/zones/0/name", json!("zone"), "zones[0].name is \"zone\"")]
#[case("/zones/0/type", json!("Core"), "zones[0].type is \"Core\"")]
#[case("/zones/0/costs/1/value", json!(-1), "zones[0].costs[1].value is \"-1\"")]
#[case("/zones/0/costs/1/name", json!("node-0"), "zones[0].costs[")]
#[case("/zones/1/resources/0/available", json!("3"), "zones[1].resources[0].available is \"3\"")]
#[case("/zones/0/resources/0/allocatable", json!("4"), "zones[0].resources[0].allocatable is \"4\", by the rest of the object it would be \"3\"")]
#[case("/zones/0/resources/1/capacity", json!("16G"), "zones[0].resources[1].capacity is \"16G\"")]
#[case("/zones/0/resources/2/name", json!("hugepages-0"), "not the size of a page")]
#[case("/zones/1/resources/2/capacity", json!("3Mi"), "zones[1].resources")]
#[case("/zones/0/resources/3/name", json!("gpu"), "zones[0].resources[3].name is \"gpu\": that resource is not known")]
fn what_is_wrong_is_named(#[case] pointer: &str, #[case] value: Value, #[case] named: &str) {
    let told = read(&spoiled(pointer, value)).unwrap_err().to_string();
    assert!(told.contains(named), "{told}");
}

#[rstest]
#[case(CPU_TOPOLOGY, json!({"detail": [{"id": 9000, "core": 0, "socket": 0, "node": 0}]}), "detail[0].id is \"9000\"")]
#[case(CPU_TOPOLOGY, json!({"detail": [], "more": 1}), "unknown field `more`")]
#[case(CPU_TOPOLOGY, json!({"detail": []}), "annotations")]
#[case(POD_CPU_ALLOCS, json!([{"uid": "../..", "cpuset": "2"}]), "[0].uid is \"../..\"")]
#[case(POD_CPU_ALLOCS, json!([{"uid": "3ceda12c-3ee9-40fa-9f42-61428fe654a6", "namespace": "a", "cpuset": "2"}]), "[0].name is \"\"")]
#[case(WARNINGS, json!("all is well"), "isolation.stelia.io/warnings")]
#[case(POD_CPU_ALLOCS, json!([{"uid": "3ceda12c-3ee9-40fa-9f42-61428fe654a6", "cpuset": "0"}]), "cpu-shared-pools is \"0\": these CPUs are a pod's own")]
#[case(POD_CPU_ALLOCS, json!(vec![json!({"uid": "3ceda12c-3ee9-40fa-9f42-61428fe654a6", "cpuset": "0-8191"}); 9]), "more than 65536 CPUs")]
#[case(CPU_SHARED_POOLS, json!([{"socket": 0, "node": 0, "cpuset": "x"}]), "[0].cpuset is \"x\"")]
#[case(CPU_SHARED_POOLS, json!([{"socket": 0, "node": 1, "cpuset": "0-1"}, {"socket": 1, "node": 0, "cpuset": "6-7"}]), "cpu-shared-pools[0].node is 1")]
#[case(CPU_MANAGER_POLICY, json!([]), "cpu-manager-policy")]
#[case(ALLOCATOR, json!({"policies": {"qos": "LSX"}}), "isolation.stelia.io/allocator: unknown variant `LSX`")]
#[case("example.org/mine", json!(1), "metadata.annotations.example.org/mine is 1")]
fn what_is_wrong_in_an_annotation_is_named(#[case] name: &str, #[case] value: Value, #[case] named: &str) {
    let pointer = "/metadata/annotations";
    let whole = spoiled("/kind", json!(KIND));
    let mut annotations = serde_json::from_str::<Value>(&whole)
        .unwrap()
        .pointer(pointer)
        .unwrap()
        .clone();
    annotations[name] = json!(value.to_string());
    let told = read(&spoiled(pointer, annotations)).unwrap_err().to_string();
    assert!(told.contains(named), "{told}");
}

#[test]
fn a_missing_annotation_is_named_and_so_is_a_text_that_is_too_long() {
    let told = read(&spoiled("/metadata/annotations", json!({}))).unwrap_err();
    assert_eq!(told, DescribedError::Missing(CPU_MANAGER_POLICY));
    assert_eq!(
        read(&" ".repeat(MAX_BYTES + 1)),
        Err(DescribedError::TooLarge(MAX_BYTES + 1))
    );
    let zones = vec![json!({"name": "node-7", "type": "Node"}); MAX_ZONES + 1];
    assert_eq!(
        read(&spoiled("/zones", json!(zones))),
        Err(DescribedError::TooManyZones(MAX_ZONES + 1))
    );
}

#[test]
fn nodes_with_gaps_between_their_ids_are_read_with_the_warning() {
    let mut sparse = facts();
    for cpu in sparse.topology.cpus.values_mut() {
        cpu.node *= 2;
    }
    sparse.numa = [0, 2].into_iter().zip(numa(2).into_values()).collect();
    sparse.problems = vec!["another".to_owned()];
    let warnings = sparse.warnings();
    assert_eq!(warnings.len(), 2);
    for version in ApiVersion::ALL {
        let read = read(&json(&sparse, version)).unwrap();
        assert_eq!(read.warnings(), warnings);
        assert_eq!(report(&read, version), report(&sparse, version));
    }
}

#[test]
fn a_lean_object_says_what_it_lacks() {
    use crate::report::fingerprint::Method;
    use crate::report::profile::{Profile, object};
    for profile in [Profile::Nrt, Profile::Stelia] {
        let lean = object(&facts(), profile, ApiVersion::V1Alpha2, Method::default());
        let told = read(&serde_json::to_string(&lean).unwrap()).unwrap_err();
        assert_eq!(told, DescribedError::Missing(CPU_MANAGER_POLICY));
        assert!(told.to_string().contains("profile koordinator"), "{told}");
    }
}

#[test]
fn a_node_without_cpus_is_read_and_has_room_for_nobody() {
    let mut allocator = allocator();
    allocator.policies.reserved = CpuSet::new();
    allocator.held = HeldCpus::default();
    allocator.lsr = CpuSet::new();
    let facts = Facts {
        topology: Topology::default(),
        numa: BTreeMap::new(),
        reserved: CpuSet::new(),
        exclusive: CpuSet::new(),
        shared: CpuSet::new(),
        allocations: Vec::new(),
        allocator: Some(allocator),
        ..facts()
    };
    let read = read(&json(&facts, ApiVersion::V1Alpha1)).unwrap();
    assert_eq!(read, facts);
    let requests: Vec<_> = serde_json::from_str(r#"[{"cpus": 1}, {"qos": "LS"}, {"qos": "BE"}]"#).unwrap();
    let answers = evaluate::evaluate(&read.allocator_node().unwrap(), &requests);
    assert!(answers.iter().all(Result::is_err), "{answers:?}");
}

#[test]
fn annotations_count_by_what_they_say() {
    let text = format!("{{ \"detail\" : {} }}", json!([]));
    let mut object = report(&facts(), ApiVersion::V1Alpha1);
    let detail: Value = serde_json::from_str(&object.metadata.annotations[CPU_TOPOLOGY]).unwrap();
    let text = text.replace("[]", &serde_json::to_string_pretty(&detail["detail"]).unwrap());
    object.metadata.annotations.insert(CPU_TOPOLOGY.to_owned(), text);
    assert_eq!(
        read(&serde_json::to_string(&object).unwrap()).unwrap().topology,
        rank_cores(&facts()).topology
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_node_is_read_back(
        shape in shapes(), kinds in proptest::collection::vec(0u8..5, 64), second in any::<bool>(), as_yaml in any::<bool>(),
        steliad in any::<bool>(),
    ) {
        let topology = shape.topology();
        let of = |kind: u8| -> CpuSet {
            topology.online().iter().filter(|cpu| kinds[*cpu as usize % 64] == kind).collect()
        };
        let exclusive = of(1).union(&of(2));
        let allocations = [(1, true), (2, false)].into_iter().filter(|(kind, _)| !of(*kind).is_empty());
        let allocations: Vec<PodAllocation> = allocations.map(|(kind, by_kubelet)| PodAllocation {
            pod: PodUid::parse("3ceda12c-3ee9-40fa-9f42-61428fe654a6").unwrap(),
            name: by_kubelet.then(|| PodName::new("team-a", "vm").unwrap()), cpus: of(kind), by_kubelet,
        }).collect();
        let mut allocator = allocator();
        allocator.policies.reserved = of(0);
        let facts = Facts {
            // Where kubelet chooses, CPUs may be in neither set while it assigns them.
            shared: topology.online().difference(&exclusive).difference(&if steliad { CpuSet::new() } else { of(4) }),
            numa: numa(shape.nodes),
            kubelet: Kubelet { reserved: of(0), ..facts().kubelet },
            reserved: of(0),
            allocator: steliad.then_some(allocator),
            topology, exclusive, allocations,
            ..facts()
        };
        let version = if second { ApiVersion::V1Alpha2 } else { ApiVersion::V1Alpha1 };
        let text = if as_yaml { yaml(&facts, version) } else { json(&facts, version) };
        let read = read(&text).unwrap();
        prop_assert_eq!(report(&read, version), report(&facts, version));
        prop_assert_eq!(&read.exclusive, &facts.exclusive);
        prop_assert_eq!(&read.allocator, &facts.allocator);
    }

    #[test]
    fn no_text_ends_the_reader(at in any::<proptest::sample::Index>(), with in any::<u8>(), cut in any::<bool>(), as_yaml in any::<bool>()) {
        let facts = Facts { allocator: Some(allocator()), ..facts() };
        let text = if as_yaml { yaml(&facts, ApiVersion::V1Alpha1) } else { json(&facts, ApiVersion::V1Alpha2) };
        let mut bytes = text.into_bytes();
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at) } else { bytes[at] = with }
        let spoiled = String::from_utf8_lossy(&bytes);
        if let Err(cause) = read(&spoiled) {
            prop_assert!(cause.to_string().len() < 1000, "{}", cause);
            prop_assert!(!cause.to_string().contains('\n'), "{}", cause);
        }
    }
}

#[test]
fn an_object_of_another_writer_is_told_as_one() {
    let object =
        "apiVersion: topology.node.k8s.io/v1alpha2\nkind: NodeResourceTopology\nmetadata: {name: n}\nzones: []\n";
    let error = read(object).unwrap_err().to_string();
    assert!(
        error.contains("another program") && error.contains("stelia-cluster nodes"),
        "{error}"
    );
    let theirs = json(&facts(), ApiVersion::V1Alpha2).replace("\"steliad\"", "\"Koordinator\"");
    let error = read(&theirs).unwrap_err().to_string();
    assert!(error.contains("written by Koordinator"), "{error}");
    let error = read("kind: Pod\nmetadata: {name: n}\n").unwrap_err();
    assert!(matches!(error, DescribedError::Value { .. }), "{error}");
}
