//! Where the cgroups of a new instance are made: in a scope, or in the container's own cgroup where its OCI runtime copes with
//! that.

use stelia_kubelet::ContainerCgroup;
use stelia_node::System;
use stelia_node::oci::{Coping, coping};
use stelia_record::Record;
use stelia_settings::{Policies, TreeHome};

use crate::decide::{self, Snapshot};

/// Where a container's instance is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Home {
    InPlace,
    /// With the reason, where it was to be in place.
    Slice(Option<String>),
    /// The container's runtime must be checked before, by this unit.
    Untried(String),
}

/// A check of a runtime that ended, with the reason where it failed.
pub(super) type RuntimeCheck = Result<(), String>;

impl Home {
    /// Where the instance of a container with this record is made. `wanted`: by the settings or the rule. `check`: the runtime's, for which
    /// this registration has waited.
    pub(super) fn choose(
        system: &System,
        snapshot: &Snapshot,
        policies: &Policies,
        wanted: TreeHome,
        record: &Record,
        check: Option<&RuntimeCheck>,
    ) -> Self {
        if wanted == TreeHome::Slice {
            return Home::Slice(None);
        }
        if let Err(reason) = decide::in_place(snapshot, policies, record) {
            return Home::Slice(Some(reason));
        }
        let Some(container) = ContainerCgroup::parse(record.origin.as_str()) else {
            return Home::Slice(Some(format!("{} is no container's cgroup", record.origin)));
        };
        let id = container.container_id;
        match (coping(system.root(), &system.run, &id), check) {
            (Coping::Copes, _) => Home::InPlace,
            (Coping::No(reason), _) => Home::Slice(Some(reason)),
            (Coping::Untried(runtime), Some(check)) => {
                let failure = check.as_ref().err().map_or("no verdict was written", String::as_str);
                let binary = runtime.binary.display();
                Home::Slice(Some(format!(
                    "whether {binary} copes with it could not be tried: {failure}"
                )))
            }
            (Coping::Untried(_), None) => Home::Untried(format!("steliad-try-runtime@{id}.service")),
        }
    }
}
