//! Whether the file for the cluster's publisher is current: as the daemon says, and by the file itself.

use std::fs::{self, File};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use stelia_api::publication::{DIRECTORY, FILE, LOCK, Publication};

use super::Facts;
use super::checks::{Finding, NO_ANSWER, ok, unknown, warning};

const REMEDY: &str = "journalctl -u steliad, df /run/stelia/publish; the VMs are not affected, and publishers treat the file as outdated";

/// The file, as a publisher finds it.
#[derive(Debug, Clone)]
pub(crate) struct Published {
    pub(crate) publication: Result<Publication, String>,
    /// Whether a daemon says by its lock that the file is true.
    pub(crate) is_locked: bool,
}

impl Published {
    /// Reads it; `root` is `/`.
    pub(super) fn read(root: &Path) -> Self {
        let folder = root.join(DIRECTORY.trim_start_matches('/'));
        let file = folder.join(FILE);
        let read = fs::read(&file).map_err(|cause| cause.to_string());
        let publication = read.and_then(|bytes| Publication::parse(&bytes).map_err(|cause| cause.to_string()));
        let lock = File::open(folder.join(LOCK));
        Self {
            publication: publication.map_err(|cause| format!("{}: {cause}", file.display())),
            is_locked: lock.is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockShared).is_err()),
        }
    }
}

/// Whether it is on, and the file true.
pub(super) fn check(facts: &Facts) -> Finding {
    let Some(publishing) = &facts.publishing else {
        return unknown(NO_ANSWER);
    };
    let Some(profile) = &publishing.profile else {
        return ok("off: this node publishes nothing to the cluster");
    };
    if let Some(problem) = &publishing.problem {
        return warning(problem, REMEDY);
    }
    match &facts.published.publication {
        Err(problem) => warning(problem, REMEDY),
        Ok(_) if !facts.published.is_locked => warning(format!("{DIRECTORY}/{FILE} is not locked by a daemon"), REMEDY),
        Ok(told) => ok(format!(
            "{profile}: {}, {} VMs, {} events",
            told.ready.reason,
            told.pods.len(),
            told.events.len()
        )),
    }
}
