//! `/proc/interrupts`: how often each interrupt fired on each online CPU (`show_interrupts` in the kernel's `kernel/irq/proc.c`,
//! `arch_show_interrupts` for the lines with letters).
//!
//! Lines with a number are interrupts of devices, apart from those that [`Source::is_device`] excludes; lines with letters (`LOC`,
//! `RES`, `CAL`, …; on arm64 `IPI0`, `IPI1`, …) are each CPU's own. On arm64 the CPUs' timer and other interrupts that each CPU has of its
//! own have a number too. A column is an online CPU: the header names it, so a column's place is not its CPU's number.

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
    /// Each CPU has it for itself: the kernel's mnemonic, `LOC`, `RES`, `CAL`, `IPI0`, …, or the driver of one with a number, `arch_timer`,
    /// `kvm guest vtimer`. Two lines may have the same name.
    PerCpu(Cow<'a, str>),
}

/// The text of [`PATH`]. The timer and the cascade of a PC, Xen's event channels of a CPU, and lines of no CPU are left out.
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
                if counts.is_empty() {
                    continue;
                }
                let source = Source::parse(&source);
                let name = source.name();
                match (source.is_device(irq), source.is_private()) {
                    (true, _) => (Kind::Device { irq, name }, counts),
                    (false, true) => (Kind::PerCpu(name.into()), counts),
                    (false, false) => continue,
                }
            }
            None => (Kind::PerCpu(row.label.into()), columns.counts(row.line, row.rest)?.0),
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
    /// the kernel's `kernel/irq/proc.c`). Blanks are in names of controllers (`Hyper-V PCIe MSI`) and of drivers; a controller's name ends before
    /// the first number with a trigger, or else it is one word.
    pub fn parse(text: &'a str) -> Self {
        let text = text.trim_start();
        let (chip, text) = text.split_at(triggered(text).unwrap_or_else(|| word(text).0.len()));
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
        // A name that the controller's driver gives the handler, `-virq` or `-davinci_gpio`, is between the two.
        let drivers = match word(drivers) {
            (handler, rest) if handler.starts_with('-') => rest,
            _ => drivers,
        };
        Self {
            chip: chip.trim_end(),
            hwirq,
            drivers,
        }
    }

    /// The names of the drivers that handle it, joined by `, `; empty while there is none.
    pub fn name(&self) -> String {
        self.drivers.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Whether the interrupt of this number belongs to a device, and could fire elsewhere. Not so on x86 the timer's and the
    /// cascade (IRQ 0 and 2); nor those that each CPU has of its own: Xen's event channels of a CPU, and [private](Self::is_private) ones.
    pub fn is_device(&self, irq: u32) -> bool {
        let of_pc = matches!(irq, 0 | 2) && (self.chip.ends_with("IO-APIC") || self.chip == "XT-PIC");
        !(self.is_private() || self.chip.contains("percpu") || of_pc || is_legacy_timer(irq))
    }

    /// Whether it is a numbered interrupt that each CPU has for itself. On arm64 these are the GIC's private peripheral interrupts (numbers
    /// below 32, in GICv3's extended range 1056 to 1119, with GICv5 those of a controller's name of their own); the timers' and performance
    /// counters' of machines without a GIC, and KVM's for guests there; and the doorbells of vCPUs (GICv4), which fire where the vCPU runs.
    /// Where the performance counters use shared interrupts, each CPU has one, which the kernel binds to it (drivers/perf/arm_pmu.c).
    pub fn is_private(&self) -> bool {
        match self.chip {
            "GICv5-PPI" | "GICv4-vpe" | "GICv4.1-vpe" | "AIC-FIQ" | "KVM" | "bcm2836-timer" | "bcm2836-pmu" => true,
            chip if is_gic(chip) && self.hwirq.parse().is_ok_and(is_private_peripheral) => true,
            _ => !self.drivers.is_empty() && self.drivers.split(", ").all(|driver| driver.trim() == "arm-pmu"),
        }
    }
}

/// Whether a controller is a GIC of version 1 to 3. It is called `GIC`, `GICv2` or `GICv3`, with `-NUMBER` for a second one or a partition of
/// private interrupts (`GIC-0`, `GICv3-23`). Other names that begin with `GIC` are those of controllers behind a GIC, such as
/// `GICv2m-PCI-MSIX-0000:00:01.0`.
fn is_gic(chip: &str) -> bool {
    let Some(rest) = chip.strip_prefix("GIC") else {
        return false;
    };
    let rest = rest
        .strip_prefix("v2")
        .or_else(|| rest.strip_prefix("v3"))
        .unwrap_or(rest);
    let digits = rest.strip_prefix('-');
    rest.is_empty() || digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Whether the GIC has the interrupt of this number once for each CPU.
fn is_private_peripheral(number: u32) -> bool {
    number < 32 || (1056..1120).contains(&number)
}

/// Where the first number with a trigger begins, behind a word: `524288-edge`, `9-fasteoi`, `30 Level`.
fn triggered(text: &str) -> Option<usize> {
    let (_, mut rest) = word(text);
    while !rest.trim_start().is_empty() {
        let begins = text.len() - rest.trim_start().len();
        let (number, behind) = word(rest);
        let (number, handler) = number.split_once('-').unwrap_or((number, ""));
        let is_triggered =
            matches!(handler, "edge" | "fasteoi" | "level") || matches!(word(behind).0, "Level" | "Edge");
        if is_triggered && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Some(begins);
        }
        rest = behind;
    }
    None
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
