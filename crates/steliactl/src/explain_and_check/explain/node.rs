//! Who chooses CPUs, the pools, and the request of each instance.

use std::sync::Arc;

use serde::Serialize;
use stelia_cpus::CpuSet;
use stelia_koordinator::allocator::{Allocation, CpuSource};
use stelia_model::Pools;
use stelia_settings::Isolation;

use super::pod::bind_in_words;
use super::source_in_words;
use crate::shared::daemon::{Cause, Description, Pod, Trouble, causes_of};
use crate::shared::output::{Column, Meaning, Render, TextStyle, column, printable, table};
use crate::view::footnotes::{SharedReasons, overview};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct NodeExplained {
    cpu_source: CpuSource,
    /// `None` where kubelet chooses.
    pools: Option<Arc<Pools>>,
    /// The shared pool; `None` where kubelet's file cannot be used.
    shared: Option<CpuSet>,
    /// kubelet's `reservedSystemCPUs`.
    kubelet_reserved: CpuSet,
    instances: Vec<Row>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Row {
    #[serde(flatten)]
    pod: Pod,
    exclusive_cpus: CpuSet,
    isolation: Isolation,
    /// `None` where kubelet chose.
    allocation: Option<Allocation>,
    /// isolated, floating, …
    #[serde(skip)]
    state: String,
    /// Why isolation is degraded; empty where it is not.
    #[serde(skip)]
    degraded: Vec<String>,
    /// Why it is degraded, floats or is contained.
    #[serde(skip)]
    causes: Vec<Cause>,
    #[serde(skip)]
    trouble: Trouble,
}

impl Row {
    /// "isolated", "floating, degraded".
    fn state(&self) -> String {
        if self.degraded.is_empty() {
            self.state.clone()
        } else {
            format!("{}, degraded", self.state)
        }
    }

    fn meaning(&self) -> Meaning {
        if self.degraded.is_empty() {
            Meaning::of_state(&self.state)
        } else {
            Meaning::Broken
        }
    }

    fn of(&self, text: fn(&Allocation) -> String) -> String {
        self.allocation.as_ref().map(text).unwrap_or_default()
    }
}

const POOLS: [Column<[String; 3]>; 3] = [
    column("POOL", |[name, _, _]| name.clone()),
    column("CPUS", |[_, cpus, _]| cpus.clone()),
    column("WHAT IT IS", |[_, _, meaning]: &[String; 3]| meaning.clone()).yields(1),
];

/// Where kubelet chooses no instance asked for anything, and none has a class.
const BY_KUBELET: [Column<Row>; 4] = [
    column("POD", |row: &Row| row.pod.to_string()).yields(1).shortens(),
    column("STATE", Row::state).means(Row::meaning),
    column("CPUS", |row: &Row| row.exclusive_cpus.to_string()),
    column("ISOLATION", |row: &Row| row.isolation.to_string()).wide(),
];

const INSTANCES: [Column<Row>; 10] = [
    column("POD", |row: &Row| row.pod.to_string()).yields(1).shortens(),
    column("STATE", Row::state).means(Row::meaning),
    column("CLASS", |row| match &row.allocation {
        Some(allocation) => allocation.qos.to_string(),
        None => "(kubelet)".to_owned(),
    }),
    column("CPUS", |row| row.exclusive_cpus.to_string()),
    column("ISOLATION", |row: &Row| row.isolation.to_string()).wide(),
    column("BIND", |row: &Row| row.of(bind_in_words)).yields(2),
    column("EXCLUSIVE", |row: &Row| {
        row.of(|allocation| allocation.exclusive.to_string())
    })
    .yields(2),
    column("EXCLUSIVITY", |row: &Row| {
        row.of(|allocation| allocation.exclusivity.to_string())
    })
    .yields(2),
    column("STRATEGY", |row: &Row| {
        row.of(|allocation| allocation.strategy.to_string())
    })
    .yields(2),
    column("ALIGNMENT", |row: &Row| {
        row.of(|allocation| allocation.alignment.to_string())
    })
    .yields(2),
];

pub(crate) fn gather(description: &Description) -> NodeExplained {
    let node = &description.node;
    let instances = node.instances.iter();
    NodeExplained {
        cpu_source: node.cpu_source,
        pools: node.pools.clone(),
        shared: node.pool.clone(),
        kubelet_reserved: description.kubelet_reserved(),
        instances: instances
            .map(|(pod, instance)| Row {
                pod: Pod::of(pod, instance),
                exclusive_cpus: instance.exclusive.clone(),
                isolation: instance.isolation,
                allocation: instance.allocation.clone(),
                state: instance.state.to_string(),
                degraded: instance.degraded.iter().map(ToString::to_string).collect(),
                causes: causes_of(instance),
                trouble: Trouble::of(instance),
            })
            .collect(),
    }
}

/// The source in a line, a table of the pools, why instances are degraded, float or are contained, a table of the instances.
impl Render for NodeExplained {
    fn text(&self, style: TextStyle) -> String {
        let pools = match &self.pools {
            Some(pools) => allocators(pools),
            None => kubelets(self),
        };
        let source = source_in_words(self.cpu_source);
        let mut instances: Vec<&Row> = self.instances.iter().collect();
        instances.sort_by_cached_key(|row| row.pod.to_string());
        let causes = match (style.legend, style.width) {
            (false, _) => String::new(),
            (true, Some(_)) => {
                // The sort is stable: equal ones stay in the order of their names.
                instances.sort_by_key(|row| row.trouble);
                let all = instances.iter().flat_map(|row| {
                    let causes = row.causes.iter();
                    causes.map(|(text, meaning)| (&row.pod, text.as_str(), *meaning))
                });
                overview(all, style)
            }
            // What reads a pipe finds the reasons of degradation that several have.
            (true, None) => {
                let reasons = instances.iter().flat_map(|row| {
                    let reasons = row.degraded.iter();
                    reasons.map(|reason| (&row.pod, reason.as_str(), Meaning::Broken))
                });
                SharedReasons::of(reasons).lines(style)
            }
        };
        let causes = if causes.is_empty() {
            causes
        } else {
            format!("{causes}\n")
        };
        let instances = if instances.iter().all(|row| row.allocation.is_none()) {
            table(&BY_KUBELET, instances, style)
        } else {
            table(&INSTANCES, instances, style)
        };
        format!(
            "CPU source: {}\n\n{}\n{causes}{instances}",
            printable(source),
            table(&POOLS, &pools, style)
        )
    }
}

fn row(name: &str, cpus: &CpuSet, meaning: &str) -> [String; 3] {
    [name.to_owned(), cpus.to_string(), meaning.to_owned()]
}

fn allocators(pools: &Pools) -> Vec<[String; 3]> {
    let mut rows = vec![
        row("reserved", &pools.reserved, "never allocated, in the shared pools"),
        row(
            "kubelet",
            &pools.kubelet,
            "kubelet holds them: never allocated, in no pool",
        ),
        row("exclusive", &pools.pools.exclusive, "of LSE, LSR and kubelet's pods"),
        row(
            "allocatable",
            &pools.pools.allocatable,
            "the next LSE or LSR may get them",
        ),
        row("shared", &pools.pools.shared, "LS and Burstable run there"),
    ];
    for (node, pool) in &pools.pools.shared_by_node {
        let meaning = format!("the same in NUMA node {node}, socket {}", pool.socket);
        rows.push(row(&format!("shared of {node}"), &pool.cpus, &meaning));
    }
    rows.push(row("BE shared", &pools.pools.be_shared, "BE and BestEffort run there"));
    rows
}

fn kubelets(node: &NodeExplained) -> Vec<[String; 3]> {
    let (shared, meaning) = match &node.shared {
        Some(shared) => (shared.clone(), "kubelet's shared pool, floats run there"),
        None => (
            CpuSet::new(),
            "not known: kubelet's file cannot be used (steliactl status)",
        ),
    };
    vec![
        row("reserved", &node.kubelet_reserved, "kubelet's reservedSystemCPUs"),
        row("shared", &shared, meaning),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::daemon::node::testing::{PODS, allocated, instance_mut, node};
    use stelia_api::{Reason, ReasonKind, State};
    use stelia_kubelet::{PodName, PodUid};
    use stelia_model::Instance;

    #[test]
    fn the_pools_and_what_each_instance_asked_for() {
        insta::assert_snapshot!(gather(&allocated()).text(TextStyle::from(true)), @"
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

        POD                                   STATE      CLASS  CPUS  BIND              EXCLUSIVE      EXCLUSIVITY  STRATEGY        ALIGNMENT
        aaaaaaaa-0000-4000-8000-000000000000  isolated   LSE    4-5   FullPCPUs         NUMANodeLevel  downgraded   MostAllocated   SingleNUMANode
        bbbbbbbb-0000-4000-8000-000000000000  contained  LSR    2     SpreadByPCPUs     None           not-asked    MostAllocated   None
        cccccccc-0000-4000-8000-000000000000  floating   LS     -     ConstrainedBurst  None           not-asked    LeastAllocated  None
        ");
    }

    #[test]
    fn where_kubelet_chooses_its_pool_is_shown() {
        let mut node = node();
        node.node.cpu_source = CpuSource::Kubelet;
        insta::assert_snapshot!(gather(&node).text(TextStyle::from(true)), @"
        CPU source: kubelet, by its static policy

        POOL      CPUS     WHAT IT IS
        reserved  0-1      kubelet's reservedSystemCPUs
        shared    0-1,3,7  kubelet's shared pool, floats run there

        POD                                   STATE               CPUS
        aaaaaaaa-0000-4000-8000-000000000000  isolated            4-5
        bbbbbbbb-0000-4000-8000-000000000000  floating, degraded  2
        ");
    }

    #[test]
    fn a_cause_of_the_whole_node_is_one_line_above_the_vms_that_are_degraded_by_it() {
        let mut node = node();
        let why = "kubelet's state cannot be used: the file is empty";
        for uid in PODS.iter().take(2) {
            instance_mut(&mut node, uid).degraded = vec![Reason::of_node(ReasonKind::KubeletUnusable, why)];
        }
        let text = gather(&node).text(TextStyle::from(true));
        let above = format!("\n\n2 VMs: {why}\n\nPOD ");
        assert!(text.contains(&above) && text.matches(why).count() == 1, "{text}");
        for state in ["  isolated, degraded  4-5\n", "  floating, degraded  2\n"] {
            assert!(text.contains(state), "{state}: {text}");
        }
    }

    #[test]
    fn a_terminal_has_trouble_first_and_every_cause_above_it() {
        let mut node = node();
        node.node.cpu_source = CpuSource::Kubelet;
        let pod = PodUid::parse(PODS[0]).unwrap();
        instance_mut(&mut node, PODS[1]).degraded.clear();
        let waiting = instance_mut(&mut node, PODS[1]).clone();
        for uid in [PODS[2], "dddddddd-0000-4000-8000-000000000000"] {
            let uid = PodUid::parse(uid).unwrap();
            node.node.instances.insert(uid, Arc::new(waiting.clone()));
        }
        // By name this one comes last.
        let uid = PodUid::parse("ffffffff-0000-4000-8000-000000000000").unwrap();
        let offline = Instance {
            degraded: vec![Reason::of(&pod, ReasonKind::CpusOffline, "CPUs 4 are offline")],
            state: State::Isolated,
            ..Instance::default()
        };
        node.node.instances.insert(uid, Arc::new(offline));
        let text = gather(&node).text(TextStyle {
            width: Some(80),
            ..TextStyle::from(true)
        });
        let (_, below) = text.split_once("\n\n3 VMs: ").unwrap();
        insta::assert_snapshot!(below, @r"
        floats: vCPUs not attached
        ffffffff-0000-4000-8000-000000000000: degraded: CPUs 4 are offline

        POD                                   STATE               CPUS
        ffffffff-0000-4000-8000-000000000000  isolated, degraded  -
        bbbbbbbb-0000-4000-8000-000000000000  floating            2
        cccccccc-0000-4000-8000-000000000000  floating            2
        dddddddd-0000-4000-8000-000000000000  floating            2
        aaaaaaaa-0000-4000-8000-000000000000  isolated            4-5
        ");
    }

    #[test]
    fn at_80_columns_a_row_has_the_pods_name_in_full_and_rows_are_by_name() {
        let mut node = node();
        for (uid, name) in PODS.iter().zip(["web-2", "web-1"]) {
            let pod_name = PodName::new("team-a", &format!("virt-launcher-{name}-x7k2p"));
            instance_mut(&mut node, uid).pod_name = pod_name;
        }
        let text = gather(&node).text(TextStyle {
            width: Some(80),
            ..TextStyle::from(true)
        });
        let (_, rows) = text.split_once("\nPOD  ").unwrap();
        let names = rows.lines().skip(1).filter_map(|line| line.split(' ').next());
        let expected = ["team-a/virt-launcher-web-1-x7k2p", "team-a/virt-launcher-web-2-x7k2p"];
        assert!(names.eq(expected), "{text}");
    }

    #[test]
    fn a_file_of_kubelets_that_cannot_be_used_is_no_empty_pool() {
        let mut node = node();
        node.node.pool = None;
        assert!(
            gather(&node)
                .text(TextStyle::from(true))
                .contains("not known: kubelet's file")
        );
    }

    #[test]
    fn programs_get_the_same() {
        let json = serde_json::to_value(gather(&allocated())).unwrap();
        assert_eq!(json["cpu_source"], "steliad");
        assert_eq!(json["pools"]["shared_by_node"]["1"]["cpus"], "7");
        assert_eq!(json["pools"]["be_shared"], "0-3,7");
        let second = &json["instances"][1];
        assert_eq!(second["pod_uid"], "bbbbbbbb-0000-4000-8000-000000000000");
        assert_eq!(second["exclusive_cpus"], "2");
        assert_eq!(second["allocation"]["qos"], "LSR");
        assert_eq!(second["allocation"]["exclusivity"], "not-asked");
    }
}
