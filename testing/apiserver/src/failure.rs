//! Refusals, in the API server's own form and words.

use http::StatusCode;
use serde_json::{Value, json};

use crate::resources::Resource;

/// A `Status` that says why a request was refused.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Failure {
    code: u16,
    reason: &'static str,
    message: String,
    /// The field that is wrong.
    field: &'static str,
    /// Name, group and resource.
    about: Option<Box<[String; 3]>>,
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
            field: "",
            about: None,
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

    pub(crate) fn invalid(resource: &Resource, name: &str, field: &'static str, why: &str) -> Self {
        let shown = resource.shown();
        Self {
            field,
            ..Self::new(422, format!("{shown} \"{name}\" is invalid: {field}: {why}")).about(resource, name)
        }
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
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if let Some([name, group, kind]) = self.about.as_deref() {
            status["details"] = json!({"name": name, "group": group, "kind": kind});
        }
        if !self.field.is_empty() {
            let cause = json!({"reason": "FieldValueInvalid", "field": self.field, "message": self.message});
            status["details"]["causes"] = json!([cause]);
        }
        status
    }

    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}
