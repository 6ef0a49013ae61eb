//! Why a request failed.

use std::fmt::Display;
use std::time::Duration;

use serde::Deserialize;
use stelia_cpus::text::excerpt;

/// Why a request failed, by what the caller can do then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServerFailure {
    /// 409: another client changed or created the object.
    #[error("conflict: {0}")]
    Conflict(String),
    /// 404.
    #[error("not found: {0}")]
    Missing(String),
    /// 410: a watch cannot continue from this version.
    #[error("the version is too old: {0}")]
    Expired(String),
    /// 429: nothing was done.
    #[error("the API server has too many requests: {text}")]
    Busy { after: Option<Duration>, text: String },
    /// Another answer from 400 to 499: nothing was done, and a retry does not help.
    #[error("{0}: {1}")]
    Refused(u16, String),
    /// The answer is too long to be read.
    #[error("the answer has more than {0} bytes")]
    TooLong(usize),
    /// An answer from 500 on, or none: whether the request was carried out is not known.
    #[error("no answer: {0}")]
    Unknown(String),
}

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    message: String,
}

impl ServerFailure {
    pub(super) fn of(code: u16, after: Option<Duration>, body: &[u8]) -> Self {
        let message = serde_json::from_slice(body).map(|status: Status| status.message);
        let text = message.unwrap_or_else(|_| String::from_utf8_lossy(body).into_owned());
        let text = excerpt::excerpt(&text);
        match code {
            404 => Self::Missing(text),
            409 => Self::Conflict(text),
            410 => Self::Expired(text),
            429 => Self::Busy { after, text },
            400..=499 => Self::Refused(code, text),
            _ => Self::Unknown(format!("{code}: {text}")),
        }
    }

    /// The pause that the API server asks for.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        if let Self::Busy { after, .. } = self {
            *after
        } else {
            None
        }
    }

    pub(super) fn unanswered(cause: impl Display) -> Self {
        Self::Unknown(excerpt::excerpt(&cause.to_string()))
    }

    pub(super) fn timed_out(timeout: Duration) -> Self {
        Self::Unknown(format!("none within {} s", timeout.as_secs()))
    }
}
