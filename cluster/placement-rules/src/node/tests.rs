use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};
use stelia_cpus::CpuSet;
use stelia_cpus::testing::Shape;
use stelia_koordinator::report::testing::{facts, large};
use stelia_koordinator::report::{Facts, compact};

use std::collections::BTreeMap;

use super::*;
use crate::testing::published;

fn object() -> Value {
    serde_json::from_str(&published(&large())).unwrap()
}

/// The object with the attribute's own field changed.
fn with_field(field: &str, value: Value) -> Value {
    with_fields([(field, value)])
}

fn with_fields<const N: usize>(changed: [(&str, Value); N]) -> Value {
    let mut object = object();
    let mut attributes = object["attributes"].as_array_mut().unwrap().iter_mut();
    let own = attributes.find(|one| one["name"] == compact::ATTRIBUTE).unwrap();
    let mut fields: Value = serde_json::from_str(own["value"].as_str().unwrap()).unwrap();
    for (field, value) in changed {
        fields[field] = value;
    }
    own["value"] = fields.to_string().into();
    object
}

fn refused(object: &Value) -> NodeError {
    let read = parse(object.to_string().as_bytes());
    let made = read.and_then(|described| NodeShape::new(described.shape).map(|_| ()));
    made.unwrap_err()
}

#[test]
fn a_published_node_is_read() {
    let facts = large();
    let read = parse(published(&facts).as_bytes()).unwrap();
    let online = facts.topology.online();
    let free = online.difference(&facts.reserved).difference(&facts.exclusive);
    assert_eq!(read.available.free, free);
    assert_eq!(read.pods.len(), 32);
    // Whose each CPU is.
    let shape = NodeShape::new(read.shape).unwrap();
    for allocation in &facts.allocations {
        let own = (Uid::of(&allocation.pod), allocation.cpus.clone());
        assert!(read.pods.contains(&own), "{own:?}");
    }
    assert!(shape.steliad_chooses());
}

#[test]
fn nodes_of_one_kind_have_the_same_shape_whatever_is_allocated() {
    let (one, mut other) = (large(), large());
    other.name = "another".to_owned();
    other.exclusive = CpuSet::new();
    other.allocations.clear();
    let [one, other] = [one, other].map(|facts| parse(published(&facts).as_bytes()).unwrap());
    assert_eq!(one.shape, other.shape);
    assert_ne!(one.available, other.available);
    let kubelets = parse(published(&facts()).as_bytes()).unwrap();
    assert_ne!(kubelets.shape, one.shape);
}

#[test]
fn fields_of_others_are_passed_over_and_numbers_are_quantities() {
    let mut object = object();
    object["metadata"]["managedFields"] = json!([{"manager": "steliad"}]);
    object["zones"][0]["parent"] = json!("socket-0");
    object["zones"][0]["resources"][0]["capacity"] = json!(128);
    let attributes = object["attributes"].as_array_mut().unwrap();
    attributes.push(json!({"name": STATE, "value": "ready"}));
    assert_eq!(parse(object.to_string().as_bytes()).map(drop), Ok(()));
}

#[rstest]
#[case("topology", json!("0x1000000000:0:0:0"), "AttributeMalformed", "not a run")]
#[case("topology", json!("0x8193:0:0:0"), "AttributeMalformed", "not a run")]
#[case("topology", json!("0x128:0:0:0 128x128:0:0:0"), "ObjectContradicts", "zone node-0")]
#[case("topology", json!(""), "AttributeMalformed", "free")]
#[case("topology", json!("0x128:0:0:0/2 128x128:1:7:64/2"), "ObjectContradicts", "zone node-")]
#[case("policy", json!("sticky"), "ObjectMalformed", "there is no such CPU manager policy")]
#[case("policy", json!(1), "AttributeMalformed", "expected a string")]
#[case("v", json!(2), "AttributeMalformed", "version 2")]
#[case("kubelet", json!({"memory-groups": {"64": "64"}}), "ObjectMalformed", "no NUMA node has so high an id")]
#[case("kubelet", json!({"memory-groups": {"0": "64"}}), "ObjectMalformed", "no NUMA node has so high an id")]
#[case("kubelet", json!({"reserved-count": -1}), "AttributeMalformed", "-1")]
#[case("free", json!("0-255"), "AttributeMalformed", "of pod")]
fn an_absurd_attribute_is_named(#[case] field: &str, #[case] value: Value, #[case] name: &str, #[case] says: &str) {
    let error = refused(&with_field(field, value));
    assert_eq!(error.name(), name, "{error}");
    assert!(error.to_string().contains(says), "{error}");
}

