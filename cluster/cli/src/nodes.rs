//! `nodes`: a line a node.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;
use stelia_cpus::text::excerpt;
use stelia_cpus::{CpuSet, Topology};
use stelia_koordinator::report::Facts;
use stelia_koordinator::report::profile::Profile;
use stelia_koordinator::report::stored::Amounts;
use stelia_table::{Column, Meaning, Render, TextStyle, column, counted, table};

use crate::chooser::Chooser;
use crate::cluster::{Cluster, Member, each};
use crate::health::{NodeHealth, NodeState};
use crate::objects::{NodeObject, Problem};
use crate::prose;
use crate::reasons::{Refusal, groups, in_words, table_of};

/// A node's CPUs.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Row {
    pub name: String,
    /// Whether VMs can be admitted on it, as its label says; null where nobody sets that.
    pub ready: Option<bool>,
    /// Its health; null where it is not meant to run steliad and publishes nothing.
    pub state: Option<NodeState>,
    /// How exact the rest is; null without a description.
    pub profile: Option<&'static str>,
    /// Who chooses exclusive CPUs: `kubelet`, `steliad`; null where that is not known.
    pub cpu_source: Option<&'static str>,
    /// The CPU manager's policy and options, or the allocator's class and bind policy.
    pub cpu_policy: String,
    /// The Topology Manager's policy and scope, or the allocator's alignment.
    pub topology_policy: String,
    /// Online CPUs.
    pub cpus: Option<u64>,
    pub free_cpus: Option<u64>,
    /// Cores all of whose CPUs are free.
    pub free_cores: Option<u64>,
    pub numa: Vec<Numa>,
    pub largest_vm_cpus: Option<u64>,
    /// Pods that have CPUs of their own.
    pub vms: Option<u64>,
    pub written_us: Option<u64>,
    pub warnings: Vec<Refusal>,
    #[serde(skip)]
    pub(crate) age: Option<String>,
    /// Whether the Node is not Ready.
    #[serde(skip)]
    pub(crate) is_not_ready: bool,
    /// Whether a VM is admitted on none of its CPUs, however many are free.
    #[serde(skip)]
    pub(crate) admits_none: bool,
}

/// A NUMA node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Numa {
    pub node: u32,
    pub cpus: u64,
    pub free_cpus: u64,
    /// Null if only amounts are published.
    pub cores: Option<u64>,
    pub free_cores: Option<u64>,
    /// Resources whose devices have no NUMA nodes are left out.
    pub devices: Vec<Devices>,
}

/// The devices of a resource on a NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Devices {
    pub resource: String,
    /// Those that pods may have.
    pub all: u64,
    pub free: u64,
}

/// All nodes, and what could not be read.
#[derive(Debug, Serialize)]
pub struct Nodes {
    pub nodes: Vec<Row>,
    pub problems: Vec<Problem>,
}

/// The columns of the table.
pub const COLUMNS: [Column<Row>; 14] = [
    column("NODE", |row: &Row| row.name.clone()).yields(1).shortens(),
    column("READY", |row: &Row| ready(row).0.to_owned()).means(|row| ready(row).1),
    column("STATE", |row: &Row| row.state_in_words().to_owned())
        .whole()
        .means(|row| row.state.map_or(Meaning::Plain, NodeState::meaning)),
    column("PROFILE", |row: &Row| row.profile.unwrap_or_default().to_owned()).wide(),
    column("CPU POLICY", |row: &Row| row.cpu_policy.clone()).wide().wraps(),
    column("TOPOLOGY POLICY", |row: &Row| row.topology_policy.clone())
        .wide()
        .wraps(),
    column("CPUS", |row: &Row| number(row.cpus)).right().whole(),
    column("FREE", |row: &Row| number(row.free_cpus)).right().whole(),
    column("FREE CORES", cores).wraps().whole(),
    column("LARGEST", |row: &Row| number(row.largest_vm_cpus))
        .right()
        .whole(),
    column("VMS", |row: &Row| number(row.vms)).right().whole(),
    column("FREE DEVICES", devices).wide().wraps(),
    column("AGE", |row: &Row| row.age.clone().unwrap_or_default()).wide(),
    column("WARNINGS", |row: &Row| in_words(&row.warnings))
        .wide()
        .wraps()
        .means(|_| Meaning::Attention)
        .or_nothing(),
];

fn ready(row: &Row) -> (&'static str, Meaning) {
    match row.can_admit() {
        Some(true) => ("yes", Meaning::Good),
        Some(false) => ("no", Meaning::Broken),
        None => ("", Meaning::Plain),
    }
}

