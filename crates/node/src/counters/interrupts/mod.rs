//! `/proc/interrupts`: how often each interrupt fired on each online CPU (`show_interrupts` in the kernel's `kernel/irq/proc.c`,
//! `arch_show_interrupts` for the lines with letters).
//!
//! Lines with a number are interrupts of devices, apart from those that [`Source::is_device`] excludes; lines with letters (`LOC`,
//! `RES`, `CAL`, …) are each CPU's own. A column is an online CPU: the header names it, so a column's place is not its CPU's number.

mod table;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use stelia_cpus::CpuSet;

use super::columns::{Columns, Counts, label};
use super::{ParseError, words};

pub use table::{IrqLine, Table, rise, risen};

/// Where the counts are.
pub const PATH: &str = "/proc/interrupts";

/// Lettered lines that count errors of the host and not of a CPU, on x86 and on ARM.
const HOST_ERRORS: [&str; 3] = ["ERR", "MIS", "Err"];

/// How often interrupts fired on wanted CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interrupts<'a> {
    /// The CPUs that have a column, wanted or not.
    pub online: CpuSet,
    /// In the file's order, without those that never fired on a wanted CPU.
    pub lines: Vec<Line<'a>>,
}

/// An interrupt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line<'a> {
    pub kind: Kind<'a>,
    /// CPU and count since boot, ascending, without those that are 0.
    pub counts: Vec<(u32, u32)>,
}

/// What an interrupt belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind<'a> {
    /// A device: its number and the drivers' names.
    Device { irq: u32, name: String },
    /// Each CPU has it for itself: the kernel's mnemonic, `LOC`, `RES`, `CAL`, …
    PerCpu(&'a str),
}

/// The text of [`PATH`]. Numbered lines that are not a device's ([`Source::is_device`]) and lines of no CPU are left out.
///
/// # Errors
/// A header that does not name CPUs, or a line that has not as many counts as that names: a CPU went on- or offline meanwhile.
#[inline]
pub fn parse<'a>(text: &'a [u8], wanted: &CpuSet) -> Result<Interrupts<'a>, ParseError> {
    let mut all = words::lines(text)?;
    let columns = Columns::parse(all.next().unwrap_or_default(), wanted)?;
    let mut lines = Vec::new();
    for row in all.filter_map(Row::new) {
        if row.is_host_error(columns.len()) {
            continue;
        }
        let (kind, counts) = match row.irq()? {
            Some(irq) => {
                let (counts, source) = row.numbered(&columns)?;
                let source = Source::parse(&source);
                if counts.is_empty() || !source.is_device(irq) {
                    continue;
                }
                let name = source.name();
                (Kind::Device { irq, name }, counts)
            }
            None => (Kind::PerCpu(row.label), columns.counts(row.line, row.rest)?.0),
        };
        if !counts.is_empty() {
            lines.push(Line { kind, counts });
        }
    }
    let online = columns.cpus();
    Ok(Interrupts { online, lines })
}

/// A line with a label, before its counts are read.
struct Row<'a> {
    line: &'a [u8],
    label: &'a str,
    /// What is behind the label.
    rest: &'a [u8],
}

impl<'a> Row<'a> {
    /// `None` of a line without a label: it is not an interrupt's.
    #[inline]
    fn new(line: &'a [u8]) -> Option<Self> {
        let (label, rest) = label(line)?;
        Some(Self { line, label, rest })
    }

    /// The number of the interrupt; `None` where the label is a mnemonic.
    ///
    /// # Errors
    /// It is too large.
    #[inline]
    fn irq(&self) -> Result<Option<u32>, ParseError> {
        if !self.label.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(None);
        }
        let irq = self.label.parse().map_err(|_| ParseError::line(self.line))?;
        Ok(Some(irq))
    }

    /// The counts of a numbered line, and where the interrupt comes from ([`Source::parse`]).
    #[inline]
    fn numbered(&self, columns: &Columns) -> Result<(Counts, Cow<'a, str>), ParseError> {
        let (counts, source) = columns.counts(self.line, self.rest)?;
        Ok((counts, String::from_utf8_lossy(source)))
    }

    /// Whether the line has one number for the whole host, and no text behind it.
    #[inline]
    fn is_host_error(&self, columns: usize) -> bool {
        if self.label.bytes().all(|byte| byte.is_ascii_digit()) {
            return false;
        }
        let mut words = words::Words(self.rest);
        HOST_ERRORS.contains(&self.label) || columns > 1 && words.number().is_some() && words.rest().is_empty()
    }
}

/// Where an interrupt comes from: what a line says behind its counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source<'a> {
    /// The interrupt controller, such as `PCI-MSIX-0000:3b:00.0` or `IO-APIC`.
    pub chip: &'a str,
    /// Number at the controller; empty where the kernel shows none.
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

    /// The names of the drivers that handle it, joined by `, `; empty while there is none.
    pub fn name(&self) -> String {
        self.drivers.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Whether the interrupt of this number belongs to a device, and could fire elsewhere. Not so on x86 the timer's and the
    /// cascade (IRQ 0 and 2); nor those that each CPU has of its own: Xen's event channels of a CPU, and ARM's
    /// private peripheral interrupts (GIC numbers below 32).
    pub fn is_device(&self, irq: u32) -> bool {
        let private = self.chip.starts_with("GIC") && self.hwirq.parse::<u32>().is_ok_and(|number| number < 32);
        !(private || self.chip.contains("percpu") || is_legacy_timer(irq))
    }
}

/// The first word, and what is behind it.
fn word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()))
}

/// IRQ 0, the timer, and 2, the cascade, of a PC: the kernel does without their masks.
pub fn is_legacy_timer(irq: u32) -> bool {
    cfg!(target_arch = "x86_64") && matches!(irq, 0 | 2)
}

/// The PCI address of the VFIO device that an interrupt with these drivers belongs to, and to nobody else: a line that several drivers share
/// has their names joined by commas, with or without a space.
pub fn vfio_device(drivers: &str) -> Option<&str> {
    let shared = drivers.contains(',');
    let rest = drivers.strip_prefix("vfio-").filter(|_| !shared)?;
    rest.split_once('(')?.1.strip_suffix(')')
}
