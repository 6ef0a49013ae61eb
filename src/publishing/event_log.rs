//! The events in the file: numbered, bounded, repetitions counted. Pure.

use std::collections::BTreeMap;

use stelia_api::publication::{Event, EventKind, PublishedPod};

use crate::engine::Incident;

/// Events that are kept of one pod.
const MAX_EVENTS_PER_POD: usize = 16;
/// Events that are kept of all pods together.
const MAX_EVENTS: usize = 256;
/// An event that is equal to one of the same pod within this time counts as a repetition. Microseconds.
const REPETITION_WINDOW_US: u64 = 600_000_000;
/// The longest text of an event that the API server takes, in bytes (`NoteLengthLimit` in Kubernetes' `pkg/apis/core/validation/events.go`).
const MAX_MESSAGE_BYTES: usize = 1024;

/// The pod changed to its present state.
pub(super) fn from_change(pod: &PublishedPod, kind: EventKind, time_us: u64) -> Event {
    Event {
        number: 0,
        uid: pod.uid.clone(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        kind,
        reason: pod.reason.clone(),
        message: pod.message.clone(),
        time_us,
        count: 1,
    }
}

pub(super) fn from_incident(uid: &str, incident: Incident) -> Event {
    Event {
        number: 0,
        uid: uid.to_owned(),
        namespace: incident.name.namespace().to_owned(),
        name: incident.name.name().to_owned(),
        kind: EventKind::Warning,
        reason: incident.reason.to_owned(),
        message: incident.message,
        time_us: incident.time_us,
        count: incident.count,
    }
}

/// The events that are kept.
#[derive(Debug)]
pub(super) struct EventLog {
    next: u64,
    /// In the order of their numbers.
    events: Vec<Event>,
}

impl EventLog {
    /// A log that continues `former`. `floor` is above every number that was given in this boot, also where the file was lost.
    pub(super) fn after(former: Vec<Event>, floor: u64) -> Self {
        let last = former.iter().map(|event| event.number.saturating_add(1)).max();
        Self {
            next: last.unwrap_or_default().max(floor),
            events: former,
        }
    }

    /// Add the event under the next number, or count it as a repetition.
    pub(super) fn note(&mut self, mut event: Event) {
        shorten(&mut event.message);
        let is_same = |other: &&mut Event| {
            (&event.uid, &event.reason, &event.message) == (&other.uid, &other.reason, &other.message)
        };
        let known = self.events.iter_mut().rev().find(is_same);
        // Where the clock was set back a repetition stays one.
        if let Some(known) = known.filter(|known| event.time_us.saturating_sub(known.time_us) < REPETITION_WINDOW_US) {
            known.time_us = event.time_us;
            known.count = known.count.saturating_add(event.count);
            return;
        }
        event.number = self.next;
        self.next = self.next.saturating_add(1);
        self.events.push(event);
        self.remove_superfluous();
    }

    pub(super) fn events(&self) -> &[Event] {
        &self.events
    }

    /// Remove one event where there are too many, after one was added: the oldest of the pod that has most, so that no pod's events push
    /// out another's.
    fn remove_superfluous(&mut self) {
        let Some(newest) = self.events.last() else { return };
        let is_own = |event: &Event| event.uid == newest.uid;
        let oldest = if self.events.iter().filter(|event| is_own(event)).count() > MAX_EVENTS_PER_POD {
            self.events.iter().position(is_own)
        } else if self.events.len() > MAX_EVENTS {
            self.oldest_of_most()
        } else {
            None
        };
        if let Some(oldest) = oldest {
            self.events.remove(oldest);
        }
    }

    fn oldest_of_most(&self) -> Option<usize> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for event in &self.events {
            *counts.entry(&event.uid).or_default() += 1;
        }
        let most = counts.values().copied().max();
        self.events
            .iter()
            .position(|event| counts.get(event.uid.as_str()).copied() == most)
    }
}

fn shorten(text: &mut String) {
    if text.len() > MAX_MESSAGE_BYTES {
        let whole = (0..=MAX_MESSAGE_BYTES - '…'.len_utf8())
            .rev()
            .find(|at| text.is_char_boundary(*at));
        text.truncate(whole.unwrap_or_default());
        text.push('…');
    }
}

#[cfg(test)]
mod tests;
