//! The owner of a CPU, with the source of each fact.

use serde::Serialize;
use stelia_api::{Reason, ReasonCode, State};
use stelia_koordinator::allocator::Qos;
use stelia_model::{Instance, Pools};

use crate::shared::daemon::{
    Description, Failure, Owner, Pod, Pods, fold, named, not_isolated, owner, state_and_class, whose,
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
        say(
            format!("to do: {}", Reason::of_node(ReasonCode::KubeletUnusable, problem).fix),
            STATE,
        );
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
            for reason in &instance.degraded {
                say(format!("isolation degraded: {reason}"), RECORD);
                say(format!("to do: {}", reason.fix), RECORD);
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
            .any(|reason| reason.code == ReasonCode::CpusOffline);
        offline && instance.exclusive.contains(cpu)
    };
    if place.is_none() && !node.instances.values().any(|instance| is_said(instance)) {
        say(
            format!("to do: echo 1 > /sys/devices/system/cpu/cpu{cpu}/online"),
            TOPOLOGY,
        );
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
        match (class, instance.state == State::Waiting) {
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
    use crate::tests::fixtures::{never_says, pod, says};

    fn told_of(description: &Description, cpu: u32) -> String {
        let facts = facts(description, Pods::default(), cpu).unwrap();
        facts.text(TextStyle::from(false))
    }

    #[test]
    fn a_cpu_of_a_node_where_steliad_chooses_says_its_class_its_pools_and_who_else_runs_there() {
        for (cpu, told, never) in [
            (
                4,
                &[
                    "of instance aaaaaaaa-0000-4000-8000-000000000000 (vm), which is isolated, LSE",
                    "nothing else runs here",
                ][..],
                "pool: ",
            ),
            (
                2,
                &["pinned, LSR", "BE may run here too", "in the BE shared pool"],
                "in the shared pool",
            ),
            (
                7,
                &[
                    "free: the next LSE or LSR may get it",
                    "in the shared pool, that of NUMA node 1",
                    "in the BE shared pool",
                    "instance cccccccc-0000-4000-8000-000000000000 (LS) may run here, its vCPUs too",
                    "its sibling, CPU 6, is still held by kubelet too",
                ],
                "reserved",
            ),
            (0, &["never allocated (reserved-cpus)", "in the shared pool"], "free"),
            (6, &["held by kubelet: never allocated, in no pool"], "run here"),
        ] {
            let text = told_of(&allocated(), cpu);
            says(&text, told);
            never_says(&text, &[never]);
        }
    }

    #[test]
    fn a_cpu_of_kubelets_is_told_from_the_topology_to_the_thread() {
        let vms = told_of(&node(), 4);
        let expected = [
            "NUMA node 1",
            "given to container vm of pod aaaaaaaa-0000-4000-8000-000000000000",
            "vCPU 0 (thread 70) is pinned",
            "taken from every other task",
            "its sibling, CPU 5, is of instance aaaaaaaa-0000-4000-8000-000000000000 too",
        ];
        says(&vms, &expected);
        never_says(&vms, &["shared"]);
        // A sibling in other hands is named from both sides.
        let expected = ["CPU 3, is shared; the two share", "kubelet gave CPU 2 away"];
        says(&told_of(&node(), 2), &expected);
        let of_vm = "CPU 2, is of instance bbbbbbbb-0000-4000-8000-000000000000; the two share";
        says(&told_of(&node(), 3), &[of_vm]);
        // A reserved one says who floats there.
        let expected = [
            "reservedSystemCPUs",
            "everything of instance aaaaaaaa-0000-4000-8000-000000000000 except its vCPUs may run here",
            "all of floating instance bbbbbbbb-0000-4000-8000-000000000000 may run here, its vCPUs too (",
        ];
        says(&told_of(&node(), 0), &expected);
    }

    #[test]
    fn many_that_float_here_are_one_fact_and_have_names() {
        let mut described = node();
        for (uid, name) in PODS.iter().zip(["web", "db"]) {
            let instance = instance_mut(&mut described, uid);
            instance.pod_name = PodName::new("team-a", name);
            instance.state = State::Isolated;
        }
        let fact = "everything of 2 VMs (team-a/db, team-a/web) except their vCPUs may run here";
        says(&told_of(&described, 0), &[fact]);
        let sibling = "CPU 2, is of instance team-a/db; the two share";
        says(&told_of(&described, 3), &[sibling]);
    }

    #[test]
    fn a_cpu_that_is_not_there_is_wrong_usage() {
        let failure = facts(&node(), Pods::default(), 8).unwrap_err();
        assert_eq!(failure.exit_code(), 2);
        says(&failure.to_string(), &["online are 0-7"]);
    }

    #[test]
    fn an_offline_cpu_says_whose_it_is_and_how_it_comes_online() {
        let mut described = node();
        let shape = stelia_cpus::testing::Shape {
            nodes: 1,
            cores: 4,
            threads: 1,
            interleaved: false,
        };
        described.node.topology = shape.topology().into();
        described.node.offline = "4-7".parse().unwrap();
        let expected = [
            "CPU 4 is offline",
            "given to container vm of pod aaaaaaaa-0000-4000-8000-000000000000",
            "to do: echo 1 > /sys/devices/system/cpu/cpu4/online",
        ];
        says(&told_of(&described, 4), &expected);
        let failure = facts(&described, Pods::default(), 9).unwrap_err();
        says(&failure.to_string(), &["no CPU 9", "offline are 4-7"]);
    }

    #[test]
    fn a_pod_without_an_instance_has_its_name_where_that_is_known() {
        let other = pod(PODS[2], "team-a/db-0");
        let told = facts(&node(), Pods::from_iter([other]), 6).unwrap();
        says(&told.text(TextStyle::from(false)), &["of pod team-a/db-0, with 6"]);
    }
}
