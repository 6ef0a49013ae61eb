//! Where the cgroups of a new instance are made: in a scope, or in the container's own cgroup where its OCI runtime copes with
//! that.

use stelia_kubelet::ContainerCgroup;
use stelia_node::System;
use stelia_node::oci::{Identity, Verdict, runtime_of, verdict_file};
use stelia_record::Record;
use stelia_settings::{Policies, TreeHome};

use crate::decide::{self, Snapshot};

/// Where a container's instance is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Home {
    InPlace,
    /// With the reason, where it was to be in place.
    Slice(Option<String>),
    /// The container's runtime is to be tried before, by this unit.
    Untried(String),
}

/// A trial of a runtime that ended, with the reason where it failed.
pub(super) type Trial = Result<(), String>;

impl Home {
    /// Where the instance of a container with this record is to be made, by what is wanted. `trial`: the one that this
    /// registration has waited for.
    pub(super) fn choose(
        system: &System,
        snapshot: &Snapshot,
        policies: &Policies,
        wanted: TreeHome,
        record: &Record,
        trial: Option<&Trial>,
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
        let Some(runtime) = runtime_of(system.root(), &id) else {
            return Home::Slice(Some(
                "its OCI runtime is neither runc nor crun of containerd or CRI-O".to_owned(),
            ));
        };
        let binary = runtime.binary.display();
        let file = system
            .root()
            .join(runtime.binary.strip_prefix("/").unwrap_or(&runtime.binary));
        let identity = match Identity::of(&file) {
            Ok(identity) => identity,
            Err(cause) => return Home::Slice(Some(format!("look at {binary}: {cause}"))),
        };
        let verdict = std::fs::read_to_string(verdict_file(&system.run, &runtime)).ok();
        let verdict = verdict.and_then(|text| Verdict::parse(&text));
        match (verdict.filter(|verdict| verdict.is_of(&runtime, identity)), trial) {
            (Some(verdict), _) if verdict.copes => Home::InPlace,
            (Some(verdict), _) => Home::Slice(Some(format!(
                "{binary} does not cope with threaded cgroups in a container: {}",
                verdict.words
            ))),
            (None, Some(trial)) => {
                let failure = trial.as_ref().err().map_or("no verdict was written", String::as_str);
                Home::Slice(Some(format!(
                    "whether {binary} copes with it could not be tried: {failure}"
                )))
            }
            (None, None) => Home::Untried(format!("steliad-try-runtime@{id}.service")),
        }
    }
}
