//! Numbered interrupts as values that outlast the text, and how much their counts rose.

use std::collections::BTreeMap;

use stelia_cpus::{CpuSet, MAX_CPUS};

use super::super::columns::{Columns, Counts};
use super::super::{ParseError, words};
use super::{Row, Source};

/// A numbered interrupt, also one that is not a device's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IrqLine {
    pub irq: u32,
    /// The interrupt controller, such as `PCI-MSIX-0000:3b:00.0` or `IO-APIC`.
    pub chip: String,
    /// Number at the controller; empty where the kernel shows none.
    pub hwirq: String,
    /// Names of the drivers that handle it, joined by `, `; empty if there is none.
    pub name: String,
    /// CPU and count, ascending, without those that are 0.
    counts: Vec<(u32, u32)>,
}

impl IrqLine {
    fn new(irq: u32, source: Source<'_>, counts: Counts) -> Self {
        Self {
            irq,
            chip: source.chip.into(),
            hwirq: source.hwirq.into(),
            name: source.name(),
            counts,
        }
    }

    /// CPUs on which it has fired since boot, with how often. The kernel's counter has 32 bits and wraps: see [`rise`].
    pub fn counts(&self) -> &[(u32, u32)] {
        &self.counts
    }

    /// Where it comes from.
    fn source(&self) -> Source<'_> {
        Source {
            chip: &self.chip,
            hwirq: &self.hwirq,
            drivers: &self.name,
        }
    }

    /// As [`Source::is_device`].
    pub fn is_device(&self) -> bool {
        self.source().is_device(self.irq)
    }

    /// As [`Source::is_private`].
    pub fn is_private(&self) -> bool {
        self.source().is_private()
    }
}

/// Numbered interrupts, on all CPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    /// The CPUs that have a column: those online.
    pub cpus: CpuSet,
    /// By number.
    pub lines: BTreeMap<u32, IrqLine>,
}

impl Table {
    /// The text of [`PATH`](super::PATH). Lines with letters are not read.
    pub fn parse(text: &[u8]) -> Result<Self, ParseError> {
        let mut all = words::lines(text)?;
        let columns = Columns::parse(all.next().unwrap_or_default(), &CpuSet::below(MAX_CPUS))?;
        let mut lines = BTreeMap::new();
        for row in all.filter_map(Row::new) {
            if let Some(irq) = row.irq()? {
                let (counts, source) = row.numbered(&columns)?;
                lines.insert(irq, IrqLine::new(irq, Source::parse(&source), counts));
            }
        }
        let cpus = columns.cpus();
        Ok(Self { cpus, lines })
    }

    /// Interrupts of devices, by number.
    pub fn devices(&self) -> impl Iterator<Item = &IrqLine> {
        self.lines.values().filter(|line| line.is_device())
    }

    /// How often interrupts of devices fired on each of these CPUs since boot, all together. Offline CPUs are left out.
    pub fn by_cpu(&self, cpus: &CpuSet) -> BTreeMap<u32, u64> {
        let mut sums: BTreeMap<u32, u64> = cpus.intersection(&self.cpus).iter().map(|cpu| (cpu, 0)).collect();
        for (cpu, count) in self.devices().flat_map(IrqLine::counts) {
            if let Some(sum) = sums.get_mut(cpu) {
                *sum += u64::from(*count);
            }
        }
        sums
    }

    /// How often interrupts of devices fired on each of these CPUs between two readings, of which this is the later.
    /// CPUs that were not online in both are left out.
    pub fn since(&self, before: &Self, cpus: &CpuSet) -> BTreeMap<u32, u64> {
        let both = cpus.intersection(&self.cpus).intersection(&before.cpus);
        let mut sums: BTreeMap<u32, u64> = both.iter().map(|cpu| (cpu, 0)).collect();
        for line in self.devices() {
            let earlier = before.lines.get(&line.irq).map_or(&[][..], IrqLine::counts);
            for (cpu, count) in risen(earlier, line.counts(), &both) {
                *sums.entry(cpu).or_default() += u64::from(count);
            }
        }
        sums
    }
}

/// How much a counter of the kernel rose: it wraps at 32 bits, and begins again where the interrupt was freed and requested again. The counts do not
/// tell these apart: one that began again and has reached the earlier count rose by their difference, and one that is more than half of all 32 bits
/// below it has wrapped.
pub fn rise(before: u32, now: u32) -> u32 {
    let difference = now.wrapping_sub(before);
    if difference <= u32::MAX / 2 { difference } else { now }
}

/// CPUs of `cpus` on which an interrupt fired between two readings of its [`IrqLine::counts`], with how often.
pub fn risen(before: &[(u32, u32)], now: &[(u32, u32)], cpus: &CpuSet) -> Vec<(u32, u32)> {
    let earlier = |cpu| {
        before
            .binary_search_by_key(&cpu, |(cpu, _)| *cpu)
            .map_or(0, |at| before[at].1)
    };
    let all = now.iter().filter(|(cpu, _)| cpus.contains(*cpu));
    let rises = all.map(|(cpu, count)| (*cpu, rise(earlier(*cpu), *count)));
    rises.filter(|(_, count)| *count > 0).collect()
}
