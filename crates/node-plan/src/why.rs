//! Why an answer is not better.

use std::collections::BTreeSet;

use kubelet_planner::cpus::Bound;
use kubelet_planner::merge::{Hint, Policy, duration};
use kubelet_planner::{
    Admission, Container, ContainerAllocation, ContainerKind, CpuManager, Cpus, MemoryManager, Merge, Pod, Rejection,
    Resources,
};
use stelia_cpus::CpuSet;
use stelia_kubelet::QosClass;

use crate::Subject;
use crate::hints::{CPU, by_node, free, free_words};
use crate::planned_nodes;

/// Limit of the sets of NUMA nodes that are named.
const MAX_NAMED_NODE_SETS: usize = 4;

/// A sentence for each thing that an admitted pod could have had and does not get.
pub fn not_better(subject: &Subject, pod: &Pod, admission: &Admission) -> Vec<String> {
    let mut told: Vec<String> = admission
        .merges
        .iter()
        .filter_map(|merge| disagreement(subject, pod, merge))
        .collect();
    told.extend(left_over(pod, admission));
    let mut free = subject
        .node
        .state()
        .cpus
        .default
        .difference(&subject.node.reserved_cpus());
    for allocation in &admission.containers {
        if let Cpus::Exclusive(cpus) = &allocation.cpus {
            told.extend(spread(subject, allocation, cpus, &free));
            free = free.difference(cpus);
        }
    }
    told
}

/// Why the pod has no exclusive CPUs, or which of its containers have none: `none: …`, or `none for NAME: …` for each of these.
pub fn not_exclusive(subject: &Subject, pod: &Pod, admission: &Admission) -> Vec<String> {
    let pairs = pod.containers.iter().zip(&admission.containers);
    let without = pairs.filter(|(_, given)| !matches!(given.cpus, Cpus::Exclusive(_)));
    let whys: Vec<(&str, String)> = without
        .map(|(one, _)| (one.name.as_str(), shared(subject, pod, one)))
        .collect();
    match whys.as_slice() {
        [(_, why), others @ ..]
            if whys.len() == pod.containers.len() && others.iter().all(|(_, other)| other == why) =>
        {
            vec![format!("none: {why}")]
        }
        _ => whys
            .iter()
            .map(|(name, why)| format!("none for {name}: {why}"))
            .collect(),
    }
}

/// What to ask for instead, where kubelet gives whole cores and the request is no number of these.
pub fn fix(rejection: &Rejection) -> Option<String> {
    let (requested, per_core) = rejection.not_whole_cores()?;
    Some(format!(
        "request {} CPUs, or another multiple of the {per_core} threads per core (full-pcpus-only)",
        requested.next_multiple_of(per_core)
    ))
}

/// CPUs of init containers that none of the pod's other containers took. kubelet keeps them for the pod as long as it lives
/// (Kubernetes issue 112228): it chooses among them and free CPUs alike.
fn left_over(pod: &Pod, admission: &Admission) -> Vec<String> {
    let exclusive = |init: bool| {
        let all = pod.containers.iter().zip(&admission.containers);
        all.filter_map(move |(container, allocation)| match &allocation.cpus {
            Cpus::Exclusive(cpus) if (container.kind == ContainerKind::Init) == init => Some((&container.name, cpus)),
            _ => None,
        })
    };
    let used = exclusive(false).fold(CpuSet::new(), |used, (_, cpus)| used.union(cpus));
    let lost = exclusive(true).map(|(name, cpus)| (name, cpus.difference(&used)));
    let lost = lost.filter(|(_, cpus)| !cpus.is_empty());
    lost.map(|(name, cpus)| {
        let (noun, verb) = if cpus.len() == 1 { ("CPU", "is") } else { ("CPUs", "are") };
        format!(
            "{noun} {cpus} of the init container {name} {verb} lost to the node while the pod lives: no other container took {} over (kubernetes#112228)",
            if cpus.len() == 1 { "it" } else { "them" }
        )
    })
    .collect()
}

