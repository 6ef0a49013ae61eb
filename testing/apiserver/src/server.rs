//! The server: what it holds, and what tests tell it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::counts::{Count, Counts, LoggedRequest};
use crate::faults::{Fault, Faults};
use crate::resources::{self, Resource};
use crate::store::{Key, Store};

/// An API server in memory. A clone is the same server: one is given to the client, another one stays with the test.
#[derive(Clone)]
pub struct Server {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    state: Mutex<State>,
    /// The store's revision; watches wait for it.
    pub(crate) revision: watch::Sender<u64>,
    pub(crate) started: Instant,
}

pub(crate) struct State {
    pub(crate) resources: Vec<Arc<Resource>>,
    pub(crate) store: Store,
    pub(crate) faults: Faults,
    pub(crate) counts: Counts,
    /// One of them must be in a request's header `Authorization`; `None`: no token is asked for.
    pub(crate) tokens: Option<Vec<String>>,
    made: u64,
}

impl State {
    /// Unique in this server, in the form of a UUID.
    pub(crate) fn uid(&mut self) -> String {
        self.made += 1;
        format!("00000000-0000-4000-8000-{:012x}", self.made)
    }
}

impl Default for Server {
    /// Without objects.
    fn default() -> Self {
        Self {
            inner: Arc::new(Inner {
                state: Mutex::new(State {
                    resources: resources::all(),
                    store: Store::default(),
                    faults: Faults::default(),
                    counts: Counts::default(),
                    tokens: None,
                    made: 0,
                }),
                revision: watch::Sender::new(1),
                started: Instant::now(),
            }),
        }
    }
}

impl Server {
    /// Stores an object as it is: what a test begins with. It gets a UID when it has none.
    pub fn put(&self, group: &str, plural: &str, mut object: Value) -> Value {
        let mut state = self.state();
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = state.uid().into();
        }
        let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
        let key = key(group, plural, text("namespace"), text("name"));
        let put = state.store.put(key, object);
        self.tell(&state);
        put
    }

    /// Deletes an object.
    pub fn remove(&self, group: &str, plural: &str, namespace: &str, name: &str) {
        let key = key(group, plural, namespace, name);
        let mut state = self.state();
        state.store.remove(&key);
        self.tell(&state);
    }

    pub fn object(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let key = key(group, plural, namespace, name);
        Some(self.state().store.get(&key)?.value())
    }

    pub fn objects(&self, group: &str, plural: &str) -> Vec<Value> {
        let (id, state) = (resources::id(group, plural), self.state());
        state.store.list(&id, None).map(|(_, stored)| stored.value()).collect()
    }

    pub fn fail(&self, fault: Fault) {
        self.state().faults.waiting.push(fault);
    }

    /// No request is answered for this time: connections close, and open watches end.
    pub fn down(&self, time: Duration) {
        self.state().faults.down_until = Some(Instant::now() + time);
        self.inner.revision.send_modify(|_| {});
    }

    /// Only these tokens are accepted from now on; `None`: no token is asked for.
    pub fn accept(&self, tokens: Option<Vec<String>>) {
        self.state().tokens = tokens;
    }

    /// Drops changes: a watch from an older version gets 410.
    pub fn compact(&self) {
        self.state().store.compact();
    }

    /// What was asked so far, by verb and resource.
    pub fn counts(&self) -> BTreeMap<(&'static str, String), Count> {
        self.state().counts.by.clone()
    }

    /// Returns the requests since the last call and records those to come.
    pub fn asked(&self) -> Vec<LoggedRequest> {
        self.state().counts.recorded.replace(Vec::new()).unwrap_or_default()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn tell(&self, state: &State) {
        self.inner.revision.send_replace(state.store.revision);
    }
}

fn key(group: &str, plural: &str, namespace: &str, name: &str) -> Key {
    Key {
        resource: resources::id(group, plural),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}
