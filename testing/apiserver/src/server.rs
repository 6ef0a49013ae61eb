//! The server: what it holds, and what tests tell it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::counts::{Count, Counts, LoggedRequest};
use crate::faults::{Fault, Faults};
use crate::resources::{self, Resource};
use crate::store::{Key, Store};

/// What a CustomResourceDefinition cannot be.
#[derive(Debug)]
pub struct DefinitionError(String);

impl DefinitionError {
    pub(crate) fn new(why: &str) -> Self {
        Self(why.to_owned())
    }
}

impl std::fmt::Display for DefinitionError {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "CustomResourceDefinition: {}", self.0)
    }
}

impl std::error::Error for DefinitionError {}

/// An API server in memory. A clone is the same server: one is given to the client, another one stays with the test.
#[derive(Clone)]
pub struct Server {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    state: Mutex<State>,
    /// The store's revision; watches wait for it.
    pub(crate) revision: watch::Sender<u64>,
    started: Instant,
    epoch: Timestamp,
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

    pub(crate) fn define(&mut self, definition: &Value) -> Result<(), String> {
        let resource = Resource::custom(definition)?;
        self.resources.retain(|known| known.id != resource.id);
        self.resources.push(Arc::new(resource));
        Ok(())
    }
}

impl Server {
    /// With nodes, pods, namespaces, events, leases and definitions of custom resources, and no objects.
    ///
    /// # Errors
    /// None of this program's own schemas has one.
    pub fn new() -> Result<Self, DefinitionError> {
        let built_in = resources::built_in().map_err(DefinitionError)?;
        Ok(Self {
            inner: Arc::new(Inner {
                state: Mutex::new(State {
                    resources: built_in.into_iter().map(Arc::new).collect(),
                    store: Store::default(),
                    faults: Faults::default(),
                    counts: Counts::default(),
                    tokens: None,
                    made: 0,
                }),
                revision: watch::Sender::new(1),
                started: Instant::now(),
                epoch: epoch(),
            }),
        })
    }

    /// A custom resource from now on.
    ///
    /// # Errors
    /// Members of a CustomResourceDefinition are missing, or its schema cannot be read.
    pub fn define(&self, definition: &Value) -> Result<(), DefinitionError> {
        self.state().define(definition).map_err(DefinitionError)
    }

    /// Takes a resource away: its paths are not found any more. Its objects stay, as they do when a server lags behind.
    pub fn undefine(&self, group: &str, plural: &str) {
        let id = resources::id(group, plural);
        self.state().resources.retain(|known| known.id != id);
    }

    /// Stores an object as it is, whoever may own its fields: what a test begins with. It gets a UID when it has none.
    pub fn put(&self, group: &str, plural: &str, mut object: Value) -> Value {
        let mut state = self.state();
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = state.uid().into();
        }
        let put = state.store.put(key(group, plural, &object), object);
        self.tell(&state);
        put
    }

    /// Deletes an object at once, whoever may wait for it.
    pub fn remove(&self, group: &str, plural: &str, namespace: &str, name: &str) {
        let key = Key {
            resource: resources::id(group, plural),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let mut state = self.state();
        state.store.remove(&key);
        self.tell(&state);
    }

    pub fn object(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let key = Key {
            resource: resources::id(group, plural),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        Some(self.state().store.get(&key)?.value())
    }

    pub fn objects(&self, group: &str, plural: &str) -> Vec<Value> {
        let id = resources::id(group, plural);
        self.state()
            .store
            .list(&id, None)
            .map(|(_, stored)| stored.value())
            .collect()
    }

    /// What `metadata.resourceVersion` of a list would be now.
    pub fn last_version(&self) -> u64 {
        self.state().store.revision
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

    /// How many changes are remembered for watches; 20,000 otherwise.
    pub fn remember(&self, changes: usize) {
        self.state().store.kept = changes;
    }

    /// What was asked so far, by verb and resource.
    pub fn counts(&self) -> BTreeMap<(&'static str, String), Count> {
        self.state().counts.by.clone()
    }

    /// Every request so far, with and without an answer.
    pub fn requests(&self) -> u64 {
        self.state().counts.by.values().map(|count| count.requests).sum()
    }

    /// Returns the requests since the last call and records those to come.
    pub fn asked(&self) -> Vec<LoggedRequest> {
        self.state().counts.recorded.replace(Vec::new()).unwrap_or_default()
    }

    /// Since the server was made, by tokio's clock.
    pub fn age(&self) -> Duration {
        self.inner.started.elapsed()
    }

    /// By tokio's clock, in the API's form.
    pub(crate) fn now(&self) -> String {
        let age = i64::try_from(self.age().as_secs()).unwrap_or(i64::MAX);
        let now = Timestamp::from_second(self.inner.epoch.as_second().saturating_add(age));
        now.unwrap_or(Timestamp::MAX).to_string()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn tell(&self, state: &State) {
        self.inner.revision.send_replace(state.store.revision);
    }
}

fn epoch() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or_default();
    Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn key(group: &str, plural: &str, object: &Value) -> Key {
    let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
    Key {
        resource: resources::id(group, plural),
        namespace: text("namespace"),
        name: text("name"),
    }
}
