//! Decides when to list a pod's containers for rules of kind "container". kubelet writes a pod's CPUs into its state before the container is
//! made, and no event reports that it is.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use stelia_cpus::rate::Backoff;
use stelia_kubelet::PodUid;

/// The pauses between two listings of a pod's containers. The longest is for images that have to be pulled, and init containers that have to
/// end, before the container is made.
const PAUSE: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// How long a pod's containers are listed. The audit lists those that start later.
const MAX_SEARCH_TIME: Duration = Duration::from_secs(600);

/// The pods with exclusive CPUs.
#[derive(Debug, Default)]
pub(super) struct PodSearches(BTreeMap<PodUid, PodSearch>);

#[derive(Debug)]
enum PodSearch {
    Searching {
        until: Instant,
        due: Instant,
        /// How often its containers were listed.
        listings: u32,
    },
    /// It has an instance.
    Found,
    /// None of its containers was adopted in time.
    Over,
}

impl PodSearch {
    fn start(now: Instant) -> Self {
        Self::Searching {
            until: now + MAX_SEARCH_TIME,
            due: now,
            listings: 0,
        }
    }
}

impl PodSearches {
    /// Search in pods that are new among those that kubelet gave CPUs, and in those whose instance has ended: a container may have been
    /// restarted.
    pub(super) fn follow(&mut self, given: &BTreeSet<&PodUid>, has_instance: impl Fn(&PodUid) -> bool, now: Instant) {
        self.0.retain(|pod, _| given.contains(pod));
        for pod in given {
            match (self.0.get(*pod), has_instance(pod)) {
                (_, true) => self.0.insert((*pod).clone(), PodSearch::Found),
                (None | Some(PodSearch::Found), false) => self.0.insert((*pod).clone(), PodSearch::start(now)),
                (Some(PodSearch::Searching { .. } | PodSearch::Over), false) => None,
            };
        }
    }

    /// When the next listing is due.
    pub(super) fn next(&self) -> Option<Instant> {
        let due = self.0.values().filter_map(|search| match search {
            PodSearch::Searching { due, .. } => Some(*due),
            PodSearch::Found | PodSearch::Over => None,
        });
        due.min()
    }

    /// The pods whose containers are to be listed now.
    pub(super) fn begin_due(&mut self, now: Instant) -> Vec<PodUid> {
        let mut pods = Vec::new();
        for (pod, search) in &mut self.0 {
            let PodSearch::Searching { until, due, listings } = search else {
                continue;
            };
            if *due > now {
                continue;
            }
            pods.push(pod.clone());
            if *until <= now {
                *search = PodSearch::Over;
            } else {
                *due = now + PAUSE.pause(*listings);
                *listings = listings.saturating_add(1);
            }
        }
        pods
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(number: u32) -> PodUid {
        PodUid::parse(&format!("b9e4f71c-64a5-4f8d-8574-{number:012x}")).unwrap()
    }

    #[test]
    fn a_pod_is_searched_from_its_entry_to_its_instance_and_again_after_that() {
        let (mut searches, began) = (PodSearches::default(), Instant::now());
        let one = pod(1);
        let given = BTreeSet::from([&one]);
        searches.follow(&given, |_| false, began);
        assert_eq!(searches.begin_due(began), std::slice::from_ref(&one));
        assert_eq!(searches.begin_due(began), []);
        let next = searches.next().unwrap();
        assert_eq!(searches.begin_due(next), std::slice::from_ref(&one));
        searches.follow(&given, |_| true, next);
        assert_eq!(searches.next(), None);
        // Its container is restarted, with the CPUs that the pod has.
        searches.follow(&given, |_| false, next);
        assert_eq!(searches.begin_due(next), std::slice::from_ref(&one));
        searches.follow(&BTreeSet::new(), |_| false, next);
        assert_eq!(searches.next(), None);
    }

    #[test]
    fn a_pod_without_such_a_container_is_listed_a_few_times_only() {
        let (mut searches, began) = (PodSearches::default(), Instant::now());
        let one = pod(1);
        searches.follow(&BTreeSet::from([&one]), |_| false, began);
        let mut listed = 0;
        while let Some(due) = searches.next() {
            assert!(due <= began + 2 * MAX_SEARCH_TIME);
            listed += searches.begin_due(due).len();
            searches.follow(&BTreeSet::from([&one]), |_| false, due);
        }
        assert!((100..=130).contains(&listed), "{listed} listings");
    }
}
