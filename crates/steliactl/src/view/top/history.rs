//! How busy each VM and each thread was in the last samples, and bars of it.

use std::collections::BTreeMap;

use crate::shared::kernel::rates::{Model, Shares};

/// How many samples are kept, and how many cells their bars have.
pub(super) const HISTORY_SAMPLES: usize = 10;

/// A thread's number may be reused, therefore its start time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Vm(String),
    Thread(i32, u64),
}

#[derive(Debug, Default)]
pub(super) struct History(BTreeMap<Key, Shares>);

impl History {
    /// Adds the newest rates, and gives each VM and thread of the model its last ones. What is not in the model has ended
    /// and is forgotten.
    pub(super) fn add(&mut self, model: &mut Model) {
        let mut kept = BTreeMap::new();
        let mut push = |key: Key, share: Option<f64>| {
            let mut shares = self.0.remove(&key).unwrap_or_default();
            if shares.len() >= HISTORY_SAMPLES {
                shares.remove(0);
            }
            shares.push(share);
            kept.insert(key, shares.clone());
            shares
        };
        for instance in &mut model.instances {
            instance.recent = push(Key::Vm(instance.pod.pod_uid.clone()), instance.share());
            for vcpu in &mut instance.vcpus {
                vcpu.recent = push(Key::Thread(vcpu.tid, vcpu.start), vcpu.rates.share());
            }
        }
        self.0 = kept;
    }
}

/// A bar a sample, the newest at the right; nothing where the share is not known.
pub(super) fn bars(shares: &[Option<f64>]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let bar = |share: &Option<f64>| {
        // A share of 0 is the lowest bar; one may be above 1 by the two clocks' difference.
        let height = share.map(|share| (share.clamp(0.0, 1.0) * 7.0).round() as usize);
        height.and_then(|height| BARS.get(height).copied()).unwrap_or(' ')
    };
    let last = &shares[shares.len().saturating_sub(HISTORY_SAMPLES)..];
    let bars: String = last.iter().map(bar).collect();
    format!("{bars:>HISTORY_SAMPLES$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::daemon::Pod;
    use crate::shared::kernel::rates::{InstanceRates, Rates, VcpuRates};

    fn model(tid: i32, start: u64, percent: f64) -> Model {
        let rates = Rates {
            utilisation_percent: Some(percent),
            ..Rates::default()
        };
        let vcpu = VcpuRates {
            tid,
            start,
            rates,
            ..VcpuRates::default()
        };
        let instance = InstanceRates {
            pod: Pod::unnamed("a"),
            rates,
            vcpus: vec![vcpu],
            ..InstanceRates::default()
        };
        Model {
            seconds: 1.0,
            instances: vec![instance],
        }
    }

    /// The thread's and the VM's bars after these samples.
    fn after(samples: &[(i32, u64, f64)]) -> (String, String) {
        let mut history = History::default();
        let mut last = Model::default();
        for (tid, start, percent) in samples {
            last = model(*tid, *start, *percent);
            history.add(&mut last);
        }
        let instance = &last.instances[0];
        (bars(&instance.vcpus[0].recent), bars(&instance.recent))
    }

    #[test]
    fn bars_are_as_high_as_the_share() {
        let shares: Shares = (0..=7).map(|seventh| Some(f64::from(seventh) / 7.0)).collect();
        assert_eq!(bars(&shares), "  ▁▂▃▄▅▆▇█");
        assert_eq!(bars(&[Some(1.02), None, Some(-0.1)]), "       █ ▁");
        assert_eq!(bars(&[]), " ".repeat(HISTORY_SAMPLES));
        assert_eq!(bars(&vec![Some(0.5); HISTORY_SAMPLES + 5]), "▅".repeat(HISTORY_SAMPLES));
    }

    #[test]
    fn a_history_is_of_one_thread() {
        let (thread, vm) = after(&[(7, 1, 0.0), (7, 1, 100.0)]);
        assert_eq!((thread.as_str(), vm.as_str()), ("        ▁█", "        ▁█"));
        // The number of a thread that ended.
        let (thread, vm) = after(&[(7, 1, 0.0), (7, 2, 100.0)]);
        assert_eq!((thread.as_str(), vm.as_str()), ("         █", "        ▁█"));
    }

    #[test]
    fn it_is_bounded_and_what_ended_is_forgotten() {
        let mut history = History::default();
        for _ in 0..HISTORY_SAMPLES * 3 {
            history.add(&mut model(7, 1, 50.0));
        }
        assert!(history.0.len() == 2 && history.0.values().all(|shares| shares.len() == HISTORY_SAMPLES));
        history.add(&mut model(8, 1, 50.0));
        assert!(!history.0.contains_key(&Key::Thread(7, 1)));
        history.add(&mut Model::default());
        assert!(history.0.is_empty());
    }
}
