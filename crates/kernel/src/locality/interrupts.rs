//! The NUMA nodes on which the interrupts of a VM's devices fire.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use stelia_cpus::{CpuSet, Topology};

use crate::counters::interrupts::{Table, risen, vfio_device};
use crate::locality::nodes;

/// Fewer interrupts than this do not say where a device's fire: those of an idle one would change sides at each reading.
const MIN_FIRED: u64 = 100;

/// The vectors of a VM's devices that VFIO has set up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interrupts {
    pub vectors: u32,
    /// How many of them go to each NUMA node now. Those that may go to several are left out.
    pub targets: BTreeMap<u32, u32>,
    /// How often they fired on each NUMA node. The kernel counts from when a number was first used, and its counters wrap at 32 bits. An interrupt
    /// that the processor delivers into the guest (posted) is not counted.
    pub fired: BTreeMap<u32, u64>,
    /// The same as the kernel counts it.
    #[serde(skip)]
    pub counters: InterruptCounters,
}

/// The kernel's counters of a VM's vectors, to be compared with later ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InterruptCounters {
    /// The CPUs that were online.
    cpus: CpuSet,
    /// Name, and the count on each CPU, by number.
    lines: BTreeMap<u32, (String, Vec<(u32, u32)>)>,
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
        all.counters.cpus.clone_from(&table.cpus);
        let own = |name: &str| vfio_device(name).is_some_and(|address| addresses.contains(address));
        for line in table.lines.values().filter(|line| own(&line.name)) {
            all.vectors += 1;
            let counted = (line.name.clone(), line.counts().to_vec());
            all.counters.lines.insert(line.irq, counted);
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

    /// How often they fired on each NUMA node since an earlier reading. A vector whose number none or another one had counts from 0; one that was set
    /// up again counts as [`rise`](crate::counters::interrupts::rise) can tell. CPUs that were not online at both are left out.
    pub fn fired_since(&self, before: &InterruptCounters, topology: &Topology) -> BTreeMap<u32, u64> {
        let both = self.counters.cpus.intersection(&before.cpus);
        let mut fired: BTreeMap<u32, u64> = BTreeMap::new();
        for (irq, (name, now)) in &self.counters.lines {
            let earlier = before.lines.get(irq).filter(|(earlier, _)| earlier == name);
            let earlier = earlier.map_or(&[][..], |(_, counts)| counts.as_slice());
            for (cpu, count) in risen(earlier, now, &both) {
                if let Some(cpu) = topology.cpus.get(&cpu) {
                    let sum = fired.entry(cpu.node).or_default();
                    *sum = sum.saturating_add(u64::from(count));
                }
            }
        }
        fired
    }
}

impl InterruptCounters {
    /// How often they fired on each NUMA node since a share was last taken, and takes those of now. As long as they are fewer than `MIN_FIRED`, it
    /// is none, and they count the next time.
    pub fn take_share(&mut self, now: &Interrupts, topology: &Topology) -> BTreeMap<u32, u64> {
        let mut fired = now.fired_since(self, topology);
        let is_few = fired.values().fold(0u64, |sum, count| sum.saturating_add(*count)) < MIN_FIRED;
        // Where a CPU came, what fires there would never be compared.
        if is_few && self.cpus == now.counters.cpus {
            return BTreeMap::new();
        }
        if is_few {
            fired.clear();
        }
        self.clone_from(&now.counters);
        fired
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
        let shape = Shape::new(2, 2, 1);
        let target = |irq| match irq {
            30 => "2".parse().ok(),
            31 => "3".parse().ok(),
            // The kernel does not tell which of these it is.
            33 => "0-3".parse().ok(),
            _ => None,
        };
        let table = Table::parse(text).unwrap();
        let mut own = Interrupts::of(&table, &BTreeSet::from(["0000:3b:00.0"]), &shape.topology(), target);
        own.counters = InterruptCounters::default();
        let expected = Interrupts {
            vectors: 3,
            targets: [(1, 2)].into(),
            fired: [(0, 5), (1, 3)].into(),
            ..Interrupts::default()
        };
        assert_eq!(own, expected);
        let none = Interrupts::of(&table, &BTreeSet::new(), &shape.topology(), target);
        assert_eq!((none.vectors, none.fired.len()), (0, 0));
    }

    /// The kernel's counters have 32 bits. Vector 1 is set up later, and vector 2 anew.
    #[test]
    fn what_fired_between_two_readings_is_neither_what_wrapped_nor_what_was_before() {
        let shape = Shape::new(2, 1, 1);
        let topology = shape.topology();
        let read = |lines: &[(u32, u32, u32)]| {
            let mut text = "           CPU0       CPU1\n".to_owned();
            for (vector, first, second) in lines {
                let name = format!("{vector}-edge vfio-msix[{vector}](0000:3b:00.0)");
                text += &format!("{}: {first} {second}  IR-PCI-MSIX-0000:3b:00.0 {name}\n", 30 + vector);
            }
            let table = Table::parse(text.as_bytes()).unwrap();
            Interrupts::of(&table, &BTreeSet::from(["0000:3b:00.0"]), &topology, |_| None)
        };
        let before = read(&[(0, 4_294_967_290, 7), (2, 0, 900)]);
        let now = read(&[(0, 4, 7), (1, 0, 5), (2, 0, 2)]);
        assert_eq!(now.fired_since(&before.counters, &topology), [(0, 10), (1, 7)].into());
        assert_eq!(now.fired_since(&now.counters, &topology), [].into());
        let offline = InterruptCounters::default();
        assert_eq!(now.fired_since(&offline, &topology), [].into());
    }

    #[test]
    fn few_interrupts_are_no_share_and_count_until_they_are_enough() {
        let shape = Shape::new(2, 1, 1);
        let topology = shape.topology();
        let read = |cpus: &str, counts: &str| {
            let line = "IR-PCI-MSIX-0000:3b:00.0 0-edge vfio-msix[0](0000:3b:00.0)";
            let table = Table::parse(format!("  {cpus}\n30: {counts}  {line}\n").as_bytes()).unwrap();
            Interrupts::of(&table, &BTreeSet::from(["0000:3b:00.0"]), &topology, |_| None)
        };
        let both = |first: u32, second: u32| read("CPU0 CPU1", &format!("{first} {second}"));
        let mut counters = InterruptCounters::default();
        assert_eq!(counters.take_share(&both(500, 5000), &topology), [].into(), "the first");
        for pair in 1..=49 {
            assert_eq!(
                counters.take_share(&both(500 + pair, 4999 + pair), &topology),
                [].into()
            );
            assert_eq!(
                counters.take_share(&both(500 + pair, 5000 + pair), &topology),
                [].into()
            );
        }
        assert_eq!(
            counters.take_share(&both(551, 5049), &topology),
            [(0, 51), (1, 49)].into()
        );
        assert_eq!(counters.take_share(&both(552, 5049), &topology), [].into());

        // A CPU went, and came back: what fires there counts.
        counters.take_share(&read("CPU0", "553"), &topology);
        assert_eq!(counters.take_share(&both(553, 6000), &topology), [].into());
        assert_eq!(counters.take_share(&both(553, 6100), &topology), [(1, 100)].into());
    }
}