#[test]
fn static_policy_with_options_that_exclude_each_other_is_named() {
    let options = json!({"full-pcpus-only": "true", "distribute-cpus-across-cores": "true"});
    let object = with_fields([("policy", json!("static")), ("options", options)]);
    assert_eq!(refused(&object).name(), "KubeletUnknown");
}

#[rstest]
#[case("/zones/1/name", json!("node-0"), "there twice")]
#[case("/zones/0/name", json!("node-4294967296"), "not the name")]
#[case("/zones/0/name", json!("node-64"), "no NUMA node has so high an id")]
#[case("/zones/0/name", json!("socket-0"), "not the name")]
#[case("/zones/0/name", json!("node-5"), "zone node-5")]
#[case("/zones/0/name", json!(0), "expected a string")]
#[case("/zones/0/costs/0/value", json!(-1), "not a distance")]
#[case("/zones/0/costs/1/name", json!("node-0"), "there twice")]
#[case("/zones/0/resources/0/capacity", json!("1000000000"), "1000000000 CPUs")]
#[case("/zones/0/resources/0/capacity", json!("many"), "not a quantity")]
#[case("/zones/0/resources/0/capacity", json!([]), "a quantity")]
#[case("/zones/0/resources/1/name", json!("cpu"), "there twice")]
#[case("/zones/0/resources/1", json!({"name": "a/b", "capacity": "1e12", "available": "0"}), "too many devices")]
#[case("/zones/0/resources/1", json!({"name": "a/b", "capacity": "1", "available": "2"}), "more than is allocatable")]
#[case("/zones", json!([]), "no zone of this NUMA node")]
#[case("/zones", json!("none"), "invalid type")]
#[case("/attributes", json!([]), "not of profile stelia")]
#[case("/attributes/0/value", json!("sometimes"), "there is no such policy")]
#[case("/attributes/2/value", json!("-1"), "not a number")]
#[case("/metadata", json!({}), "missing field")]
fn an_absurd_object_is_named(#[case] pointer: &str, #[case] value: Value, #[case] says: &str) {
    let mut object = object();
    *object.pointer_mut(pointer).unwrap() = value;
    let error = refused(&object).to_string();
    assert!(error.contains(says), "{error}");
    assert!(error.len() < 500, "{error}");
}

#[test]
fn what_is_there_twice_or_too_long_is_named() {
    let mut twice = object();
    let attributes = twice["attributes"].as_array_mut().unwrap();
    let own = attributes.iter().find(|one| one["name"] == compact::ATTRIBUTE);
    let own = own.unwrap().clone();
    attributes.push(own);
    assert!(matches!(refused(&twice), NodeError::Twice(_)));

    let mut unusable = object();
    let value = json!({"name": STATE, "value": "x".repeat(10_000)});
    unusable["attributes"].as_array_mut().unwrap().push(value);
    let error = refused(&unusable);
    assert_eq!(error.name(), "NodeStateUnusable");
    assert!(error.to_string().len() < 300, "{error}");

    let mut long = object();
    long["metadata"]["name"] = "x".repeat(MAX_BYTES).into();
    assert!(matches!(refused(&long), NodeError::TooLarge(_)));
    let deep = "[".repeat(100_000);
    assert_eq!(parse(deep.as_bytes()).unwrap_err().name(), "ObjectMalformed");
}

