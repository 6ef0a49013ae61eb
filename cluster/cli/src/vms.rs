//! `vms`: a line a VM, with its node, its state and why it is so.

mod filter;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use stelia_cpus::text::{excerpt, named};
use stelia_table::{Column, Meaning, Render, TextStyle, column, counted, table};

use crate::cluster::{Cluster, Member, called};
use crate::nodes::age;
use crate::objects::{Condition, PodKey, PodObject, Problem};
use crate::prose;
use crate::reasons::NO_NODE;
pub use filter::{Pattern, VmFilter};

named! {
    /// The state of a VM, as its pod's condition has it. The order is that of trouble: what needs attention comes first.
    #[derive(PartialOrd, Ord)]
    pub enum VmState {
        /// It had CPUs of its own, and the promise does not hold.
        Degraded = "degraded",
        /// It runs on shared CPUs.
        Waiting = "waiting",
        /// It runs, and nobody published how.
        Unknown = "unknown",
        /// It has CPUs of its own, without a partition that keeps others off.
        Pinned = "pinned",
        Releasing = "releasing",
        /// It has no node yet.
        Pending = "pending",
        Isolated = "isolated",
    }
}

impl VmState {
    /// `docs/cluster/publish.md`, "Conditions and events", has the reasons.
    fn of(isolation: Option<&Condition>, is_bound: bool) -> Self {
        match isolation {
            None if is_bound => Self::Unknown,
            None => Self::Pending,
            Some(condition) if condition.status == "True" => Self::Isolated,
            Some(condition) => match condition.reason.as_deref().unwrap_or_default() {
                "Pinned" => Self::Pinned,
                "Releasing" => Self::Releasing,
                "Waiting" | "WaitingTooLong" | "Shared" => Self::Waiting,
                // A newer publisher's reason too: the condition is False.
                _ => Self::Degraded,
            },
        }
    }

    fn meaning(self) -> Meaning {
        match self {
            Self::Isolated => Meaning::Good,
            Self::Degraded => Meaning::Broken,
            Self::Waiting | Self::Unknown | Self::Pinned => Meaning::Attention,
            Self::Releasing | Self::Pending => Meaning::Plain,
        }
    }
}

/// The time after its registration within which a VM that floats is starting: after it the publisher writes WaitingTooLong.
const MAX_START_TIME_US: u64 = 120_000_000;

/// A VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Vm {
    /// Empty where the object that names the pod does not tell it.
    pub pod_namespace: String,
    pub pod_name: String,
    pub pod_uid: String,
    pub node: Option<String>,
    /// Whether the node's daemon does not run or the Node is not Ready: the rest is what was published last.
    pub is_old: bool,
    pub state: VmState,
    pub reason: Option<String>,
    pub message: Option<String>,
    pub since_us: Option<u64>,
    /// Whether it floats for no longer than a start takes.
    #[serde(skip)]
    is_starting: bool,
    #[serde(skip)]
    old: Option<&'static str>,
    #[serde(skip)]
    age: Option<String>,
}

/// The VMs, and what could not be read.
#[derive(Debug, Serialize)]
pub struct Vms {
    pub vms: Vec<Vm>,
    /// How many of them are in which state; states without a VM are left out.
    pub states: Vec<StateCount>,
    pub problems: Vec<Problem>,
}

/// How many VMs are in a state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StateCount {
    pub state: VmState,
    pub vms: u64,
}

/// The columns of the table.
pub const COLUMNS: [Column<Vm>; 7] = [
    column("VM", Vm::name).yields(1).shortens(),
    column("NODE", |vm: &Vm| vm.node.clone().unwrap_or_default())
        .yields(2)
        .shortens(),
    column("STATE", |vm: &Vm| vm.state.name().to_owned()).means(|vm| vm.state.meaning()),
    column("SINCE", |vm: &Vm| vm.age.clone().unwrap_or_default()).right(),
    column("UID", |vm: &Vm| vm.pod_uid.clone()).wide().yields(3),
    column("MESSAGE", |vm: &Vm| vm.message.clone().unwrap_or_default())
        .wide()
        .wraps(),
    column("REASON", Vm::reasons).wraps().or_nothing(),
];

impl Vm {
    /// `namespace/name`, or the UID where the name is not known.
    pub fn name(&self) -> String {
        called(&self.pod_namespace, &self.pod_name, &self.pod_uid)
    }

    fn reasons(&self) -> String {
        let reasons = self.cause().into_iter().chain(self.old);
        reasons.collect::<Vec<_>>().join("; ")
    }

    /// Why it is in its state, if the state does not say it.
    fn cause(&self) -> Option<&str> {
        let reason = self.reason.as_deref();
        if !reason.is_some_and(|reason| reason.eq_ignore_ascii_case(self.state.name())) {
            return reason;
        }
        match self.state {
            VmState::Isolated => None,
            VmState::Waiting if self.is_starting => Some("starting"),
            _ => self.message.as_deref().or(reason),
        }
    }

