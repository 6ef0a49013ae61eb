//! Refusals, in the API server's own form and words.

use http::StatusCode;
use serde_json::{Value, json};

use crate::resources::Resource;

/// A `Status` that says why a request was refused.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Failure {
    pub(crate) code: u16,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) causes: Vec<Value>,
    /// Name, group and kind.
    pub(crate) about: Option<Box<[String; 3]>>,
    pub(crate) retry_after: Option<u64>,
}

impl Failure {
    pub(crate) fn new(code: u16, message: impl Into<String>) -> Self {
        let reason = match code {
            400 => "BadRequest",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "NotFound",
            405 => "MethodNotAllowed",
            409 => "Conflict",
            410 => "Expired",
            413 => "RequestEntityTooLarge",
            415 => "UnsupportedMediaType",
            422 => "Invalid",
            429 => "TooManyRequests",
            500 => "InternalError",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "",
        };
        Self {
            code,
            reason,
            message: message.into(),
            causes: Vec::new(),
            about: None,
            retry_after: None,
        }
    }

    /// A failure of the server itself, without a reason.
    pub(crate) fn plain(message: impl Into<String>) -> Self {
        Self {
            reason: "",
            ..Self::new(500, message)
        }
    }

    pub(crate) fn not_found(resource: &Resource, name: &str) -> Self {
        Self::new(404, format!("{} \"{name}\" not found", resource.shown())).about(resource, name)
    }

    pub(crate) fn exists(resource: &Resource, name: &str) -> Self {
        Self {
            reason: "AlreadyExists",
            ..Self::new(409, format!("{} \"{name}\" already exists", resource.shown())).about(resource, name)
        }
    }

    pub(crate) fn conflict(resource: &Resource, name: &str, why: &str) -> Self {
        let shown = resource.shown();
        let message = format!("Operation cannot be fulfilled on {shown} \"{name}\": {why}");
        Self::new(409, message).about(resource, name)
    }

    pub(crate) fn stale(resource: &Resource, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(resource, name, why)
    }

    /// `kind` with its group, as the API server writes it: `Lease.coordination.k8s.io`.
    pub(crate) fn invalid(kind: &str, name: &str, faults: &[String]) -> Self {
        let list = match faults {
            [one] => one.clone(),
            more => format!("[{}]", more.join(", ")),
        };
        let mut failure = Self::new(422, format!("{kind} \"{name}\" is invalid: {list}"));
        failure.causes = faults
            .iter()
            .map(|fault| match fault.split_once(": ") {
                Some((field, message)) => json!({"reason": cause(message), "field": field, "message": message}),
                None => json!({"message": fault}),
            })
            .collect();
        let (kind, group) = kind.split_once('.').unwrap_or((kind, ""));
        failure.about = Some(Box::new([name, group, kind].map(str::to_owned)));
        failure
    }

    pub(crate) fn about(mut self, resource: &Resource, name: &str) -> Self {
        self.about = Some(Box::new([name, &resource.group, &resource.plural].map(str::to_owned)));
        self
    }

    pub(crate) fn expired(asked: u64, oldest: u64) -> Self {
        Self::new(410, format!("too old resource version: {asked} ({oldest})"))
    }

    pub(crate) fn body(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.into();
        }
        if let Some([name, group, kind]) = self.about.as_deref() {
            status["details"] = json!({"group": group, "kind": kind});
            if !name.is_empty() {
                status["details"]["name"] = name.clone().into();
            }
        }
        if !self.causes.is_empty() {
            status["details"]["causes"] = Value::Array(self.causes.clone());
        }
        if let Some(seconds) = self.retry_after {
            status["details"]["retryAfterSeconds"] = seconds.into();
        }
        status
    }

    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

fn cause(message: &str) -> &'static str {
    match message {
        message if message.starts_with("Required value") => "FieldValueRequired",
        message if message.starts_with("Duplicate value") => "FieldValueDuplicate",
        message if message.starts_with("Unsupported value") => "FieldValueNotSupported",
        message if message.contains("in body must be of type") => "FieldValueTypeInvalid",
        _ => "FieldValueInvalid",
    }
}
