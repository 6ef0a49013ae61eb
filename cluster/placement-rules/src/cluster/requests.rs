//! The requests that answers are stored for, each once.

use std::collections::HashMap;
use std::sync::Arc;

use crate::request::{Request, SharedRequest};

/// Limit of the requests in the cache: each has a cell in every state. A new one replaces the least recently used one.
pub const MAX_REQUESTS: usize = 1024;

/// A request's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId {
    pub(super) place: u16,
    /// How often the place was given to another request before.
    turn: u32,
}

#[derive(Debug)]
struct Entry {
    request: SharedRequest,
    key: Arc<str>,
    turn: u32,
    used: u64,
}

#[derive(Debug, Default)]
pub(super) struct Requests {
    places: HashMap<Arc<str>, u16>,
    entries: Vec<Entry>,
    clock: u64,
}

impl Requests {
    /// The request's id, and whether its cells still have the answers to another request.
    pub(super) fn enter(&mut self, request: Request) -> (RequestId, bool) {
        self.clock += 1;
        // All fields, in their order.
        let key: Arc<str> = format!("{request:?}").into();
        if let Some(place) = self.places.get(&key)
            && let Some(entry) = self.entries.get_mut(usize::from(*place))
        {
            entry.used = self.clock;
            let id = RequestId {
                place: *place,
                turn: entry.turn,
            };
            return (id, false);
        }
        let mut entry = Entry {
            request: SharedRequest::new(request),
            key: Arc::clone(&key),
            turn: 0,
            used: self.clock,
        };
        let is_full = self.entries.len() >= MAX_REQUESTS;
        let oldest = self.entries.iter().enumerate().min_by_key(|(_, entry)| entry.used);
        let oldest = oldest.map(|(place, _)| place).filter(|_| is_full);
        let place = oldest.unwrap_or(self.entries.len());
        if let Some(old) = self.entries.get(place) {
            self.places.remove(&old.key);
            entry.turn = old.turn.wrapping_add(1);
        }
        let turn = entry.turn;
        match self.entries.get_mut(place) {
            Some(old) => *old = entry,
            None => self.entries.push(entry),
        }
        let place = u16::try_from(place).unwrap_or(u16::MAX);
        self.places.insert(key, place);
        (RequestId { place, turn }, oldest.is_some())
    }

    /// `None` if another request has its place. Counts as a use.
    pub(super) fn shared(&mut self, id: RequestId) -> Option<SharedRequest> {
        self.clock += 1;
        let entry = self
            .entries
            .get_mut(usize::from(id.place))
            .filter(|entry| entry.turn == id.turn)?;
        entry.used = self.clock;
        Some(entry.request.clone())
    }

    pub(super) fn peek(&self, id: RequestId) -> Option<SharedRequest> {
        let entry = self
            .entries
            .get(usize::from(id.place))
            .filter(|entry| entry.turn == id.turn)?;
        Some(entry.request.clone())
    }
}
