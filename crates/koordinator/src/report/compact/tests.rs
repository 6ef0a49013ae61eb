use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};
use stelia_cpus::testing::shapes;
use stelia_cpus::{Cpu, NodeSet};

use super::*;
use crate::report::testing::{cpus, facts, large};

fn spoiled(field: &str, value: Value) -> String {
    let mut fields: Value = serde_json::from_str(&Compact::of(&large()).text()).unwrap();
    fields[field] = value;
    fields.to_string()
}

#[test]
fn a_node_is_read_as_it_was_written() {
    for facts in [facts(), large()] {
        let compact = Compact::of(&facts);
        assert_eq!(Compact::parse(&compact.text()), Ok(compact.clone()));
        assert_eq!(compact.topology.online(), facts.topology.online());
        assert_eq!(
            compact.free,
            facts
                .topology
                .online()
                .difference(&facts.reserved)
                .difference(&facts.exclusive)
        );
        assert!(facts.allocations.iter().all(|one| compact.pods[&one.pod] == one.cpus));
        assert_eq!(compact.choice.is_some(), facts.allocator.is_some());
    }
}

#[test]
fn a_small_node_can_be_read_by_people() {
    let expected = concat!(
        r#"{"v":1,"topology":"0x4:0:0:0/2 4x4:1:1:2/2","reserved":"0","free":"1,6-7","policy":"static","#,
        r#""options":{"full-pcpus-only":"true"},"pods":{"3ceda12c-3ee9-40fa-9f42-61428fe654a6":"2-3","#,
        r#""416de7c2-21de-472d-817c-fa9d4306cb7d":"4-5"}}"#
    );
    let text = Compact::of(&facts()).text();
    assert_eq!(text, expected);
}

#[test]
fn a_large_node_is_below_4_kb() {
    let compact = Compact::of(&large());
    assert_eq!((compact.topology.cpus.len(), compact.pods.len()), (256, 32));
    assert!(compact.text().len() < 4000, "{}", compact.text().len());
}

#[rstest]
#[case("v", json!(2), "version 2")]
#[case("v", json!("1"), "not a value")]
#[case("topology", json!("0x4:0:0"), "topology: \"0x4:0:0\" is not")]
#[case("topology", json!("0x0:0:0:0"), "not a run")]
#[case("topology", json!("0+0x2:0:0:0"), "not a run")]
#[case("topology", json!("0x2:0:0:0/0"), "not a run")]
#[case("topology", json!("0x4294967295:0:0:0"), "not a run")]
#[case("topology", json!("8191+16x2:0:0:0"), "not a run")]
#[case("topology", json!("0x2:0:0:4294967295"), "not a run")]
#[case("topology", json!("0x4:0:0:0 3x1:0:0:3"), "a CPU that is there twice")]
#[case("free", json!("0-300"), "not all of the free CPUs")]
#[case("free", json!("xyz"), "xyz")]
#[case("pods", json!({"../..": ""}), "not a pod UID")]
#[case("pods", json!({"3ceda12c-3ee9-40fa-9f42-61428fe654a6": "0-300"}), "are free, or another pod's too")]
#[case("allocator", json!({"policies": ["LSX"]}), "LSX")]
#[case("containers", json!(["3ceda12c-3ee9-40fa-9f42-61428fe654a6"]), "none of the pods'")]
#[case("kubelet", json!({"memory-groups": {"0": "a"}}), "\"a\"")]
#[case("kubelet", json!({"memory-groups": (0..1025).map(|node| (node.to_string(), json!("0"))).collect::<serde_json::Map<_, _>>()}), "more NUMA nodes")]
#[case("kubelet", json!({"caches": {"0": "0-3", "1": "3"}}), "a CPU has two L3 caches")]
fn what_is_wrong_is_named(#[case] field: &str, #[case] value: Value, #[case] says: &str) {
    let told = Compact::parse(&spoiled(field, value)).unwrap_err().to_string();
    assert!(told.contains(says), "{told}");
}

#[rstest]
#[case(
    "pods",
    r#"{"3ceda12c-3ee9-40fa-9f42-61428fe654a6": "", "3ceda12c-3ee9-40fa-9f42-61428fe654a6": ""}"#
)]
#[case("options", r#"{"full-pcpus-only": "true", "full-pcpus-only": "false"}"#)]
#[case("kubelet", r#"{"memory-groups": {"0": "0", "1": "1", "0": "0-1"}}"#)]
#[case("kubelet", r#"{"caches": {"7": "0-3", "7": "4-7"}}"#)]
fn a_key_that_is_there_twice_is_an_error(#[case] field: &str, #[case] members: &str) {
    // A JSON value has each member once: the second is put into the text.
    let text = spoiled(field, json!("HERE")).replace("\"HERE\"", members);
    let told = Compact::parse(&text).unwrap_err().to_string();
    assert!(told.contains("is there twice"), "{told}");
}

#[test]
fn a_field_of_a_later_steliad_is_passed_over() {
    assert_eq!(Compact::parse(&spoiled("later", json!([1]))), Ok(Compact::of(&large())));
    let long = " ".repeat(MAX_BYTES + 1);
    assert_eq!(Compact::parse(&long), Err(CompactError::TooLarge(MAX_BYTES + 1)));
}

