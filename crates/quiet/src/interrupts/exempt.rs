//! The interrupts whose masks are left alone, because no device fires them.

use stelia_kernel::counters::interrupts::{Table, is_legacy_timer};

use super::read::Identity;

/// Whether the interrupt of this number is the CPUs' own by `/proc/interrupts`: see [`Source::is_device`](stelia_kernel::counters::interrupts::Source::is_device).
pub(super) fn is_exempt_number(table: &Table, irq: u32) -> bool {
    is_legacy_timer(irq) || table.lines.get(&irq).is_some_and(|line| !line.is_device())
}

/// Whether it is one of arm64's inter-processor interrupts. `/proc/interrupts` hides their numbers (`IRQ_HIDDEN`, arch/arm64/kernel/smp.c), so
/// that the table does not tell them apart from an interrupt without a driver.
pub(super) fn is_inter_processor(identity: &Identity) -> bool {
    identity.actions == "IPI"
}
