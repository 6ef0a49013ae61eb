//! What a VM has less than isolation, and which VMs are shown first because of it.

use stelia_api::{Reason, ReasonCode, State};
use stelia_model::Instance;

use super::why_not_isolated::not_isolated;

/// Whether a reason of degradation tells the VM from others. That of an interrupt has the same words for each VM that the interrupt reaches,
/// which need not be all.
pub(crate) fn is_own(reason: &Reason) -> bool {
    !reason.of_node || reason.kind == ReasonCode::Interrupts
}

/// What degrades the isolation of this VM alone, then what keeps it from being isolated, then what degrades every VM of the node.
pub(crate) fn causes_of(instance: &Instance) -> Vec<String> {
    let degraded = |own: bool| {
        let reasons = instance.degraded.iter().filter(move |reason| is_own(reason) == own);
        reasons.map(|reason| format!("degraded: {reason}"))
    };
    let less = less_than_isolated(instance);
    degraded(true).chain(less).chain(degraded(false)).collect()
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
        if instance.degraded.iter().any(is_own) {
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

#[cfg(test)]
mod tests {
    use stelia_model::PinnedReason;

    use super::*;

    fn instance(state: State, degraded: &[Reason]) -> Instance {
        Instance {
            state,
            degraded: degraded.to_vec(),
            ..Instance::default()
        }
    }

    #[test]
    fn a_cause_of_the_node_is_the_last_one_and_changes_no_order() {
        let node = Reason::of_node(ReasonCode::KubeletUnusable, "the file is empty");
        let own = Reason::of(&Default::default(), ReasonCode::CpusOffline, "CPU 2 is offline");
        let both = [node.clone(), own];
        assert_eq!(
            causes_of(&instance(State::Waiting, &both)),
            [
                "degraded: CPU 2 is offline",
                "floats: vCPUs not attached",
                "degraded: the file is empty"
            ]
        );
        let pinned = Instance {
            pinned_reason: Some(PinnedReason::Class),
            ..instance(State::Pinned, std::slice::from_ref(&node))
        };
        let order = [
            Trouble::of(&instance(State::Isolated, &both)),
            Trouble::of(&instance(State::Waiting, std::slice::from_ref(&node))),
            Trouble::of(&pinned),
            Trouble::of(&instance(State::Isolated, std::slice::from_ref(&node))),
        ];
        use Trouble::{Calm, Pinned, Degraded, Floating};
        let interrupt = Reason::of_node(ReasonCode::Interrupts, "interrupt 130 reaches the CPUs 8-11");
        assert_eq!(Trouble::of(&instance(State::Isolated, &[interrupt])), Degraded);
        assert_eq!(order, [Degraded, Floating, Pinned, Calm]);
        assert!(order.is_sorted());
    }
}
