//! A watch whose events are delayed and reordered.

use std::sync::Arc;
use std::sync::Mutex;

use serde_json::value::RawValue;

use super::random::Random;
use crate::apiserver::{Follower, ServerFailure};
use crate::reservations::Version;

/// Delays each event by a random time.
pub(crate) struct DelayedFollower {
    pub(crate) inner: Arc<dyn Follower>,
    pub(crate) random: Mutex<Random>,
    /// Milliseconds at most.
    pub(crate) most: u64,
    pub(crate) listing: Mutex<bool>,
}

impl DelayedFollower {
    fn later(&self, tell: impl FnOnce(&dyn Follower) + Send + 'static) {
        let wait = self.random.lock().unwrap().between(0, self.most);
        let inner = self.inner.clone();
        if *self.listing.lock().unwrap() {
            return tell(&*inner);
        }
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            tell(&*inner);
        });
    }
}

impl Follower for DelayedFollower {
    fn changed(&self, object: &RawValue) {
        let object = object.to_owned();
        self.later(move |inner| inner.changed(&object));
    }

    fn gone(&self, object: &RawValue) {
        let object = object.to_owned();
        self.later(move |inner| inner.gone(&object));
    }

    fn list_begins(&self) {
        *self.listing.lock().unwrap() = true;
        self.inner.list_begins();
    }

    fn list_ends(&self, version: Version, term: u64) {
        *self.listing.lock().unwrap() = false;
        self.inner.list_ends(version, term);
    }

    fn failed(&self, failure: &ServerFailure) {
        self.inner.failed(failure);
    }
}
