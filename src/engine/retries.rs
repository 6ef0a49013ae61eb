//! How often something is tried in a row, and how long it then rests: each instance by itself, and each step that all
//! instances share by its subject.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use stelia_cpus::CpuSet;
use stelia_cpus::rate::Backoff;
use stelia_kubelet::PodUid;

/// Turns in a row with steps. If steps remain after that, the instance or subject rests.
const MAX_TURNS: u32 = 8;
/// Turns that removed a part of many cgroups, which count as one turn: a container may have made 100,000.
const PARTIAL_TURNS_PER_TURN: u32 = 16;
/// How long the rests are.
const REST: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(32));

/// How the attempts for one instance or subject went.
#[derive(Debug, Clone, Default)]
struct Attempts {
    /// Turns in a row with something to do.
    turns: u32,
    /// Turns that removed a part of many cgroups.
    parts: u32,
    /// Rests in a row.
    rests: u32,
    /// When the rest ends; `None` while it does not rest.
    until: Option<Instant>,
    /// The CPUs that float was to have when the rest was ended early for that.
    woken_for: Option<CpuSet>,
    /// What failed in the last turn.
    failures: Vec<String>,
}

/// By what one knows that attempts make no progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoProgress {
    /// Steps failed in the last turn.
    Failed,
    /// The attempts rest.
    Rests,
}

impl Attempts {
    fn shows(&self, sign: NoProgress) -> bool {
        match sign {
            NoProgress::Failed => !self.failures.is_empty(),
            NoProgress::Rests => self.until.is_some(),
        }
    }
}

/// The attempts of everything for which steps remain, with the rests between them.
#[derive(Debug)]
pub(super) struct RetryTable<K>(BTreeMap<K, Attempts>);

impl<K> Default for RetryTable<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Clone> RetryTable<K> {
    /// Forget `who`: no step remains for it, or it is gone.
    pub(super) fn done(&mut self, who: &K) {
        self.0.remove(who);
    }

    /// A turn was run with `steps` steps, of which some failed.
    pub(super) fn tried(&mut self, who: &K, steps: usize, failures: Vec<String>, now: Instant) {
        let attempts = self.0.entry(who.clone()).or_default();
        attempts.turns += 1;
        let progressed = failures.len() < steps;
        let text = format!("{steps} steps are still to take after {MAX_TURNS} turns");
        let endless = attempts.turns >= MAX_TURNS;
        attempts.failures = failures;
        if endless && attempts.failures.is_empty() {
            attempts.failures.push(text);
        }
        if endless || !progressed {
            attempts.until = Some(now + REST.pause(attempts.rests));
            attempts.rests = attempts.rests.saturating_add(1);
            attempts.turns = 0;
        }
    }

    /// A turn was run that removed as many cgroups as one may. Only many of them count as one of the turns in a row.
    pub(super) fn tried_partly(&mut self, who: &K, steps: usize, now: Instant) {
        let attempts = self.0.entry(who.clone()).or_default();
        attempts.parts += 1;
        if attempts.parts.is_multiple_of(PARTIAL_TURNS_PER_TURN) {
            self.tried(who, steps, Vec::new(), now);
        }
    }

    /// End its rest, because kubelet wrote or a call is about it.
    pub(super) fn wake(&mut self, who: &K) {
        if let Some(attempts) = self.0.get_mut(who) {
            attempts.until = None;
            attempts.turns = 0;
        }
    }

    /// End its rest because float is to have these CPUs, once for the same CPUs: if float does not get them, the rest that follows is whole.
    pub(super) fn wake_for(&mut self, who: &K, float: CpuSet) {
        if let Some(attempts) = self
            .0
            .get_mut(who)
            .filter(|attempts| attempts.woken_for.as_ref() != Some(&float))
        {
            attempts.until = None;
            attempts.turns = 0;
            attempts.woken_for = Some(float);
        }
    }

    /// End every rest.
    pub(super) fn wake_all(&mut self) {
        for attempts in self.0.values_mut() {
            attempts.until = None;
            attempts.turns = 0;
        }
    }

    pub(super) fn rests(&self, who: &K) -> bool {
        self.0.get(who).is_some_and(|attempts| attempts.until.is_some())
    }

    /// What failed in its last turn.
    pub(super) fn failures(&self, who: &K) -> &[String] {
        self.0.get(who).map_or(&[], |attempts| &attempts.failures)
    }

