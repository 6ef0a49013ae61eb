//! The error of a call that had begun and could not be completed: its cause, and what became of the changes that it had made.

use std::fmt;

use stelia_api::{Error, Reason, ReasonCode};
use stelia_kubelet::PodUid;

/// What a call changes before it may turn out that it cannot be completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallChange {
    /// The container is an instance, with its cgroups.
    Registration,
    /// The vCPU threads are recorded and moved.
    Isolation,
}

/// A call that could not be completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RollbackError {
    /// The pod that the call was about; it may read why something was not undone.
    pod: PodUid,
    cause: Error,
    /// What it had changed, and is as before.
    undone: Option<CallChange>,
    /// What it had changed, and why that could not be undone.
    not_undone: Option<(CallChange, Error)>,
}

impl RollbackError {
    /// It had changed nothing yet.
    pub(crate) fn new(pod: &PodUid, cause: Error) -> Self {
        Self {
            pod: pod.clone(),
            cause,
            undone: None,
            not_undone: None,
        }
    }

    /// The same after this was undone.
    #[must_use]
    pub(crate) fn undone(self, change: CallChange) -> Self {
        let undone = Some(change);
        Self { undone, ..self }
    }

    /// The same where this could not be undone.
    #[must_use]
    pub(crate) fn not_undone(self, change: CallChange, why: Error) -> Self {
        let not_undone = Some((change, why));
        Self { not_undone, ..self }
    }

    /// Whether the call had made this change, undone or not.
    pub(crate) fn had_changed(&self, change: CallChange) -> bool {
        let remains = self.not_undone.as_ref().is_some_and(|(what, _)| *what == change);
        remains || self.undone == Some(change)
    }
}

/// For the caller: the cause, with the reason why something was not undone as its last one.
impl From<RollbackError> for Error {
    fn from(failed: RollbackError) -> Self {
        let Some((_, why)) = failed.not_undone else {
            return failed.cause;
        };
        let mut causes = failed.cause.causes.clone();
        causes.push(Reason::of(
            &failed.pod,
            ReasonCode::StepFailed,
            format!("undoing it: {why}"),
        ));
        failed.cause.with(causes)
    }
}

impl fmt::Display for RollbackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Error::from(self.clone()).fmt(f)
    }
}

impl std::error::Error for RollbackError {}

#[cfg(test)]
mod tests {
    use stelia_api::ErrorKind;

    use super::*;

    fn pod(number: u32) -> PodUid {
        PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap()
    }

    #[test]
    fn what_could_not_be_undone_is_said_after_the_cause_and_to_the_own_pod_only() {
        let cause = ErrorKind::Failed.because("registration of pod 1").of(&pod(1));
        let cause = cause.with(vec![Reason::of(
            &pod(1),
            ReasonCode::StepFailed,
            "move 77: No such process",
        )]);
        let failed = RollbackError::new(&pod(1), cause);
        let text = "registration of pod 1: move 77: No such process";
        assert_eq!(failed.to_string(), text);
        assert!(!failed.had_changed(CallChange::Registration));
        let undone = failed.clone().undone(CallChange::Registration);
        assert_eq!(undone.to_string(), text);
        assert!(undone.had_changed(CallChange::Registration) && !undone.had_changed(CallChange::Isolation));
        let remains = failed.not_undone(CallChange::Registration, ErrorKind::Failed.because("write phase"));
        assert_eq!(remains.to_string(), format!("{text}; undoing it: write phase"));
        assert!(remains.had_changed(CallChange::Registration));
        let error = Error::from(remains);
        assert_eq!(error.kind, ErrorKind::Failed);
        assert!(error.clone().visible_to(&pod(1)).to_string().ends_with("write phase"));
        assert!(!error.visible_to(&pod(2)).to_string().contains("write phase"));
    }
}
