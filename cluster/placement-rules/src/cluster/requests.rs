//! The requests that answers are stored for, each once.

use std::collections::HashMap;
use std::sync::Arc;

use crate::request::{Request, SharedRequest};

/// Limit of the requests in the cache: each has a cell in every state. A new one replaces the least recently used one.
pub const MAX_REQUESTS: usize = 1024;

#[derive(Debug)]
struct Entry {
    request: SharedRequest,
    key: Arc<str>,
    used: u64,
}

#[derive(Debug, Default)]
pub(super) struct Requests {
    by_content: HashMap<Arc<str>, usize>,
    /// Where each request is in `entries`, and its answers in a state's cells.
    places: HashMap<SharedRequest, usize>,
    entries: Vec<Entry>,
    clock: u64,
}

impl Requests {
    /// The request, stored once, and the place that it took from another one, whose answers are still there.
    pub(super) fn enter(&mut self, request: Request) -> (SharedRequest, Option<usize>) {
        // All fields, in their order.
        let key: Arc<str> = format!("{request:?}").into();
        let known = self.by_content.get(&key).and_then(|place| self.entries.get(*place));
        if let Some(request) = known.map(|entry| entry.request.clone()) {
            self.place(&request);
            return (request, None);
        }
        self.clock += 1;
        let request = SharedRequest::new(request);
        let entry = Entry {
            request: request.clone(),
            key: Arc::clone(&key),
            used: self.clock,
        };
        let is_full = self.entries.len() >= MAX_REQUESTS;
        let oldest = self.entries.iter_mut().enumerate().filter(|_| is_full);
        let oldest = oldest.min_by_key(|(_, entry)| entry.used);
        let (place, taken) = match oldest {
            Some((place, old)) => {
                self.by_content.remove(&old.key);
                self.places.remove(&old.request);
                *old = entry;
                (place, Some(place))
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1, None)
            }
        };
        self.by_content.insert(key, place);
        self.places.insert(request.clone(), place);
        (request, taken)
    }

    /// Where the answers to the request are; `None` if it gave way to others. Counts as a use.
    pub(super) fn place(&mut self, request: &SharedRequest) -> Option<usize> {
        self.clock += 1;
        let place = *self.places.get(request)?;
        self.entries.get_mut(place)?.used = self.clock;
        Some(place)
    }
}
