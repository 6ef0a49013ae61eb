//! The NUMA nodes on which the interrupts of a VM's devices fire.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use stelia_cpus::{CpuSet, Topology};

use crate::counters::interrupts::{Table, vfio_device};
use crate::locality::nodes;

/// The vectors of a VM's devices that VFIO has set up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Interrupts {
    pub vectors: u32,
    /// How many of them go to each NUMA node now. Those that may go to several are left out.
    pub targets: BTreeMap<u32, u32>,
    /// How often they fired on each NUMA node. The kernel counts from when a number was first used, and its counters wrap at 32 bits. An interrupt
    /// that the processor delivers into the guest (posted) is not counted.
    pub fired: BTreeMap<u32, u64>,
}

impl Interrupts {
    /// Those of the devices with these PCI addresses. `target`: the CPUs that an interrupt goes to, by its number.
    pub fn of(
        table: &Table,
        addresses: &BTreeSet<&str>,
        topology: &Topology,
        target: impl Fn(u32) -> Option<CpuSet>,
    ) -> Self {
        let mut all = Self::default();
        let own = |name: &str| vfio_device(name).is_some_and(|address| addresses.contains(address));
        for line in table.lines.values().filter(|line| own(&line.name)) {
            all.vectors += 1;
            for (cpu, count) in line.counts() {
                if let Some(cpu) = topology.cpus.get(cpu) {
                    let fired = all.fired.entry(cpu.node).or_default();
                    *fired = fired.saturating_add(u64::from(*count));
                }
            }
            let to = nodes(topology, &target(line.irq).unwrap_or_default());
            if let (Some(node), 1) = (to.first(), to.len()) {
                *all.targets.entry(*node).or_default() += 1;
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use stelia_cpus::testing::Shape;

    use super::*;

    #[test]
    fn vectors_count_where_they_fired_and_where_they_go() {
        let text = b"           CPU0       CPU1       CPU2       CPU3\n\
             30:          5          0          2          0  IR-PCI-MSIX-0000:3b:00.0    0-edge      vfio-msix[0](0000:3b:00.0)\n\
             31:          0          0          0          1  IR-PCI-MSIX-0000:3b:00.0    1-edge      vfio-msix[1](0000:3b:00.0)\n\
             32:          9          9          9          9  IR-PCI-MSIX-0000:3c:00.0    0-edge      vfio-msix[0](0000:3c:00.0)\n\
             33:          0          0          0          0  IR-PCI-MSIX-0000:3b:00.0    2-edge      vfio-msix[2](0000:3b:00.0)\n";
        let shape = Shape {
            nodes: 2,
            cores: 2,
            threads: 1,
            interleaved: false,
        };
        let target = |irq| match irq {
            30 => "2".parse().ok(),
            31 => "3".parse().ok(),
            // The kernel does not tell which of these it is.
            33 => "0-3".parse().ok(),
            _ => None,
        };
        let table = Table::parse(text).unwrap();
        let own = Interrupts::of(&table, &BTreeSet::from(["0000:3b:00.0"]), &shape.topology(), target);
        let expected = Interrupts {
            vectors: 3,
            targets: [(1, 2)].into(),
            fired: [(0, 5), (1, 3)].into(),
        };
        assert_eq!(own, expected);
        let none = Interrupts::of(&table, &BTreeSet::new(), &shape.topology(), target);
        assert_eq!(none, Interrupts::default());
    }
}