    /// All that failed in the last turn of each.
    pub(super) fn all_failures(&self) -> impl Iterator<Item = &String> {
        self.0.values().flat_map(|attempts| &attempts.failures)
    }

    pub(super) fn failures_of(&self, of: impl Fn(&K) -> bool) -> impl Iterator<Item = &String> {
        let these = self.0.iter().filter(move |(who, _)| of(who));
        these.flat_map(|(_, attempts)| &attempts.failures)
    }

    /// Whether it is retried and makes no progress.
    pub(super) fn shows(&self, sign: NoProgress, who: &K) -> bool {
        self.0.get(who).is_some_and(|attempts| attempts.shows(sign))
    }

    pub(super) fn any_shows(&self, sign: NoProgress, of: impl Fn(&K) -> bool) -> bool {
        self.0.iter().any(|(who, attempts)| attempts.shows(sign) && of(who))
    }

    /// Forget all but these: no step remains for the others.
    pub(super) fn keep(&mut self, of: impl Fn(&K) -> bool) {
        self.0.retain(|who, _| of(who));
    }

    /// End the rests whose time has passed.
    pub(super) fn rested(&mut self, now: Instant) -> Vec<K> {
        let rested = self
            .0
            .iter_mut()
            .filter(|(_, attempts)| attempts.until.is_some_and(|until| until <= now));
        rested
            .map(|(who, attempts)| {
                attempts.until = None;
                attempts.woken_for = None;
                who.clone()
            })
            .collect()
    }

    /// When the next rest ends.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.values().filter_map(|attempts| attempts.until).min()
    }
}

/// The retries of instances and of steps that all instances share.
#[derive(Debug, Default)]
pub(super) struct Retries {
    pub(super) instances: RetryTable<PodUid>,
    /// Steps that all instances share, by subject.
    pub(super) shared: RetryTable<String>,
    /// Instances that wait for a step which all share.
    pub(super) waiting: BTreeSet<PodUid>,
}

impl Retries {
    /// End every rest.
    pub(super) fn wake_all(&mut self) {
        self.instances.wake_all();
        self.shared.wake_all();
    }

    /// All that failed, for instances and shared steps.
    pub(super) fn failures(&self) -> impl Iterator<Item = &String> {
        self.instances.all_failures().chain(self.shared.all_failures())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rest_is_longer_and_concerns_one_alone() {
        let (mut table, one, other) = (RetryTable::default(), 1, 2);
        let mut now = Instant::now();
        for seconds in [1, 2, 4, 8, 16, 32, 32] {
            table.tried(&one, 1, vec!["no".into()], now);
            assert!(table.rests(&one) && !table.rests(&other));
            assert_eq!(table.next(), Some(now + Duration::from_secs(seconds)));
            assert!(table.rested(now).is_empty());
            now += Duration::from_secs(seconds);
            assert_eq!(table.rested(now), std::slice::from_ref(&one));
        }
        table.done(&one);
        table.tried(&one, 1, vec!["no".into()], now);
        assert_eq!(table.next(), Some(now + Duration::from_secs(1)));
    }

    #[test]
    fn a_rest_ends_early_once_for_the_same_cpus_of_float() {
        let (mut table, one, now) = (RetryTable::default(), 1, Instant::now());
        let cpus = |list: &str| list.parse::<CpuSet>().unwrap();
        for (float, ends) in [("0-1", true), ("0-1", false), ("0", true), ("0", false)] {
            table.tried(&one, 1, vec!["no".into()], now);
            table.wake_for(&one, cpus(float));
            assert_eq!(table.rests(&one), !ends, "{float}");
        }
        table.rested(now + Duration::from_secs(60));
        table.tried(&one, 1, vec!["no".into()], now);
        table.wake_for(&one, cpus("0"));
        assert!(!table.rests(&one));
    }

    #[test]
    fn progress_is_continued_at_once_but_not_for_ever() {
        let (mut table, one) = (RetryTable::default(), 1);
        let now = Instant::now();
        for _ in 1..MAX_TURNS {
            table.tried(&one, 2, vec!["one of two".into()], now);
            assert!(!table.rests(&one));
        }
        table.tried(&one, 2, Vec::new(), now);
        assert!(table.rests(&one));
        assert_eq!(table.failures(&one), ["2 steps are still to take after 8 turns"]);
        table.wake(&one);
        assert!(!table.rests(&one));
    }
}
