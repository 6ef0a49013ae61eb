//! How often a pod may register. Each registration makes a scope and moves every process of a container, so a pod that registers
//! and leaves again and again would occupy the engine while other pods' VMs start.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use stelia_kubelet::PodUid;

/// Registrations that a pod may make in a row.
const MAX_BURST: u32 = 2;
/// How long it takes until a pod may make one more. kubelet waits as long, or longer, before it restarts a container that has
/// failed twice.
const INTERVAL: Duration = Duration::from_secs(10);

/// When each pod may again make [`MAX_BURST`] registrations in a row.
#[derive(Debug, Default)]
pub(super) struct RegistrationRate(BTreeMap<PodUid, Instant>);

impl RegistrationRate {
    /// Count a registration of the pod.
    ///
    /// # Errors
    /// When the pod may register: it has registered too often, and this registration is not counted.
    pub(super) fn count(&mut self, pod: &PodUid, now: Instant) -> Result<(), Instant> {
        let restored = self.0.get(pod).map_or(now, |restored| now.max(*restored));
        let earliest = restored - INTERVAL * (MAX_BURST - 1);
        if earliest > now {
            return Err(earliest);
        }
        self.0.insert(pod.clone(), restored + INTERVAL);
        Ok(())
    }

    /// Forget pods that may again make [`MAX_BURST`] registrations in a row.
    pub(super) fn forget_old(&mut self, now: Instant) {
        self.0.retain(|_, restored| *restored > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(number: u32) -> PodUid {
        PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap()
    }

    #[test]
    fn a_pod_that_registers_often_waits_and_others_do_not() {
        let (mut rate, now) = (RegistrationRate::default(), Instant::now());
        for _ in 0..MAX_BURST {
            assert_eq!(rate.count(&pod(1), now), Ok(()));
        }
        assert_eq!(rate.count(&pod(1), now), Err(now + INTERVAL));
        assert_eq!(rate.count(&pod(2), now), Ok(()));
        // Asking does not make it wait for longer.
        let soon = now + INTERVAL / 2;
        assert_eq!(rate.count(&pod(1), soon), Err(now + INTERVAL));
        assert_eq!(rate.count(&pod(1), now + INTERVAL), Ok(()));
        assert_eq!(rate.count(&pod(1), now + INTERVAL), Err(now + INTERVAL * 2));
        rate.forget_old(now + INTERVAL * MAX_BURST);
        assert_eq!(rate.0.keys().collect::<Vec<_>>(), [&pod(1)]);
        rate.forget_old(now + INTERVAL * (MAX_BURST + 1));
        assert!(rate.0.is_empty());
        assert_eq!(rate.count(&pod(1), now + INTERVAL * 20), Ok(()));
    }
}
