//! The object as its readers read it: what kube-scheduler's NodeResourceTopologyMatch does with names, attributes and zones,
//! written down anew from what it does (kubernetes-sigs/scheduler-plugins, `pkg/noderesourcetopology`).

use std::collections::BTreeMap;

use rstest::rstest;

use crate::report::fingerprint::{self, Method};
use crate::report::profile::{Profile, object};
use crate::report::testing::{facts, large, numa};
use crate::report::{ApiVersion, Facts, NodeResourceTopology};
use stelia_kubelet::PodName;

/// The highest id of a NUMA node that the plugin takes (`pluginhelpers.go`).
const MAX_NUMA_ID: usize = 64;

/// A zone's id by its name, as `helper/numanode` of the API's own package has it.
fn id(name: &str) -> Option<usize> {
    let digits = name.strip_prefix("node-")?;
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok())?
}

#[rstest]
#[case("node-0", Some(0))]
#[case("node-7", Some(7))]
#[case("node-65535", Some(65535))]
#[case("node--1", None)]
#[case("cell-1", None)]
#[case("Node-1", None)]
#[case("NODE-2", None)]
#[case("node_3", None)]
#[case("node 4", None)]
#[case("node-5-1", None)]
#[case("node6", None)]
#[case("--node-7", None)]
fn a_name_is_a_node_as_the_apis_own_vectors_say(#[case] name: &str, #[case] expected: Option<usize>) {
    assert_eq!(id(name), expected);
}

/// What the plugin takes a node's topology manager for (`nodeconfig/topologymanager.go`): scope, policy, NUMA nodes.
fn manager(object: &NodeResourceTopology) -> (String, String, u32) {
    let mut manager = ("container".to_owned(), "none".to_owned(), 8);
    for attribute in &object.attributes {
        let value = attribute.value.as_str();
        match (attribute.name.as_str(), value) {
            ("topologyManagerScope", "container" | "pod") => value.clone_into(&mut manager.0),
            ("topologyManagerPolicy", "none" | "best-effort" | "restricted" | "single-numa-node") => {
                value.clone_into(&mut manager.1);
            }
            ("topologyManagerMaxNUMANodes", number) => {
                let number = number.parse().ok().filter(|number| *number > 1);
                manager.2 = number.map_or(manager.2, |number: u32| number.min(1024));
            }
            _ => {}
        }
    }
    manager
}

/// What is available by resource, and the costs by id.
type Read<'a> = (BTreeMap<&'a str, &'a str>, BTreeMap<usize, i64>);

/// What the plugin has of a node's zones (`createNUMANodeList`), by id.
fn nodes(object: &NodeResourceTopology) -> BTreeMap<usize, Read<'_>> {
    let zones = object.zones.iter().filter(|zone| zone.kind == "Node");
    let zones = zones.filter_map(|zone| Some((id(&zone.name).filter(|id| *id <= MAX_NUMA_ID)?, zone)));
    let read = zones.map(|(node, zone)| {
        let resources = zone.resources.iter();
        let available = resources.map(|one| (one.name.as_str(), one.available.as_str()));
        let costs = zone.costs.iter().filter_map(|cost| Some((id(&cost.name)?, cost.value)));
        (node, (available.collect(), costs.collect()))
    });
    read.collect()
}

fn nrt(facts: &Facts) -> NodeResourceTopology {
    object(facts, Profile::Nrt, ApiVersion::V1Alpha2, Method::default())
}

#[test]
fn the_plugin_reads_kubelets_policies() {
    for (max, expected) in [(None, 8), (Some(8), 8), (Some(12), 12)] {
        let mut facts = facts();
        facts.kubelet.max_numa_nodes = max;
        assert_eq!(
            manager(&nrt(&facts)),
            ("pod".to_owned(), "single-numa-node".to_owned(), expected)
        );
    }
    let mut unknown = facts();
    unknown.kubelet.alignment = None;
    assert_eq!(manager(&nrt(&unknown)), ("container".to_owned(), "none".to_owned(), 8));
}

