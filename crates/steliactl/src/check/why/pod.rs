//! The story of an instance: which CPUs and why, its states and what it waits for, why its other threads run where they do,
//! where the guest's NUMA nodes are. Each fact with its source.

use serde::Serialize;
use stelia_api::{Reason, State};
use stelia_cpus::CpuSet;
use stelia_kernel::locality::{list, nodes};
use stelia_koordinator::allocator::{Allocation, CpuSource, Exclusivity, Qos};
use stelia_model::{FloatReason, Instance};
use stelia_settings::{Isolation, Partition};

use super::cpu::{COLUMNS, Fact};
use super::guest::{GuestNode, guest_nodes};
use super::slow::{self, Line};
use super::source_in_words;
use crate::shared::daemon::{Description, Failure, Pod, age, no_instance, not_isolated};
use crate::shared::output::{self, Render, TextStyle, counted, headed, printable, table};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct PodExplained {
    #[serde(flatten)]
    pod: Pod,
    container: String,
    state: State,
    isolation: Isolation,
    /// Why it is not isolated; `None` where it is.
    why: Option<String>,
    degraded: Vec<String>,
    exclusive_cpus: CpuSet,
    float_cpus: CpuSet,
    float_reason: FloatReason,
    /// Who chooses CPUs on this node now.
    cpu_source: CpuSource,
    /// `None` where kubelet chose.
    allocation: Option<Allocation>,
    registered_us: u64,
    /// `None` before its vCPUs were isolated.
    isolated_us: Option<u64>,
    guest_nodes: Vec<GuestNode>,
    story: Vec<Section>,
    /// What was measured; `None` before.
    slow: Option<Vec<Line>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Section {
    heading: &'static str,
    facts: Vec<Fact>,
}

const STATE: &str = "cpu_manager_state";
const RECORD: &str = "the instance's scope";
const KERNEL: &str = "the kernel's cgroup files";
const SETTINGS: &str = "steliad's settings";
const CHOICE: &str = "steliad's allocator";
const GUEST: &str = "the vCPUs' properties, as attached";
const TOPOLOGY: &str = "/sys/devices/system";
const VIEW: &str = "steliad";

/// The story as it is at `now`, without a measurement.
///
/// # Errors
/// The pod has no instance.
pub(crate) fn gather(description: &Description, pod: &str, now: u64) -> Result<PodExplained, Failure> {
    let node = &description.node;
    let (uid, instance) = node.instances.get_key_value(pod).ok_or_else(|| no_instance(pod))?;
    let guest = guest_nodes(&node.topology, instance);
    let story = [
        ("CPUs", cpus(description, pod, instance)),
        ("State", state(instance, now)),
        ("Everything but its vCPUs", float(instance)),
        ("The guest", guest_facts(&guest)),
    ];
    let story = story.into_iter().filter(|(_, facts)| !facts.is_empty());
    Ok(PodExplained {
        pod: Pod::of(uid, instance),
        container: instance.container.clone(),
        state: instance.state,
        isolation: instance.isolation,
        why: not_isolated(instance).map(|why| why.text),
        degraded: instance.degraded.iter().map(Reason::to_string).collect(),
        exclusive_cpus: instance.exclusive.clone(),
        float_cpus: instance.float.clone(),
        float_reason: instance.float_reason,
        cpu_source: node.cpu_source,
        allocation: instance.allocation.clone(),
        registered_us: instance.registered_us,
        isolated_us: Some(instance.isolated_us).filter(|us| *us > 0),
        guest_nodes: guest,
        story: story.map(|(heading, facts)| Section { heading, facts }).collect(),
        slow: None,
    })
}

impl PodExplained {
    /// Adds what two readings say, a second apart.
    pub(super) fn measured(mut self, description: &Description, readings: (&slow::Reading, &slow::Reading)) -> Self {
        let pod = self.pod.pod_uid.as_str();
        let instance = description.node.instances.get(pod);
        self.slow = instance.map(|instance| slow::lines(description, pod, instance, &self.guest_nodes, readings));
        self
    }
}

/// Facts as they are gathered.
#[derive(Default)]
struct Facts(Vec<Fact>);

impl Facts {
    fn say(&mut self, fact: impl Into<String>, source: &'static str) {
        let fact = fact.into();
        self.0.push(Fact { fact, source });
    }
}

fn cpus(description: &Description, pod: &str, instance: &Instance) -> Vec<Fact> {
    let (node, own) = (&description.node, &instance.exclusive);
    let mut facts = Facts::default();
    let source = source_in_words(node.cpu_source);
    facts.say(format!("who chooses CPUs on this node: {source}"), SETTINGS);
    match &instance.allocation {
        Some(allocation) => allocated(allocation, own, &mut facts),
        None => by_kubelet(description, pod, instance, &mut facts),
    }
    if !own.is_empty() {
        let host = nodes(&node.topology, own);
        facts.say(format!("CPUs {own} are on NUMA node {}", list(&host)), TOPOLOGY);
        let cores: CpuSet = own
            .iter()
            .flat_map(|cpu| node.topology.siblings(cpu).iter().collect::<Vec<_>>())
            .collect();
        let others = cores.difference(own);
        if !others.is_empty() {
            facts.say(
                format!("CPUs {others} share cores with them and are not its own"),
                TOPOLOGY,
            );
        }
    }
    facts.0
}

fn by_kubelet(description: &Description, pod: &str, instance: &Instance, facts: &mut Facts) {
    let (node, container, own) = (&description.node, &instance.container, &instance.exclusive);
    if let Some(problem) = &node.kubelet_problem {
        let text = format!("kubelet's file cannot be used: {problem}; it keeps {own}, as recorded");
        return facts.say(text, STATE);
    }
    let entry = node.entries.get(pod).and_then(|containers| containers.get(container));
    match (entry, node.pod_entries.get(pod)) {
        (Some(entry), _) if entry == own => {
            facts.say(format!("kubelet gave container {container} the CPUs {own}"), STATE)
        }
        (Some(entry), _) => {
            facts.say(format!("kubelet gives container {container} the CPUs {entry}"), STATE);
            facts.say(format!("its own are {own}"), RECORD);
        }
        (None, Some(entry)) => {
            facts.say(
                format!("kubelet gave the whole pod the CPUs {entry} (pod-level resources)"),
                STATE,
            );
            facts.say(format!("its own are {own}"), RECORD);
        }
        (None, None) => {
            facts.say(format!("kubelet has no entry for container {container}"), STATE);
            facts.say(format!("it keeps {own}, as recorded"), RECORD);
        }
    }
}

fn allocated(allocation: &Allocation, own: &CpuSet, facts: &mut Facts) {
    facts.say(format!("class {}", class_in_words(allocation.qos)), RECORD);
    if allocation.cpus > 0 {
        facts.say(
            format!(
                "asked for {}: bind policy {}, exclusive policy {}, strategy {}, alignment {}",
                counted(allocation.cpus.into(), "CPU"),
                bind_in_words(allocation),
                allocation.exclusive,
                allocation.strategy,
                allocation.alignment
            ),
            RECORD,
        );
        facts.say(format!("was given the CPUs {own}"), RECORD);
        facts.say(
            format!("exclusive policy {}", exclusivity_in_words(allocation.exclusivity)),
            RECORD,
        );
    }
    let limit = limit_in_words(allocation.limit_milli);
    if !limit.is_empty() {
        facts.say(format!("the pod's CPU limit is {limit} CPUs"), RECORD);
    }
    for line in &allocation.explanation {
        facts.say(line.as_str(), CHOICE);
    }
}

fn state(instance: &Instance, now: u64) -> Vec<Fact> {
    let mut facts = Facts::default();
    let mut event = |what: &str, us: u64| {
        if us > 0 {
            facts.say(format!("{what} {} ago, at {}", age(us, now), output::time(us)), RECORD);
        }
    };
    event("registered", instance.registered_us);
    event(
        "isolated",
        if instance.state == State::Isolated {
            instance.isolated_us
        } else {
            0
        },
    );
    match not_isolated(instance) {
        Some(why) => {
            facts.say(format!("{}: {}", instance.state, why.at(now)), VIEW);
            if why.since_us.is_some() {
                facts.say("it waits for AttachVcpus, which its container's runner calls", VIEW);
            }
            facts.say(format!("to do: {}", why.cure), VIEW);
        }
        None => facts.say(format!("now {}", instance.state), VIEW),
    }
    if !instance.partition.is_empty() && instance.partition != Partition::Member.name() {
        let of = match instance.isolation {
            Isolation::Container => "its container",
            Isolation::Vcpus => "its vCPUs",
        };
        let text = format!("the partition of {of} is of kind {}", instance.partition);
        facts.say(text, "cpuset.cpus.partition");
    }
    for reason in &instance.degraded {
        facts.say(format!("isolation degraded: {reason}"), VIEW);
        facts.say(format!("to do: {}", reason.fix), VIEW);
    }
    facts.0
}

fn float(instance: &Instance) -> Vec<Fact> {
    let mut facts = Facts::default();
    if instance.isolation != Isolation::Container {
        facts.say(format!("runs on {}", or_none(&instance.float)), KERNEL);
    }
    let why = match instance.float_reason {
        FloatReason::PodPool => "float-policy is pod, and kubelet gave the pod a shared pool of its own",
        FloatReason::Near => "float-policy is pod or numa: the shared pool on the NUMA nodes of its CPUs",
        FloatReason::TooFewNear => {
            "the shared pool has fewer than float-min-cpus CPUs on the NUMA nodes of its CPUs: it is the whole pool"
        }
        FloatReason::Pool => "float-policy is node, or it has no CPUs to be near to: the whole shared pool",
        FloatReason::NodePool => "class LS: the shared pool of the NUMA node that was chosen for it",
        FloatReason::BePool => "class BE: the BE shared pool",
        FloatReason::Spare => {
            "the VM's vCPUs are pinned by others: it has the container's CPUs that no vCPU is pinned to; in stelia.slice the shared pool, too"
        }
        FloatReason::UntilAttached => {
            "no vCPUs are attached: the shared CPUs of its NUMA nodes, and its own CPUs unless a partition has them, so that its memory is allocated on these nodes"
        }
        FloatReason::NoFloat => {
            "isolation is container: all tasks of the container share its exclusive CPUs, and no other task runs there"
        }
        FloatReason::Unchanged => "no CPUs can be chosen now: it keeps its CPUs",
    };
    facts.say(why, SETTINGS);
    facts.0
}

fn or_none(cpus: &CpuSet) -> String {
    if cpus.is_empty() {
        "no CPU list of its own".to_owned()
    } else {
        cpus.to_string()
    }
}

fn guest_facts(guest: &[GuestNode]) -> Vec<Fact> {
    let mut facts = Facts::default();
    for node in guest {
        facts.say(node.in_words(), GUEST);
    }
    facts.0
}

/// The bind policy, and whether it is required.
fn bind_in_words(allocation: &Allocation) -> String {
    if allocation.required {
        format!("{}, required", allocation.bind)
    } else {
        allocation.bind.to_string()
    }
}

fn class_in_words(class: Qos) -> String {
    let meaning = match class {
        Qos::Lse => "exclusive CPUs; nothing else runs there",
        Qos::Lsr => "CPUs of its own; BE may run there",
        Qos::Ls => "no exclusive CPUs: the shared pool",
        Qos::Be => "no exclusive CPUs: the BE shared pool",
    };
    format!("{class}: {meaning}")
}

fn exclusivity_in_words(exclusivity: Exclusivity) -> String {
    let meaning = match exclusivity {
        Exclusivity::NotAsked => "no exclusive policy was asked for",
        Exclusivity::Honored => "the policy holds",
        Exclusivity::Downgraded => {
            "to PCPULevel: a NUMA node is shared with an instance of the same policy, no core is"
        }
        Exclusivity::Dropped => "a core is shared with an instance of the same policy",
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

/// A line on what it is, then a table below each heading.
impl Render for PodExplained {
    fn text(&self, style: TextStyle) -> String {
        let uid = if self.pod.is_named() {
            format!(" ({})", self.pod.pod_uid)
        } else {
            String::new()
        };
        let title = format!("{}{uid}, container {}: {}", self.pod, self.container, self.state);
        let mut text = printable(&title) + "\n";
        let bare = TextStyle { legend: false, ..style };
        for section in &self.story {
            text += &headed(section.heading, style, table(&COLUMNS, &section.facts, bare));
        }
        if let Some(lines) = &self.slow {
            text += &headed("What may slow it down", style, slow::text(lines, style));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_has_a_fraction_only_where_it_needs_one() {
        assert_eq!(limit_in_words(2000), "2");
        assert_eq!(limit_in_words(1005), "1.005");
    }
}
