//! A VM to the keeper.

use std::collections::BTreeSet;

use crate::look::Seat;

/// What the daemon knows of a VM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vm {
    /// `namespace/name`; may be empty.
    pub name: String,
    /// As D-Bus has it.
    pub state: String,
    /// Looked at in the states `isolated` and `contained`.
    pub seats: BTreeSet<Seat>,
    /// PCI addresses.
    pub own_devices: BTreeSet<String>,
}

impl Vm {
    pub(super) fn looked_at(&self) -> impl Iterator<Item = &Seat> {
        let promises = matches!(self.state.as_str(), "isolated" | "contained");
        self.seats.iter().filter(move |_| promises)
    }
}
