//! How long a merge of topology hints takes, beside the whole product that kubelet goes through. `make bench` runs it.
//!
//! It fails where a merge takes longer than it may.

mod timing;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::ensure;
use criterion::Criterion;
use kubelet_planner::merge::{Hint, HintList, MergeOptions, Merger, NodeMask, Policy, TopologyRefusal, testing};
use stelia_cpus::NodeSet;

use timing::median;

/// As many permutations the product gets through in seconds.
const FEASIBLE: u128 = 20_000_000;

struct Case {
    name: &'static str,
    nodes: u32,
    lists: Vec<HintList>,
    /// What is promised.
    within: Option<Duration>,
}

fn main() -> anyhow::Result<()> {
    let mut criterion = Criterion::default().configure_from_args();
    let mut report = String::new();
    let mut late = false;
    for case in cases() {
        let merger = merger(case.nodes)?;
        let permutations = testing::permutations(&case.lists);
        criterion.bench_function(&format!("merge/{}", case.name), |bencher| {
            bencher.iter(|| merger.merge(black_box(&case.lists)));
        });
        let fold = median(|| {
            black_box(merger.merge(black_box(&case.lists)));
        });
        report += &format!("{:<34} {:>10.1?}", case.name, fold);
        if let Some(within) = case.within {
            late |= fold > within;
            report += &format!(", may take {within:?}");
        }
        if permutations <= FEASIBLE {
            let started = Instant::now();
            let product = testing::merge(&merger, black_box(&case.lists));
            let took = started.elapsed();
            ensure!(
                product == merger.merge(&case.lists),
                "{}: another answer than the product's",
                case.name
            );
            let ratio = took.as_secs_f64() / fold.as_secs_f64();
            report += &format!("; the product of {permutations}: {took:.1?}, {ratio:.0} times as long\n");
        } else {
            report += &format!(
                "; a product of {permutations:.1e} is not feasible\n",
                permutations = permutations as f64
            );
        }
    }
    criterion.final_summary();
    print!("\n{report}");
    ensure!(!late, "a merge takes longer than it may");
    Ok(())
}

/// No mask is preferred by two lists, so that every case is folded.
fn cases() -> Vec<Case> {
    let full = |nodes, lists| (1..=lists).map(|width| every_mask(nodes, width)).collect();
    let within = |milliseconds| Some(Duration::from_millis(milliseconds));
    let some = |count, lists| (1..=lists).map(|width| some_masks(16, count, width)).collect();
    let cases = [
        ("8 nodes, 2 lists of 255", 8, full(8, 2), within(1)),
        ("8 nodes, 3 lists of 255", 8, full(8, 3), within(1)),
        ("8 nodes, 4 lists of 255", 8, full(8, 4), within(1)),
        ("8 nodes, 6 lists of 255", 8, full(8, 6), within(2)),
        ("16 nodes, 3 lists of 200", 16, some(200, 3), within(50)),
        ("16 nodes, 4 lists of 1000", 16, some(1000, 4), within(50)),
        ("16 nodes, 4 lists of 65535", 16, full(16, 4), None),
    ];
    let case = |(name, nodes, lists, within)| Case {
        name,
        nodes,
        lists,
        within,
    };
    cases.map(case).into()
}

fn merger(nodes: u32) -> Result<Merger, TopologyRefusal> {
    let row = |node: u32| (0..nodes).map(|other| 10 + u64::from(node.abs_diff(other))).collect();
    let distances: BTreeMap<u32, Vec<u64>> = (0..nodes).map(|node| (node, row(node))).collect();
    let options = MergeOptions {
        prefer_closest_numa_nodes: true,
        max_allowable_numa_nodes: 16,
    };
    Merger::new(
        Policy::BestEffort,
        options,
        &(0..nodes).collect::<NodeSet>(),
        &distances,
    )
}

/// A hint for every mask; those of `width` nodes are preferred.
fn every_mask(nodes: u32, width: u32) -> HintList {
    Some((1..1 << nodes).map(|bits| hint(bits, width)).collect())
}

/// So many masks of two nodes and more, the same at every run.
fn some_masks(nodes: u32, count: usize, width: u32) -> HintList {
    let mut state = u64::from(width);
    let random = std::iter::from_fn(|| {
        // Knuth's MMIX.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        Some(state >> (u64::BITS - nodes))
    });
    let masks = random.filter(|bits| bits.count_ones() > 1).take(count);
    Some(masks.map(|bits| hint(bits, width)).collect())
}

fn hint(bits: u64, width: u32) -> Hint {
    Hint {
        nodes: Some(NodeMask::from_bits(bits)),
        preferred: bits.count_ones() == width,
    }
}
