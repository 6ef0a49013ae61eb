//! Why nodes refuse, by number: the cell of an answer has no room for a text.

use crate::evaluate::{DecidedBy, Refusal};

/// A refusal without its details. There are few: kubelet's reasons, steliad's errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusalReason {
    pub by: DecidedBy,
    pub name: &'static str,
}

impl From<&Refusal> for RefusalReason {
    fn from(refusal: &Refusal) -> Self {
        Self {
            by: refusal.by,
            name: refusal.name,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Reasons(Vec<RefusalReason>);

impl Reasons {
    pub(super) fn number(&mut self, refusal: &Refusal) -> u16 {
        let reason = RefusalReason::from(refusal);
        let found = self.0.iter().position(|known| *known == reason);
        let at = found.unwrap_or_else(|| {
            self.0.push(reason);
            self.0.len() - 1
        });
        u16::try_from(at).unwrap_or(u16::MAX)
    }

    pub(super) fn get(&self, number: u16) -> Option<RefusalReason> {
        self.0.get(usize::from(number)).copied()
    }
}
