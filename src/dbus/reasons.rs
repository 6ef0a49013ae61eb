//! Reasons as D-Bus has them.

use stelia_api::Reason;

/// The code of a reason, its text and its fix.
pub(super) type ReasonRow = (String, String, String);

pub(super) fn reason_rows(reasons: &[Reason]) -> Vec<ReasonRow> {
    let row = |reason: &Reason| (reason.code.to_string(), reason.text.clone(), reason.fix.clone());
    reasons.iter().map(row).collect()
}
