//! How many answers a second one core gives for 1,000 nodes that are only described: `cargo bench --bench evaluate`.
//!
//! A node has 128 CPUs on 2 NUMA nodes, a quarter of them in use in its own way.

mod timing;

use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;

use anyhow::ensure;
use criterion::Criterion;
use stelia_cpus::{Cpu, CpuSet, Topology};
use stelia_koordinator::allocator::evaluate::{EvaluateRequest, answer};
use stelia_koordinator::allocator::{
    AllocatorNode, AllocatorPolicies, CpuSource, HeldCpus, NumaTopologyAlignmentPolicy,
};
use stelia_koordinator::report::numa::{KernelNumaNode, NumaMemory};
use stelia_koordinator::report::{Allocator, ApiVersion, Facts, Kubelet, PodAllocation, described, report};
use stelia_kubelet::PodUid;

use timing::median;

const NODES: u32 = 1000;
const CPUS: u32 = 128;

fn main() -> anyhow::Result<()> {
    let mut criterion = Criterion::default().configure_from_args();
    let texts = (0..NODES).map(text).collect::<anyhow::Result<Vec<String>>>()?;
    let yamls = texts
        .iter()
        .map(|text| yaml(text))
        .collect::<anyhow::Result<Vec<String>>>()?;
    ensure!(
        yamls.iter().take(10).all(|text| read(text).is_ok()),
        "a description in YAML is not read"
    );
    let nodes = texts
        .iter()
        .map(|text| read(text))
        .collect::<anyhow::Result<Vec<AllocatorNode>>>()?;
    let mut request = EvaluateRequest::default();
    request.allocation.cpus = Some(8);
    request.allocation.numa_topology_alignment_policy = Some(NumaTopologyAlignmentPolicy::SingleNumaNode);
    let fit = nodes.iter().filter(|node| answer(node, &request).is_ok()).count();
    ensure!(fit == nodes.len(), "{fit} of {} nodes have room", nodes.len());

    let mut report = String::new();
    let mut timed = |name: &str, run: &dyn Fn()| {
        criterion.bench_function(&format!("evaluate/{name}"), |bencher| bencher.iter(run));
        let took = median(run);
        let rate = f64::from(NODES) / took.as_secs_f64();
        report += &format!("{name:<38} {took:>10.1?} for {NODES} nodes: {rate:>10.0} a second\n");
    };
    timed("answers, descriptions read before", &|| {
        for node in &nodes {
            black_box(answer(black_box(node), &request).is_ok());
        }
    });
    for (name, texts) in [("JSON", &texts), ("YAML", &yamls)] {
        timed(&format!("descriptions read, {name}"), &|| {
            for text in texts {
                black_box(read(black_box(text)).is_ok());
            }
        });
    }
    timed("descriptions read, JSON, and answers", &|| {
        for text in &texts {
            black_box(read(text).is_ok_and(|node| answer(&node, &request).is_ok()));
        }
    });
    criterion.final_summary();
    print!("\n{report}");
    Ok(())
}

/// As `steliactl export topology` writes it.
fn yaml(json: &str) -> anyhow::Result<String> {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    let object: serde_json::Value = serde_json::from_str(json)?;
    Ok(serde_saphyr::to_string_with_options(&object, options)?)
}

fn read(text: &str) -> anyhow::Result<AllocatorNode> {
    Ok(described::read(text)?.allocator_node()?)
}

/// A node's description, as it is printed.
fn text(number: u32) -> anyhow::Result<String> {
    let describe = |cpu: u32| {
        let node = cpu % 64 / 32;
        let described = Cpu {
            package: node,
            core: cpu % 64,
            node,
        };
        (cpu, described)
    };
    let topology = Topology {
        cpus: (0..CPUS).map(describe).collect(),
    };
    // Cores in use, scattered.
    let used = |cpu: &u32| (number + cpu % 64).wrapping_mul(2_654_435_761) >> 7 & 3 == 0;
    let exclusive: CpuSet = (2..CPUS).filter(used).collect();
    let cpus: Vec<u32> = exclusive.iter().collect();
    let allocations = cpus.chunks(4).enumerate().map(|(at, cpus)| {
        Ok(PodAllocation {
            pod: PodUid::parse(&format!("{at:08}-0000-4000-8000-000000000000"))?,
            name: None,
            cpus: cpus.iter().copied().collect(),
            by_kubelet: false,
        })
    });
    let numa = KernelNumaNode {
        distances: BTreeMap::from([(0, 10), (1, 21)]),
        memory: Some(NumaMemory {
            total: 256 << 30,
            ..NumaMemory::default()
        }),
        huge_pages: BTreeMap::new(),
    };
    let reserved = CpuSet::below(2);
    let facts = Facts {
        name: format!("worker-{number}"),
        numa: (0..2).map(|node| (node, numa.clone())).collect(),
        shared: topology.online().difference(&exclusive),
        topology,
        allocations: allocations.collect::<anyhow::Result<_>>()?,
        containers: BTreeSet::new(),
        kubelet: Kubelet::default(),
        allocator: Some(Allocator {
            policies: AllocatorPolicies {
                source: CpuSource::Steliad,
                reserved: reserved.clone(),
                ..AllocatorPolicies::default()
            },
            held: HeldCpus::default(),
            lsr: CpuSet::new(),
        }),
        reserved,
        exclusive,
        pods: None,
        devices: BTreeMap::new(),
        problems: Vec::new(),
    };
    Ok(serde_json::to_string(&report(&facts, ApiVersion::V1Alpha1))?)
}
