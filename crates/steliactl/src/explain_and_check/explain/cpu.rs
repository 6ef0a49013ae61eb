//! The owner of a CPU, with the source of each fact.

use serde::Serialize;
use stelia_api::{Reason, ReasonKind, State};
use stelia_koordinator::allocator::Qos;
use stelia_model::{Instance, Pools};

use crate::shared::daemon::{
    Description, Failure, Owner, Pod, Pods, fold, is_own, named, not_isolated, owner, state_and_class, to_do, whose,
};
use crate::shared::output::{Column, Render, TextStyle, column, table};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Fact {
    pub(super) fact: String,
    pub(super) source: &'static str,
}

pub(super) const COLUMNS: [Column<Fact>; 2] = [
    column("FACT", |fact: &Fact| fact.fact.clone()).wraps(),
    column("SOURCE", |fact: &Fact| fact.source.to_owned()).yields(2),
];

#[derive(Debug, Serialize)]
pub(crate) struct CpuFacts(Vec<Fact>);

impl Render for CpuFacts {
    fn text(&self, style: TextStyle) -> String {
        table(&COLUMNS, &self.0, style)
    }
}

const TOPOLOGY: &str = "/sys/devices/system/cpu";
const STATE: &str = "cpu_manager_state";
const CONFIG: &str = "kubelet's configuration";
const RECORD: &str = "the instance's scope";
const CONFIGURATION: &str = "steliad's configuration";
const POOLS: &str = "steliad's pools";
const SLICE: &str = "cpuset.cpus.exclusive of stelia.slice";

