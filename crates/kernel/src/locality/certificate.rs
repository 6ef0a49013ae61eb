//! The locality certificate: every part of a VM that has a place on NUMA nodes, in rows.

use std::collections::{BTreeMap, BTreeSet};

use stelia_cpus::NodeSet;
use stelia_cpus::located::{Located, Part};

use super::{Locality, MemoryPlace, NodeMemory};

/// A part of a VM with its amounts by NUMA node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartRow {
    pub part: Part,
    /// A device's [`PciDevice::name`](super::PciDevice::name), or kubelet's resource; empty for any other part.
    pub name: String,
    /// What more is known of it.
    pub details: String,
    /// CPUs, bytes, devices, or interrupts. Empty where no node is known.
    pub by_node: BTreeMap<u32, u64>,
    /// The same on the NUMA nodes of the VM's CPUs, and on nodes without CPUs that belong to those.
    pub near: u64,
    pub attached: u64,
    /// All of it: more than the sum of `by_node` if some nodes are not known.
    pub amount: u64,
    /// Interrupts: the NUMA nodes that the vectors go to now; `None` where one may go to several.
    pub goes_to: Option<NodeSet>,
}

impl PartRow {
    fn new(locality: &Locality, part: Part, by_node: BTreeMap<u32, u64>, amount: Option<u64>) -> Self {
        let at = |place: MemoryPlace| {
            let there = by_node.iter().filter(|(node, _)| locality.place(**node) == place);
            there.fold(0u64, |sum, (_, amount)| sum.saturating_add(*amount))
        };
        let (near, attached) = (at(MemoryPlace::Near), at(MemoryPlace::Attached));
        let known = by_node.values().fold(0u64, |sum, amount| sum.saturating_add(*amount));
        Self {
            part,
            name: String::new(),
            details: String::new(),
            by_node,
            near,
            attached,
            amount: amount.unwrap_or(known),
            goes_to: None,
        }
    }

    /// What the nodes have that are known.
    fn known(&self) -> u64 {
        self.by_node.values().fold(0, |sum, amount| sum.saturating_add(*amount))
    }

    /// A share of what is known, in percent to the nearest. What is not all is never 100, and what is something never 0.
    fn percent(&self, amount: u64) -> u8 {
        let known = u128::from(self.known());
        if known == 0 || amount == 0 {
            return 0;
        }
        let percent = (u128::from(amount) * 200 + known) / (2 * known);
        let most = if u128::from(amount) == known { 100 } else { 99 };
        u8::try_from(percent.clamp(1, most)).unwrap_or(100)
    }

    /// The part in percent, as it is recorded and compared.
    pub fn located(&self) -> Located {
        let nodes = self.by_node.iter().filter(|(_, amount)| **amount > 0);
        Located {
            part: self.part,
            name: self.name.clone(),
            nodes: nodes.map(|(node, amount)| (*node, self.percent(*amount))).collect(),
            near_percent: self.percent(self.near),
            attached_percent: self.percent(self.attached),
            since_us: 0,
        }
    }

    /// The part in percent, with since when it is there by the record; 0 where there is none, or the part has moved since.
    ///
    /// The record of interrupts has those since a reading, and the kernel's counters all since the vectors were set up: their shares differ. So
    /// interrupts are where the record has them as long as a vector goes to each of these NUMA nodes, and their shares are the record's.
    pub fn shown(&self, locality: &Locality, recorded: &[Located]) -> Located {
        let now = self.located();
        let is_still = |one: &&Located| match &self.goes_to {
            Some(nodes) => {
                one.is_of(&now) && !one.nodes.is_empty() && one.main_nodes().all(|node| nodes.contains(&node))
            }
            None => one.is_still(&now),
        };
        let Some(record) = recorded.iter().filter(|one| one.since_us > 0).find(is_still) else {
            return now;
        };
        let shares = match self.part {
            Part::Interrupts => {
                let nodes = record.nodes.iter();
                let by_node = nodes.map(|(node, percent)| (*node, u64::from(*percent))).collect();
                // What is near goes by the CPUs of now.
                Self::new(locality, self.part, by_node, None).located()
            }
            _ => now,
        };
        Located {
            since_us: record.since_us,
            ..shares
        }
    }
}

/// All parts of a VM: CPUs, memory, huge pages, devices, interrupts. Empty where it has no exclusive CPUs: nothing is near or remote then.
/// Parts of which nothing is there are left out.
pub fn certificate(locality: &Locality) -> Vec<PartRow> {
    if locality.nodes.is_empty() {
        return Vec::new();
    }
    let row = |part, by_node| PartRow::new(locality, part, by_node, None);
    let memory = |bytes: fn(&NodeMemory) -> u64| {
        let nodes = locality.memory.iter().map(|(node, memory)| (*node, bytes(memory)));
        nodes.filter(|(_, bytes)| *bytes > 0).collect()
    };
    let cpus = locality.cpus.iter().map(|(node, cpus)| (*node, u64::from(*cpus)));
    let parts = [
        row(Part::Cpus, cpus.collect()),
        row(Part::Memory, memory(|memory| memory.anon.saturating_add(memory.shmem))),
        row(Part::HugePages, memory(|memory| memory.huge)),
    ];
    let rows = parts.into_iter().filter(|row| row.amount > 0);
    let interrupts = interrupts(locality);
    rows.chain(devices(locality)).chain(interrupts).collect()
}

