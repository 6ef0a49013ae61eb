//! What etcd is to the API server: objects, one revision for all, and what changed since a while ago.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use hyper::body::Bytes;
use serde_json::Value;

/// How many changes are kept for watches.
const KEPT_CHANGES: usize = 20_000;

/// Where an object is: the resource as `group/plural`, the namespace (empty: of the cluster) and the name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) resource: Arc<str>,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// An object as text: a tenth of what its values take in memory.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) revision: u64,
    pub(crate) text: Bytes,
}

impl Stored {
    pub(crate) fn value(&self) -> Value {
        serde_json::from_slice(&self.text).unwrap_or_default()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Happened {
    Added,
    Modified,
    Deleted,
}

#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) happened: Happened,
    pub(crate) key: Key,
    pub(crate) now: Stored,
    /// What it was before.
    pub(crate) before: Option<Stored>,
}

#[derive(Debug)]
pub(crate) struct Store {
    objects: BTreeMap<Key, Stored>,
    changes: VecDeque<Change>,
    pub(crate) revision: u64,
    /// Changes up to here are no longer known.
    pub(crate) forgotten: u64,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            changes: VecDeque::new(),
            // 0 means any version, and a new etcd begins at 1.
            revision: 1,
            forgotten: 0,
        }
    }
}

impl Store {
    pub(crate) fn get(&self, key: &Key) -> Option<&Stored> {
        self.objects.get(key)
    }

    /// The objects of one resource, by namespace and name; `None`: of all namespaces.
    pub(crate) fn list<'a>(
        &'a self,
        resource: &'a Arc<str>,
        namespace: Option<&'a str>,
    ) -> impl Iterator<Item = (&'a Key, &'a Stored)> {
        let from = Key {
            resource: resource.clone(),
            namespace: namespace.unwrap_or_default().to_owned(),
            name: String::new(),
        };
        self.objects.range(from..).take_while(move |(key, _)| {
            key.resource == *resource && namespace.is_none_or(|namespace| namespace == key.namespace)
        })
    }

    /// Writes the revision into the object.
    pub(crate) fn put(&mut self, key: Key, mut object: Value) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        let now = self.stored(&object);
        let before = self.objects.insert(key.clone(), now.clone());
        let happened = match before {
            Some(_) => Happened::Modified,
            None => Happened::Added,
        };
        self.remember(Change {
            happened,
            key,
            now,
            before,
        });
        object
    }

    pub(crate) fn remove(&mut self, key: &Key) -> Option<Value> {
        let before = self.objects.remove(key)?;
        self.revision += 1;
        let mut object = before.value();
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        let now = self.stored(&object);
        self.remember(Change {
            happened: Happened::Deleted,
            key: key.clone(),
            now,
            before: Some(before),
        });
        Some(object)
    }

    /// The changes of a resource after a revision. The caller has checked that they are still stored.
    pub(crate) fn since<'a>(&'a self, revision: u64, resource: &'a Arc<str>) -> impl Iterator<Item = &'a Change> {
        let from = self.changes.partition_point(|change| change.now.revision <= revision);
        let later = self.changes.range(from..);
        later.filter(move |change| change.key.resource == *resource)
    }

    /// Drops the changes; open watches have received them or get an error.
    pub(crate) fn compact(&mut self) {
        self.changes.clear();
        self.forgotten = self.revision;
    }

    fn stored(&self, object: &Value) -> Stored {
        Stored {
            revision: self.revision,
            text: Bytes::from(object.to_string()),
        }
    }

    fn remember(&mut self, change: Change) {
        self.changes.push_back(change);
        while self.changes.len() > KEPT_CHANGES {
            if let Some(oldest) = self.changes.pop_front() {
                self.forgotten = oldest.now.revision;
            }
        }
    }
}
