//! Where the cgroups of a new instance are made: in a scope, or in the container's own cgroup where its OCI runtime copes with
//! that.

use std::collections::BTreeMap;

use stelia_kubelet::{ContainerCgroup, PodUid};
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
    /// The container's runtime is to be tried before, by this unit.
    Untried(String),
}

/// Trials of runtimes that ended since, by the pod they were for.
#[derive(Debug, Default)]
pub(super) struct Homes {
    tried: BTreeMap<PodUid, Option<String>>,
}

impl Homes {
    /// A trial ended, with the reason where it failed.
    pub(super) fn tried(&mut self, pod: &PodUid, failure: Option<String>) {
        self.tried.insert(pod.clone(), failure);
    }

    /// Where the instance of a container with this record is to be made, by what is wanted.
    pub(super) fn choose(
        &mut self,
        system: &System,
        snapshot: &Snapshot,
        policies: &Policies,
        wanted: TreeHome,
        record: &Record,
    ) -> Home {
        let tried = self.tried.remove(&record.pod);
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
        match (coping(system.root(), &system.run, &id), tried) {
            (Coping::Copes, _) => Home::InPlace,
            (Coping::No(reason), _) => Home::Slice(Some(reason)),
            (Coping::Untried(runtime), Some(failure)) => {
                let failure = failure.unwrap_or_else(|| "no verdict was written".to_owned());
                let binary = runtime.binary.display();
                Home::Slice(Some(format!(
                    "whether {binary} copes with it could not be tried: {failure}"
                )))
            }
            (Coping::Untried(_), None) => Home::Untried(format!("steliad-try-runtime@{id}.service")),
        }
    }
}
