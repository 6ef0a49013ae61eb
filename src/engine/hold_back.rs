//! While VMs start, pods at whose instances the engine looked much more often of late than at theirs are held back: their calls are
//! not begun and their instances are not read.

use std::time::{Duration, Instant};

use stelia_kubelet::PodUid;

use super::recent_looks::RecentLooks;

/// How long a pod is held back at most. After that whatever waits is done once.
const MAX_HOLD_BACK: Duration = Duration::from_secs(1);

/// Which pods are held back now.
#[derive(Debug, Default)]
pub(super) struct HoldBack {
    /// The pods whose VMs start.
    starting: Vec<PodUid>,
    /// The weight of recent looks above which a pod is held back.
    allowed: f64,
    /// Since when something has waited while VMs start.
    since: Option<Instant>,
    /// [`MAX_HOLD_BACK`] is over: nobody is held back until the next [`Self::update`].
    is_over: bool,
}

impl HoldBack {
    /// `waits`: a call or an instance to be read is there, held back or not.
    pub(super) fn update(&mut self, starting: Vec<PodUid>, recent: &RecentLooks, waits: bool, now: Instant) {
        self.is_over = self.end().is_some_and(|end| end <= now);
        if self.is_over || !waits || starting.is_empty() {
            self.since = None;
        } else {
            self.since.get_or_insert(now);
        }
        self.allowed = recent.allowed(starting.iter(), now);
        self.starting = starting;
    }

    pub(super) fn holds(&self, pod: &PodUid, recent: &RecentLooks, now: Instant) -> bool {
        let others_start = self.starting.iter().any(|one| one != pod);
        others_start && !self.is_over && recent.exceeds(self.allowed, pod, now)
    }

    /// When nobody is held back any longer, whatever starts.
    pub(super) fn end(&self) -> Option<Instant> {
        self.since.map(|since| since + MAX_HOLD_BACK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(number: u32) -> PodUid {
        PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap()
    }

    #[test]
    fn who_was_looked_at_often_waits_while_others_start_and_not_for_ever() {
        let (mut recent, mut hold_back) = (RecentLooks::default(), HoldBack::default());
        let (rude, victim, now) = (pod(1), pod(2), Instant::now());
        (0..200).for_each(|_| recent.add(&rude, 0, now));
        hold_back.update(Vec::new(), &recent, true, now);
        assert!(!hold_back.holds(&rude, &recent, now) && hold_back.end().is_none());
        // Its own start holds nobody's own calls back.
        hold_back.update(vec![rude.clone()], &recent, true, now);
        assert!(!hold_back.holds(&rude, &recent, now));
        let starting = vec![rude.clone(), victim.clone()];
        hold_back.update(starting.clone(), &recent, true, now);
        assert!(hold_back.holds(&rude, &recent, now) && !hold_back.holds(&victim, &recent, now));
        let end = hold_back.end().unwrap();
        hold_back.update(starting.clone(), &recent, true, end);
        assert!(!hold_back.holds(&rude, &recent, end));
        hold_back.update(starting, &recent, true, end);
        assert!(hold_back.holds(&rude, &recent, end) && hold_back.end() == Some(end + MAX_HOLD_BACK));
    }
}
