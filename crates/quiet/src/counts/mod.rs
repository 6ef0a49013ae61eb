//! `/proc/interrupts`: how often each interrupt fired on each CPU.
//!
//! Lines with a number are interrupts of devices; those with letters (`LOC`, `RES`, `CAL`, …) are the CPU's own and
//! are left out. A column is an online CPU: the header names it, so a column's place is not its CPU's number.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use stelia_cpus::CpuSet;
use stelia_text::excerpt::excerpt;

/// Where the counts are.
pub const PATH: &str = "/proc/interrupts";

/// Why `/proc/interrupts` does not parse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The first line does not name CPUs.
    #[error("{PATH}: the header {0:?} names something that is not a CPU")]
    Header(String),
    /// A CPU went on or offline while the kernel wrote the file, or the file was cut: read it again.
    #[error("{PATH}: interrupt {irq} does not have {expected} counts")]
    Columns {
        /// Number of the line at fault.
        irq: u32,
        /// CPUs in the header.
        expected: usize,
    },
}

/// One interrupt of a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Line {
    pub irq: u32,
    /// The interrupt controller, such as `PCI-MSIX-0000:3b:00.0` or `IO-APIC`.
    pub chip: String,
    /// Number at the controller; empty where the kernel shows none.
    pub hwirq: String,
    /// Of the drivers that handle it, joined by `, `; empty while there is none.
    pub name: String,
    /// CPU and count, ascending, without those that are 0.
    counts: Vec<(u32, u32)>,
}

impl Line {
    /// CPUs on which it has fired since boot, with how often. The kernel's counter has 32 bits and wraps: see [`rise`].
    pub fn counts(&self) -> &[(u32, u32)] {
        &self.counts
    }

    /// How often it fired on these CPUs.
    pub fn on(&self, cpus: &CpuSet) -> u64 {
        let there = self.counts.iter().filter(|(cpu, _)| cpus.contains(*cpu));
        there.map(|(_, count)| u64::from(*count)).sum()
    }

    /// As [`Source::is_device`].
    pub fn is_device(&self) -> bool {
        is_device(self.irq, &self.chip, &self.hwirq)
    }
}

/// Where an interrupt comes from: what a line says behind its counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source<'a> {
    /// As [`Line::chip`].
    pub chip: &'a str,
    /// As [`Line::hwirq`].
    pub hwirq: &'a str,
    drivers: &'a str,
}

impl<'a> Source<'a> {
    /// The controller, the number there with the kind of trigger (`5-edge`, or `30 Level`), the drivers (`show_interrupts` in
    /// the kernel's `kernel/irq/proc.c`).
    pub fn parse(text: &'a str) -> Self {
        let (chip, text) = word(text);
        let (hwirq, text) = match word(text) {
            (place, rest) if place.starts_with(|first: char| first == '-' || first.is_ascii_digit()) => {
                (place.split('-').next().unwrap_or_default(), rest)
            }
            _ => ("", text),
        };
        let drivers = match word(text) {
            ("Level" | "Edge", rest) => rest,
            _ => text,
        };
        Self { chip, hwirq, drivers }
    }

    /// As [`Line::name`].
    pub fn name(&self) -> String {
        self.drivers.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Whether the interrupt of this number belongs to a device, and could fire elsewhere. Not so on x86 the timer's and the
    /// cascade (IRQ 0 and 2); nor those that each CPU has of its own: Xen's event channels of a CPU, and ARM's
    /// private peripheral interrupts (GIC numbers below 32).
    pub fn is_device(&self, irq: u32) -> bool {
        is_device(irq, self.chip, self.hwirq)
    }
}

fn is_device(irq: u32, chip: &str, hwirq: &str) -> bool {
    let private = chip.starts_with("GIC") && hwirq.parse::<u32>().is_ok_and(|number| number < 32);
    !(private || chip.contains("percpu") || is_legacy_timer(irq))
}

/// The first word, and what is behind it.
fn word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()))
}

/// IRQ 0, the timer, and 2, the cascade, of a PC: the kernel does without their masks.
pub(crate) fn is_legacy_timer(irq: u32) -> bool {
    cfg!(target_arch = "x86_64") && matches!(irq, 0 | 2)
}

/// The PCI address of the VFIO device that an interrupt with these drivers belongs to, and to nobody else: a line that several drivers share
/// has their names joined by commas, with or without a space.
pub fn vfio_device(drivers: &str) -> Option<&str> {
    let shared = drivers.contains(',');
    let rest = drivers.strip_prefix("vfio-").filter(|_| !shared)?;
    rest.split_once('(')?.1.strip_suffix(')')
}