/// That kubelet takes very long for a pod on this node: its memory manager looks at every set of NUMA nodes, those without memory included, and its
/// Topology Manager at every combination of hints.
pub fn slow(subject: &Subject, pod: &Pod, merges: &[Merge]) -> Vec<String> {
    let settings = subject.node.settings();
    let nodes = subject.node.machine().numa.len();
    let sets = duration::sets(nodes);
    let seconds = duration::seconds(sets);
    let looks = settings.memory_manager != MemoryManager::None && pod.qos() == QosClass::Guaranteed;
    let of_sets = (looks && seconds >= duration::SLOW_SECONDS).then(|| {
        format!(
            "kubelet examines all {sets:.1e} sets of {nodes} NUMA nodes for the pod's memory and keeps a hint for most of them. This takes {} or longer and may exhaust kubelet's memory; the answer assumes that kubelet finishes",
            duration::in_words(seconds)
        )
    });
    let hints = |merge: &Merge| {
        let known = merge.hints.iter().map(|(_, hints)| hints.as_slice());
        let unknown = duration::permutations(settings.topology_policy, &vec![nodes; merge.unplaced.len()]);
        duration::permutations_of(settings.topology_policy, known) * unknown
    };
    let permutations: f64 = merges.iter().map(hints).sum();
    let seconds = duration::seconds(permutations);
    let of_merges = (seconds >= duration::SLOW_SECONDS).then(|| {
        format!(
            "kubelet compares {} combinations of hints for this pod, which takes {}, and admits no other pod meanwhile",
            duration::count_words(permutations),
            duration::in_words(seconds)
        )
    });
    of_sets.into_iter().chain(of_merges).collect()
}

/// Why a container has no exclusive CPUs.
fn shared(subject: &Subject, pod: &Pod, container: &Container) -> String {
    let settings = subject.node.settings();
    let milli = container.resources.requests.milli_cpus.unwrap_or(0);
    match pod.qos() {
        _ if settings.cpu_manager == CpuManager::None => "the CPU manager's policy is none".to_owned(),
        QosClass::BestEffort => "the pod is BestEffort: it requests neither CPU nor memory".to_owned(),
        QosClass::Burstable => format!("the pod is Burstable: {}", not_guaranteed(pod)),
        QosClass::Guaranteed if milli == 0 => "no CPU is requested".to_owned(),
        QosClass::Guaranteed if !milli.is_multiple_of(1000) => {
            format!("{milli}m CPUs are requested, not a whole number")
        }
        QosClass::Guaranteed if pod.own().is_some() && !settings.kubelet.pod_level_resource_managers => {
            "the pod has pod-level resources, and the feature gate PodLevelResourceManagers is off".to_owned()
        }
        QosClass::Guaranteed => {
            "the pod has pod-level resources, and the container's requests are not its limits".to_owned()
        }
    }
}

/// What keeps a pod from being Guaranteed.
fn not_guaranteed(pod: &Pod) -> String {
    let containers = pod.containers.iter();
    let each = containers.map(|one| (format!("container {}", one.name), &one.resources));
    let whole = pod.own().map(|own| ("the pod".to_owned(), own));
    let all: Vec<_> = whole.map_or_else(|| each.collect(), |whole| vec![whole]);
    let amounts = all.into_iter().flat_map(|(whose, Resources { requests, limits })| {
        [
            (whose.clone(), "CPU", requests.milli_cpus, limits.milli_cpus),
            (whose, "memory", requests.memory, limits.memory),
        ]
    });
    let mut whys = amounts.filter_map(|(whose, what, request, limit)| match limit.unwrap_or(0) {
        0 => Some(format!("{whose} has no {what} limit")),
        _ if request != limit => Some(format!("{whose} does not request its {what} limit")),
        _ => None,
    });
    whys.next().unwrap_or_else(|| "requests are not limits".to_owned())
}

