mod properties;

use std::time::{Duration, Instant};

use rstest::rstest;

use super::*;
use crate::testing::hint;

fn texts(options: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = options
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    owned.collect()
}

fn merger(policy: Policy, nodes: &str) -> Merger {
    let options = MergeOptions {
        max_allowable_numa_nodes: 64,
        ..MergeOptions::default()
    };
    Merger::new(policy, options, &nodes.parse().unwrap(), &BTreeMap::new()).unwrap()
}

fn printed(merged: Merged) -> String {
    let nodes = merged.nodes.map_or("any".to_owned(), |nodes| nodes.to_string());
    let preferred = if merged.preferred { "preferred" } else { "not preferred" };
    let admitted = if merged.admitted { "admitted" } else { "rejected" };
    format!("{nodes}, {preferred}, {admitted}")
}

/// Every mask of `nodes` nodes; those of `width` nodes are preferred.
fn all_masks(nodes: u32, width: u32) -> HintList {
    let masks = (1..1u64 << nodes).map(|bits| hint(bits, bits.count_ones() == width));
    Some(masks.collect())
}

#[rstest]
#[case(Policy::None, "any, not preferred, admitted")]
#[case(Policy::BestEffort, "1, preferred, admitted")]
#[case(Policy::Restricted, "1, preferred, admitted")]
#[case(Policy::SingleNumaNode, "1, preferred, admitted")]
fn what_all_prefer_is_taken(#[case] policy: Policy, #[case] expected: &str) {
    let cpus = Some(vec![hint(0b01, true), hint(0b10, true), hint(0b11, false)]);
    let device = Some(vec![hint(0b10, true), hint(0b11, false)]);
    assert_eq!(printed(merger(policy, "0-1").merge(&[cpus, None, device])), expected);
}

#[rstest]
#[case(Policy::BestEffort, "0, not preferred, admitted")]
#[case(Policy::Restricted, "0, not preferred, rejected")]
#[case(Policy::SingleNumaNode, "any, not preferred, rejected")]
fn where_nodes_are_not_agreed_on_the_policy_decides(#[case] policy: Policy, #[case] expected: &str) {
    let cpus = Some(vec![hint(0b01, true), hint(0b11, false)]);
    let device = Some(vec![hint(0b10, true), hint(0b11, false)]);
    assert_eq!(printed(merger(policy, "0-1").merge(&[cpus, device])), expected);
}

#[test]
fn best_effort_does_not_take_the_narrowest_but_what_the_neediest_resource_needs() {
    let gpus = Some(vec![hint(0b0011, true), hint(0b1100, true), hint(0b1111, false)]);
    let cpus = Some(vec![hint(0b0100, true), hint(0b1100, false), hint(0b0111, false)]);
    let merged = merger(Policy::BestEffort, "0-3").merge(&[gpus, cpus]);
    assert_eq!(printed(merged), "0-1, not preferred, admitted");
}

#[test]
fn masks_that_fit_only_before_the_machines_nodes_are_taken_off_are_not_equal() {
    let merger = merger(Policy::Restricted, "0-1");
    let (short, long) = (Some(vec![hint(0b001, true)]), Some(vec![hint(0b101, true)]));
    assert_eq!(
        printed(merger.merge(&[short.clone(), long])),
        "0, not preferred, rejected"
    );
    assert_eq!(printed(merger.merge(&[short.clone(), short])), "0, preferred, admitted");
}

#[rstest]
#[case::no_provider(&[], "0-1, preferred, admitted")]
#[case::no_preference(&[None], "0-1, preferred, admitted")]
#[case::unsatisfiable(&[Some(Vec::new())], "0-1, not preferred, rejected")]
#[case::nowhere(&[Some(vec![hint(0b100, true)])], "0-1, not preferred, rejected")]
fn without_any_mask_it_is_all_nodes(#[case] lists: &[HintList], #[case] expected: &str) {
    assert_eq!(printed(merger(Policy::Restricted, "0-1").merge(lists)), expected);
}

#[test]
fn single_numa_node_says_any_on_a_machine_of_one_node() {
    let merged = merger(Policy::SingleNumaNode, "0").merge(&[Some(vec![hint(1, true)])]);
    assert_eq!(printed(merged), "any, preferred, admitted");
}

#[rstest]
#[case(Policy::BestEffort, "1-2, preferred, admitted")]
#[case(Policy::Restricted, "1-2, preferred, admitted")]
fn the_closest_of_the_narrowest_is_taken(#[case] policy: Policy, #[case] expected: &str) {
    let rows = [vec![10, 21, 20], vec![21, 10, 12], vec![20, 12, 10]];
    let distances = (0..).zip(rows).collect();
    let mut options = MergeOptions {
        prefer_closest_numa_nodes: true,
        ..MergeOptions::default()
    };
    let lists = [Some(vec![hint(0b011, true), hint(0b101, true), hint(0b110, true)])];
    let merger = Merger::new(policy, options, &"0-2".parse().unwrap(), &distances).unwrap();
    assert_eq!(printed(merger.merge(&lists)), expected);
    options.prefer_closest_numa_nodes = false;
    let merger = Merger::new(policy, options, &"0-2".parse().unwrap(), &distances).unwrap();
    assert_eq!(printed(merger.merge(&lists)), "0-1, preferred, admitted");
}

