//! Why a VM has less than isolation, in words.

use stelia_api::ReasonCode;
use stelia_model::Instance;

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
}

/// `None` where it is isolated, or where its state needs no reason.
pub(crate) fn not_isolated(instance: &Instance) -> Option<Why> {
    let reason = instance.not_isolated.as_ref()?;
    Some(Why {
        since_us: Some(instance.registered_us).filter(|since| reason.code == ReasonCode::NoVcpus && *since > 0),
        ..Why::new(&reason.text, &reason.fix)
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