/// Why a container's CPUs are on more NUMA nodes than could hold them.
fn spread(subject: &Subject, allocation: &ContainerAllocation, cpus: &CpuSet, free: &CpuSet) -> Option<String> {
    let used = subject.nodes(cpus);
    let usable = subject.topology.online().difference(&subject.reserved);
    let on = |set: &CpuSet, node: u32| {
        let here = set
            .iter()
            .filter(|cpu| subject.topology.cpus.get(cpu).is_some_and(|cpu| cpu.node == node));
        here.count()
    };
    let all = subject.nodes(&usable);
    // How many of the largest NUMA nodes hold them all.
    let fewest = |set: &CpuSet| {
        let sizes = all.iter().map(|node| on(set, *node) as u64);
        planned_nodes::fewest(sizes.collect(), cpus.len() as u64)
    };
    if used.len() <= fewest(&usable) {
        return None;
    }
    let counts: Vec<String> = all
        .iter()
        .map(|node| format!("{} on {node}", on(free, *node)))
        .collect();
    let chosen = allocation.hint.nodes.map(|nodes| nodes.to_string());
    let is_chosen = |node: u32| allocation.hint.nodes.is_some_and(|nodes| nodes.contains(node));
    let on_chosen: usize = all
        .iter()
        .filter(|node| is_chosen(**node))
        .map(|node| on(free, *node))
        .sum();
    let cause = match (
        used.len() > fewest(free),
        subject.node.settings().topology_policy,
        chosen,
    ) {
        (true, Policy::None, _) => {
            "the Topology Manager's policy is none, and the CPU manager alone takes whole cores first".to_owned()
        }
        (true, _, Some(nodes)) if on_chosen < cpus.len() => format!(
            "the Topology Manager chose NUMA nodes {{{nodes}}}, which have {on_chosen} CPUs free, and kubelet takes the others elsewhere"
        ),
        (true, ..) => "the CPU manager's options or the hints of other resources spread them".to_owned(),
        (false, ..) => "fewer have not enough of them free".to_owned(),
    };
    Some(format!(
        "{} has CPUs of NUMA nodes {used}: {cause} (free for it by NUMA node: {})",
        allocation.container,
        counts.join(", ")
    ))
}

/// Why the merged hint is not preferred by every resource, where kubelet admits the pod nevertheless.
fn disagreement(subject: &Subject, pod: &Pod, merge: &Merge) -> Option<String> {
    if merge.merged.preferred {
        return None;
    }
    let whose = match &merge.container {
        Some(container) => format!("{container} is not aligned as it prefers"),
        None => "the pod is not aligned as it prefers".to_owned(),
    };
    Some(format!("{whose}: {}", cause(subject, pod, merge)?))
}

/// That CPUs of init containers bind a container to their NUMA nodes.
fn binding(bound: &Bound) -> String {
    let Bound { cpus, nodes, otherwise } = bound;
    let mut others: Vec<String> = otherwise.iter().map(|nodes| format!("{{{nodes}}}")).collect();
    if others.len() > MAX_NAMED_NODE_SETS {
        others.truncate(MAX_NAMED_NODE_SETS);
        others.push("…".to_owned());
    }
    let others = if others.is_empty() {
        "nothing".to_owned()
    } else {
        others.join(" or ")
    };
    let (whose, without) = match cpus.len() {
        1 => (
            format!("CPU {cpus} of the pod's init containers is there and has"),
            "it",
        ),
        _ => (
            format!("CPUs {cpus} of the pod's init containers are there and have"),
            "them",
        ),
    };
    format!(
        "cpu is bound to NUMA nodes {{{nodes}}}, because {whose} to be used again; without {without} cpu would prefer {others}"
    )
}

/// Why the Topology Manager rejected a pod; `None` where something else rejected it, or there is no more to say.
pub fn misaligned(subject: &Subject, pod: &Pod, rejection: &Rejection) -> Option<String> {
    let merges = rejection.merges.last();
    let merge = merges.filter(|_| rejection.reason() == Some("TopologyAffinityError"))?;
    cause(subject, pod, merge)
}

/// How many CPUs a merge is about.
fn wanted_cpus(pod: &Pod, merge: &Merge) -> u64 {
    let milli = match &merge.container {
        None => pod.requests().milli_cpus,
        Some(name) => {
            let mut containers = pod.containers.iter();
            let container = containers.find(|container| container.name == *name);
            container.and_then(|container| container.resources.requests.milli_cpus)
        }
    };
    milli.unwrap_or(0).div_ceil(1000)
}

