use std::collections::BTreeSet;

use stelia_cpus::located::Located;

use crate::sample::Seat;

/// Whether a VM in this state has CPUs of its own, which are then read.
pub(crate) fn is_sampled(state: &str) -> bool {
    matches!(state, "isolated" | "pinned")
}

/// What the daemon tells the recorder about a VM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordedVm {
    /// `namespace/name`; may be empty.
    pub name: String,
    /// The state as on D-Bus.
    pub state: String,
    /// Its seats, which are read in the states `isolated` and `pinned`.
    pub seats: BTreeSet<Seat>,
    /// PCI addresses.
    pub own_devices: BTreeSet<String>,
    /// Where its parts are; `None`: they were not read with this sample.
    pub located: Option<Vec<Located>>,
}

impl RecordedVm {
    pub(super) fn sampled_seats(&self) -> impl Iterator<Item = &Seat> {
        let is_sampled = is_sampled(&self.state);
        self.seats.iter().filter(move |_| is_sampled)
    }
}
