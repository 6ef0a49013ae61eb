//! What was asked lately is asked of nodes that change, before anybody waits for it: of a thousand changes in a second a question about all
//! nodes would else find hundreds without an answer.

use std::sync::atomic::Ordering;
use std::sync::{Arc, TryLockError};
use std::time::Duration;

use super::{NodeRules, Placer};
use crate::cluster::RequestId;
use crate::reservations::Moment;

/// So many requests are asked ahead, those that were asked last.
const MOST: usize = 32;
/// A request that nobody asked for so long is not asked ahead any more.
const LATELY: Duration = Duration::from_secs(10);
/// A pause where somebody else wants the lock.
const PAUSE: Duration = Duration::from_micros(200);

/// The requests that were asked lately.
#[derive(Debug, Default)]
pub(crate) struct Lately {
    requests: Vec<(RequestId, Moment)>,
}

impl Lately {
    pub(super) fn note(&mut self, request: RequestId, now: Moment) {
        self.requests.retain(|(other, _)| *other != request);
        self.requests.push((request, now));
        if self.requests.len() > MOST {
            self.requests.remove(0);
        }
    }

    fn requests(&mut self, now: Moment) -> Vec<RequestId> {
        self.requests.retain(|(_, asked)| now < *asked + LATELY);
        self.requests.iter().map(|(request, _)| *request).collect()
    }
}

impl Placer {
    /// Never ends.
    pub async fn ask_ahead_for_ever(self: &Arc<Self>) {
        loop {
            self.news.notified().await;
            let placer = self.clone();
            // A node with pods on their way may take milliseconds, while others are answered and the Lease is renewed.
            let _ = tokio::task::spawn_blocking(move || while placer.ask_ahead() {}).await;
        }
    }

    /// One node about one request, so that the lock is held for no longer than a question needs; whether there may be more.
    fn ask_ahead(&self) -> bool {
        // A mutex that is taken again at once is not given to who waits for it, so whoever waits is counted, and goes first.
        let wanted = self.waiting.load(Ordering::Relaxed) > 0;
        let mut state = match self.state.try_lock() {
            Ok(state) if !wanted => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Ok(_) | Err(TryLockError::WouldBlock) => {
                std::thread::sleep(PAUSE);
                return true;
            }
        };
        let now = self.now();
        let state = &mut *state;
        let requests = state.lately.requests(now);
        if !requests.is_empty() {
            state.reservations.pass(now);
            state.reservations.refresh(NodeRules::expect);
        }
        state.reservations.rules_mut().cluster.ask_ahead(&requests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cluster;
    use crate::testing::vm;

    #[test]
    fn what_nobody_asks_any_more_is_not_asked_ahead() {
        let (mut cluster, mut lately) = (Cluster::default(), Lately::default());
        let ids: Vec<RequestId> = (1..=40).map(|cpus| cluster.request(vm(cpus))).collect();
        for id in &ids {
            lately.note(*id, Duration::from_secs(1));
        }
        // The last ones, each once.
        lately.note(ids[10], Duration::from_secs(5));
        let kept = lately.requests(Duration::from_secs(6));
        assert_eq!((kept.len(), kept.last()), (MOST, Some(&ids[10])));
        assert_eq!(lately.requests(Duration::from_secs(12)), [ids[10]]);
        assert_eq!(lately.requests(Duration::from_secs(15)), []);
    }
}
