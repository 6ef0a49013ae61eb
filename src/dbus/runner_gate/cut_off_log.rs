//! Journal entries about peers that were cut off, limited in rate: journald drops what comes too fast, and with it the
//! daemon's own messages.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use stelia_kubelet::PodName;

use super::GateError;
use crate::journal::{self, JournalPod, about};

/// At most one entry for each pod in this time.
const INTERVAL: Duration = Duration::from_secs(60);

/// Tells what a pod is called, where that is known.
pub(super) type Names = Box<dyn Fn(&str) -> Option<PodName> + Send + Sync>;

pub(super) struct Cuts {
    counted: Mutex<Counted>,
    names: Names,
}

impl fmt::Debug for Cuts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cuts").field(&self.counted).finish()
    }
}

#[derive(Debug, Default)]
struct Counted {
    /// Since the daemon started, of all pods.
    all: u64,
    pods: HashMap<String, Entry>,
}

/// The last journal entry about a pod.
#[derive(Debug)]
struct Entry {
    at: Instant,
    /// Cuts since then, without an entry.
    since: u64,
}

impl Cuts {
    pub(super) fn new(names: Names) -> Self {
        Self {
            counted: Mutex::default(),
            names,
        }
    }

    /// A peer of `pod` was cut off or turned away.
    pub(super) fn cut(&self, pod: &str, error: &GateError) {
        let Some((since, all)) = self.count(pod, Instant::now()) else {
            tracing::debug!("a peer of pod {pod} on the runner socket is cut off: {error}");
            return;
        };
        let more = match since {
            0 => String::new(),
            since => format!(" ({since} more since this was last told)"),
        };
        let name = (self.names)(pod);
        let pod = JournalPod::new(pod, name.as_ref());
        about!(
            warn,
            journal::PEER_CUT_OFF,
            pod,
            STELIA_REASON = %error,
            STELIA_SUPPRESSED = since,
            STELIA_CUT_OFF = all,
            "a peer of pod {pod} on the runner socket is cut off: {error}{more}"
        );
    }

    /// Cuts since the last entry, and cuts of all pods; `None` while it is too early for another entry.
    fn count(&self, pod: &str, now: Instant) -> Option<(u64, u64)> {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.all += 1;
        let all = counted.all;
        let early = |entry: &Entry| now.saturating_duration_since(entry.at) < INTERVAL;
        if let Some(entry) = counted.pods.get_mut(pod).filter(|entry| early(entry)) {
            entry.since += 1;
            return None;
        }
        let since = counted.pods.get(pod).map_or(0, |entry| entry.since);
        // Old entries with nothing to report are forgotten with the next entry.
        counted.pods.retain(|_, entry| entry.since > 0 || early(entry));
        counted.pods.insert(pod.to_owned(), Entry { at: now, since: 0 });
        Some((since, all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_a_minute_is_told_of_each_pod_with_the_number_of_the_others() {
        let cuts = Cuts::new(Box::new(|_| None));
        let start = Instant::now();
        assert_eq!(cuts.count("a", start), Some((0, 1)));
        for n in 0..1000 {
            assert_eq!(cuts.count("a", start + Duration::from_millis(n)), None);
        }
        assert_eq!(cuts.count("b", start), Some((0, 1002)));
        assert_eq!(cuts.count("a", start + INTERVAL), Some((1000, 1003)));
        assert_eq!(cuts.count("a", start + INTERVAL * 2), Some((0, 1004)));
        assert_eq!(cuts.counted.lock().unwrap().pods.len(), 1);
    }
}
