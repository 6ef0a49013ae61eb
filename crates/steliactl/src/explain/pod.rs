//! Why an instance has the CPUs it has.

use serde::Serialize;
use stelia_cpus::CpuSet;

use super::source_in_words;
use crate::client::Failure;
use crate::node::{Allocation, Node};
use crate::view;

/// What is told of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Told {
    /// The pod.
    #[serde(rename = "PodUID")]
    pub pod_uid: String,
    /// The container.
    pub container: String,
    /// isolated, contained, floating, …
    pub state: String,
    /// Why the promise is not whole.
    pub degraded: Vec<String>,
    /// Its own CPUs.
    #[serde(rename = "ExclusiveCPUs")]
    pub exclusive: CpuSet,
    /// Where everything else of it runs.
    #[serde(rename = "FloatCPUs")]
    pub float: CpuSet,
    /// Who chooses CPUs on this node now; absent: the daemon does not say.
    #[serde(rename = "CPUSource")]
    pub cpu_source: Option<String>,
    /// What it asked for and got; absent where kubelet chose.
    pub allocation: Option<Allocation>,
    #[serde(skip)]
    source: String,
}

impl Told {
    /// Of what the daemon describes.
    ///
    /// # Errors
    /// The pod has no instance.
    pub fn of(node: &Node, pod: &str) -> Result<Self, Failure> {
        let no_instance = || Failure::NoSuchInstance(format!("no instance of pod {pod} on this node"));
        let instance = node.instances.get(pod).ok_or_else(no_instance)?;
        Ok(Self {
            pod_uid: pod.to_owned(),
            container: instance.container.clone(),
            state: instance.state.clone(),
            degraded: instance.degraded.clone(),
            exclusive: instance.exclusive.clone(),
            float: instance.float.clone(),
            cpu_source: node.cpu_source.clone(),
            allocation: instance.allocation.clone(),
            source: source_in_words(node),
        })
    }
}

impl Allocation {
    /// The bind policy, and whether it is a must.
    pub(super) fn bind_in_words(&self) -> String {
        match self.required {
            true => format!("{}, required", self.bind),
            false => self.bind.clone(),
        }
    }

    fn class_in_words(&self) -> String {
        let meaning = match self.qos.as_str() {
            "LSE" => "its own CPUs, and nobody else runs there",
            "LSR" => "its own CPUs, and BE may run there",
            "LS" => "no CPUs of its own: the shared pool",
            "BE" => "no CPUs of its own: the BE shared pool",
            _ => return self.qos.clone(),
        };
        format!("{}: {meaning}", self.qos)
    }

    fn exclusivity_in_words(&self) -> String {
        let meaning = match self.exclusivity.as_str() {
            "not-asked" => "no company is avoided",
            "kept" => "the policy holds",
            "downgraded" => "to PCPULevel: a NUMA node is shared with an instance of the same policy, no core is",
            "dropped" => "a core is shared with an instance of the same policy",
            _ => return self.exclusivity.clone(),
        };
        format!("{}: {meaning}", self.exclusivity)
    }

    fn limit_in_words(&self) -> String {
        match (self.limit_milli / 1000, self.limit_milli % 1000) {
            (0, 0) => String::new(),
            (whole, 0) => whole.to_string(),
            (whole, milli) => format!("{whole}.{milli:03}").trim_end_matches('0').to_owned(),
        }
    }
}

/// The properties one a line, then how it came to be.
pub fn text(told: &Told, legend: bool) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut say = |name: &str, value: &str| rows.push(vec![format!("{name}:"), view::or_dash(value)]);
    say("PodUID", &told.pod_uid);
    say("Container", &told.container);
    say("State", &told.state);
    say("Degraded", &told.degraded.join("; "));
    say("ExclusiveCPUs", &told.exclusive.to_string());
    say("FloatCPUs", &told.float.to_string());
    say("CPUSource", &told.source);
    let Some(allocation) = &told.allocation else {
        say("Class", "none: kubelet chose its CPUs");
        return view::table(&[], rows, false, None);
    };
    say("Class", &allocation.class_in_words());
    say("Count", &allocation.cpus.to_string());
    say("BindPolicy", &allocation.bind_in_words());
    say("ExclusivePolicy", &allocation.exclusive);
    say("Exclusivity", &allocation.exclusivity_in_words());
    say("AllocateStrategy", &allocation.strategy);
    say("AlignmentPolicy", &allocation.alignment);
    say("CPULimit", &allocation.limit_in_words());
    let node = allocation.numa_node.map(|node| node.to_string());
    say("NUMANode", &node.unwrap_or_default());
    let lines = allocation.explanation.iter();
    let lines = lines.map(|line| vec![view::printable(line)]).collect();
    let properties = view::table(&[], rows, false, None);
    format!("{properties}\n{}", view::table(&["EXPLANATION"], lines, legend, None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::testing::{PODS, allocated, node};

    fn told(node: &Node, pod: usize) -> String {
        text(&Told::of(node, PODS[pod]).unwrap(), true)
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
        Class:             LSE: its own CPUs, and nobody else runs there
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
        Exclusivity:       not-asked: no company is avoided
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
        assert_eq!(Told::of(&node(), PODS[2]).unwrap_err().exit_code(), 3);
    }

    #[test]
    fn words_of_a_newer_daemon_are_printed_as_they_are() {
        let allocation = Allocation {
            qos: "LSX".to_owned(),
            exclusivity: "moved".to_owned(),
            limit_milli: 1005,
            ..Allocation::default()
        };
        assert_eq!(allocation.class_in_words(), "LSX");
        assert_eq!(allocation.exclusivity_in_words(), "moved");
        assert_eq!(allocation.limit_in_words(), "1.005");
    }

    #[test]
    fn programs_get_the_explanation_too() {
        let json = serde_json::to_value(Told::of(&allocated(), PODS[0]).unwrap()).unwrap();
        assert_eq!(json["Allocation"]["BindPolicy"], "FullPCPUs");
        assert_eq!(json["Allocation"]["Explanation"][0], "2 CPUs wanted, FullPCPUs");
        assert_eq!(json["ExclusiveCPUs"], "4-5");
    }
}
