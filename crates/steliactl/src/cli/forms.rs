//! In which forms (`-o`) each command answers.

use super::{Command, Export};
use crate::shared::output::Form;

impl Command {
    /// What is printed when no form is asked for.
    pub(super) fn form(&self) -> Form {
        match self {
            Self::Export(Export::Topology(_)) => Form::Yaml,
            _ => Form::Text,
        }
    }

    /// Why there is no answer of this form.
    pub(super) fn refuses(&self, form: Form) -> Option<&'static str> {
        let names_vms = match self {
            Self::Export(Export::Metrics { .. }) => return Some("metrics have no other form"),
            Self::Export(_) if !form.is_data() => return Some("the object has no table: use -o json or yaml"),
            Self::Ledger(asked) if asked.is_document() && form != Form::Name => {
                return Some("--html has no other form");
            }
            Self::Ledger(asked) => asked.is_about_vms(),
            Self::List { .. } | Self::Show { .. } | Self::Verify { .. } => true,
            Self::Rebalance { .. } | Self::Resize { .. } | Self::Release { .. } => true,
            _ => false,
        };
        (form == Form::Name && !names_vms)
            .then_some("-o name is for list, show, verify, ledger, rebalance, resize and release")
    }
}
