//! Footnotes instead of reasons, where a terminal has no room for both these and the names of VMs.

use std::collections::BTreeMap;

use super::{FLOATING_TOO_LONG as REASON, Vm};

/// What the reason means, and the next step.
pub(super) const FLOATING_TOO_LONG: &str =
    "no CPUs of its own more than 120 s after the registration. On the VM's node steliactl why says why.";

/// The rows with the numbers of the footnotes as their reasons, and the footnotes.
pub(super) fn with_footnotes(mut rows: Vec<Vm>, all: &[Vm]) -> (Vec<Vm>, Vec<String>) {
    let mut reasons: Vec<String> = Vec::new();
    for vm in &mut rows {
        let words = vm.reason.take().into_iter().chain(vm.old.take().map(str::to_owned));
        let numbers = words.map(|word| {
            let at = reasons.iter().position(|reason| *reason == word);
            let at = at.unwrap_or_else(|| {
                reasons.push(word);
                reasons.len() - 1
            });
            format!("[{}]", at + 1)
        });
        let numbers: Vec<String> = numbers.collect();
        vm.reason = (!numbers.is_empty()).then(|| numbers.join(" "));
    }
    let notes = (1..)
        .zip(&reasons)
        .map(|(number, reason)| format!("[{number}] {reason}{}", meaning(reason, all)));
    (rows, notes.collect())
}

/// The message that most VMs have with this reason, behind a colon; empty if none has one beside it.
fn meaning(reason: &str, all: &[Vm]) -> String {
    if reason == REASON {
        return format!(": {FLOATING_TOO_LONG}");
    }
    let mut messages: BTreeMap<&str, u64> = BTreeMap::new();
    for vm in all.iter().filter(|vm| vm.reason.as_deref() == Some(reason)) {
        if let Some(message) = vm.message.as_deref().filter(|message| *message != reason) {
            *messages.entry(message).or_default() += 1;
        }
    }
    let most = messages.iter().max_by_key(|(_, count)| **count);
    match (most, messages.len()) {
        (Some((message, _)), 1) => format!(": {message}"),
        (Some((message, _)), _) => format!(", such as: {message}"),
        (None, _) => String::new(),
    }
}
