//! The events in the file: numbered, bounded, repetitions counted. Pure.

use std::collections::BTreeMap;

use stelia_publication::{Event, Kind, Pod};

use crate::engine::Incident;

/// So many events of a pod are kept.
const OF_POD: usize = 16;
/// So many are kept of all pods together.
const ALL: usize = 256;
/// The same of the same pod within so many microseconds is a repetition.
const WINDOW: u64 = 600_000_000;
/// The API server takes no longer text of an event (`NoteLengthLimit` in Kubernetes' `pkg/apis/core/validation/events.go`), in bytes.
const LONGEST: usize = 1024;

/// What is to become an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Happened {
    pub(super) uid: String,
    namespace: String,
    name: String,
    pub(super) kind: Kind,
    pub(super) reason: String,
    message: String,
    time_us: u64,
    count: u32,
}

impl Happened {
    /// The pod came to be as it is.
    pub(super) fn to(pod: &Pod, kind: Kind, time_us: u64) -> Self {
        Self {
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

    pub(super) fn incident(uid: &str, incident: Incident) -> Self {
        Self {
            uid: uid.to_owned(),
            namespace: incident.name.namespace().to_owned(),
            name: incident.name.name().to_owned(),
            kind: Kind::Warning,
            reason: incident.reason.to_owned(),
            message: incident.message,
            time_us: incident.time_us,
            count: incident.count,
        }
    }

    fn is_same(&self, event: &Event) -> bool {
        (&self.uid, &self.reason, &self.message) == (&event.uid, &event.reason, &event.message)
    }
}

#[derive(Debug)]
pub(super) struct Log {
    next: u64,
    /// By number.
    events: Vec<Event>,
}

impl Log {
    /// Go on after `former`. `floor` is above every number that was given in this boot, whatever became of the file.
    pub(super) fn after(former: Vec<Event>, floor: u64) -> Self {
        let last = former.iter().map(|event| event.number.saturating_add(1)).max();
        Self {
            next: last.unwrap_or_default().max(floor),
            events: former,
        }
    }

    pub(super) fn note(&mut self, happened: Happened) {
        let mut happened = happened;
        shorten(&mut happened.message);
        let known = self.events.iter_mut().rev().find(|event| happened.is_same(event));
        // A clock that was set back makes no event of a repetition.
        if let Some(event) = known.filter(|event| happened.time_us.saturating_sub(event.time_us) < WINDOW) {
            event.time_us = happened.time_us;
            event.count = event.count.saturating_add(happened.count);
            return;
        }
        let number = self.next;
        self.next = number.saturating_add(1);
        self.events.push(Event {
            number,
            uid: happened.uid,
            namespace: happened.namespace,
            name: happened.name,
            kind: happened.kind,
            reason: happened.reason,
            message: happened.message,
            time_us: happened.time_us,
            count: happened.count,
        });
        self.forget();
    }

    pub(super) fn events(&self) -> &[Event] {
        &self.events
    }

    /// What is too much goes: the oldest of the pod that has most, so that nobody's push out another's. One was added since the last time.
    fn forget(&mut self) {
        let Some(newest) = self.events.last() else { return };
        let is_own = |event: &Event| event.uid == newest.uid;
        let oldest = if self.events.iter().filter(|event| is_own(event)).count() > OF_POD {
            self.events.iter().position(is_own)
        } else if self.events.len() > ALL {
            self.oldest_of_most()
        } else {
            None
        };
        if let Some(oldest) = oldest {
            self.events.remove(oldest);
        }
    }

    fn oldest_of_most(&self) -> Option<usize> {
        let mut of: BTreeMap<&str, usize> = BTreeMap::new();
        for event in &self.events {
            *of.entry(&event.uid).or_default() += 1;
        }
        let most = of.values().copied().max();
        self.events
            .iter()
            .position(|event| of.get(event.uid.as_str()).copied() == most)
    }
}

fn shorten(text: &mut String) {
    if text.len() > LONGEST {
        let whole = (0..=LONGEST - '…'.len_utf8())
            .rev()
            .find(|at| text.is_char_boundary(*at));
        text.truncate(whole.unwrap_or_default());
        text.push('…');
    }
}

#[cfg(test)]
mod tests;
