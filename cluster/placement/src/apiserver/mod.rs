//! Requests to the API server, and its answers.

pub mod endpoint;
mod failure;
pub mod lease;
pub mod parse;
mod pods;
#[cfg(test)]
mod tests;
mod watch;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Bytes;
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use stelia_credentials::{Credentials, RenewedClient};

pub use failure::ServerFailure;
pub use pods::ToBind;
pub use watch::{Follower, Source, WentBack, follow};

/// Timeout of a request, after which its outcome counts as unknown.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit of an answer that is read as a whole, in bytes. Whoever makes pods chooses how long a list of them is.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// A request's body, with its type.
type Content<'a> = Option<(&'a str, &'a Value)>;

/// The API server, with a bound on each request.
#[derive(Clone)]
pub struct Api {
    client: Arc<Mutex<RenewedClient>>,
}

impl Api {
    pub fn new(client: Client) -> Self {
        Self {
            client: Arc::new(Mutex::new(RenewedClient::new(client))),
        }
    }

    /// Makes a new client of these credentials when they change or are no longer accepted.
    #[must_use]
    pub fn with_credentials(self, credentials: impl Credentials + 'static) -> Self {
        self.client().renewed_by(credentials);
        self
    }

    fn client(&self) -> MutexGuard<'_, RenewedClient> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request, and reads the answer as a JSON object.
    pub(crate) async fn call(&self, method: Method, path: &str, body: Content<'_>) -> Result<Value, ServerFailure> {
        let text = self.text(REQUEST_TIMEOUT, method, path, body).await?;
        serde_json::from_slice(&text).map_err(ServerFailure::unanswered)
    }

    /// Sends a request, and reads the whole answer.
    pub(crate) async fn text(
        &self,
        timeout: Duration,
        method: Method,
        path: &str,
        body: Content<'_>,
    ) -> Result<Bytes, ServerFailure> {
        let text = async {
            let response = self.send(method, path, body).await?;
            let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
            let body = body.map_err(|cause| {
                if cause.is::<LengthLimitError>() {
                    ServerFailure::TooLong(MAX_ANSWER_BYTES)
                } else {
                    ServerFailure::unanswered(cause)
                }
            })?;
            Ok(body.to_bytes())
        };
        let text = tokio::time::timeout(timeout, text).await;
        text.map_err(|_| ServerFailure::timed_out(timeout))?
    }

    /// Sends a request, and reads the answer's beginning.
    async fn send(&self, method: Method, path: &str, body: Content<'_>) -> Result<Response<Body>, ServerFailure> {
        let request = Request::builder().method(method).uri(path);
        let request = match body {
            Some((kind, value)) => request
                .header(http::header::CONTENT_TYPE, kind)
                .body(Body::from(value.to_string().into_bytes())),
            None => request.body(Body::empty()),
        };
        let request = request.map_err(|cause| ServerFailure::Refused(400, format!("{path}: {cause}")))?;
        // A watch goes on with the credentials that it began with, and ends within five minutes.
        let client = self.client().current().clone();
        let response = client.send(request).await.map_err(ServerFailure::unanswered)?;
        if response.status().is_success() {
            return Ok(response);
        }
        let code = response.status().as_u16();
        if response.status() == StatusCode::UNAUTHORIZED {
            self.client().refused();
        }
        let after = response.headers().get(http::header::RETRY_AFTER);
        let after = after.and_then(|value| value.to_str().ok()?.parse().ok());
        let body = response.into_body().collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        Err(ServerFailure::of(code, after.map(Duration::from_secs), &body))
    }
}

const JSON: &str = "application/json";

/// A part of a path or a value of a query, escaped.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => escaped.push(char::from(byte)),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}
