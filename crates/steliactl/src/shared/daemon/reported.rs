//! Which of the interrupts that could not be moved the daemon reports as reasons of degradation.

use stelia_api::ReasonCode;
use stelia_api::quiet::{Remaining, RemainingCause};

use super::node::Description;

/// Whether a VM is degraded by it. An interrupt that the kernel places itself is reported only while it fires again and again, every
/// other one always (`stelia_decide::disturbances`).
pub(crate) fn is_reported(description: &Description, interrupt: &Remaining) -> bool {
    let begins = format!("interrupt {} ({}) ", interrupt.irq, interrupt.name);
    let mut reasons = description.node.instances.values().flat_map(|one| &one.degraded);
    interrupt.why != RemainingCause::Managed
        || reasons.any(|reason| reason.code == ReasonCode::Interrupts && reason.text.starts_with(&begins))
}