/// That NUMA nodes give memory only together: kubelet's memory manager binds nodes that serve a pod together to each other, and a node that serves
/// pods by itself to none, whatever is free there.
fn grouped(subject: &Subject, resource: &str) -> Option<String> {
    let nodes = &subject.node.state().memory.nodes;
    let is_memory = nodes.values().any(|node| node.tables.contains_key(resource));
    let groups = nodes
        .values()
        .filter(|node| node.assignments > 0 && node.cells.len() > 1);
    let groups: BTreeSet<Vec<u32>> = groups.map(|node| node.cells.clone()).collect();
    let names: Vec<String> = groups
        .into_iter()
        .map(|cells| format!("{{{}}}", cells.into_iter().collect::<CpuSet>()))
        .collect();
    (is_memory && !names.is_empty()).then(|| {
        format!(
            "NUMA nodes {} already serve a pod together, and until it ends kubelet uses none of them alone or with other nodes, whatever is free there (free: {})",
            names.join(" and "),
            free_words(resource, &free(subject, resource))
        )
    })
}

/// What keeps a merged hint from being preferred: one resource, or two that do not agree.
fn cause(subject: &Subject, pod: &Pod, merge: &Merge) -> Option<String> {
    let policy = subject.node.settings().topology_policy;
    let preferred = |hints: &[Hint]| -> Vec<String> {
        let preferred = hints.iter().filter(|hint| hint.preferred);
        let mut wishes: Vec<String> = preferred
            .filter_map(|hint| Some(format!("{{{}}}", hint.nodes?)))
            .collect();
        if wishes.len() > MAX_NAMED_NODE_SETS {
            wishes.truncate(MAX_NAMED_NODE_SETS);
            wishes.push("…".to_owned());
        }
        wishes
    };
    let mut wishes = Vec::new();
    for (resource, hints) in &merge.hints {
        if hints.is_empty() {
            return Some(if resource == CPU {
                let (wanted, most) = (wanted_cpus(pod, merge), free(subject, CPU).into_values().max());
                // Others of the pod, or pods before it, may have taken them.
                let most = most.filter(|most| *most < wanted);
                let most = most.map_or(String::new(), |most| format!(": {most} at most"));
                format!("no NUMA node has {wanted} free CPUs{most}")
            } else {
                format!("no NUMA node has enough free {resource}")
            });
        }
        let narrow = |hint: &Hint| hint.nodes.is_none_or(|nodes| nodes.len() == 1);
        if policy == Policy::SingleNumaNode && hints.iter().any(|hint| hint.preferred && !narrow(hint)) {
            return Some(if resource == CPU {
                let most = by_node(subject, &subject.topology.online())
                    .into_values()
                    .max()
                    .unwrap_or(0);
                let wanted = wanted_cpus(pod, merge);
                format!("no NUMA node has {wanted} CPUs, even if all were free: {most} at most")
            } else {
                format!("no NUMA node has enough {resource}, even if all of it were free")
            });
        }
        if !hints.iter().any(|hint| hint.preferred) {
            if resource == CPU
                && let Some(bound) = &merge.bound
                && !bound.otherwise.is_empty()
            {
                return Some(binding(bound));
            }
            let best = hints
                .iter()
                .filter_map(|hint| hint.nodes)
                .min_by_key(|nodes| (nodes.len(), *nodes))?;
            let why = grouped(subject, resource)
                .filter(|_| merge.is_grouped)
                .unwrap_or_else(|| "fewer do not have enough of it free".to_owned());
            return Some(format!("{resource} comes from NUMA nodes {best} at best: {why}"));
        }
        let wish = preferred(hints);
        if !wish.is_empty() {
            wishes.push(format!("{resource} prefers {}", wish.join(" or ")));
        }
        if resource == CPU
            && let Some(bound) = &merge.bound
        {
            wishes.push(binding(bound));
        }
    }
    (!wishes.is_empty()).then(|| wishes.join(", "))
}
