//! Why a VM has less than isolation, in words.

use stelia_api::{ReasonCode, State};
use stelia_koordinator::allocator::Qos;
use stelia_model::{PinnedReason, Instance};

use super::remedy::to_do;
use crate::shared::output::time;

/// What keeps a VM from being isolated, and what an operator does about it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Why {
    pub text: String,
    /// Since when, microseconds since the epoch, where it waits.
    pub since_us: Option<u64>,
    pub cure: String,
}

impl Why {
    fn new(text: impl Into<String>, cure: impl Into<String>) -> Self {
        let (text, cure) = (text.into(), cure.into());
        Self {
            text,
            since_us: None,
            cure,
        }
    }

    /// With how long it has waited.
    pub(crate) fn at(&self, now: u64) -> String {
        match self.since_us {
            Some(since) => format!("{} for {}", self.text, age(since, now)),
            None => self.text.clone(),
        }
    }

    /// With how long it has waited, and since when.
    pub(crate) fn since(&self, now: u64) -> String {
        match self.since_us {
            Some(since) => format!("{}, since {}", self.at(now), time(since)),
            None => self.text.clone(),
        }
    }
}

/// `None` where it is isolated, or where its state needs no reason.
pub(crate) fn not_isolated(instance: &Instance) -> Option<Why> {
    match instance.state {
        State::Waiting => Some(floating(instance)),
        State::Pinned => pinned(instance),
        State::Waiting | State::Isolated | State::Releasing => None,
    }
}

fn floating(instance: &Instance) -> Why {
    let evicted = ReasonCode::Evicted;
    let of_kind = |kind: ReasonCode| instance.degraded.iter().find(|reason| reason.kind == kind);
    if of_kind(evicted).is_some() {
        return Why::new("kubelet gave its CPUs to another pod", evicted.cure().text);
    }
    let offline = ReasonCode::CpusOffline;
    if let Some(reason) = of_kind(offline).filter(|_| !instance.vcpus.is_empty()) {
        return Why::new("CPUs of the VM are offline", to_do(offline, &reason.text));
    }
    match instance.allocation.as_ref().map(|allocation| allocation.qos) {
        Some(class @ (Qos::Ls | Qos::Be)) => Why::new(
            format!("class {} has no CPUs of its own", class.name()),
            "none, or set another --qos of the runner",
        ),
        _ if !instance.vcpus.is_empty() => Why::new(
            "its vCPUs are being pinned",
            "steliactl verify: what is still to be done",
        ),
        _ => Why {
            since_us: Some(instance.registered_us).filter(|since| *since > 0),
            ..Why::new(
                "vCPUs not attached",
                "the container's log: the runner attaches the vCPUs once the VMM's socket answers, and tries every 5 s",
            )
        },
    }
}

/// `None` while it waits for CPUs that others still have.
fn pinned(instance: &Instance) -> Option<Why> {
    Some(match instance.pinned_reason? {
        PinnedReason::Class => Why::new(
            format!("class {}: BE may run on its CPUs", instance.class()),
            "none, or --qos=LSE of the runner",
        ),
        PinnedReason::NoPartitions => Why::new(
            "this kernel has no partitions (cpuset.cpus.exclusive)",
            "Linux 6.7 or later, then restart the container",
        ),
        PinnedReason::Setting => Why::new(
            "the setting partition is member",
            "set partition to auto, systemctl reload steliad, then restart the container",
        ),
        PinnedReason::Rule => Why::new(
            "the rule that adopted it wants no partition (partition = \"member\")",
            "if it is to have one, remove partition from the rule, systemctl reload steliad, then restart the container",
        ),
        PinnedReason::Refused => Why::new(
            "the kernel refused a partition twice",
            "find what else claims those CPUs (the journal's \"pinned instead\" has the kernel's words); the daemon tries again by itself",
        ),
    })
}

/// How long ago it was, to one unit; both in microseconds since the epoch.
pub(crate) fn age(since: u64, now: u64) -> String {
    match now.saturating_sub(since) / 1_000_000 {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use stelia_api::Reason;
    use stelia_kubelet::PodUid;
    use stelia_model::PinnedThread;

    use super::*;
    use crate::shared::daemon::node::testing::allocation;

    fn instance(state: State) -> Instance {
        Instance {
            state,
            registered_us: 1_000_000,
            ..Instance::default()
        }
    }

    fn text(instance: &Instance) -> String {
        not_isolated(instance).unwrap().at(181_000_000)
    }

    #[test]
    fn a_float_waits_or_has_no_cpus_or_lost_them() {
        let waiting = instance(State::Waiting);
        assert_eq!(text(&waiting), "vCPUs not attached for 3 min");
        let ls = Instance {
            allocation: Some(allocation(Qos::Ls)),
            ..waiting.clone()
        };
        assert_eq!(text(&ls), "class LS has no CPUs of its own");
        let attaching = Instance {
            vcpus: vec![PinnedThread::default()],
            ..waiting.clone()
        };
        assert_eq!(text(&attaching), "its vCPUs are being pinned");
        let degraded = vec![Reason::of(&PodUid::default(), ReasonCode::Evicted, "")];
        assert!(text(&Instance { degraded, ..attaching }).contains("another pod"));
    }

    #[test]
    fn each_reason_of_containment_has_a_cure() {
        for reason in PinnedReason::ALL {
            let pinned = Instance {
                pinned_reason: Some(reason),
                ..instance(State::Pinned)
            };
            let why = not_isolated(&pinned).unwrap();
            assert!(!why.cure.is_empty() && why.since_us.is_none(), "{why:?}");
        }
        assert_eq!(not_isolated(&instance(State::Pinned)), None);
        assert_eq!(not_isolated(&instance(State::Isolated)), None);
    }

    #[test]
    fn ages_have_one_unit() {
        let ages = [0, 119, 120, 7_199, 7_200, 172_800].map(|seconds| age(5, 5 + seconds * 1_000_000));
        assert_eq!(ages, ["0 s", "119 s", "2 min", "119 min", "2 h", "2 days"]);
    }
}