fn any_set() -> impl Strategy<Value = CpuSet> {
    vec(any::<bool>(), 0..300).prop_map(|bits| (0..).zip(bits).filter(|(_, bit)| *bit).map(|(cpu, _)| cpu).collect())
}

fn any_pod() -> impl Strategy<Value = PodUid> {
    prop_oneof![
        "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        "[0-9a-f]{32}",
    ]
    .prop_map(|uid| PodUid::parse(&uid).unwrap())
}

fn any_topology() -> impl Strategy<Value = Topology> {
    let place = (0u32..4, 0u32..9, 0u32..4).prop_map(|(package, core, node)| Cpu { package, core, node });
    prop_oneof![
        shapes().prop_map(|shape| annotations::ranked(&shape.topology())),
        btree_map(0u32..400, place, 0..60).prop_map(|cpus| Topology { cpus }),
    ]
}

fn any_choice() -> impl Strategy<Value = Choice> {
    let policies = (
        proptest::sample::select(&Qos::ALL[..]),
        proptest::sample::select(&CpuBindPolicy::ALL[..]),
        proptest::sample::select(&RequiredBind::ALL[..]),
        proptest::sample::select(&CpuExclusivePolicy::ALL[..]),
        proptest::sample::select(&NumaAllocateStrategy::ALL[..]),
        proptest::sample::select(&NumaTopologyAlignmentPolicy::ALL[..]),
    );
    (
        policies,
        any_set(),
        any_set(),
        any_set(),
        any_set(),
        any_set(),
        any::<bool>(),
    )
        .prop_map(
            |(policies, lsr, pcpu_level, numa_node_level, kubelets, kubelet_reserved, blocked)| Choice {
                policies,
                lsr,
                pcpu_level,
                numa_node_level,
                kubelets,
                kubelet_reserved,
                blocked,
            },
        )
}

fn any_managers() -> impl Strategy<Value = Managers> {
    let groups = btree_map(
        0u32..16,
        proptest::collection::btree_set(0u32..16, 1..4).prop_map(NodeSet::from_iter),
        0..4,
    );
    (
        any::<bool>(),
        any::<bool>(),
        0u32..3,
        proptest::option::of(groups),
        btree_map(0u32..300, 0u32..9, 0..60),
    )
        .prop_map(
            |(prefer_closest, pod_level, reserved_count, memory_groups, caches)| Managers {
                prefer_closest,
                pod_level,
                reserved_count,
                memory_groups,
                caches,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_node_is_read_as_it_was_written(
        topology in any_topology(), reserved in any_set(), free in any_set(), choice in proptest::option::of(any_choice()),
        policy in "[a-z]{0,8}", options in btree_map("[a-z\"-]{1,20}", ".{0,9}", 0..4),
        pods in proptest::collection::btree_set(any_pod(), 0..90), share in 1u32..9, held in any_set(), managers in any_managers(),
    ) {
        let mut compact = Compact {
            free: free.intersection(&topology.online()),
            topology, reserved, choice, cpu_policy: policy, cpu_options: options, held, managers,
            pods: BTreeMap::new(), containers: pods.iter().step_by(share as usize).cloned().collect(),
        };
        // Some CPUs are nobody's that is known.
        let (taken, parts) = (compact.taken(), pods.len() + 1);
        for (place, pod) in pods.into_iter().enumerate() {
            let own = taken.iter().filter(|cpu| (cpu * share) as usize % parts == place);
            compact.pods.insert(pod, own.collect());
        }
        prop_assert_eq!(Compact::parse(&compact.text()), Ok(compact.clone()), "{}", compact.text());
    }

    #[test]
    fn no_text_ends_the_reader(at in any::<proptest::sample::Index>(), with in any::<u8>(), cut in any::<bool>()) {
        let mut bytes = Compact::of(&large()).text().into_bytes();
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at) } else { bytes[at] = with }
        if let Err(cause) = Compact::parse(&String::from_utf8_lossy(&bytes)) {
            prop_assert!(cause.to_string().len() < 1000, "{}", cause);
        }
    }
}

#[test]
fn equal_steps_are_one_run() {
    let of = |node: fn(u32) -> Cpu| Topology {
        cpus: (0..256).map(|cpu| (cpu, node(cpu))).collect(),
    };
    // Second threads last; threads side by side; sockets in turns.
    let last = of(|cpu| Cpu {
        package: cpu % 128 / 64,
        core: cpu % 128,
        node: cpu % 128 / 64,
    });
    assert_eq!(runs::write(&last), "0x64:0:0:0 64x64:1:1:64 128x64:0:0:0 192x64:1:1:64");
    let beside = of(|cpu| Cpu {
        package: cpu / 128,
        core: cpu / 2,
        node: cpu / 128,
    });
    assert_eq!(runs::write(&beside), "0x128:0:0:0/2 128x128:1:1:64/2");
    let turns = of(|cpu| Cpu {
        package: cpu % 2,
        core: cpu % 2 * 128 + cpu / 2,
        node: cpu % 2,
    });
    assert_eq!(runs::write(&turns), "0+2x128:0:0:0 1+2x128:1:1:128");
    for topology in [last, beside, turns] {
        assert_eq!(runs::read(&runs::write(&topology)), Ok(topology));
    }
    assert_eq!(runs::read(""), Ok(Topology::default()));
    assert_eq!(cpus("0-3"), runs::read("0x4:0:0:0").unwrap().online());
}
