//! What a VM has less than isolation, and which VMs are shown first because of it.

use stelia_api::State;
use stelia_model::Instance;

use super::why_not_isolated::not_isolated;

/// What degrades the isolation of this VM alone, then what keeps it from being isolated, then what degrades every VM of the node.
pub(crate) fn causes_of(instance: &Instance) -> Vec<String> {
    let degraded = instance.degraded.iter().map(|reason| format!("degraded: {reason}"));
    degraded.chain(less_than_isolated(instance)).collect()
}

/// "floats: vCPUs not attached", "pinned: …", without how long it has waited: VMs of one cause have one text.
pub(crate) fn less_than_isolated(instance: &Instance) -> Option<String> {
    let why = not_isolated(instance)?.text;
    Some(match instance.state {
        State::Waiting => format!("floats: {why}"),
        _ => format!("{}: {why}", instance.state),
    })
}

/// The order of rows. A cause of the whole node does not count: it is the same in each row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Trouble {
    /// It has a reason of degradation of its own.
    Degraded,
    Floating,
    /// It has less than isolation for a reason.
    Pinned,
    #[default]
    Calm,
}

impl Trouble {
    pub(crate) fn of(instance: &Instance) -> Self {
        if !instance.degraded.is_empty() {
            Self::Degraded
        } else if instance.state == State::Waiting {
            Self::Floating
        } else if less_than_isolated(instance).is_some() {
            Self::Pinned
        } else {
            Self::Calm
        }
    }
}
