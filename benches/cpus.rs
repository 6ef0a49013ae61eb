//! How long a prediction of kubelet's CPU manager takes on a node of 1,024 CPUs: `cargo bench --bench cpus`.
//!
//! It fails where one takes longer than it may.

mod timing;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Duration;

use anyhow::ensure;
use criterion::Criterion;
use kubelet_planner::cpus::{CpuGroups, CpuOptions, Kubelet, take};
use stelia_cpus::{Cpu, CpuSet, Topology};

use timing::median;

/// What is promised on 8 NUMA nodes.
const WITHIN: Duration = Duration::from_millis(1);

/// From one CPU to nearly all, with and without a remainder for the NUMA nodes.
const COUNTS: [usize; 12] = [1, 2, 63, 64, 100, 128, 254, 382, 510, 638, 700, 800];

fn main() -> anyhow::Result<()> {
    let mut criterion = Criterion::default().configure_from_args();
    let (mut report, mut late) = (String::new(), false);
    for nodes in [8, 16] {
        let topology = topology(nodes);
        for (options_name, options) in options() {
            for (free_name, free) in free() {
                let name = format!("{nodes} nodes, {options_name}, {free_name}");
                let asked = |count| take(&topology, options, Kubelet::default(), black_box(&free), count);
                let timed = COUNTS
                    .iter()
                    .map(|count| (median(|| drop(black_box(asked(*count)))), *count));
                let (worst, count) = timed.max().unwrap_or_default();
                criterion.bench_function(&format!("take/{name}, {count} CPUs"), |bencher| {
                    bencher.iter(|| asked(black_box(count)));
                });
                late |= nodes == 8 && worst > WITHIN;
                report += &format!("{name:<50} {worst:>10.1?} for {count} CPUs, the worst count\n");
            }
        }
    }
    criterion.final_summary();
    print!("\n{report}");
    ensure!(!late, "a prediction takes longer than {WITHIN:?}");
    Ok(())
}

/// 512 cores of two threads on two sockets, eight cores to an L3 cache.
fn topology(nodes: u32) -> CpuGroups {
    let describe = |cpu: u32| {
        let node = cpu % 512 / (512 / nodes);
        let described = Cpu {
            package: node / (nodes / 2),
            core: cpu % 512,
            node,
        };
        (cpu, described)
    };
    let cpus = (0..1024).map(describe).collect();
    let caches: BTreeMap<u32, u32> = (0..1024).map(|cpu| (cpu, cpu % 512 / 8)).collect();
    CpuGroups::new(&Topology { cpus }, &caches)
}

fn options() -> [(&'static str, CpuOptions); 5] {
    let none = CpuOptions::default();
    let numa = CpuOptions {
        distribute_cpus_across_numa: true,
        ..none
    };
    let full = CpuOptions {
        full_pcpus_only: true,
        ..numa
    };
    let cores = CpuOptions {
        distribute_cpus_across_cores: true,
        ..none
    };
    let caches = CpuOptions {
        prefer_align_cpus_by_uncorecache: true,
        ..none
    };
    [
        ("packed", none),
        ("L3 caches", caches),
        ("spread over cores", cores),
        ("distributed", numa),
        ("distributed, whole cores", full),
    ]
}

/// All CPUs, and every fifth core or thread in use, scattered.
fn free() -> [(&'static str, CpuSet); 3] {
    let scattered = |number: u32| !(number.wrapping_mul(2_654_435_761) >> 7).is_multiple_of(5);
    [
        ("all free", CpuSet::below(1024)),
        ("cores in use", (0..1024).filter(|cpu| scattered(cpu % 512)).collect()),
        ("threads in use", (0..1024).filter(|cpu| scattered(*cpu)).collect()),
    ]
}
