//! Carries out an order. The sequence of the kinds of changes matters.

use std::path::Path;

use crate::files::System;
use crate::order::Order;
use crate::{interrupts, irqbalance, latency, resctrl};
use stelia_api::quiet::Report;

/// State in memory from one order to the next. State that must survive a restart is in the store.
#[derive(Debug, Default)]
pub struct Memories {
    interrupts: interrupts::RoundHistory,
    resctrl: resctrl::CacheHistory,
}

/// Carry out an order that was checked. `sockets` is [`irqbalance::SOCKETS`].
pub fn carry_out(system: System<'_>, sockets: &Path, order: &Order, memories: &mut Memories) -> Report {
    let mut report = Report::default();
    let steers = order.steer && !order.vms.is_empty();
    // irqbalance gets the list before masks are written, because it would move interrupts back.
    if steers {
        irqbalance::carry_out(system, sockets, order, &mut report);
    }
    interrupts::carry_out(system, order, &mut memories.interrupts, &mut report);
    // It loses the list after masks are restored, because it would move interrupts before that.
    if !steers {
        irqbalance::carry_out(system, sockets, order, &mut report);
    }
    latency::carry_out(system, order, &mut report);
    resctrl::carry_out(system, order, &mut memories.resctrl, &mut report);
    report
}