/// The certificate as the ledger records it: without devices that only kubelet knows of and of which it knows no node, such as `/dev/kvm`.
///
/// `fired`: how often interrupts fired on each NUMA node since a share was last taken ([`InterruptCounters::take_share`](super::InterruptCounters)). If
/// it is none, they are where the record `before` has them; without one, where they go. All that ever fired would say where they were once, and the
/// counters wrap.
pub fn recorded(locality: &Locality, fired: BTreeMap<u32, u64>, before: &[Located]) -> Vec<Located> {
    let mut locality = locality.clone();
    if let Some(interrupts) = &mut locality.interrupts {
        let record = before.iter().find(|one| one.part == Part::Interrupts);
        let nodes = record.into_iter().flat_map(|record| &record.nodes);
        interrupts.fired = if fired.values().any(|count| *count > 0) {
            fired
        } else {
            nodes.map(|(node, percent)| (*node, u64::from(*percent))).collect()
        };
    }
    let rows = certificate(&locality).into_iter();
    let is_pci = |row: &PartRow| locality.pci.iter().any(|device| device.name() == row.name);
    let placed = rows.filter(|row| row.part != Part::Device || !row.by_node.is_empty() || is_pci(row));
    placed.map(|row| row.located()).collect()
}

/// The VFIO devices, then what only kubelet knows, such as MIG instances.
fn devices(locality: &Locality) -> Vec<PartRow> {
    let of_pci = locality.pci.iter().map(|device| {
        let by_node = device.node.map(|node| (node, 1)).into_iter().collect();
        PartRow {
            name: device.name(),
            details: device.details(),
            ..PartRow::new(locality, Part::Device, by_node, Some(1))
        }
    });
    let known: BTreeSet<&str> = locality
        .pci
        .iter()
        .filter_map(|device| device.resource.as_deref())
        .collect();
    let mut resources: BTreeMap<&str, (BTreeMap<u32, u64>, u64)> = BTreeMap::new();
    for device in locality
        .devices
        .iter()
        .filter(|device| !known.contains(device.name.as_str()))
    {
        let (by_node, amount) = resources.entry(&device.name).or_default();
        *amount += u64::from(device.count);
        if let Some(node) = device.node {
            *by_node.entry(node).or_default() += u64::from(device.count);
        }
    }
    let of_kubelet = resources.into_iter().map(|(name, (by_node, amount))| PartRow {
        name: name.to_owned(),
        details: if is_mig(name) { "MIG" } else { "" }.to_owned(),
        ..PartRow::new(locality, Part::Device, by_node, Some(amount))
    });
    of_pci.chain(of_kubelet).collect()
}

/// Whether a resource is a part of a GPU that NVIDIA's device plugin offers, such as `nvidia.com/mig-1g.10gb`.
fn is_mig(resource: &str) -> bool {
    resource
        .split_once('/')
        .is_some_and(|(domain, name)| domain.starts_with("nvidia.com") && name.starts_with("mig-"))
}

/// Where they fired; before the first one, where they go.
fn interrupts(locality: &Locality) -> Option<PartRow> {
    let interrupts = locality.interrupts.as_ref().filter(|all| all.vectors > 0)?;
    let fired = interrupts
        .fired
        .values()
        .fold(0u64, |sum, count| sum.saturating_add(*count));
    let targets = interrupts.targets.iter();
    let by_node = match fired {
        0 => targets.map(|(node, vectors)| (*node, u64::from(*vectors))).collect(),
        _ => interrupts.fired.clone(),
    };
    let goes: NodeSet = interrupts.targets.keys().copied().collect();
    let vectors = match interrupts.vectors {
        1 => "1 vector".to_owned(),
        count => format!("{count} vectors"),
    };
    let known = interrupts.targets.values().copied().fold(0u32, u32::saturating_add);
    let details = match (goes.is_empty(), known < interrupts.vectors) {
        (true, _) => vectors,
        // The others may go to several NUMA nodes.
        (false, true) => format!("{vectors}, {known} of them now to {}", goes),
        (false, false) => format!("{vectors}, now to {}", goes),
    };
    Some(PartRow {
        details,
        goes_to: (known == interrupts.vectors).then_some(goes),
        ..PartRow::new(locality, Part::Interrupts, by_node, Some(fired))
    })
}
