//! Whether a container's CPUs, memory and devices are on the same NUMA nodes.

use std::collections::{BTreeMap, BTreeSet};

use kubelet_planner::devices::{Chosen, DeviceState};
use kubelet_planner::{ContainerAllocation, Cpus};
use stelia_cpus::CpuSet;

use crate::Subject;

/// The NUMA nodes of what a container gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locality {
    /// Those of its exclusive CPUs.
    pub cpus: CpuSet,
    /// Those that its memory is bound to; empty where it is bound to none.
    pub memory: CpuSet,
    /// Those of its devices, by resource. A resource without NUMA nodes is left out.
    pub devices: Vec<DeviceNodes>,
    pub verdict: Verdict,
}

/// The NUMA nodes of a container's devices of one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceNodes {
    pub resource: String,
    /// Those of all devices that it may get.
    pub nodes: CpuSet,
    /// Whether it gets devices on the same NUMA nodes whichever of these are selected.
    pub certain: bool,
    place: Place,
}

/// Whether CPUs, memory and devices are on the same NUMA nodes; the best answer first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// All on one NUMA node.
    OneNode,
    /// The CPUs are on several NUMA nodes, because fewer could never hold the CPUs and the devices; memory and devices are only on these.
    SameNodes,
    /// Memory and devices are only on NUMA nodes of the CPUs, but the CPUs are on more NUMA nodes than necessary.
    Spread,
    /// Devices on several NUMA nodes may be selected, by the plugin or by kubelet, and the answer depends on which.
    Uncertain,
    /// Memory or a device is on a NUMA node without the container's CPUs.
    Apart,
    /// It has devices and no CPUs of its own.
    NoCpus,
}

/// Whether the devices of a resource are on the NUMA nodes of the CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Near,
    Away,
    Either,
}

impl Verdict {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::OneNode => "one-node",
            Self::SameNodes => "same-nodes",
            Self::Spread => "spread",
            Self::Uncertain => "uncertain",
            Self::Apart => "apart",
            Self::NoCpus => "no-cpus",
        }
    }

    /// Whether nothing is away from the CPUs, and these are on no more NUMA nodes than necessary.
    pub fn is_together(self) -> bool {
        matches!(self, Self::OneNode | Self::SameNodes)
    }
}

impl Locality {
    /// What a container got of a node; `None` where it has no devices with NUMA nodes.
    pub fn of(subject: &Subject, given: &ContainerAllocation) -> Option<Self> {
        let cpus = match &given.cpus {
            Cpus::Exclusive(cpus) => cpus.clone(),
            Cpus::Shared | Cpus::PodShared(_) => CpuSet::new(),
        };
        Self::on(subject, &cpus, given)
    }

    /// The same where others than kubelet chose its CPUs.
    pub fn on(subject: &Subject, cpus: &CpuSet, given: &ContainerAllocation) -> Option<Self> {
        let memory = given.memory.iter().flat_map(|block| block.nodes.iter().copied());
        let state = &subject.node.state().devices;
        let by_devices = given.devices.iter().filter_map(|(resource, chosen)| {
            let devices = state.resources.get(resource)?;
            fewest(
                chosen.ids.len(),
                devices
                    .values()
                    .filter(|device| device.healthy)
                    .flat_map(|device| device.nodes.iter().copied()),
            )
        });
        let by_cpus = fewest(cpus.len(), subject.topology.cpus.values().map(|cpu| cpu.node));
        let fewest = by_devices.chain(by_cpus).max().unwrap_or(0);
        Self::judge(subject.nodes(cpus), memory.collect(), state, given, fewest)
    }

