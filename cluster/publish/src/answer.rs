//! What an answer of the API server means for who asked.

use std::collections::BTreeSet;
use std::time::Duration;

use http::StatusCode;
use kube::core::response::{Status, StatusCause};

use crate::decide::content::cut;

/// Why a request was not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiFailure {
    pub kind: FailureKind,
    /// The status, and what the server says.
    pub text: String,
    pub retry_after: Option<Duration>,
}

/// What follows from a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FailureKind {
    /// The API server is away or asks for less (408, 429, 502, 503, 504, or no answer: no connection, a closed one, TLS, a token that cannot
    /// be read, nothing within the time for a request): everything waits.
    Away,
    /// 401: the credentials are read again.
    Unauthorized,
    /// 403: a right is missing.
    Forbidden,
    /// 403 in a namespace that ends: nothing is created there any more.
    Ending,
    /// 404, 410.
    Missing,
    /// 409: fields that another manager set; the managers' names.
    Conflict(Vec<String>),
    /// 409: there is an object of this name.
    Exists,
    /// 409, or 422 of metadata.uid: the object is another one, or a newer version, than the request says.
    Stale,
    /// Other answers of 4xx, such as 400, 413, 422: the same request fails again.
    Refused,
    /// 500 and what else there is: this request failed, others may not.
    Failed,
}

impl FailureKind {
    /// Whether somebody has to change something first: rights, a CRD, a second writer.
    pub(crate) fn lasts(&self) -> bool {
        matches!(
            self,
            Self::Forbidden | Self::Ending | Self::Missing | Self::Conflict(_) | Self::Refused
        )
    }
}

/// Limit of the text of an answer that is quoted, in bytes.
const MAX_TEXT_BYTES: usize = 500;

impl ApiFailure {
    pub(crate) fn new(kind: FailureKind, text: String) -> Self {
        Self {
            kind,
            text,
            retry_after: None,
        }
    }

    /// Of an answer that is no success. `retry_after`: the header, where it is a number of seconds.
    pub(crate) fn of(code: StatusCode, retry_after: Option<Duration>, body: &[u8]) -> Self {
        // Proxies and flow control answer in plain text.
        let status = serde_json::from_slice(body).unwrap_or_else(|_| Status {
            message: String::from_utf8_lossy(body).trim().to_owned(),
            ..Status::default()
        });
        let asked = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
        let asked = (asked > 0).then(|| Duration::from_secs(asked.into()));
        Self {
            kind: kind(code, &status),
            text: text(code, &status),
            retry_after: retry_after.max(asked),
        }
    }
}

fn causes(status: &Status) -> &[StatusCause] {
    status.details.as_ref().map_or(&[], |details| &details.causes)
}

fn kind(code: StatusCode, status: &Status) -> FailureKind {
    let has = |is: fn(&StatusCause) -> bool| causes(status).iter().any(is);
    match code.as_u16() {
        401 => FailureKind::Unauthorized,
        403 if has(|cause| cause.reason == "NamespaceTerminating") => FailureKind::Ending,
        403 => FailureKind::Forbidden,
        404 | 410 => FailureKind::Missing,
        409 if status.is_already_exists() => FailureKind::Exists,
        409 => match managers(status) {
            managers if managers.is_empty() => FailureKind::Stale,
            managers => FailureKind::Conflict(managers),
        },
        422 if has(|cause| cause.field == "metadata.uid") => FailureKind::Stale,
        408 | 429 | 502 | 503 | 504 => FailureKind::Away,
        400..500 => FailureKind::Refused,
        _ => FailureKind::Failed,
    }
}

/// The managers whose fields are in the way. Each cause is one field, and names its manager in quotes: `conflict with "other" using v1`.
fn managers(status: &Status) -> Vec<String> {
    let conflicts = causes(status).iter();
    let conflicts = conflicts.filter(|cause| cause.reason == "FieldManagerConflict");
    let managers = conflicts.map(|cause| cause.message.split('"').nth(1).unwrap_or("unknown").to_owned());
    managers.collect::<BTreeSet<_>>().into_iter().collect()
}

fn text(code: StatusCode, status: &Status) -> String {
    match cut(&status.message, MAX_TEXT_BYTES) {
        "" => code.to_string(),
        said => format!("{code}: {said}"),
    }
}
