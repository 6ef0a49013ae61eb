//! What is known of the daemon at one moment.

use std::sync::Arc;

use stelia_api::publication::Publication;

/// What a publisher is given: the file's content, and whether the daemon that wrote it lives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reading {
    /// The last content that could be used.
    pub publication: Option<Arc<Publication>>,
    /// The daemon holds its lock.
    pub daemon_lives: bool,
    /// Why the file as it is now is not used: missing, cut off, of a newer version.
    pub problem: Option<String>,
}

impl Reading {
    /// What a daemon that lives wrote.
    pub fn of(publication: Publication) -> Self {
        Self {
            publication: Some(Arc::new(publication)),
            daemon_lives: true,
            problem: None,
        }
    }
}