/// All facts about a CPU; `others` are the pods that are not instances, where their names are known.
///
/// # Errors
/// There is no such CPU.
pub(crate) fn facts(description: &Description, others: Pods, cpu: u32) -> Result<CpuFacts, Failure> {
    let node = &description.node;
    let place = node.topology.cpus.get(&cpu);
    if place.is_none() && !node.offline.contains(cpu) {
        return Err(Failure::Usage(no_such_cpu(description, cpu)));
    }
    let mut pods = others;
    pods.add(Pods::of(description));
    let mut facts = Vec::new();
    let mut say = |fact: String, source| facts.push(Fact { fact, source });
    match place {
        Some(place) => say(
            format!(
                "CPU {cpu} is in core {} of socket {}, NUMA node {}",
                place.core, place.package, place.node
            ),
            TOPOLOGY,
        ),
        None => say(format!("CPU {cpu} is offline: nothing runs on it"), TOPOLOGY),
    }
    if description.kubelet_reserved().contains(cpu) {
        say("reserved for the system (reservedSystemCPUs)".to_owned(), CONFIG);
    }
    if node.pools.as_ref().is_some_and(|pools| pools.reserved.contains(cpu)) {
        say("never allocated (reserved-cpus)".to_owned(), CONFIGURATION);
    }
    if let Some(problem) = &node.kubelet_problem {
        say(format!("kubelet's file cannot be used: {problem}"), STATE);
        say(format!("to do: {}", to_do(ReasonKind::KubeletUnusable, problem)), STATE);
    }
    for (pod, containers) in node.entries.iter() {
        for (container, cpus) in containers.iter().filter(|(_, cpus)| cpus.contains(cpu)) {
            say(
                format!(
                    "given to container {container} of pod {}, with {cpus}",
                    pods.get(pod.as_str())
                ),
                STATE,
            );
        }
    }
    match &node.pools {
        Some(pools) => in_pools(pools, cpu).into_iter().for_each(|fact| say(fact, POOLS)),
        None if node.pool.as_ref().is_some_and(|pool| pool.contains(cpu)) => {
            say("in the shared pool".to_owned(), STATE);
        }
        None => {}
    }
    let mut floating: Vec<(Pod, Floats)> = Vec::new();
    for (uid, instance) in &node.instances {
        let pod = Pod::of(uid, instance);
        let class = instance.allocation.as_ref().map(|allocation| allocation.qos);
        if instance.exclusive.contains(cpu) {
            let (container, state) = (&instance.container, state_and_class(instance));
            say(format!("of instance {pod} ({container}), which is {state}"), RECORD);
            match class {
                Some(Qos::Lse) => say("nothing else runs here (LSE)".to_owned(), RECORD),
                Some(Qos::Lsr) => say("BE may run here too (LSR)".to_owned(), RECORD),
                _ => {}
            }
            match instance.vcpus.iter().find(|vcpu| vcpu.thread.cpu == Some(cpu)) {
                Some(vcpu) => {
                    let (role, thread) = (&vcpu.thread.role, vcpu.thread.task.id);
                    let runs = match place {
                        Some(_) => "is pinned to it",
                        None => "was pinned to it, and the kernel runs it on another CPU",
                    };
                    say(format!("{role} (thread {thread}) {runs}"), RECORD);
                }
                None => say("no vCPU is pinned to it".to_owned(), RECORD),
            }
            if let Some(why) = not_isolated(instance) {
                say(format!("not isolated: {}; other tasks may run here", why.text), RECORD);
                say(format!("to do: {}", why.cure), RECORD);
            }
            let degraded = |own: bool| instance.degraded.iter().filter(move |reason| is_own(reason) == own);
            // What kubelet's file is about is above.
            let is_above =
                |reason: &Reason| node.kubelet_problem.is_some() && reason.kind == ReasonKind::KubeletUnusable;
            for reason in degraded(true).chain(degraded(false)).filter(|reason| !is_above(reason)) {
                say(format!("isolation degraded: {reason}"), RECORD);
                say(format!("to do: {}", to_do(reason.kind, &reason.text)), RECORD);
            }
        }
        if instance.float.contains(cpu) && place.is_some() {
            floating.push((pod, Floats::of(instance, class)));
        }
    }
    for (pods, what) in fold(floating.iter().map(|(pod, what)| (pod, what))) {
        say(floats_here(&pods, what), RECORD);
    }
    let is_said = |instance: &Instance| {
        let offline = instance
            .degraded
            .iter()
            .any(|reason| reason.kind == ReasonKind::CpusOffline);
        offline && instance.exclusive.contains(cpu)
    };
    if place.is_none() && !node.instances.values().any(|instance| is_said(instance)) {
        let text = format!("CPUs {cpu} are offline");
        say(format!("to do: {}", to_do(ReasonKind::CpusOffline, &text)), TOPOLOGY);
    }
    if place.is_some() && node.slice_exclusive.contains(cpu) {
        say("taken from every other task of the host".to_owned(), SLICE);
    }
    let own = owner(description, cpu);
    for sibling in node.topology.siblings(cpu).iter().filter(|sibling| *sibling != cpu) {
        let other = owner(description, sibling);
        let others = in_words(&other, &pods);
        if pod_of(&own) == pod_of(&other) {
            say(format!("its sibling, CPU {sibling}, is {others} too"), TOPOLOGY);
        } else {
            let core = "the two share the core's execution units";
            say(format!("its sibling, CPU {sibling}, is {others}; {core}"), TOPOLOGY);
        }
    }
    Ok(CpuFacts(facts))
}

/// Which CPUs there are.
fn no_such_cpu(description: &Description, cpu: u32) -> String {
    let (online, offline) = (description.node.topology.online(), &description.node.offline);
    let offline = if offline.is_empty() {
        String::new()
    } else {
        format!("; offline are {offline}")
    };
    format!("there is no CPU {cpu}; online are {online}{offline}")
}

/// What of an instance may run on a CPU that it floats on.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Floats {
    /// Everything, because its class has no CPUs of its own.
    ByClass(Qos),
    /// Everything, because it floats; the reason.
    NotIsolated(String),
    /// Everything except its vCPUs.
    AroundVcpus,
}

impl Floats {
    fn of(instance: &Instance, class: Option<Qos>) -> Self {
        match (class, instance.state == State::Floating) {
            (Some(class @ (Qos::Ls | Qos::Be)), _) => Self::ByClass(class),
            (_, true) => Self::NotIsolated(not_isolated(instance).map(|why| why.text).unwrap_or_default()),
            _ => Self::AroundVcpus,
        }
    }
}

