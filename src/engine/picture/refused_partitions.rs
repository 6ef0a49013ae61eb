//! When a partition that the kernel refused is asked for again.

use std::collections::BTreeMap;

use stelia_kubelet::PodUid;

/// The longest pause, in audits. The first pause is one audit, and each further one is twice as long.
const MAX_PAUSE: u32 = 64;

/// The instances that are pinned because the kernel refused their partition.
#[derive(Debug, Default)]
pub(super) struct Refused(BTreeMap<PodUid, Pause>);

#[derive(Debug, Default)]
struct Pause {
    /// How often the partition was asked for again.
    retries: u32,
    /// Audits that are to pass before it is asked for again.
    left: u32,
}

impl Refused {
    /// The record of a pinned instance has that the kernel refused its partition. The pauses begin anew with each daemon; one that is
    /// known goes on with its own.
    pub(super) fn add(&mut self, pod: &PodUid) {
        self.0.entry(pod.clone()).or_default();
    }

    /// An audit has read a pinned instance; whether its partition is to be asked for again now.
    pub(super) fn is_due(&mut self, pod: &PodUid) -> bool {
        let Some(pause) = self.0.get_mut(pod) else {
            return false;
        };
        if let Some(left) = pause.left.checked_sub(1) {
            pause.left = left;
            return false;
        }
        pause.left = 1u32.checked_shl(pause.retries).unwrap_or(MAX_PAUSE).min(MAX_PAUSE);
        pause.retries = pause.retries.saturating_add(1);
        true
    }

    /// How often the partition was asked for again at an audit.
    pub(super) fn retries(&self, pod: &PodUid) -> u32 {
        self.0.get(pod).map_or(0, |pause| pause.retries)
    }

    /// The cause may be gone: the next audit ends every pause.
    pub(super) fn end_pauses(&mut self) {
        self.0.values_mut().for_each(|pause| pause.left = 0);
    }

    /// It is not such an instance any more.
    pub(super) fn forget(&mut self, pod: &PodUid) {
        self.0.remove(pod);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pause_is_twice_as_long_up_to_a_bound() {
        let pod = PodUid::parse("b9e4f71c-64a5-4f8d-8574-41363cbaf8e5").unwrap();
        let mut refused = Refused::default();
        assert!(!refused.is_due(&pod));
        refused.add(&pod);
        let due: Vec<u32> = (1..400).filter(|_| refused.is_due(&pod)).collect();
        assert_eq!(due, [1, 3, 6, 11, 20, 37, 70, 135, 200, 265, 330, 395]);
        refused.end_pauses();
        assert!(refused.is_due(&pod) && !refused.is_due(&pod));
        refused.forget(&pod);
        assert!(!refused.is_due(&pod));
    }
}
