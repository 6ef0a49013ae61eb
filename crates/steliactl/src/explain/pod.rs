//! Why an instance has the CPUs it has.

use serde::Serialize;
use stelia_api::view::Allocation;
use stelia_cpus::CpuSet;

use super::source_in_words;
use crate::client::{Failure, no_instance};
use crate::node::{Description, named_allocation};
use crate::view::{Column, Render, column, list, properties};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct PodExplained {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    container: String,
    state: String,
    degraded: Vec<String>,
    #[serde(rename = "ExclusiveCPUs")]
    exclusive: CpuSet,
    #[serde(rename = "FloatCPUs")]
    float: CpuSet,
    /// Who chooses CPUs on this node now; `None`: the daemon does not report it.
    #[serde(rename = "CPUSource")]
    cpu_source: Option<String>,
    /// `None` where kubelet chose.
    #[serde(serialize_with = "named_allocation")]
    allocation: Option<Allocation>,
}

const EXPLANATION: [Column<String>; 1] = [column("EXPLANATION", |line| line.clone())];

/// # Errors
/// The pod has no instance.
pub(crate) fn gather(description: &Description, pod: &str) -> Result<PodExplained, Failure> {
    let node = &description.node;
    let instance = node.instances.get(pod).ok_or_else(|| no_instance(pod))?;
    Ok(PodExplained {
        pod_uid: pod.to_owned(),
        container: instance.container.clone(),
        state: instance.state.clone(),
        degraded: instance.degraded.clone(),
        exclusive: instance.exclusive.clone(),
        float: instance.float.clone(),
        cpu_source: node.cpu_source.clone(),
        allocation: instance.allocation.clone(),
    })
}

/// The bind policy, and whether it is required.
pub(super) fn bind_in_words(allocation: &Allocation) -> String {
    match allocation.required {
        true => format!("{}, required", allocation.bind),
        false => allocation.bind.clone(),
    }
}

fn class_in_words(class: &str) -> String {
    let meaning = match class {
        "LSE" => "its own CPUs, and nothing else runs there",
        "LSR" => "its own CPUs, and BE may run there",
        "LS" => "no CPUs of its own: the shared pool",
        "BE" => "no CPUs of its own: the BE shared pool",
        _ => return class.to_owned(),
    };
    format!("{class}: {meaning}")
}

fn exclusivity_in_words(exclusivity: &str) -> String {
    let meaning = match exclusivity {
        "not-asked" => "no exclusive policy was asked for",
        "kept" => "the policy holds",
        "downgraded" => "to PCPULevel: a NUMA node is shared with an instance of the same policy, no core is",
        "dropped" => "a core is shared with an instance of the same policy",
        _ => return exclusivity.to_owned(),
    };
    format!("{exclusivity}: {meaning}")
}

/// The limit in CPUs, with a fraction; empty where there is none.
fn limit_in_words(limit_milli: u64) -> String {
    match (limit_milli / 1000, limit_milli % 1000) {
        (0, 0) => String::new(),
        (whole, 0) => whole.to_string(),
        (whole, milli) => format!("{whole}.{milli:03}").trim_end_matches('0').to_owned(),
    }
}

