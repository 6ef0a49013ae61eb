//! Carrying out an order: what is done about each kind of disturbance, in the order in which they do not disturb each other.

use std::path::Path;

use stelia_api::quiet::Report;
use stelia_quiet::files::System;
use stelia_quiet::order::Order;
use stelia_quiet::{irqbalance, latency, resctrl, steer};

/// What is remembered from one order to the next. It may be lost: what must not be is in the store.
#[derive(Debug, Default)]
pub struct Memories {
    steer: steer::Memory,
    resctrl: resctrl::Memory,
}

/// Carry out an order that was checked. `sockets` is [`irqbalance::SOCKETS`].
pub fn carry_out(system: System<'_>, sockets: &Path, order: &Order, memories: &mut Memories) -> Report {
    let mut report = Report::default();
    let steers = order.steer && !order.vms.is_empty();
    // irqbalance before the masks are written: until it has the list, it moves interrupts back.
    if steers {
        irqbalance::carry_out(system, sockets, order, &mut report);
    }
    steer::carry_out(system, order, &mut memories.steer, &mut report);
    // And after they are restored: until then it leaves those alone that are to be restored.
    if !steers {
        irqbalance::carry_out(system, sockets, order, &mut report);
    }
    latency::carry_out(system, order, &mut report);
    resctrl::carry_out(system, order, &mut memories.resctrl, &mut report);
    report
}
