//! How often something is tried in a row, and how long it then rests: each instance by itself, and each step that all
//! instances share by its subject.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use stelia_kubelet::PodUid;

/// Rounds of reading, planning and taking steps in a row. If steps remain after that, the instance or subject rests.
const ROUNDS: u32 = 8;
/// How long the first rest is; each further one is twice as long, up to 32 times.
const REST: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Default)]
struct Trial {
    /// Rounds in a row with something to do.
    rounds: u32,
    /// Rests in a row.
    rests: u32,
    until: Option<Instant>,
    failures: Vec<String>,
}

/// Retries, and rests between them.
#[derive(Debug)]
pub(super) struct Patience<K>(BTreeMap<K, Trial>);

impl<K> Default for Patience<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Clone> Patience<K> {
    /// Forget `who`: no step remains for it, or it is gone.
    pub(super) fn done(&mut self, who: &K) {
        self.0.remove(who);
    }

    /// A round was taken with `steps` steps, of which some failed.
    pub(super) fn tried(&mut self, who: &K, steps: usize, failures: Vec<String>, now: Instant) {
        let trial = self.0.entry(who.clone()).or_default();
        trial.rounds += 1;
        let progressed = failures.len() < steps;
        let text = format!("{steps} steps are still to take after {ROUNDS} rounds");
        let endless = trial.rounds >= ROUNDS;
        trial.failures = failures;
        if endless && trial.failures.is_empty() {
            trial.failures.push(text);
        }
        if endless || !progressed {
            trial.until = Some(now + REST.saturating_mul(1 << trial.rests.min(5)));
            trial.rests = trial.rests.saturating_add(1);
            trial.rounds = 0;
        }
    }

    /// End its rest, because kubelet wrote or a call is about it.
    pub(super) fn wake(&mut self, who: &K) {
        if let Some(trial) = self.0.get_mut(who) {
            trial.until = None;
            trial.rounds = 0;
        }
    }

    /// End every rest.
    pub(super) fn wake_all(&mut self) {
        for trial in self.0.values_mut() {
            trial.until = None;
            trial.rounds = 0;
        }
    }

    pub(super) fn rests(&self, who: &K) -> bool {
        self.0.get(who).is_some_and(|trial| trial.until.is_some())
    }

    /// What could not be done when it was last tried.
    pub(super) fn failures(&self, who: &K) -> &[String] {
        self.0.get(who).map_or(&[], |trial| &trial.failures)
    }

    /// Everything that could not be done.
    pub(super) fn all_failures(&self) -> impl Iterator<Item = &String> {
        self.0.values().flat_map(|trial| &trial.failures)
    }

    pub(super) fn failures_of(&self, of: impl Fn(&K) -> bool) -> impl Iterator<Item = &String> {
        let these = self.0.iter().filter(move |(who, _)| of(who));
        these.flat_map(|(_, trial)| &trial.failures)
    }

    pub(super) fn any_rests(&self, of: impl Fn(&K) -> bool) -> bool {
        self.0.iter().any(|(who, trial)| trial.until.is_some() && of(who))
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
            .filter(|(_, trial)| trial.until.is_some_and(|until| until <= now));
        rested
            .map(|(who, trial)| {
                trial.until = None;
                who.clone()
            })
            .collect()
    }

    /// When the next rest ends.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.values().filter_map(|trial| trial.until).min()
    }
}

/// What is tried again.
#[derive(Debug, Default)]
pub(super) struct Retries {
    pub(super) instances: Patience<PodUid>,
    /// Steps that all instances share, by subject.
    pub(super) shared: Patience<String>,
    /// Instances that wait for a step which all share.
    pub(super) waiting: BTreeSet<PodUid>,
}

impl Retries {
    /// End every rest.
    pub(super) fn wake_all(&mut self) {
        self.instances.wake_all();
        self.shared.wake_all();
    }

    /// What could not be done, for whomever.
    pub(super) fn failures(&self) -> impl Iterator<Item = &String> {
        self.instances.all_failures().chain(self.shared.all_failures())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rest_is_longer_and_nobody_elses() {
        let (mut patience, one, other) = (Patience::default(), 1, 2);
        let mut now = Instant::now();
        for seconds in [1, 2, 4, 8, 16, 32, 32] {
            patience.tried(&one, 1, vec!["no".into()], now);
            assert!(patience.rests(&one) && !patience.rests(&other));
            assert_eq!(patience.next(), Some(now + Duration::from_secs(seconds)));
            assert!(patience.rested(now).is_empty());
            now += Duration::from_secs(seconds);
            assert_eq!(patience.rested(now), std::slice::from_ref(&one));
        }
        patience.done(&one);
        patience.tried(&one, 1, vec!["no".into()], now);
        assert_eq!(patience.next(), Some(now + REST));
    }

    #[test]
    fn what_gets_on_goes_on_at_once_but_not_for_ever() {
        let (mut patience, one) = (Patience::default(), 1);
        let now = Instant::now();
        for _ in 1..ROUNDS {
            patience.tried(&one, 2, vec!["one of two".into()], now);
            assert!(!patience.rests(&one));
        }
        patience.tried(&one, 2, Vec::new(), now);
        assert!(patience.rests(&one));
        assert_eq!(patience.failures(&one), ["2 steps are still to take after 8 rounds"]);
        patience.wake(&one);
        assert!(!patience.rests(&one));
    }
}
