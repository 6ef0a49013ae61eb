//! `io.stelia.Isolation1.Job`: a rebind job. On the system bus only. The contract is `dbus-interfaces/`.

use std::sync::{Arc, PoisonError, RwLock};

use stelia_api::MANAGER_PATH;
use stelia_api::client::MoveRow;
use stelia_model as model;
use zbus::interface;

use super::properties_changed::Property;

pub(super) struct Job {
    /// The job last exported; the exporter replaces it.
    pub(super) shown: Arc<RwLock<model::Job>>,
}

pub(super) fn job_path(id: u32) -> String {
    format!("{MANAGER_PATH}/job/{id}")
}

pub(super) fn rows(moves: &[model::JobMove]) -> Vec<MoveRow> {
    let row = |made: &model::JobMove| {
        let (from, to) = (made.from.to_string(), made.to.to_string());
        (made.pod.clone(), from, to, made.gain.clone())
    };
    moves.iter().map(row).collect()
}

impl Job {
    fn show<T>(&self, of: impl FnOnce(&model::Job) -> T) -> T {
        of(&self.shown.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The properties that may change, with the values that the getters below return.
pub(super) const PROPERTIES: [Property<model::Job>; 4] = [
    ("Phase", |job| job.phase.name().into()),
    ("Reason", |job| job.reason.as_str().into()),
    ("Moves", |job| rows(&job.moves).into()),
    ("EndedTimestamp", |job| job.ended_us.into()),
];

#[interface(name = "io.stelia.Isolation1.Job")]
impl Job {
    #[zbus(property(emits_changed_signal = "const"))]
    fn id(&self) -> u32 {
        self.show(|job| job.id)
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn scope(&self) -> String {
        self.show(|job| job.scope.clone())
    }

    #[zbus(property)]
    fn phase(&self) -> String {
        self.show(|job| job.phase.to_string())
    }

    #[zbus(property)]
    fn reason(&self) -> String {
        self.show(|job| job.reason.clone())
    }

    #[zbus(property)]
    fn moves(&self) -> Vec<MoveRow> {
        self.show(|job| rows(&job.moves))
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn began_timestamp(&self) -> u64 {
        self.show(|job| job.began_us)
    }

    #[zbus(property)]
    fn ended_timestamp(&self) -> u64 {
        self.show(|job| job.ended_us)
    }
}
