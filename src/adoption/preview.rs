//! What other rules would adopt now: the same scan, once, with nothing remembered and nothing changed.

use stelia_model::Unadopted;
use stelia_settings::AdoptRule;

use super::scan::{ScanOutcome, container, containers_with_rule};
use super::sweep::Listing;
use crate::engine::Handle;

/// The reason's name for a VM or container that the rules would adopt.
const WOULD_BE_ADOPTED: &str = "Adoptable";

/// The VMs and containers that these rules match and that are not managed, each with the reason why it would not be adopted, or that it
/// would be.
pub(crate) fn preview(engine: &Handle, rules: &[AdoptRule]) -> Vec<Unadopted> {
    let found = containers_with_rule(engine.system(), rules, Listing::All);
    let outcomes = found
        .iter()
        .map(|(origin, whose)| container(engine, rules, origin, whose));
    outcomes
        .filter_map(|outcome| match outcome {
            ScanOutcome::NoRule | ScanOutcome::Nothing | ScanOutcome::Waiting(None) => None,
            ScanOutcome::Refused(refused) | ScanOutcome::Waiting(Some(refused)) => Some(*refused),
            ScanOutcome::Adoptable(vm) => {
                let what = if vm.vm.vmm.is_some() { "the VM" } else { "the container" };
                Some(vm.refused(WOULD_BE_ADOPTED, format!("this rule would adopt {what}")))
            }
        })
        .collect()
}
