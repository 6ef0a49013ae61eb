//! The fold gives the product's answer.

use std::collections::BTreeSet;

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::select;

use super::super::*;

/// A merge of few enough permutations for the product.
#[derive(Debug, Clone)]
struct Case {
    policy: Policy,
    closest: bool,
    nodes: NodeSet,
    distances: BTreeMap<u32, Vec<u64>>,
    lists: Vec<HintList>,
}

impl Case {
    fn merger(&self) -> Merger {
        let options = MergeOptions {
            prefer_closest_numa_nodes: self.closest,
            ..MergeOptions::default()
        };
        Merger::new(self.policy, options, &self.nodes, &self.distances).unwrap()
    }
}

/// Masks of the machine, now and then with a node it does not have, empty, or none at all.
fn hints(nodes: u32) -> impl Strategy<Value = Hint> {
    let bits = prop_oneof![8 => 1..1u64 << nodes, 1 => 0..2u64 << nodes];
    (proptest::option::weighted(0.9, bits), any::<bool>()).prop_map(|(bits, preferred)| Hint {
        nodes: bits.map(NodeMask::from_bits),
        preferred,
    })
}

fn cases() -> impl Strategy<Value = Case> {
    (1u32..7).prop_flat_map(|count| {
        let list = proptest::option::weighted(0.9, vec(hints(count), 0..7));
        // A few values, so that many averages are equal.
        let rows = vec(vec(10u64..14, count as usize), count as usize);
        (
            select(&Policy::ALL[..]),
            any::<bool>(),
            any::<bool>(),
            rows,
            vec(list, 0..5),
        )
            .prop_map(move |(policy, closest, gap, rows, lists)| {
                let highest = if gap && !closest { count + 2 } else { count };
                Case {
                    policy,
                    closest,
                    nodes: (0..highest).filter(|node| highest == count || *node != 1).collect(),
                    distances: (0..).zip(rows).collect(),
                    lists,
                }
            })
    })
}

fn turn<T>(list: &mut [T], seed: u64) {
    let by = seed % list.len().max(1) as u64;
    list.rotate_left(by as usize);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn the_fold_answers_as_the_product_does(case in cases()) {
        let merger = case.merger();
        prop_assert_eq!(merger.merge(&case.lists), testing::merge(&merger, &case.lists));
    }

    #[test]
    fn the_order_of_lists_and_of_hints_decides_nothing(case in cases(), seed in any::<u64>()) {
        let merger = case.merger();
        let mut turned = case.lists.clone();
        for hints in turned.iter_mut().flatten() {
            hints.reverse();
            turn(hints, seed);
        }
        turn(&mut turned, seed);
        prop_assert_eq!(testing::merge(&merger, &turned), testing::merge(&merger, &case.lists));
        prop_assert_eq!(merger.merge(&turned), merger.merge(&case.lists));
    }

    /// Nor do the nodes' ids: a node's id matters only beside others', which keep their order here.
    #[test]
    fn where_ids_are_far_apart_the_answer_is_the_same(case in cases(), gap in 2u32..8) {
        let case = Case { closest: false, ..case };
        let far = |mask: NodeMask| mask.nodes().map(|node| node * gap).collect::<NodeMask>();
        let mut apart = case.clone();
        apart.nodes = case.nodes.iter().map(|node| node * gap).collect();
        for hint in apart.lists.iter_mut().flatten().flatten() {
            hint.nodes = hint.nodes.map(far);
        }
        let merged = case.merger().merge(&case.lists);
        let expected = Merged { nodes: merged.nodes.map(far), ..merged };
        prop_assert_eq!(apart.merger().merge(&apart.lists), expected);
    }

    #[test]
    fn the_table_finds_what_the_pairs_find(some in btree_set(1u64..64, 0..24), others in btree_set(1u64..64, 0..24)) {
        let masks = |bits: BTreeSet<u64>| bits.into_iter().map(NodeMask::from_bits).collect::<Vec<_>>();
        let (some, others) = (masks(some), masks(others));
        let mut by_pair = fold::ands_by_pair(&some, &others);
        by_pair.sort_unstable();
        prop_assert_eq!(fold::ands_by_table(&some, &others, 6), by_pair);
    }
}
