//! Why nodes refuse, by number: a memo's cell has no room for a text.

use crate::evaluate::{By, Refusal};

/// A refusal without its details. There are few: kubelet's reasons, steliad's errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason {
    pub by: By,
    pub name: &'static str,
}

impl Reason {
    /// For the pod's events: equal for many nodes, as kube-scheduler counts the nodes of each text.
    pub fn text(self) -> String {
        match self.by {
            By::Kubelet => format!("kubelet would reject it: {}", self.name),
            By::Steliad => format!("steliad would refuse it: {}", self.name),
            By::Scheduler => format!("nothing is placed there: {}", self.name),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Reasons(Vec<Reason>);

impl Reasons {
    pub(super) fn number(&mut self, refusal: &Refusal) -> u16 {
        let reason = Reason {
            by: refusal.by,
            name: refusal.name,
        };
        let found = self.0.iter().position(|known| *known == reason);
        let at = found.unwrap_or_else(|| {
            self.0.push(reason);
            self.0.len() - 1
        });
        u16::try_from(at).unwrap_or(u16::MAX)
    }

    pub(super) fn get(&self, number: u16) -> Option<Reason> {
        self.0.get(usize::from(number)).copied()
    }
}