#[test]
fn the_plugin_reads_what_is_available_and_the_distances() {
    let object = nrt(&facts());
    let nodes = nodes(&object);
    assert_eq!(nodes.keys().copied().collect::<Vec<_>>(), [0, 1]);
    let (available, costs) = &nodes[&0];
    let expected = [
        ("cpu", "1"),
        ("hugepages-1Gi", "0"),
        ("hugepages-2Mi", "1Gi"),
        ("memory", "14Gi"),
    ];
    assert_eq!(
        available
            .iter()
            .map(|(name, amount)| (*name, *amount))
            .collect::<Vec<_>>(),
        expected
    );
    assert_eq!(costs, &BTreeMap::from([(0, 10), (1, 21)]));
}

#[test]
fn ids_with_gaps_are_a_warning_because_the_plugin_takes_them_for_places_in_a_list() {
    let at = |ids: &[u32]| {
        let mut facts = facts();
        for cpu in facts.topology.cpus.values_mut() {
            cpu.node = ids[cpu.node as usize];
        }
        facts.numa = ids.iter().copied().zip(numa(2).into_values()).collect();
        facts
    };
    for ids in [[0, 2], [1, 2], [0, 8]] {
        let facts = at(&ids);
        let object = nrt(&facts);
        let nodes = nodes(&object);
        assert!(nodes.keys().any(|id| *id >= object.zones.len()), "{ids:?}");
        let warning = &object.metadata.annotations["isolation.stelia.io/warnings"];
        assert!(warning.contains("NodeResourceTopologyMatch"), "{warning}");
        // The object is whole all the same.
        assert_eq!(nodes.len(), 2);
    }
    assert!(at(&[0, 1]).warnings().is_empty());
}

/// What the plugin computes of the pods it knows on the node, to compare (`cache/store.go`).
fn expected(object: &NodeResourceTopology, all: &[PodName], exclusive: &[PodName]) -> bool {
    let get = |name: &str| {
        object
            .attributes
            .iter()
            .find(|one| one.name == name)
            .map(|one| one.value.as_str())
    };
    let only = get("nodeTopologyPodsFingerprintMethod") == Some("with-exclusive-resources");
    let pods = if only { exclusive } else { all };
    get("nodeTopologyPodsFingerprint") == Some(fingerprint::of(pods).as_str())
}

#[test]
fn the_plugin_finds_its_own_fingerprint() {
    let facts = large();
    let pods = facts.pods.as_ref().unwrap().values();
    let named = |exclusive: bool| -> Vec<PodName> {
        let counted = pods.clone().filter(|pod| !exclusive || pod.exclusive);
        counted.filter_map(|pod| pod.name.clone()).collect()
    };
    for method in Method::ALL {
        let object = object(&facts, Profile::Nrt, ApiVersion::V1Alpha2, method);
        assert!(expected(&object, &named(false), &named(true)), "{method:?}");
        // With one pod more it is another.
        let mut more = named(true);
        more.push(PodName::new("tenant-b", "another").unwrap());
        assert!(!expected(&object, &more, &more), "{method:?}");
    }
}

#[rstest]
#[case(&[("ns1", "n1"), ("ns1", "n2"), ("ns2", "n1"), ("ns3", "n1"), ("ns3", "n2")], "pfp0v001b92008c14168b3a6")]
#[case(
    &[
        ("analytics", "controller-69dkj"), ("kube-public", "subscriber-tq6v7"), ("kube-public", "transformer-hfbng"),
        ("kube-public", "validator-c6pn5"), ("kube-system", "proxy-wszrd"), ("middleware", "processor-jkrl4"),
        ("network", "gateway-vsll5"), ("network", "importer-kzdfr"), ("network", "importer-q5vt9"),
        ("staging", "prometheus-bwgbn"),
    ],
    "pfp0v001567144e4a561bb5a"
)]
// XXH64 of nothing.
#[case(&[], "pfp0v001ef46db3751d8e999")]
fn a_fingerprint_is_the_one_of_podfingerprint_in_any_order(#[case] pods: &[(&str, &str)], #[case] value: &str) {
    let mut pods: Vec<PodName> = pods
        .iter()
        .map(|(namespace, name)| PodName::new(namespace, name).unwrap())
        .collect();
    assert_eq!(fingerprint::of(&pods), value);
    pods.reverse();
    assert_eq!(fingerprint::of(&pods), value);
}
