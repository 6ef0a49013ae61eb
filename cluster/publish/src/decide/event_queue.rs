//! The pods' events: which are still to be posted, and when. The API server merges nothing: an event posted twice would be there twice,
//! so each has a name of its own, and one that is there already is done.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use stelia_api::publication::{Event, Publication};
use stelia_cpus::rate::RateLimit;

use crate::answer::{ApiFailure, FailureKind};
use crate::backoff::{Random, RetryPause};
use crate::decide::pods::is_name;
use crate::intervals::MAX_EVENT_AGE;
use crate::options::MAX_QUEUED_EVENTS;

/// Requests for the events of one pod at once, and one more in [`EVENT_REFILL_INTERVAL`]: as client-go's recorder limits those of one object.
const EVENT_BURST: u32 = 25;
const EVENT_REFILL_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// The pause between two requests for one event: a repetition is sent within this time.
const REPETITION_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
struct Waiting {
    event: Event,
    /// It exists; its count is to be updated.
    is_posted: bool,
    not_before: Duration,
}

/// What was sent of an event that the publication still has.
#[derive(Debug, Clone, Copy)]
struct SentEvent {
    count: u32,
    at: Duration,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Events {
    started: bool,
    waiting: VecDeque<Waiting>,
    sent: BTreeMap<u64, SentEvent>,
    buckets: BTreeMap<String, RateLimit>,
    rest: RetryPause,
    /// Never posted: there was no room any more, or the API server refused them.
    pub(crate) dropped: u64,
    pub(crate) posted: u64,
}

impl Events {
    /// `started_us` is the wall clock at the publisher's start.
    pub(crate) fn take(&mut self, publication: &Publication, started_us: u64, now: Duration) {
        let oldest = started_us.saturating_sub(MAX_EVENT_AGE.as_micros() as u64);
        let first = !std::mem::replace(&mut self.started, true);
        self.sent
            .retain(|number, _| publication.events.iter().any(|event| event.number == *number));
        self.buckets.retain(|_, bucket| !bucket.is_full(now));
        for event in &publication.events {
            let sent = self.sent.get(&event.number).copied();
            if sent.is_some_and(|sent| sent.count >= event.count) {
                continue;
            }
            let named = is_name(&event.namespace) && is_name(&event.name);
            if !named || first && event.time_us < oldest {
                let count = event.count;
                self.sent.insert(event.number, SentEvent { count, at: now });
                continue;
            }
            let mut waiting = self.waiting.iter_mut();
            if let Some(waiting) = waiting.find(|waiting| waiting.event.number == event.number) {
                waiting.event = event.clone();
                continue;
            }
            self.waiting.push_back(Waiting {
                event: event.clone(),
                is_posted: sent.is_some(),
                not_before: sent.map_or(Duration::ZERO, |sent| sent.at + REPETITION_INTERVAL),
            });
        }
        while self.waiting.len() > MAX_QUEUED_EVENTS {
            if let Some(oldest) = self.waiting.front() {
                self.remove(oldest.event.number, now);
                self.dropped += 1;
            }
        }
    }

    /// The number of the event that is posted next, or whose count is updated, and when.
    pub(crate) fn due(&self) -> Option<(Duration, u64)> {
        let due = self.waiting.iter().map(|waiting| {
            let bucket = self.buckets.get(&waiting.event.uid);
            let allowed = bucket.map_or(Duration::ZERO, RateLimit::ready_at);
            (allowed.max(waiting.not_before), waiting.event.number)
        });
        let (at, number) = due.min_by_key(|(at, _)| *at)?;
        Some((at.max(self.rest.until()), number))
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn find(&self, number: u64) -> Option<&Waiting> {
        self.waiting.iter().find(|waiting| waiting.event.number == number)
    }

    /// The event, and whether it exists, so that its count is to be updated.
    pub(crate) fn event(&self, number: u64) -> Option<(&Event, bool)> {
        let waiting = self.find(number)?;
        Some((&waiting.event, waiting.is_posted))
    }

    pub(crate) fn sent(&mut self, number: u64, now: Duration) {
        if let Some(uid) = self.find(number).map(|waiting| waiting.event.uid.clone()) {
            let full = || RateLimit::new(EVENT_BURST, EVENT_REFILL_INTERVAL);
            self.buckets.entry(uid).or_insert_with(full).take(now);
        }
    }

    /// It waits no more, and nothing more is sent about it until it happens again.
    fn remove(&mut self, number: u64, now: Duration) {
        if let Some(count) = self.find(number).map(|waiting| waiting.event.count) {
            self.waiting.retain(|waiting| waiting.event.number != number);
            self.sent.insert(number, SentEvent { count, at: now });
        }
    }

    pub(crate) fn succeeded(&mut self, number: u64, now: Duration) {
        self.rest.succeeded();
        self.posted += u64::from(self.find(number).is_some());
        self.remove(number, now);
    }

    /// Returns what is to be said, if anything.
    pub(crate) fn failed(
        &mut self,
        number: u64,
        failure: &ApiFailure,
        now: Duration,
        random: &mut Random,
    ) -> Option<String> {
        let event = self.find(number)?.event.clone();
        let said = format!(
            "event {} of pod {}/{}: {}",
            event.reason, event.namespace, event.name, failure.text
        );
        match failure.kind {
            FailureKind::Exists => {
                // Posted before this publisher started. How often it had happened then is not known.
                self.rest.succeeded();
                let mut waiting = self.waiting.iter_mut();
                match waiting.find(|waiting| waiting.event.number == number) {
                    Some(waiting) if event.count > 1 => waiting.is_posted = true,
                    _ => self.succeeded(number, now),
                }
                return None;
            }
            // The namespace is gone, or the event has expired.
            FailureKind::Missing | FailureKind::Ending => {
                self.remove(number, now);
                return None;
            }
            FailureKind::Refused | FailureKind::Conflict(_) | FailureKind::Stale => {
                self.remove(number, now);
                self.dropped += 1;
            }
            _ => self.rest.failed(now, failure, random),
        }
        Some(said)
    }
}
