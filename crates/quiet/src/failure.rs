//! Errors of system calls, with operation, path and value.

use std::io;

use stelia_api::quiet::{Problem, Report};

#[derive(Debug, thiserror::Error)]
#[error("{what}: {cause}")]
pub struct QuietFailure {
    what: String,
    pub(crate) cause: io::Error,
}

impl QuietFailure {
    /// `operation` is a verb: read, list, make, remove.
    pub(crate) fn of(operation: &str, path: &str) -> impl FnOnce(io::Error) -> Self + use<> {
        let what = format!("{operation} {path}");
        move |cause| Self { what, cause }
    }

    pub(crate) fn write(value: &str, path: &str) -> impl FnOnce(io::Error) -> Self + use<> {
        let what = format!("write {value:?} to {path}");
        move |cause| Self { what, cause }
    }

    /// A record that cannot be parsed.
    pub(crate) fn record(name: &str) -> impl FnOnce(serde_json::Error) -> Self + use<> {
        let what = format!("read the record {name}");
        move |cause| Self {
            what,
            cause: cause.into(),
        }
    }
}

/// Add a problem to the report; `pod` is empty if it concerns no pod in particular.
pub(crate) fn problem(report: &mut Report, pod: &str, text: impl ToString) {
    report.problems.push(Problem {
        pod: pod.to_owned(),
        text: text.to_string(),
    });
}
