//! Where the parts of a VM are, in percent by NUMA node: the ledger records it, and Describe has the record.

use crate::NodeSet;
use crate::text::named;
use serde::{Deserialize, Serialize};

/// By how many percentage points a share may move before it counts as changed: a guest that touches and frees memory would otherwise
/// change at every reading.
const MAX_DRIFT_POINTS: u8 = 4;
/// The same of interrupts: each reading counts those since the one before, which may be few.
const MAX_INTERRUPT_DRIFT_POINTS: u8 = 25;
/// Reports mark a part of which more than this share is remote: a few pages of QEMU's own always are.
pub const MAX_REMOTE_PERCENT: u8 = 10;

named! {
    /// A part of a VM whose NUMA nodes are recorded.
    #[derive(Default)]
    pub enum Part {
        /// Its exclusive CPUs.
        #[default]
        Cpus = "cpus",
        /// Without huge pages.
        Memory = "memory",
        /// Of every size.
        HugePages = "huge-pages",
        /// One of its devices.
        Device = "device",
        /// Those of the VM's devices.
        Interrupts = "interrupts",
    }
}

/// Where one part of a VM is, and since when.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Located {
    /// Which.
    pub part: Part,
    /// A device's kind and PCI address, a mediated device's UUID, or kubelet's resource; empty for any other part.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Each NUMA node with its share in percent, without those that round to 0. Empty where the node of a device is not known.
    pub nodes: Vec<(u32, u8)>,
    /// The share on the NUMA nodes of the VM's CPUs, in percent.
    pub near_percent: u8,
    /// The share on nodes without CPUs that belong to those, in percent. What is neither is remote.
    pub attached_percent: u8,
    /// The first reading that found it so, microseconds since the epoch; 0: not recorded yet.
    pub since_us: u64,
}

impl Located {
    /// What is neither near nor attached, in percent; `None` where the node is not known.
    pub fn remote(&self) -> Option<u8> {
        let known = !self.nodes.is_empty();
        known.then(|| 100u8.saturating_sub(self.near_percent.saturating_add(self.attached_percent)))
    }

    /// Whether more than [`MAX_REMOTE_PERCENT`] of it is remote.
    pub fn is_much_remote(&self) -> bool {
        self.remote().is_some_and(|remote| remote > MAX_REMOTE_PERCENT)
    }

    /// Whether these are the same part, of the same device.
    pub fn is_of(&self, other: &Self) -> bool {
        self.part == other.part && self.name == other.name
    }

    /// Whether the part is still where it was: a device and CPUs exactly, memory within a few percentage points. Interrupts within more, unless they
    /// came to a NUMA node or left it.
    pub fn is_still(&self, now: &Self) -> bool {
        if !self.is_of(now) {
            return false;
        }
        if matches!(self.part, Part::Cpus | Part::Device) {
            let shares = |one: &Self| (one.near_percent, one.attached_percent);
            return (&self.nodes, shares(self)) == (&now.nodes, shares(now));
        }
        let nodes: NodeSet = self.nodes.iter().chain(&now.nodes).map(|(node, _)| *node).collect();
        let drift = match self.part {
            Part::Interrupts => MAX_INTERRUPT_DRIFT_POINTS,
            _ => MAX_DRIFT_POINTS,
        };
        let came = |a: u8, b: u8| a.min(b) <= MAX_DRIFT_POINTS && a.max(b) > MAX_REMOTE_PERCENT;
        let about = |a: u8, b: u8| a.abs_diff(b) <= drift && !came(a, b);
        about(self.near_percent, now.near_percent)
            && about(self.attached_percent, now.attached_percent)
            && self.nodes.is_empty() == now.nodes.is_empty()
            && nodes.into_iter().all(|node| about(self.on(node), now.on(node)))
    }

    /// The NUMA nodes with more than a few percent of it.
    pub fn main_nodes(&self) -> impl Iterator<Item = u32> {
        let main = self.nodes.iter().filter(|(_, percent)| *percent > MAX_DRIFT_POINTS);
        main.map(|(node, _)| *node)
    }

