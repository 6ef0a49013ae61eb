//! What a VM has less than isolation, and which VMs are shown first because of it.

use stelia_api::{Reason, ReasonKind, State};
use stelia_model::Instance;

use super::why_not_isolated::not_isolated;
use crate::shared::output::Meaning;

/// A cause, and whether it degrades isolation.
pub(crate) type Cause = (String, Meaning);

/// Whether a reason of degradation tells the VM from others. That of an interrupt has the same words for each VM that the interrupt reaches,
/// which need not be all.
pub(crate) fn is_own(reason: &Reason) -> bool {
    !reason.of_node || reason.kind == ReasonKind::Interrupts
}

/// Why it waits, in the words of [`less_than_isolated`], and since when, in microseconds since the epoch.
pub(crate) type Wait = (String, u64);

pub(crate) fn wait_of(instance: &Instance) -> Option<Wait> {
    let since = not_isolated(instance)?.since_us?;
    Some((less_than_isolated(instance)?, since))
}

/// What degrades the isolation of this VM alone, then what keeps it from being isolated, then what degrades every VM of the node.
pub(crate) fn causes_of(instance: &Instance) -> Vec<Cause> {
    let degraded = |own: bool| {
        let reasons = instance.degraded.iter().filter(move |reason| is_own(reason) == own);
        reasons.map(|reason| (format!("degraded: {reason}"), Meaning::Broken))
    };
    let less = less_than_isolated(instance).map(|text| (text, Meaning::Attention));
    degraded(true).chain(less).chain(degraded(false)).collect()
}

/// "floats: vCPUs not attached", "contained: …", without how long it has waited: VMs of one cause have one text.
pub(crate) fn less_than_isolated(instance: &Instance) -> Option<String> {
    let why = not_isolated(instance)?.text;
    Some(match instance.state {
        State::Floating => format!("floats: {why}"),
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
    Contained,
    #[default]
    Calm,
}

impl Trouble {
    pub(crate) fn of(instance: &Instance) -> Self {
        let is_degraded = instance.degraded.iter().any(is_own);
        let has_less = less_than_isolated(instance).is_some();
        Self::new(is_degraded, &instance.state.to_string(), has_less)
    }

    /// From whether the VM has reasons of degradation of its own, its state, and whether that state has a reason.
    pub(crate) fn new(is_degraded: bool, state: &str, has_less: bool) -> Self {
        if is_degraded {
            Self::Degraded
        } else if state == State::Floating.name() {
            Self::Floating
        } else if has_less {
            Self::Contained
        } else {
            Self::Calm
        }
    }
}

#[cfg(test)]
mod tests {
    use stelia_model::ContainedReason;

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
        let node = Reason::of_node(ReasonKind::KubeletUnusable, "the file is empty");
        let own = Reason::of(&Default::default(), ReasonKind::CpusOffline, "CPU 2 is offline");
        let both = [node.clone(), own];
        let texts = |instance: &Instance| -> Vec<String> {
            let causes = causes_of(instance).into_iter();
            causes.map(|(text, _)| text).collect()
        };
        assert_eq!(
            texts(&instance(State::Floating, &both)),
            [
                "degraded: CPU 2 is offline",
                "floats: vCPUs not attached",
                "degraded: the file is empty"
            ]
        );
        let contained = Instance {
            contained_reason: Some(ContainedReason::Class),
            ..instance(State::Contained, std::slice::from_ref(&node))
        };
        let order = [
            Trouble::of(&instance(State::Isolated, &both)),
            Trouble::of(&instance(State::Floating, std::slice::from_ref(&node))),
            Trouble::of(&contained),
            Trouble::of(&instance(State::Isolated, std::slice::from_ref(&node))),
        ];
        use Trouble::{Calm, Contained, Degraded, Floating};
        let interrupt = Reason::of_node(ReasonKind::Interrupts, "interrupt 130 reaches the CPUs 8-11");
        assert_eq!(Trouble::of(&instance(State::Isolated, &[interrupt])), Degraded);
        assert_eq!(order, [Degraded, Floating, Contained, Calm]);
        assert!(order.is_sorted());
    }
}