pub(crate) fn number(value: Option<u64>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// Limit of the NUMA nodes that are listed in a cell.
const MAX_LISTED_NUMA_NODES: usize = 8;

/// `0:12 1:8`, by NUMA node.
fn cores(row: &Row) -> String {
    let cell = |numa: &Numa| Some(format!("{}:{}", numa.node, numa.free_cores?));
    let mut cells: Vec<String> = row.numa.iter().take(MAX_LISTED_NUMA_NODES).filter_map(cell).collect();
    if row.numa.len() > MAX_LISTED_NUMA_NODES && !cells.is_empty() {
        cells.push("…".to_owned());
    }
    cells.join(" ")
}

/// `nvidia.com/gpu 0:3 1:4`, by NUMA node.
fn devices(row: &Row) -> String {
    let mut cells: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for numa in row.numa.iter().take(MAX_LISTED_NUMA_NODES) {
        for devices in &numa.devices {
            let cell = format!("{}:{}", numa.node, devices.free);
            cells.entry(&devices.resource).or_default().push(cell);
        }
    }
    let words = cells.into_iter();
    let words = words.map(|(resource, cells)| format!("{resource} {}", cells.join(" ")));
    words.collect::<Vec<_>>().join("; ")
}

impl Nodes {
    /// `now_us`: microseconds since the epoch.
    pub fn of(cluster: &Cluster, now_us: u64) -> Self {
        let mut nodes = each(&cluster.members, |member| Row::of(member, now_us));
        let trouble = |row: &Row| (row.state.is_none(), row.state, row.warnings.is_empty());
        nodes.sort_by_cached_key(|row| (trouble(row), row.name.clone()));
        Self {
            nodes,
            problems: cluster.problems.stored().to_vec(),
        }
    }
}

impl Row {
    pub fn of(member: &Member, now_us: u64) -> Self {
        let health = NodeHealth::of(member);
        let mut row = Self {
            name: member.name.clone(),
            ready: member.node.as_ref().and_then(NodeObject::is_ready),
            state: health.as_ref().map(|health| health.health),
            is_not_ready: member.not_ready().is_some(),
            ..Self::default()
        };
        row.warnings
            .extend(member.is_cordoned().then(|| Refusal::new("cordoned", "")));
        row.warnings
            .extend(health.into_iter().flat_map(|health| health.reasons));
        // They would admit none, however many CPUs are free.
        let is_nobodys = member.is_left_behind || member.is_cordoned();
        row.admits_none = is_nobodys || member.unusable().is_some() || row.can_admit() == Some(false);
        let Some(report) = &member.report else { return row };
        let stored = &report.stored;
        let chooser = member.chooser();
        row.profile = Some(stored.profile.name());
        row.cpu_source = chooser.name();
        row.written_us = report.written_us;
        row.age = report.written_us.map(|written| age(now_us.saturating_sub(written)));
        row.warnings.extend(stored.warnings.iter().map(|warning| {
            let (reason, detail) = warning.split_once(": ").unwrap_or((warning, ""));
            Refusal::new(reason, detail)
        }));
        row.topology_policy = stored.alignment.as_ref().map(topology).unwrap_or_default();
        row.largest_vm_cpus = chooser.largest().map(|cpus| if row.admits_none { 0 } else { cpus });
        match &stored.facts {
            Some(facts) => {
                row.describe(facts, &chooser.free().unwrap_or_default());
                row.vms = Some(stored.holders.len() as u64);
            }
            None => row.count(&stored.zones),
        }
        if let (Chooser::Nobody(why), None) = (&chooser, &stored.problem) {
            (row.admits_none, row.free_cpus, row.free_cores) = (true, None, None);
            row.warnings.push(Refusal::new(why, ""));
        }
        row.count_devices(&stored.zones);
        row
    }

    fn describe(&mut self, facts: &Facts, free: &CpuSet) {
        self.cpu_policy = match &facts.allocator {
            Some(allocator) => {
                let policies = &allocator.policies;
                self.topology_policy = policies.alignment.name().to_owned();
                format!("{} {}", policies.qos.name(), policies.bind.name())
            }
            None => {
                let options = facts.kubelet.cpu_options.iter().filter(|(_, value)| *value == "true");
                let options: Vec<&str> = options.map(|(name, _)| name.as_str()).collect();
                let policy = format!("{} {}", facts.kubelet.cpu_policy, options.join(","));
                policy.trim_end().to_owned()
            }
        };
        self.cpus = Some(facts.topology.cpus.len() as u64);
        self.free_cpus = Some(free.len() as u64);
        self.numa = by_node(&facts.topology, free);
        self.free_cores = Some(self.numa.iter().filter_map(|numa| numa.free_cores).sum());
    }

    /// By amounts only.
    fn count(&mut self, zones: &BTreeMap<u32, BTreeMap<String, Amounts>>) {
        let numa = |(node, resources): (&u32, &BTreeMap<_, Amounts>)| {
            let cpu = resources.get("cpu")?;
            Some(Numa {
                node: *node,
                cpus: cpu.capacity.value(),
                free_cpus: cpu.available.milli() / 1000,
                ..Numa::default()
            })
        };
        self.numa = zones.iter().filter_map(numa).collect();
        if self.numa.is_empty() {
            return;
        }
        let sum = |of: fn(&Numa) -> u64| self.numa.iter().map(of).fold(0, u64::saturating_add);
        self.cpus = Some(sum(|numa| numa.cpus));
        self.free_cpus = Some(sum(|numa| numa.free_cpus));
    }

    fn count_devices(&mut self, zones: &BTreeMap<u32, BTreeMap<String, Amounts>>) {
        for numa in &mut self.numa {
            let resources = zones.get(&numa.node).into_iter().flatten();
            let devices = resources.filter(|(name, _)| name.contains('/'));
            let devices = devices.map(|(resource, amounts)| Devices {
                resource: resource.clone(),
                all: amounts.allocatable.value(),
                free: amounts.available.value(),
            });
            numa.devices = devices.collect();
        }
    }

    /// Whether VMs can be admitted: a label that was set before the machine lost its power says nothing.
    fn can_admit(&self) -> Option<bool> {
        if self.is_not_ready { Some(false) } else { self.ready }
    }

    fn state_in_words(&self) -> &'static str {
        self.state.map_or("without steliad", NodeState::name)
    }

    /// Whether more than amounts is known.
    pub fn is_exact(&self) -> bool {
        self.profile.is_some_and(|profile| profile != Profile::Nrt.name())
    }
}

