//! The examples and defaults of `docs/allocator.md`, asked of the allocator itself.

use stelia_cpus::{Cpu, CpuSet, Topology};
use stelia_koordinator::allocator::evaluate::{EvaluateRequest, answer};
use stelia_koordinator::allocator::{
    AllocatorNode, AllocatorPolicies, Exclusivity, HeldCpus, NumaTopologyAlignmentPolicy, Pools,
};

use crate::{quoted, read, root};

fn page() -> String {
    read(&root().join("docs/allocator.md"))
}

fn list(cpus: &str) -> CpuSet {
    cpus.parse().expect("a CPU list")
}

/// The example's node: 16 CPUs, neighbours are siblings, two NUMA nodes; kubelet holds two CPUs.
fn node() -> (Pools, AllocatorNode) {
    let cpu = |cpu: u32| {
        let (package, core, node) = (cpu / 8, cpu / 2, cpu / 8);
        (cpu, Cpu { package, core, node })
    };
    let topology = Topology {
        cpus: (0..16).map(cpu).collect(),
    };
    let policies = AllocatorPolicies {
        reserved: list("0-1"),
        ..AllocatorPolicies::default()
    };
    let pools = Pools::new(&topology, &policies.reserved, &list("4-5"), &CpuSet::new());
    let node = AllocatorNode::new(&topology, pools.clone(), &HeldCpus::default(), policies);
    (pools, node)
}

/// The columns of the line of an example that begins so.
fn columns(page: &str, begins: &str) -> Vec<String> {
    let line = page.lines().find(|line| line.starts_with(begins));
    let columns = line.unwrap_or_else(|| panic!("no line {begins:?}")).split("  ");
    let columns = columns.map(|column| column.trim().to_owned());
    columns.filter(|column| !column.is_empty()).collect()
}

#[test]
fn the_pools_of_the_example_are_what_the_allocator_makes_of_that_node() {
    let (page, (pools, _)) = (page(), node());
    let of = |node: u32| &pools.shared_by_node[&node].cpus;
    for (pool, cpus) in [
        ("exclusive ", &pools.exclusive),
        ("allocatable ", &pools.allocatable),
        ("shared  ", &pools.shared),
        ("shared of 0 ", of(0)),
        ("shared of 1 ", of(1)),
        ("BE shared ", &pools.be_shared),
    ] {
        assert_eq!(columns(&page, pool)[1], cpus.to_string(), "{pool}");
    }
}

#[test]
fn the_answer_of_the_example_is_the_allocators() {
    let mut request = EvaluateRequest::default();
    request.allocation.cpus = Some(4);
    request.allocation.numa_topology_alignment_policy = Some(NumaTopologyAlignmentPolicy::SingleNumaNode);
    let fit = answer(&node().1, &request).expect("it fits");
    assert_eq!(fit.exclusivity, Exclusivity::NotAsked);
    let runs_on = fit.runs_on.to_string();
    let nodes: Vec<String> = fit.numa_nodes.iter().map(u32::to_string).collect();
    let expected = [
        runs_on.as_str(),
        &nodes.join(","),
        fit.qos.name(),
        &runs_on,
        &fit.score.sum.to_string(),
    ];
    assert_eq!(columns(&page(), &format!("{runs_on}  0 ")), expected);
}

#[test]
fn the_first_value_of_each_setting_is_its_default() {
    let shipped = read(&root().join("packaging/steliad.toml"));
    let mut seen = 0;
    for row in page().lines().filter(|line| line.starts_with("| `")) {
        let mut cells = row.trim_matches('|').split('|').map(quoted);
        let key = cells.next().unwrap_or_default().swap_remove(0);
        let Some(default) = shipped
            .lines()
            .find_map(|line| line.strip_prefix(&format!("#{key} = ")))
        else {
            continue;
        };
        let values = cells.next().unwrap_or_default();
        let first = values.first().map_or("", String::as_str);
        assert_eq!(format!("{first:?}"), default, "{key}");
        seen += 1;
    }
    assert_eq!(seen, 8, "settings of the allocator");
}