    /// The share on this node, in percent.
    fn on(&self, node: u32) -> u8 {
        let share = self.nodes.iter().find(|(one, _)| *one == node);
        share.map_or(0, |(_, percent)| *percent)
    }
}

/// What is recorded after a reading: a part that is still where it was keeps its record, one that moved or is new begins at this time.
/// `None` if no part moved, came or went.
pub fn moved(recorded: &[Located], now: &[Located], at_us: u64) -> Option<Vec<Located>> {
    let known = |part: &Located| recorded.iter().find(|one| one.is_still(part));
    if recorded.len() == now.len() && now.iter().all(|part| known(part).is_some()) {
        return None;
    }
    let begins = |part: &Located| Located {
        since_us: at_us,
        ..part.clone()
    };
    let merged = now
        .iter()
        .map(|part| known(part).cloned().unwrap_or_else(|| begins(part)));
    Some(merged.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn located(part: Part, name: &str, nodes: &[(u32, u8)], near: u8) -> Located {
        Located {
            part,
            name: name.to_owned(),
            nodes: nodes.to_vec(),
            near_percent: near,
            ..Located::default()
        }
    }

    #[test]
    fn memory_that_drifts_is_where_it_was_and_what_moved_begins_anew() {
        let first = [
            located(Part::Cpus, "", &[(0, 100)], 100),
            located(Part::Memory, "", &[(0, 97), (1, 3)], 97),
        ];
        let recorded = moved(&[], &first, 5).unwrap();
        assert!(recorded.iter().all(|part| part.since_us == 5));
        assert_eq!(moved(&recorded, &first, 6), None);

        let drifted = [first[0].clone(), located(Part::Memory, "", &[(0, 93), (1, 7)], 93)];
        assert_eq!(moved(&recorded, &drifted, 6), None);
        // What drifts is compared with the record, and not with the last reading: it cannot walk away unnoticed.
        let walked = [first[0].clone(), located(Part::Memory, "", &[(0, 92), (1, 8)], 92)];
        let now = moved(&recorded, &walked, 7).unwrap();
        assert_eq!((now[0].since_us, now[1].since_us, now[1].near_percent), (5, 7, 92));
    }

    #[test]
    fn interrupts_have_moved_when_they_came_to_a_node_or_mostly_fire_on_another() {
        let on = |share: u8| located(Part::Interrupts, "", &[(0, share), (1, 100 - share)], share);
        for (recorded, now, is_still) in [
            (60, 52, true),
            (60, 80, true),
            (60, 34, false),
            (90, 10, false),
            (100, 90, true),
            (100, 89, false),
            (89, 95, true),
            (89, 96, false),
        ] {
            assert_eq!(on(recorded).is_still(&on(now)), is_still, "{recorded} and {now}");
        }
    }

    #[test]
    fn cpus_that_moved_make_the_same_memory_remote() {
        let memory = |near| located(Part::Memory, "", &[(0, 100)], near);
        let recorded = moved(&[], &[located(Part::Cpus, "", &[(0, 100)], 100), memory(100)], 1).unwrap();
        let now = moved(&recorded, &[located(Part::Cpus, "", &[(1, 100)], 100), memory(0)], 2).unwrap();
        assert_eq!([now[0].since_us, now[1].since_us], [2, 2]);
        assert_eq!(now[1].remote(), Some(100));
    }

    #[test]
    fn a_device_that_went_or_came_is_a_change_and_the_other_keeps_its_time() {
        let (gpu, nic) = (
            located(Part::Device, "GPU 0000:3b:00.0", &[(0, 100)], 100),
            located(Part::Device, "NIC 0000:3c:00.0", &[], 0),
        );
        let both = moved(&[], &[gpu.clone(), nic.clone()], 1).unwrap();
        assert_eq!(both[1].remote(), None, "where it is, is not known");
        let one = moved(&both, std::slice::from_ref(&gpu), 2).unwrap();
        assert_eq!((one.len(), one[0].since_us), (1, 1));
        let again = moved(&one, &[gpu, nic], 3).unwrap();
        assert_eq!([again[0].since_us, again[1].since_us], [1, 3]);
    }
}
