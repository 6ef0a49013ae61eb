//! The server as a service of HTTP requests: what kube's client is made of, and what a connection is served by.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::request::Parts;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;

use crate::counts::LoggedRequest;
use crate::discovery;
use crate::failure::Failure;
use crate::faults::Answer;
use crate::query::Query;
use crate::requests::{ApiRequest, Reply};
use crate::resources::Target;
use crate::server::Server;
use crate::watch;

/// An answer's body.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;
/// Limit of a request's body, in bytes.
const MAX_BODY_BYTES: usize = 3 << 20;

/// The connection closed without an answer.
#[derive(Debug)]
pub struct Closed;

impl std::fmt::Display for Closed {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str("connection closed")
    }
}

impl std::error::Error for Closed {}

impl<B> tower::Service<Request<B>> for Server
where
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = Closed;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Closed>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Closed>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let server = self.clone();
        Box::pin(async move { server.answer(request).await })
    }
}

impl Server {
    /// # Errors
    /// The server is down, or a fault closes the connection.
    pub async fn answer<B>(&self, request: Request<B>) -> Result<Response<Body>, Closed>
    where
        B: hyper::body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (parts, body) = request.into_parts();
        let Some(target) = Target::parse(parts.uri.path()) else {
            let state = self.state();
            let answer = discovery::answer(&state.resources, parts.uri.path());
            let answer = answer.map(|answer| json(StatusCode::OK, Bytes::from(answer.to_string())));
            return match answer {
                _ if state.faults.is_down() => Err(Closed),
                Some((answer, _)) => Ok(answer),
                None => Ok(no_such_path().0),
            };
        };
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        let verb = verb(&parts.method, &target, &query);
        let mut asked = LoggedRequest {
            at: self.inner.started.elapsed(),
            verb,
            resource: target.resource(),
            name: target.name.clone(),
            code: 0,
            bytes: (0, 0),
        };
        let fault = self.state().faults.is_down().then_some(Answer::Close);
        let fault = fault.or_else(|| self.state().faults.take(verb, &target));
        if let Some(Answer::Delay(time)) = fault {
            tokio::time::sleep(time).await;
        }
        if fault == Some(Answer::Close) || self.state().faults.is_down() {
            self.state().counts.add(asked);
            return Err(Closed);
        }
        let reply = match fault.clone() {
            Some(Answer::Status(code)) => Err(Failure::new(code, "a fault that a test asked for")),
            _ => match self.checked(&parts, body).await {
                Ok(body) => {
                    asked.bytes.0 = body.len();
                    self.serve(&ApiRequest {
                        parts: &parts,
                        target: &target,
                        query: &query,
                        verb,
                        body: &body,
                    })
                }
                Err(failure) => Err(failure),
            },
        };
        let (response, sent) = match reply {
            Ok(reply) => self.whole(reply),
            Err(failure) => json(failure.status(), Bytes::from(failure.body().to_string())),
        };
        asked.bytes.1 = sent;
        if fault != Some(Answer::Lost) {
            asked.code = response.status().as_u16();
        }
        self.state().counts.add(asked);
        match fault {
            Some(Answer::Lost) => Err(Closed),
            _ => Ok(response),
        }
    }

    /// Who asks, and the request's body.
    async fn checked<B>(&self, parts: &Parts, body: B) -> Result<Bytes, Failure>
    where
        B: hyper::body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let header = parts.headers.get(header::AUTHORIZATION);
        let token = header.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        let token = token.unwrap_or_default().to_owned();
        if self
            .state()
            .tokens
            .as_ref()
            .is_some_and(|tokens| !tokens.contains(&token))
        {
            return Err(Failure::new(401, "Unauthorized"));
        }
        let body = Limited::new(body, MAX_BODY_BYTES).collect().await;
        let body = body.map_err(|error| {
            if error.is::<http_body_util::LengthLimitError>() {
                Failure::new(413, format!("Request entity is too large: limit is {MAX_BODY_BYTES}"))
            } else {
                Failure::new(400, error.to_string())
            }
        });
        Ok(body?.to_bytes())
    }

    fn whole(&self, reply: Reply) -> (Response<Body>, usize) {
        match reply {
            Reply::Object(code, object) => json(code, Bytes::from(object.to_string())),
            Reply::Text(text) => json(StatusCode::OK, text),
            Reply::NoSuchPath => no_such_path(),
            Reply::Watch(watch) => {
                let body = watch::body(self.clone(), watch).boxed_unsync();
                (built(StatusCode::OK, "application/json", body), 0)
            }
        }
    }
}

fn verb(method: &Method, target: &Target, query: &Query) -> &'static str {
    match *method {
        Method::GET if query.is("watch") => "watch",
        Method::GET if target.name.is_empty() => "list",
        Method::GET => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if target.name.is_empty() => "deletecollection",
        Method::DELETE => "delete",
        _ => "other",
    }
}

fn no_such_path() -> (Response<Body>, usize) {
    let text = "404 page not found\n";
    let body = Full::new(Bytes::from_static(text.as_bytes())).boxed_unsync();
    (
        built(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", body),
        text.len(),
    )
}

pub(crate) fn json(code: StatusCode, text: Bytes) -> (Response<Body>, usize) {
    let size = text.len();
    (built(code, "application/json", Full::new(text).boxed_unsync()), size)
}

fn built(code: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}