/// kubelet needs years for each of these; folding the second pair by pair takes more than a minute.
#[rstest]
#[case(8, 6)]
#[case(16, 4)]
fn every_mask_of_every_list_takes_no_time(#[case] nodes: u32, #[case] lists: u32) {
    let merger = merger(Policy::BestEffort, &format!("0-{}", nodes - 1));
    let lists: Vec<HintList> = (1..=lists).map(|width| all_masks(nodes, width)).collect();
    assert!(testing::permutations(&lists) > 1 << 47);
    let started = Instant::now();
    let merged = merger.merge(&lists);
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    // T is 1: each list has masks of one node.
    assert_eq!(printed(merged), "0, not preferred, admitted");
}

#[test]
fn more_nodes_than_a_table_has_bits_for_are_folded_too() {
    let merger = merger(Policy::BestEffort, "0-39");
    let window = |width: u32| (0..=40 - width).map(move |from| hint(((1 << width) - 1) << from, true));
    let lists = [
        Some(window(6).collect()),
        Some(window(7).collect()),
        Some(window(8).skip(20).collect()),
    ];
    // T is 8, which no AND with six nodes reaches.
    assert_eq!(printed(merger.merge(&lists)), "20-25, not preferred, admitted");
    assert_eq!(testing::merge(&merger, &lists), merger.merge(&lists));
}

#[test]
fn node_ids_may_have_gaps_and_end_at_63() {
    let merger = merger(Policy::Restricted, "0,8,63");
    let merged = merger.merge(&[Some(vec![hint(1 << 63, true)]), Some(vec![hint(1 << 63 | 1, false)])]);
    assert_eq!(printed(merged), "63, not preferred, rejected");
}

#[rstest]
#[case("0-8", false, "9 NUMA nodes are more than max-allowable-numa-nodes, which is 8")]
#[case("0,64", false, "NUMA node 64 is beyond 63, the highest that kubelet's masks hold")]
#[case(
    "0,2",
    true,
    "NUMA node 0 has 2 distances, and kubelet would look for that to node 2"
)]
#[case("3", true, "NUMA node 3 has 0 distances, and kubelet would look for that to node 3")]
fn a_machine_that_kubelet_cannot_merge_on_is_refused(#[case] nodes: &str, #[case] closest: bool, #[case] says: &str) {
    let options = MergeOptions {
        prefer_closest_numa_nodes: closest,
        ..MergeOptions::default()
    };
    let nodes = nodes.parse().unwrap();
    let distances = BTreeMap::from([(0, vec![10, 20]), (2, vec![20, 10])]);
    let refused = Merger::new(Policy::BestEffort, options, &nodes, &distances).unwrap_err();
    assert!(refused.to_string().contains(says), "{refused}");
    assert!(Merger::new(Policy::None, options, &nodes, &distances).is_ok());
}

#[test]
fn single_numa_node_never_looks_at_distances() {
    let options = MergeOptions {
        prefer_closest_numa_nodes: true,
        ..MergeOptions::default()
    };
    let nodes = "0,2".parse().unwrap();
    let merger = Merger::new(Policy::SingleNumaNode, options, &nodes, &BTreeMap::new()).unwrap();
    let merged = merger.merge(&[Some(vec![hint(0b100, true), hint(0b001, true)])]);
    assert_eq!(printed(merged), "0, preferred, admitted");
}

#[test]
fn options_are_read_as_kubelet_reads_them() {
    let options = texts(&[("prefer-closest-numa-nodes", "T"), ("max-allowable-numa-nodes", "+16")]);
    let expected = MergeOptions {
        prefer_closest_numa_nodes: true,
        max_allowable_numa_nodes: 16,
    };
    assert_eq!(MergeOptions::parse(&options), Ok(expected));
    assert_eq!(MergeOptions::parse(&BTreeMap::new()), Ok(MergeOptions::default()));
}

#[rstest]
#[case("prefer-closest-numa-nodes", "yes", "a truth value")]
#[case("max-allowable-numa-nodes", "7", "a number of at least 8")]
#[case("max-allowable-numa-nodes", "9223372036854775808", "a number of at least 8")]
fn a_bad_option_is_named(#[case] name: &str, #[case] value: &str, #[case] wanted: &str) {
    let error = |name: &str, value: &str| MergeOptions::parse(&texts(&[(name, value)])).unwrap_err().to_string();
    let expected = format!("Topology Manager policy option {name}: {value:?} is not {wanted}");
    assert_eq!(error(name, value), expected);
    let unknown = error("closest", "true");
    assert_eq!(unknown, "unknown Topology Manager policy option \"closest\"");
}

#[test]
fn names_are_kubelets() {
    for policy in Policy::ALL {
        assert_eq!(Policy::parse(policy.name()), Some(policy));
    }
    for scope in Scope::ALL {
        assert_eq!(Scope::parse(scope.name()), Some(scope));
    }
    assert_eq!(Policy::parse("Restricted"), None);
    assert_eq!(Scope::parse(""), None);
}

/// With pairs alone this would take an hour: ids beyond the table's size, and three lists of 65,535 masks each.
#[test]
fn sixteen_nodes_with_ids_far_apart_are_folded_by_the_table() {
    let nodes: NodeSet = (0..16).map(|node| node * 4).collect();
    let far = |mask: NodeMask| mask.nodes().map(|node| node * 4).collect();
    let list = |width: u32| {
        let mut hints = all_masks(16, width).unwrap();
        hints.iter_mut().for_each(|hint| hint.nodes = hint.nodes.map(far));
        Some(hints)
    };
    let merged = merger(Policy::BestEffort, &nodes.to_string()).merge(&[list(1), list(2), list(3)]);
    assert_eq!(printed(merged), "0, not preferred, admitted");
}
