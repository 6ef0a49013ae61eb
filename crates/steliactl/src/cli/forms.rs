//! In which forms (`-o`) each command answers.

use super::Command;
use crate::shared::output::Form;

impl Command {
    /// What is printed when no form is asked for.
    pub(super) fn form(&self) -> Form {
        match self {
            Self::NodeTopology(_) => Form::Yaml,
            _ => Form::Text,
        }
    }

    /// Why there is no answer of this form.
    pub(super) fn refuses(&self, form: Form) -> Option<&'static str> {
        match (self, form) {
            (Self::NodeTopology(_) | Self::Metrics { .. }, _) if !form.is_data() => {
                Some("there is no table of this: -o json or yaml")
            }
            (
                Self::List { .. }
                | Self::Show { .. }
                | Self::Verify { .. }
                | Self::Rebind { .. }
                | Self::Resize { .. }
                | Self::Deregister { .. },
                Form::Name,
            ) => None,
            (Self::Ledger(asked), Form::Name) if asked.is_about_vms() => None,
            (Self::Ledger(asked), _) if asked.is_document() => Some("--html has no other form"),
            (_, Form::Name) => Some(
                "-o name is for list, show, verify, rebind, resize, deregister and ledger, whose answers are about VMs",
            ),
            _ => None,
        }
    }
}