    /// `fewest`: how many NUMA nodes could hold the CPUs and the devices, if all were free.
    fn judge(
        cpus: CpuSet,
        memory: CpuSet,
        state: &DeviceState,
        given: &ContainerAllocation,
        fewest: usize,
    ) -> Option<Self> {
        let of = |(resource, chosen): (&String, &Chosen)| DeviceNodes::of(state, resource, chosen, &cpus);
        let devices: Vec<DeviceNodes> = given.devices.iter().filter_map(of).collect();
        if devices.is_empty() {
            return None;
        }
        let has = |place: Place| devices.iter().any(|one| one.place == place);
        let verdict = match cpus.len() {
            0 => Verdict::NoCpus,
            _ if has(Place::Away) || !memory.is_subset(&cpus) => Verdict::Apart,
            _ if has(Place::Either) => Verdict::Uncertain,
            1 => Verdict::OneNode,
            nodes if nodes > fewest => Verdict::Spread,
            _ => Verdict::SameNodes,
        };
        Some(Self {
            cpus,
            memory,
            devices,
            verdict,
        })
    }

    /// `CPUs on NUMA node 0, memory on 0, nvidia.com/gpu on 1`
    pub fn words(&self) -> String {
        let noun = if self.cpus.len() == 1 {
            "NUMA node"
        } else {
            "NUMA nodes"
        };
        let cpus = match self.cpus.is_empty() {
            true => "no CPUs of its own".to_owned(),
            false => format!("CPUs on {noun} {}", self.cpus),
        };
        let memory = (!self.memory.is_empty()).then(|| format!("memory on {}", self.memory));
        let devices = self.devices.iter().map(|one| match one.certain {
            true => format!("{} on {}", one.resource, one.nodes),
            false => format!("{} on some of {}", one.resource, one.nodes),
        });
        let words: Vec<String> = [cpus].into_iter().chain(memory).chain(devices).collect();
        words.join(", ")
    }

    /// The verdict in a sentence.
    pub fn sentence(&self) -> String {
        let verdict = match self.verdict {
            Verdict::OneNode => "yes, on one NUMA node",
            Verdict::SameNodes => "yes, on the same NUMA nodes",
            Verdict::Spread => "no, on more NUMA nodes than necessary",
            Verdict::Uncertain => "not certain",
            Verdict::Apart | Verdict::NoCpus => "no",
        };
        format!("{verdict}: {}", self.words())
    }
}

/// On how few NUMA nodes so many of these are, each named by its NUMA node; `None` where there are not so many.
fn fewest(count: usize, nodes: impl Iterator<Item = u32>) -> Option<usize> {
    let mut sizes: BTreeMap<u32, usize> = BTreeMap::new();
    for node in nodes {
        *sizes.entry(node).or_default() += 1;
    }
    let mut sizes: Vec<usize> = sizes.into_values().collect();
    sizes.sort_unstable_by(|one, other| other.cmp(one));
    let sums = sizes.iter().scan(0, |sum, size| {
        *sum += size;
        Some(*sum)
    });
    let enough = sums.enumerate().find(|(_, sum)| *sum >= count);
    enough.map(|(at, _)| at + 1)
}

impl DeviceNodes {
    /// `None` where no device has NUMA nodes.
    fn of(state: &DeviceState, resource: &str, chosen: &Chosen, cpus: &CpuSet) -> Option<Self> {
        let all = state.resources.get(resource)?;
        let empty = BTreeSet::new();
        let nodes_of = |id: &String| all.get(id).map_or(&empty, |device| &device.nodes);
        let nodes: CpuSet = chosen
            .among
            .iter()
            .flat_map(|id| nodes_of(id).iter().copied())
            .collect();
        if nodes.is_empty() {
            return None;
        }
        let is_near = |id: &&String| nodes_of(id).iter().any(|node| cpus.contains(*node));
        let near = chosen.among.iter().filter(is_near).count();
        let place = match near {
            near if near == chosen.among.len() => Place::Near,
            // However it is chosen, one is away.
            near if chosen.certain || near < chosen.ids.len() => Place::Away,
            _ => Place::Either,
        };
        let mut different = chosen.among.iter().map(nodes_of).collect::<Vec<_>>();
        different.dedup();
        Some(Self {
            resource: resource.to_owned(),
            nodes,
            certain: chosen.certain || different.len() == 1,
            place,
        })
    }
}

#[cfg(test)]
mod tests {
    use kubelet_planner::devices::Device;
    use kubelet_planner::merge::Merged;
    use rstest::rstest;

    use super::*;