/// What `/proc/interrupts` says of numbered interrupts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    /// The CPUs that have a column: those online.
    pub cpus: CpuSet,
    /// By number.
    pub lines: BTreeMap<u32, Line>,
}

impl Table {
    /// Interrupts of devices, by number.
    pub fn devices(&self) -> impl Iterator<Item = &Line> {
        self.lines.values().filter(|line| line.is_device())
    }

    /// How often interrupts of devices fired on each of these CPUs since boot, all together. Offline CPUs are left out.
    pub fn by_cpu(&self, cpus: &CpuSet) -> BTreeMap<u32, u64> {
        let mut sums: BTreeMap<u32, u64> = cpus.intersection(&self.cpus).iter().map(|cpu| (cpu, 0)).collect();
        for (cpu, count) in self.devices().flat_map(Line::counts) {
            if let Some(sum) = sums.get_mut(cpu) {
                *sum += u64::from(*count);
            }
        }
        sums
    }

    /// Interrupts of devices that fired on these CPUs since boot, with how often.
    pub fn fired_on(&self, cpus: &CpuSet) -> impl Iterator<Item = (&Line, u64)> {
        let all = self.devices().map(|line| (line, line.on(cpus)));
        all.filter(|(_, count)| *count > 0)
    }

    /// How often interrupts of devices fired on each of these CPUs between two readings, of which this is the later.
    /// CPUs that were not online in both are left out.
    pub fn since(&self, before: &Self, cpus: &CpuSet) -> BTreeMap<u32, u64> {
        let both = cpus.intersection(&self.cpus).intersection(&before.cpus);
        let mut sums: BTreeMap<u32, u64> = both.iter().map(|cpu| (cpu, 0)).collect();
        for line in self.devices() {
            let earlier = before.lines.get(&line.irq).map_or(&[][..], Line::counts);
            for (cpu, count) in risen(earlier, line.counts(), &both) {
                *sums.entry(cpu).or_default() += u64::from(count);
            }
        }
        sums
    }
}

/// How much a counter of the kernel rose: it wraps at 32 bits, and begins again where the interrupt was freed and
/// requested again.
pub fn rise(before: u32, now: u32) -> u32 {
    let difference = now.wrapping_sub(before);
    if difference <= u32::MAX / 2 { difference } else { now }
}

/// CPUs of `cpus` on which an interrupt fired between two readings of its [`Line::counts`], with how often.
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

/// How often interrupts of devices fired on each of these CPUs since boot: [`parse`] and [`Table::by_cpu`].
///
/// # Errors
/// As [`parse`].
pub fn device_interrupts(text: &str, cpus: &CpuSet) -> Result<BTreeMap<u32, u64>, ParseError> {
    Ok(parse(text)?.by_cpu(cpus))
}

/// The text of `/proc/interrupts`.
///
/// # Errors
/// A header that does not name CPUs, or a line that has not as many counts as that names.
pub fn parse(text: &str) -> Result<Table, ParseError> {
    let mut lines = text.lines();
    let header = lines.next().unwrap_or_default();
    let number = |word: &str| word.strip_prefix("CPU").and_then(|digits| digits.parse().ok());
    let columns: Option<Vec<u32>> = header.split_whitespace().map(number).collect();
    let columns = columns.filter(|columns| !columns.is_empty());
    let columns = columns.ok_or_else(|| ParseError::Header(excerpt(header)))?;
    let numbered = lines.filter_map(|line| {
        let (label, rest) = line.split_once(':')?;
        Some((label.trim().parse().ok()?, rest))
    });
    let lines = numbered.map(|(irq, rest)| Ok((irq, line(irq, rest, &columns)?)));
    Ok(Table {
        cpus: columns.iter().copied().collect(),
        lines: lines.collect::<Result<_, _>>()?,
    })
}

/// After its number: the counts, and where it comes from.
fn line(irq: u32, text: &str, columns: &[u32]) -> Result<Line, ParseError> {
    let wrong = || ParseError::Columns {
        irq,
        expected: columns.len(),
    };
    let mut left = text;
    let mut counts = Vec::new();
    for cpu in columns {
        let (count, rest) = word(left);
        let count = count.parse().map_err(|_| wrong())?;
        left = rest;
        if count > 0 {
            counts.push((*cpu, count));
        }
    }
    let source = Source::parse(left);
    // No controller's name is a number: this is a column that the header does not have.
    if !source.chip.is_empty() && source.chip.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    Ok(Line {
        irq,
        chip: source.chip.into(),
        hwirq: source.hwirq.into(),
        name: source.name(),
        counts,
    })
}