fn floats_here(pods: &[&Pod], what: &Floats) -> String {
    let (of, their) = match pods {
        [pod] => (format!("instance {pod}"), "its"),
        pods => (whose(pods), "their"),
    };
    match what {
        Floats::ByClass(class) => format!("{of} ({}) may run here, {their} vCPUs too", class.name()),
        Floats::NotIsolated(why) => {
            let of = match pods {
                [pod] => format!("floating instance {pod}"),
                pods => format!("{} floating VMs ({})", pods.len(), named(pods)),
            };
            format!("all of {of} may run here, {their} vCPUs too ({why})")
        }
        Floats::AroundVcpus => format!("everything of {of} except {their} vCPUs may run here"),
    }
}

/// The allocator's pools that contain it.
fn in_pools(pools: &Pools, cpu: u32) -> Vec<String> {
    let mut facts = Vec::new();
    if pools.kubelet.contains(cpu) {
        facts.push("held by kubelet: never allocated, in no pool".to_owned());
    }
    if pools.pools.allocatable.contains(cpu) {
        facts.push("free: the next LSE or LSR may get it".to_owned());
    }
    if pools.pools.shared.contains(cpu) {
        let of = pools
            .pools
            .shared_by_node
            .iter()
            .find(|(_, pool)| pool.cpus.contains(cpu));
        let of = of.map_or_else(String::new, |(node, _)| format!(", that of NUMA node {node}"));
        facts.push(format!("in the shared pool{of}: LS and Burstable run here"));
    }
    if pools.pools.be_shared.contains(cpu) {
        facts.push("in the BE shared pool: BE and BestEffort run here".to_owned());
    }
    facts
}

pub(super) fn pod_of(owner: &Owner) -> Option<&str> {
    match owner {
        Owner::Instance { pod, .. } | Owner::Pod { pod } => Some(pod),
        _ => None,
    }
}

fn in_words(owner: &Owner, pods: &Pods) -> String {
    match owner {
        Owner::Shared => "shared".to_owned(),
        Owner::Reserved => "reserved".to_owned(),
        Owner::Kubelet => "still held by kubelet".to_owned(),
        Owner::Unknown => "unassigned as far as is known".to_owned(),
        Owner::Instance { pod, .. } => format!("of instance {}", pods.get(pod)),
        Owner::Pod { pod } => format!("of pod {}", pods.get(pod)),
    }
}

#[cfg(test)]
mod tests {
    use stelia_kubelet::PodName;

    use super::*;
    use crate::shared::daemon::node::testing::{PODS, allocated, instance_mut, node};

    fn told(cpu: u32) -> String {
        facts(&node(), Pods::default(), cpu)
            .unwrap()
            .text(TextStyle::from(false))
    }

    fn chosen_by_steliad(cpu: u32) -> String {
        facts(&allocated(), Pods::default(), cpu)
            .unwrap()
            .text(TextStyle::from(false))
    }