/// The properties one per line, then the allocation's explanation.
impl Render for PodExplained {
    fn text(&self, legend: bool) -> String {
        let mut rows = vec![
            ("PodUID", self.pod_uid.clone()),
            ("Container", self.container.clone()),
            ("State", self.state.clone()),
            ("Degraded", self.degraded.join("; ")),
            ("ExclusiveCPUs", self.exclusive.to_string()),
            ("FloatCPUs", self.float.to_string()),
            ("CPUSource", source_in_words(self.cpu_source.as_deref())),
        ];
        let Some(allocation) = &self.allocation else {
            rows.push(("Class", "none: kubelet chose its CPUs".to_owned()));
            return properties(rows);
        };
        let node = allocation.numa_node.map(|node| node.to_string());
        rows.extend([
            ("Class", class_in_words(&allocation.qos)),
            ("Count", allocation.cpus.to_string()),
            ("BindPolicy", bind_in_words(allocation)),
            ("ExclusivePolicy", allocation.exclusive.clone()),
            ("Exclusivity", exclusivity_in_words(&allocation.exclusivity)),
            ("AllocateStrategy", allocation.strategy.clone()),
            ("AlignmentPolicy", allocation.alignment.clone()),
            ("CPULimit", limit_in_words(allocation.limit_milli)),
            ("NUMANode", node.unwrap_or_default()),
        ]);
        let explanation = list(&EXPLANATION, &allocation.explanation, legend);
        format!("{}\n{explanation}", properties(rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::testing::{PODS, allocated, node};

    fn told(description: &Description, pod: usize) -> String {
        gather(description, PODS[pod]).unwrap().text(true)
    }

    #[test]
    fn an_instance_with_cpus_of_its_own_is_told_in_full() {
        insta::assert_snapshot!(told(&allocated(), 0), @"
        PodUID:            aaaaaaaa
        Container:         vm
        State:             isolated
        Degraded:          -
        ExclusiveCPUs:     4-5
        FloatCPUs:         7
        CPUSource:         steliad
        Class:             LSE: its own CPUs, and nothing else runs there
        Count:             2
        BindPolicy:        FullPCPUs
        ExclusivePolicy:   NUMANodeLevel
        Exclusivity:       downgraded: to PCPULevel: a NUMA node is shared with an instance of the same policy, no core is
        AllocateStrategy:  MostAllocated
        AlignmentPolicy:   SingleNUMANode
        CPULimit:          -
        NUMANode:          -

        EXPLANATION
        2 CPUs wanted, FullPCPUs
        NUMA node 1 is shared: PCPULevel
        ");
    }

    #[test]
    fn an_ls_instance_has_a_pool_and_a_limit_and_steers_no_terminal() {
        insta::assert_snapshot!(told(&allocated(), 2), @"
        PodUID:            cccccccc
        Container:         vm
        State:             floating
        Degraded:          -
        ExclusiveCPUs:     -
        FloatCPUs:         7
        CPUSource:         steliad
        Class:             LS: no CPUs of its own: the shared pool
        Count:             0
        BindPolicy:        ConstrainedBurst
        ExclusivePolicy:   None
        Exclusivity:       not-asked: no exclusive policy was asked for
        AllocateStrategy:  LeastAllocated
        AlignmentPolicy:   None
        CPULimit:          2.5
        NUMANode:          1

        EXPLANATION
        limit 2.5: NUMA node 1?[2J
        ");
    }

    #[test]
    fn what_kubelet_chose_has_no_allocation_and_an_older_daemon_says_less() {
        let text = told(&node(), 0);
        assert!(text.contains("CPUSource:      not told: the daemon is older"), "{text}");
        assert!(text.contains("Class:          none: kubelet chose its CPUs"), "{text}");
        assert!(!text.contains("EXPLANATION"), "{text}");
    }

    #[test]
    fn what_is_no_instance_has_its_exit_code() {
        assert_eq!(gather(&node(), PODS[2]).unwrap_err().exit_code(), 3);
    }

    #[test]
    fn words_of_a_newer_daemon_are_printed_as_they_are() {
        assert_eq!(class_in_words("LSX"), "LSX");
        assert_eq!(exclusivity_in_words("moved"), "moved");
        assert_eq!(limit_in_words(1005), "1.005");
    }

    #[test]
    fn programs_get_the_explanation_too() {
        let json = serde_json::to_value(gather(&allocated(), PODS[0]).unwrap()).unwrap();
        assert_eq!(json["Allocation"]["BindPolicy"], "FullPCPUs");
        assert_eq!(json["Allocation"]["Explanation"][0], "2 CPUs wanted, FullPCPUs");
        assert_eq!(json["ExclusiveCPUs"], "4-5");
    }
}
