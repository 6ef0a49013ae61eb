//! Who chooses CPUs, the pools, and what each instance asked for.

use serde::Serialize;
use stelia_cpus::CpuSet;

use super::source_in_words;
use crate::node::{Allocation, Node, Pools};
use crate::view;

/// What is told of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Told {
    /// `kubelet` or `steliad`; absent: the daemon does not say.
    #[serde(rename = "CPUSource")]
    pub cpu_source: Option<String>,
    /// As the allocator divides the CPUs; absent where kubelet chooses.
    pub pools: Option<Pools>,
    /// The shared pool; absent where kubelet's file cannot be used.
    pub shared: Option<CpuSet>,
    /// kubelet's `reservedSystemCPUs`.
    pub kubelet_reserved: CpuSet,
    /// The instances, by pod.
    pub instances: Vec<Row>,
    #[serde(skip)]
    source: String,
}

/// One instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Row {
    /// The pod.
    #[serde(rename = "PodUID")]
    pub pod_uid: String,
    /// Its own CPUs.
    #[serde(rename = "ExclusiveCPUs")]
    pub exclusive: CpuSet,
    /// What it asked for; absent where kubelet chose.
    pub allocation: Option<Allocation>,
}

impl Told {
    /// Of what the daemon describes.
    pub fn of(node: &Node) -> Self {
        let row = |(pod, instance): (&String, &crate::node::Instance)| Row {
            pod_uid: pod.clone(),
            exclusive: instance.exclusive.clone(),
            allocation: instance.allocation.clone(),
        };
        Self {
            cpu_source: node.cpu_source.clone(),
            pools: node.pools.clone(),
            shared: node.pool.clone(),
            kubelet_reserved: node.reserved.clone(),
            instances: node.instances.iter().map(row).collect(),
            source: source_in_words(node),
        }
    }
}

/// The source in a line, a table of the pools, a table of the instances.
pub fn text(told: &Told, legend: bool) -> String {
    let pools = match &told.pools {
        Some(pools) => allocators(pools),
        None => kubelets(told),
    };
    let instances = told.instances.iter().map(instance).collect();
    let columns = [
        "POD UID",
        "CLASS",
        "CPUS",
        "BIND",
        "EXCLUSIVE",
        "EXCLUSIVITY",
        "STRATEGY",
        "ALIGNMENT",
    ];
    format!(
        "CPU source: {}\n\n{}\n{}",
        view::printable(&told.source),
        view::table(&["POOL", "CPUS", "WHAT IT IS"], pools, legend, None),
        view::table(&columns, instances, legend, None)
    )
}

fn row(name: &str, cpus: &CpuSet, meaning: &str) -> Vec<String> {
    vec![name.to_owned(), view::or_dash(&cpus.to_string()), meaning.to_owned()]
}

fn allocators(pools: &Pools) -> Vec<Vec<String>> {
    let mut rows = vec![
        row("reserved", &pools.reserved, "never allocated, in the shared pools"),
        row(
            "kubelet",
            &pools.kubelet,
            "kubelet holds them: never allocated, in no pool",
        ),
        row("exclusive", &pools.exclusive, "of LSE, LSR and kubelet's pods"),
        row("allocatable", &pools.allocatable, "the next LSE or LSR may get them"),
        row("shared", &pools.shared, "LS and Burstable run there"),
    ];
    for (node, pool) in &pools.shared_by_node {
        let meaning = format!("the same in NUMA node {node}, socket {}", pool.socket);
        rows.push(row(&format!("shared of {node}"), &pool.cpus, &meaning));
    }
    rows.push(row("BE shared", &pools.be_shared, "BE and BestEffort run there"));
    rows
}

fn kubelets(told: &Told) -> Vec<Vec<String>> {
    let (shared, meaning) = match &told.shared {
        Some(shared) => (shared.clone(), "kubelet's shared pool, floats run there"),
        None => (
            CpuSet::new(),
            "not known: kubelet's file cannot be used (steliactl status)",
        ),
    };
    vec![
        row("reserved", &told.kubelet_reserved, "kubelet's reservedSystemCPUs"),
        row("shared", &shared, meaning),
    ]
}

