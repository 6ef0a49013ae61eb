//! What a call to the daemon, and so a command, ends in when it fails.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use stelia_table::PrintError;
use zbus::{DBusError, fdo};

/// How the text begins where the caller lacks a permission.
const DENIED: &str = "Permission denied";

/// Why a command failed. The exit code follows from the variant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    NoSuchInstance(String),
    #[error("steliad is not running: running VMs stay isolated")]
    NotRunning,
    /// With what to do.
    #[error("{0}")]
    WithFix(String, &'static str),
    /// The command line is valid for clap, but ambiguous or contradictory.
    #[error("{0}")]
    Usage(String),
    /// The answer is printed, and the exit code is this all the same.
    #[error("{reason}")]
    Partial { printed: String, reason: String, code: u8 },
    /// Anything else: the daemon's own text where there is one.
    #[error("{0}")]
    Other(String),
}

impl From<PrintError> for Failure {
    fn from(PrintError { printed, reason }: PrintError) -> Self {
        Self::Partial {
            printed,
            reason,
            code: 1,
        }
    }
}

impl Failure {
    /// What is wrong with a file.
    pub(crate) fn about(path: &Path, cause: &impl Display) -> Self {
        Self::Other(format!("{}: {cause}", path.display()))
    }

    /// The answer that is printed all the same; it is empty afterwards.
    pub(crate) fn take_printed(&mut self) -> String {
        match self {
            Self::Partial { printed, .. } => std::mem::take(printed),
            _ => String::new(),
        }
    }

    /// Whether the caller lacks a permission.
    pub(crate) fn is_denied(&self) -> bool {
        matches!(self, Self::Other(text) if text.starts_with(DENIED))
    }

    /// What to do, if that is always the same.
    pub(crate) fn fix(&self) -> Option<&'static str> {
        match self {
            // It may be stopped, or have failed.
            Self::NotRunning => Some("systemctl start steliad || journalctl -eu steliad"),
            Self::WithFix(_, fix) => Some(fix),
            _ => None,
        }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::WithFix(..) | Failure::Other(_) => 1,
            Failure::Usage(_) => 2,
            // As systemctl status, which calls a stopped service so.
            Failure::NoSuchInstance(_) | Failure::NotRunning => 3,
            Failure::Partial { code, .. } => *code,
        }
    }
}

pub(super) fn not_answered(limit: Duration, effect: &str) -> Failure {
    Failure::WithFix(
        format!("steliad has not answered for {} s: {effect}", limit.as_secs_f32()),
        "systemctl status steliad; if it hangs, systemctl restart steliad",
    )
}

/// What a caller lacks: the daemon names polkit's action, or why polkit has no answer.
fn denied(text: &str) -> Option<String> {
    let cure = match text.strip_prefix("polkit ")?.strip_prefix("does not permit ") {
        Some(action) => {
            let action = action.split([' ', ':', ';', ',']).next().unwrap_or_default();
            format!("run as root, or grant {action} (polkit)")
        }
        None => format!("run as root ({text})"),
    };
    Some(format!("{DENIED}: {cure}"))
}

/// The failure of this D-Bus error.
fn named(name: &str, text: String) -> Failure {
    match name.rsplit('.').next() {
        // The second one: the object disappeared between two calls.
        Some("NoSuchInstance" | "UnknownObject") => Failure::NoSuchInstance(text),
        Some("NotPermitted") => Failure::Other(denied(&text).unwrap_or(text)),
        Some("AccessDenied") => Failure::Other(format!("{DENIED}: run as root ({text})")),
        // The last one: it stopped during the call.
        Some("ServiceUnknown" | "NameHasNoOwner" | "NoReply") => Failure::NotRunning,
        _ => Failure::Other(text),
    }
}

impl From<zbus::Error> for Failure {
    fn from(error: zbus::Error) -> Self {
        match error {
            zbus::Error::MethodError(name, text, _) => named(&name, text.unwrap_or_else(|| name.to_string())),
            zbus::Error::FDO(error) => Failure::from(*error),
            other => Failure::Other(other.to_string()),
        }
    }
}

impl From<fdo::Error> for Failure {
    fn from(error: fdo::Error) -> Self {
        match error {
            fdo::Error::ZBus(error) => Failure::from(error),
            error => named(&error.name(), error.description().unwrap_or_default().to_owned()),
        }
    }
}