#[test]
fn numa_ids_with_gaps_are_numa_ids() {
    let mut facts = facts();
    for cpu in facts.topology.cpus.values_mut().filter(|cpu| cpu.node == 1) {
        cpu.node = 40;
    }
    let second = facts.numa.remove(&1).unwrap();
    facts.numa.insert(40, second);
    for node in facts.numa.values_mut() {
        let distance = node.distances.remove(&1).unwrap();
        node.distances.insert(40, distance);
    }
    let read = parse(published(&facts).as_bytes()).unwrap();
    let shape = NodeShape::new(read.shape).unwrap();
    assert_eq!(shape.nodes().collect::<Vec<_>>(), [0, 40]);
    assert_eq!((shape.distance(0, 40), shape.distance(40, 0)), (Some(21), Some(21)));
}

#[test]
fn a_node_of_kubelets_whose_policy_is_not_told_is_not_guessed_at() {
    let mut facts = facts();
    facts.kubelet.alignment = None;
    let object: Value = serde_json::from_str(&published(&facts)).unwrap();
    assert_eq!(refused(&object), NodeError::KubeletUnknown);
    // Where steliad chooses there may be no kubelet.
    let mut facts = large();
    facts.kubelet.alignment = None;
    let read = parse(published(&facts).as_bytes()).unwrap();
    assert!(NodeShape::new(read.shape).is_ok());
}

/// So many NUMA nodes of two CPUs and memory that kubelet assigns.
fn wide(nodes: u32, policy: &str) -> Facts {
    let mut facts = facts();
    let shape = Shape {
        nodes,
        cores: 2,
        threads: 1,
        interleaved: false,
    };
    facts.topology = shape.topology();
    let mut own = facts.numa[&0].clone();
    own.distances = (0..nodes).map(|id| (id, 10)).collect();
    facts.numa = (0..nodes).map(|id| (id, own.clone())).collect();
    facts.reserved = "0".parse().unwrap();
    facts.kubelet.reserved = facts.reserved.clone();
    facts.kubelet.max_numa_nodes = Some(nodes);
    facts.exclusive = CpuSet::new();
    facts.allocations.clear();
    facts.devices.clear();
    facts.shared = facts.topology.online();
    facts.kubelet.cpu_options.clear();
    facts.kubelet.managers.memory_groups = Some(BTreeMap::new());
    facts.kubelet.alignment.as_mut().unwrap().policy = policy.to_owned();
    facts
}

#[rstest]
#[case(8, "best-effort", true)]
#[case(9, "best-effort", false)]
#[case(16, "restricted", false)]
#[case(16, "none", true)]
#[case(16, "single-numa-node", true)]
fn numa_nodes_that_kubelet_compares_are_few(#[case] nodes: u32, #[case] policy: &str, #[case] usable: bool) {
    let text = published(&wide(nodes, policy));
    if !usable {
        let refused = refused(&serde_json::from_str(&text).unwrap());
        return assert!(refused.to_string().contains("NUMA nodes are not compared"), "{refused}");
    }
    let shape = NodeShape::new(parse(text.as_bytes()).unwrap().shape).unwrap();
    // So many times as many sets.
    assert_eq!(shape.effort(&crate::testing::pod(1000, 1)), 1 << (nodes - 8));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_text_ends_the_reader(
        at in any::<prop::sample::Index>(), with in any::<u8>(), cut in any::<bool>(), large_node in any::<bool>(),
    ) {
        let facts = if large_node { large() } else { facts() };
        let mut bytes = published(&facts).into_bytes();
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at) } else { bytes[at] = with }
        let read = parse(&bytes).and_then(|described| NodeShape::new(described.shape).map(|_| ()));
        if let Err(cause) = read {
            prop_assert!(cause.to_string().len() < 1000, "{}", cause);
        }
    }

    #[test]
    fn a_uid_is_a_number_and_back(number in any::<u128>()) {
        let uid = crate::testing::uid(number);
        prop_assert_eq!(Uid::of(&uid), Uid(number));
        prop_assert_eq!(Uid(number).to_string(), uid.as_str());
        let of_static = format!("{number:032x}");
        prop_assert_eq!(Uid::parse(&of_static), Some(Uid(number)));
    }
}