fn instance(row: &Row) -> Vec<String> {
    let cpus = row.exclusive.to_string();
    let mut cells = vec![row.pod_uid.clone()];
    match &row.allocation {
        Some(allocation) => cells.extend([
            allocation.qos.clone(),
            cpus,
            allocation.bind_in_words(),
            allocation.exclusive.clone(),
            allocation.exclusivity.clone(),
            allocation.strategy.clone(),
            allocation.alignment.clone(),
        ]),
        None => {
            cells.extend(["(kubelet)".to_owned(), cpus]);
            cells.resize(8, String::new());
        }
    }
    cells.iter().map(|cell| view::or_dash(cell)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::testing::{allocated, node};

    #[test]
    fn the_pools_and_what_each_instance_asked_for() {
        insta::assert_snapshot!(text(&Told::of(&allocated()), true), @"
        CPU source: steliad

        POOL         CPUS     WHAT IT IS
        reserved     0        never allocated, in the shared pools
        kubelet      6        kubelet holds them: never allocated, in no pool
        exclusive    2,4-6    of LSE, LSR and kubelet's pods
        allocatable  1,3,7    the next LSE or LSR may get them
        shared       0-1,3,7  LS and Burstable run there
        shared of 0  0-1,3    the same in NUMA node 0, socket 0
        shared of 1  7        the same in NUMA node 1, socket 1
        BE shared    0-3,7    BE and BestEffort run there

        POD UID   CLASS  CPUS  BIND              EXCLUSIVE      EXCLUSIVITY  STRATEGY        ALIGNMENT
        aaaaaaaa  LSE    4-5   FullPCPUs         NUMANodeLevel  downgraded   MostAllocated   SingleNUMANode
        bbbbbbbb  LSR    2     SpreadByPCPUs     None           not-asked    MostAllocated   None
        cccccccc  LS     -     ConstrainedBurst  None           not-asked    LeastAllocated  None
        ");
    }

    #[test]
    fn where_kubelet_chooses_its_pool_is_shown() {
        let node = Node {
            cpu_source: Some("kubelet".to_owned()),
            ..node()
        };
        insta::assert_snapshot!(text(&Told::of(&node), true), @"
        CPU source: kubelet, by its static policy

        POOL      CPUS     WHAT IT IS
        reserved  0-1      kubelet's reservedSystemCPUs
        shared    0-1,3,7  kubelet's shared pool, floats run there

        POD UID   CLASS      CPUS  BIND  EXCLUSIVE  EXCLUSIVITY  STRATEGY  ALIGNMENT
        aaaaaaaa  (kubelet)  4-5   -     -          -            -         -
        bbbbbbbb  (kubelet)  2     -     -          -            -         -
        ");
    }

    #[test]
    fn an_older_daemon_does_not_tell_and_that_is_said() {
        let text = text(&Told::of(&node()), false);
        assert!(text.starts_with("CPU source: not told: the daemon is older"), "{text}");
        assert!(text.contains("aaaaaaaa  (kubelet)  4-5"), "{text}");
    }

    #[test]
    fn a_file_of_kubelets_that_cannot_be_used_is_no_empty_pool() {
        let node = Node { pool: None, ..node() };
        assert!(text(&Told::of(&node), true).contains("not known: kubelet's file"));
    }

    #[test]
    fn programs_get_the_same() {
        let json = serde_json::to_value(Told::of(&allocated())).unwrap();
        assert_eq!(json["CPUSource"], "steliad");
        assert_eq!(json["Pools"]["SharedByNode"]["1"]["CPUs"], "7");
        assert_eq!(json["Pools"]["BEShared"], "0-3,7");
        let second = &json["Instances"][1];
        assert_eq!(second["PodUID"], "bbbbbbbb");
        assert_eq!(second["ExclusiveCPUs"], "2");
        assert_eq!(second["Allocation"]["Class"], "LSR");
        assert_eq!(second["Allocation"]["Exclusivity"], "not-asked");
    }
}