    fn says(text: &str, parts: &[&str]) {
        for part in parts {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_cpu_that_steliad_gave_says_its_class_and_who_else_runs_there() {
        let lse = chosen_by_steliad(4);
        says(
            &lse,
            &[
                "of instance aaaaaaaa-0000-4000-8000-000000000000 (vm), which is isolated, LSE",
                "nothing else runs here",
            ],
        );
        assert!(!lse.contains("pool: "), "{lse}");
        let lsr = chosen_by_steliad(2);
        says(
            &lsr,
            &["contained, LSR", "BE may run here too", "in the BE shared pool"],
        );
        assert!(!lsr.contains("in the shared pool"), "{lsr}");
    }

    #[test]
    fn a_cpu_of_nobodys_says_which_pools_it_is_in() {
        says(
            &chosen_by_steliad(7),
            &[
                "free: the next LSE or LSR may get it",
                "in the shared pool, that of NUMA node 1",
                "in the BE shared pool",
                "instance cccccccc-0000-4000-8000-000000000000 (LS) may run here, its vCPUs too",
                "its sibling, CPU 6, is still held by kubelet too",
            ],
        );
        let reserved = chosen_by_steliad(0);
        says(&reserved, &["never allocated (reserved-cpus)", "in the shared pool"]);
        assert!(!reserved.contains("free"), "{reserved}");
        let kubelets = chosen_by_steliad(6);
        says(&kubelets, &["held by kubelet: never allocated, in no pool"]);
        assert!(!kubelets.contains("run here"), "{kubelets}");
    }

    #[test]
    fn a_vms_cpu_is_told_from_the_topology_to_the_thread() {
        let text = told(4);
        for part in [
            "NUMA node 1",
            "given to container vm of pod aaaaaaaa-0000-4000-8000-000000000000",
            "vCPU 0 (thread 70) is pinned",
            "taken from every other task",
            "its sibling, CPU 5, is of instance aaaaaaaa-0000-4000-8000-000000000000 too",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("shared"), "{text}");
    }

    #[test]
    fn a_sibling_in_other_hands_is_named_from_both_sides() {
        assert!(told(2).contains("CPU 3, is shared; the two share"), "{}", told(2));
        assert!(
            told(3).contains("CPU 2, is of instance bbbbbbbb-0000-4000-8000-000000000000; the two share"),
            "{}",
            told(3)
        );
        assert!(told(2).contains("kubelet gave CPU 2 away"));
    }

    #[test]
    fn a_reserved_cpu_says_so_and_who_floats_there() {
        let text = told(0);
        assert!(
            text.contains("reservedSystemCPUs")
                && text.contains(
                    "everything of instance aaaaaaaa-0000-4000-8000-000000000000 except its vCPUs may run here"
                )
                && text.contains(
                    "all of floating instance bbbbbbbb-0000-4000-8000-000000000000 may run here, its vCPUs too ("
                ),
            "{text}"
        );
    }

    #[test]
    fn many_that_float_here_are_one_fact_and_have_names() {
        let mut described = node();
        for (uid, name) in described
            .node
            .instances
            .keys()
            .cloned()
            .collect::<Vec<_>>()
            .iter()
            .zip(["web", "db"])
        {
            let instance = instance_mut(&mut described, uid.as_str());
            instance.pod_name = PodName::new("team-a", name);
            instance.state = State::Isolated;
        }
        let text = facts(&described, Pods::default(), 0)
            .unwrap()
            .text(TextStyle::from(false));
        let fact = "everything of 2 VMs (team-a/db, team-a/web) except their vCPUs may run here";
        assert!(text.contains(fact), "{text}");
        let text = facts(&described, Pods::default(), 3)
            .unwrap()
            .text(TextStyle::from(false));
        assert!(
            text.contains("CPU 2, is of instance team-a/db; the two share"),
            "{text}"
        );
    }

    #[test]
    fn a_cpu_that_is_not_there_is_wrong_usage() {
        let failure = facts(&node(), Pods::default(), 8).unwrap_err();
        assert_eq!(failure.exit_code(), 2);
        assert!(failure.to_string().contains("online are 0-7"), "{failure}");
    }

    #[test]
    fn an_offline_cpu_says_whose_it_is_and_how_it_comes_online() {
        let mut described = node();
        described.node.topology = stelia_cpus::testing::Shape {
            nodes: 1,
            cores: 4,
            threads: 1,
            interleaved: false,
        }
        .topology()
        .into();
        described.node.offline = "4-7".parse().unwrap();
        let text = facts(&described, Pods::default(), 4)
            .unwrap()
            .text(TextStyle::from(false));
        says(
            &text,
            &[
                "CPU 4 is offline",
                "given to container vm of pod aaaaaaaa-0000-4000-8000-000000000000",
                "to do: echo 1 > /sys/devices/system/cpu/cpu4/online",
            ],
        );
        let failure = facts(&described, Pods::default(), 9).unwrap_err();
        let text = failure.to_string();
        assert!(
            text.contains("no CPU 9") && text.contains("offline are 4-7"),
            "{failure}"
        );
    }

    #[test]
    fn a_pod_without_an_instance_has_its_name_where_that_is_known() {
        let other = Pod {
            pod_uid: PODS[2].to_owned(),
            pod_namespace: "team-a".to_owned(),
            pod_name: "db-0".to_owned(),
        };
        let told = facts(&node(), Pods::from_iter([other]), 6).unwrap();
        let text = told.text(TextStyle::from(false));
        assert!(text.contains("of pod team-a/db-0, with 6"), "{text}");
    }
}