    /// `old`: why what the node published last may not be so any more.
    fn of(
        key: PodKey,
        uid: &str,
        node: Option<&str>,
        condition: Option<&Condition>,
        old: Option<&'static str>,
        now_us: u64,
    ) -> Self {
        let (pod_namespace, pod_name) = key;
        let text = |of: fn(&Condition) -> &Option<String>| {
            let text = condition.and_then(|condition| of(condition).as_deref());
            text.filter(|text| !text.is_empty()).map(|text| excerpt::cause(&text))
        };
        let since_us = condition.and_then(Condition::since_us);
        let is_new = since_us.is_some_and(|since| now_us.saturating_sub(since) <= MAX_START_TIME_US);
        let is_waiting = condition.is_some_and(|condition| condition.reason.as_deref() == Some("Waiting"));
        Self {
            pod_namespace,
            pod_name,
            pod_uid: uid.to_owned(),
            is_old: old.is_some(),
            old,
            node: node.map(str::to_owned),
            state: VmState::of(condition, node.is_some()),
            is_starting: is_new && is_waiting,
            reason: text(|condition| &condition.reason),
            message: text(|condition| &condition.message),
            since_us,
            age: since_us.map(|since| age(now_us.saturating_sub(since))),
        }
    }
}

/// Why what a node published last may not be so any more.
fn outdated(member: &Member) -> Option<&'static str> {
    match (member.not_ready(), member.unusable()) {
        _ if member.is_left_behind => Some(NO_NODE),
        (Some(_), _) => Some("its Node is not Ready"),
        (None, Some("away")) => Some("steliad does not run there"),
        (None, _) => None,
    }
}

/// All of the cluster: those of the pods that have not ended and say so by their resource or their condition, and those that a node's object
/// names as having CPUs of their own; whether the latter are VMs is not published. `on_all`: no nodes were chosen, so that VMs without one
/// count too, and without Nodes and objects the pod says where it is.
fn all(cluster: &Cluster, on_all: bool, now_us: u64) -> Vec<Vm> {
    let members: BTreeMap<&str, &Member> = cluster.members.iter().map(|member| (&*member.name, member)).collect();
    let is_vm = |pod: &PodObject| !pod.has_ended && (pod.has_vm_resource || pod.isolation.is_some());
    let pods = || cluster.pods.iter().filter(|(_, pod)| is_vm(pod));
    let known: BTreeSet<&str> = pods().map(|(_, pod)| pod.uid.as_str()).collect();
    let of_pods = pods().filter_map(|(key, pod)| {
        let member = pod.node.as_deref().and_then(|node| members.get(node));
        (on_all || member.is_some()).then(|| {
            let old = member.and_then(|member| outdated(member));
            let (node, isolation) = (pod.node.as_deref(), pod.isolation.as_deref());
            Vm::of(key.clone(), &pod.uid, node, isolation, old, now_us)
        })
    });
    let of_objects = cluster.members.iter().flat_map(|member| {
        let holders = member.report.iter().flat_map(|report| &report.stored.holders);
        let unknown = holders.filter(|holder| !known.contains(holder.pod.as_str()));
        unknown.map(|holder| {
            let (key, uid) = (cluster.holder(holder), holder.pod.as_str());
            Vm::of(key, uid, Some(&member.name), None, outdated(member), now_us)
        })
    });
    of_pods.chain(of_objects).collect()
}

impl Vms {
    /// Those of the cluster's nodes that the filter lets through. `on_all`: no nodes were chosen.
    pub fn of(cluster: &Cluster, filter: &VmFilter, on_all: bool, now_us: u64) -> Self {
        let all = all(cluster, on_all, now_us).into_iter();
        let mut vms: Vec<Vm> = all.filter(|vm| filter.lets_through(vm)).collect();
        let mut states: BTreeMap<VmState, u64> = BTreeMap::new();
        for vm in &vms {
            *states.entry(vm.state).or_default() += 1;
        }
        sort(&mut vms);
        let states = states.into_iter().map(|(state, vms)| StateCount { state, vms });
        Self {
            vms,
            states: states.collect(),
            problems: cluster.problems.stored().to_vec(),
        }
    }
}

/// What needs attention first, equal ones by name. VMs on nodes that do not answer come behind those that are known to need attention; a VM
/// that starts needs none yet.
fn sort(vms: &mut [Vm]) {
    vms.sort_by_cached_key(|vm| {
        let rank = match vm.state {
            VmState::Degraded => 0,
            VmState::Waiting if !vm.is_starting => 1,
            _ if vm.is_old => 2,
            _ => 3,
        };
        let (state, reason) = (vm.state, vm.reason.clone());
        (rank, state, vm.is_starting, !vm.is_old, reason, vm.name())
    });
}

impl Render for Vms {
    fn text(&self, style: TextStyle) -> String {
        if self.vms.is_empty() {
            return "No VMs.\n".to_owned();
        }
        let table = table(&COLUMNS, &self.vms, style);
        if !style.legend {
            return table;
        }
        let nodes: BTreeSet<&str> = self.vms.iter().filter_map(|vm| vm.node.as_deref()).collect();
        let states = self.states.iter().map(|StateCount { state, vms }| {
            let is_silent = |vm: &&Vm| vm.is_old && vm.state == VmState::Isolated && *state == VmState::Isolated;
            match self.vms.iter().filter(is_silent).count() {
                0 => format!("{vms} {state}"),
                silent => format!("{vms} {state}, {silent} of them on nodes that do not answer"),
            }
        });
        let states: Vec<String> = states.collect();
        let vms = counted(self.vms.len() as u64, "VM");
        let nodes = counted(nodes.len() as u64, "node");
        let totals = prose(&format!("{vms} on {nodes}: {}.", states.join(", ")), style);
        let mut parts = vec![totals, table];
        if self.states.iter().any(|count| count.state == VmState::Unknown) {
            parts.push(prose("unknown: the pod has exclusive CPUs or requests a VM, and has no condition stelia.io/isolated, which stelia-publish --pod-conditions=all writes.", style));
        }
        parts.join("\n")
    }
}