fn topology(alignment: &stelia_koordinator::report::Alignment) -> String {
    match alignment.policy.as_str() {
        "none" => "none".to_owned(),
        policy => format!("{} {}", excerpt::name(policy), excerpt::name(&alignment.scope)),
    }
}

/// CPUs and cores of each NUMA node.
fn by_node(topology: &Topology, free: &CpuSet) -> Vec<Numa> {
    let mut nodes: BTreeMap<u32, Numa> = BTreeMap::new();
    let mut cores: BTreeMap<(u32, u32), (u32, bool)> = BTreeMap::new();
    for (number, cpu) in &topology.cpus {
        let numa = nodes.entry(cpu.node).or_default();
        numa.node = cpu.node;
        numa.cpus += 1;
        numa.free_cpus += u64::from(free.contains(*number));
        let (_, is_free) = cores.entry((cpu.package, cpu.core)).or_insert((cpu.node, true));
        *is_free &= free.contains(*number);
    }
    for (node, is_free) in cores.into_values() {
        if let Some(numa) = nodes.get_mut(&node) {
            *numa.cores.get_or_insert(0) += 1;
            *numa.free_cores.get_or_insert(0) += u64::from(is_free);
        }
    }
    nodes.into_values().collect()
}

/// As kubectl prints ages: `5s`, `12m`, `3h`, `9d`.
pub(crate) fn age(microseconds: u64) -> String {
    let seconds = microseconds / 1_000_000;
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// `400 nodes: 370 usable, 30 away; 9000 CPUs are free, the largest VM has 58.`
fn sums(rows: &[Row]) -> String {
    let mut states: BTreeMap<&str, u64> = BTreeMap::new();
    for row in rows {
        *states.entry(row.state_in_words()).or_default() += 1;
    }
    let mut states: Vec<(&str, u64)> = states.into_iter().collect();
    states.sort_by_key(|(_, count)| Reverse(*count));
    let states: Vec<String> = states.iter().map(|(state, count)| format!("{count} {state}")).collect();
    let admitting = || rows.iter().filter(|row| !row.admits_none);
    let free = admitting().filter_map(|row| row.free_cpus).fold(0, u64::saturating_add);
    let largest = admitting().filter_map(|row| row.largest_vm_cpus).max().unwrap_or(0);
    let (nodes, free) = (counted(rows.len() as u64, "node"), counted(free, "free CPU"));
    let states = states.join(", ");
    format!("{nodes}: {states}; {free} where VMs are admitted, LARGEST {largest}.")
}

impl Render for Nodes {
    fn text(&self, style: TextStyle) -> String {
        if self.nodes.is_empty() {
            return "No nodes.\n".to_owned();
        }
        let mut parts = Vec::new();
        if style.width.is_some() && style.legend {
            parts.push(prose(&sums(&self.nodes), style));
        }
        parts.push(table(&COLUMNS, &self.nodes, style));
        if style.legend && !style.wide {
            // Apart from what differs from node to node.
            let warnings = self.nodes.iter().flat_map(|row| {
                let name = row.name.as_str();
                row.warnings.iter().map(move |warning| (name, warning))
            });
            let groups = groups(warnings);
            parts.push(table_of(&groups, "NODES", style));
        }
        let is_by_amounts = |row: &&Row| row.profile.is_some() && !row.is_exact();
        let by_amounts = self.nodes.iter().filter(is_by_amounts).count();
        if style.legend && by_amounts > 0 {
            let by_amounts = counted(by_amounts as u64, "node");
            let known = "free cores are not known, and LARGEST is the most that the CPUs allow.";
            let told = format!("{by_amounts} by amounts only (profile nrt): {known}");
            parts.push(prose(&told, style));
        }
        parts.retain(|part| !part.is_empty());
        parts.join("\n")
    }
}

#[cfg(test)]
mod tests;