    const GPU: &str = "nvidia.com/gpu";

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    /// `0` to `3` at NUMA node 0, `4` to `7` at 1, `8` at none.
    fn state() -> DeviceState {
        let device = |number: u32| {
            let nodes = match number {
                0..4 => [0].into(),
                4..8 => [1].into(),
                _ => [].into(),
            };
            (number.to_string(), Device { nodes, healthy: true })
        };
        DeviceState {
            resources: [(GPU.to_owned(), (0..9).map(device).collect())].into(),
            entries: BTreeMap::new(),
        }
    }

    fn locality(cpus: &str, memory: &str, ids: &[u32], among: &[u32], fewest: usize) -> Option<Locality> {
        let names = |ids: &[u32]| -> BTreeSet<String> { ids.iter().map(u32::to_string).collect() };
        let chosen = Chosen {
            ids: names(ids),
            certain: ids == among,
            among: names(among),
        };
        let hint = Merged {
            nodes: None,
            preferred: false,
            admitted: true,
        };
        let given = ContainerAllocation {
            container: "vm".to_owned(),
            hint,
            cpus: Cpus::Shared,
            memory: Vec::new(),
            devices: [(GPU.to_owned(), chosen)].into(),
        };
        Locality::judge(set(cpus), set(memory), &state(), &given, fewest)
    }

    #[rstest]
    #[case("0", "", &[1], &[1], Verdict::OneNode, "yes, on one NUMA node: CPUs on NUMA node 0, nvidia.com/gpu on 0")]
    #[case("0", "0", &[1], &[0, 1, 2], Verdict::OneNode, "yes, on one NUMA node: CPUs on NUMA node 0, memory on 0, nvidia.com/gpu on 0")]
    #[case("0-1", "1", &[0, 4], &[0, 4], Verdict::SameNodes, "yes, on the same NUMA nodes: CPUs on NUMA nodes 0-1, memory on 1, nvidia.com/gpu on 0-1")]
    #[case("0-1", "", &[0], &[0], Verdict::Spread, "no, on more NUMA nodes than necessary: CPUs on NUMA nodes 0-1, nvidia.com/gpu on 0")]
    #[case("0", "0", &[4], &[4, 5], Verdict::Apart, "no: CPUs on NUMA node 0, memory on 0, nvidia.com/gpu on 1")]
    #[case("0", "1", &[0], &[0], Verdict::Apart, "no: CPUs on NUMA node 0, memory on 1, nvidia.com/gpu on 0")]
    #[case("0", "", &[0], &[0, 4], Verdict::Uncertain, "not certain: CPUs on NUMA node 0, nvidia.com/gpu on some of 0-1")]
    // Whichever two of three it gets, one is away.
    #[case("0", "", &[0, 4], &[0, 4, 5], Verdict::Apart, "no: CPUs on NUMA node 0, nvidia.com/gpu on some of 0-1")]
    #[case("", "", &[0], &[0], Verdict::NoCpus, "no: no CPUs of its own, nvidia.com/gpu on 0")]
    fn a_container_is_together_where_none_of_it_is_away_from_its_cpus(
        #[case] cpus: &str,
        #[case] memory: &str,
        #[case] ids: &[u32],
        #[case] among: &[u32],
        #[case] verdict: Verdict,
        #[case] sentence: &str,
    ) {
        let fewest = if ids.len() > 1 { 2 } else { 1 };
        let found = locality(cpus, memory, ids, among, fewest).unwrap();
        assert_eq!((found.verdict, found.sentence().as_str()), (verdict, sentence));
    }

    #[test]
    fn the_fewest_numa_nodes_are_those_with_the_most() {
        let nodes = || [0, 1, 1, 2, 2, 2].into_iter();
        let counts = [0, 3, 4, 5, 6, 7].map(|count| fewest(count, nodes()));
        assert_eq!(counts, [Some(1), Some(1), Some(2), Some(2), Some(3), None]);
    }

    #[test]
    fn devices_without_numa_nodes_say_nothing() {
        assert_eq!(locality("0", "0", &[8], &[8], 1), None);
    }
}
