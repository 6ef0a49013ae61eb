//! Connections. A client that is slow or broken does not delay others.

use std::convert::Infallible;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, CONTENT_TYPE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::calls::CallError;
use super::tls::Tls;
use super::{calls, metrics};
use crate::placer::{NotReady, Placer};

/// What a client may cost.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub connections: usize,
    /// Until a request's headers are there, and until a TLS handshake is done.
    pub headers: Duration,
    /// Until its body is there.
    pub body: Duration,
    pub body_bytes: usize,
    /// Until its answer is read.
    pub answer: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: 256,
            headers: Duration::from_secs(5),
            body: Duration::from_secs(10),
            // 10,000 names of 253 characters and the largest pod are 4 MB.
            body_bytes: 8 << 20,
            answer: Duration::from_secs(30),
        }
    }
}

/// The pause after accept(2) failed, for example with too many open files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// What is answered on an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paths {
    All,
    /// `/healthz`, `/readyz`, `/leader` and `/metrics`.
    Probes,
}

/// How an address is served.
pub struct Service {
    pub paths: Paths,
    pub tls: Option<Tls>,
    pub bounds: Bounds,
}

/// Serves until `ended`; connections that are open then finish their requests.
pub async fn serve(placer: Arc<Placer>, listener: TcpListener, service: Service, ended: CancellationToken) {
    let bounds = service.bounds;
    let free = Arc::new(Semaphore::new(bounds.connections));
    let service = Arc::new(service);
    loop {
        // At the limit, the kernel keeps further connections waiting.
        let permit = tokio::select! {
            permit = free.clone().acquire_owned() => permit,
            () = ended.cancelled() => break,
        };
        let Ok(permit) = permit else { break };
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(cause) => {
                    warn!("accept a connection: {cause}");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                }
            },
            () = ended.cancelled() => break,
        };
        let (placer, service) = (placer.clone(), service.clone());
        tokio::spawn(async move {
            connection(placer, &service, stream).await;
            drop(permit);
        });
    }
    // Every open connection holds a permit.
    let all = u32::try_from(bounds.connections).unwrap_or(u32::MAX);
    let _ = tokio::time::timeout(bounds.body, free.acquire_many(all)).await;
}

async fn connection(placer: Arc<Placer>, service: &Service, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let Some(tls) = &service.tls else {
        return http(placer, service, stream).await;
    };
    match tokio::time::timeout(service.bounds.headers, tls.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => http(placer, service, stream).await,
        Ok(Err(cause)) => debug!("a client's TLS handshake: {cause}"),
        Err(_) => debug!("a client's TLS handshake took too long"),
    }
}

/// Answers one request: no connection is idle, and each call is of the instance that the Service leads to at that moment.
async fn http<S: AsyncRead + AsyncWrite + Unpin>(placer: Arc<Placer>, service: &Service, stream: S) {
    let Service { paths, bounds, .. } = *service;
    let is_answered = Arc::new(Notify::new());
    let answered = is_answered.clone();
    let service = service_fn(move |request| {
        let (placer, is_answered) = (placer.clone(), is_answered.clone());
        async move {
            let answer = answer(&placer, request, paths, bounds).await;
            is_answered.notify_one();
            Ok::<_, Infallible>(answer)
        }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(bounds.headers);
    builder.keep_alive(false).max_headers(64);
    tokio::select! {
        done = builder.serve_connection(TokioIo::new(stream), service) => {
            if let Err(cause) = done {
                debug!("a connection: {cause}");
            }
        }
        () = async { answered.notified().await; tokio::time::sleep(bounds.answer).await } => {
            debug!("a connection: the answer is not read");
        }
    }
}

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Answer = Response<Full<Bytes>>;

fn response(code: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = code;
    for (name, value) in [(CONTENT_TYPE, kind), (CONNECTION, "close")] {
        response
            .headers_mut()
            .insert(name, http::HeaderValue::from_static(value));
    }
    response
}

fn line(code: StatusCode, text: impl Display) -> Answer {
    response(code, TEXT, format!("{text}\n"))
}

fn probe_answer(ready: Result<(), NotReady>) -> Answer {
    match ready {
        Ok(()) => line(StatusCode::OK, "ok"),
        Err(cause) => line(StatusCode::SERVICE_UNAVAILABLE, cause),
    }
}

async fn answer(placer: &Arc<Placer>, request: Request<Incoming>, paths: Paths, bounds: Bounds) -> Answer {
    let path = request.uri().path().to_owned();
    let probe = ["/healthz", "/readyz", "/leader", "/metrics"].contains(&path.as_str());
    let call = paths == Paths::All && ["/filter", "/prioritize", "/preempt", "/bind"].contains(&path.as_str());
    match (request.method(), path.as_str()) {
        (&Method::POST, call_path) if call => {
            let body = Limited::new(request.into_body(), bounds.body_bytes).collect();
            match tokio::time::timeout(bounds.body, body).await {
                Ok(Ok(body)) => post(placer, call_path, body.to_bytes()).await,
                Ok(Err(cause)) if cause.is::<http_body_util::LengthLimitError>() => {
                    let most = format!("more than {} bytes", bounds.body_bytes);
                    line(StatusCode::PAYLOAD_TOO_LARGE, most)
                }
                Ok(Err(cause)) => line(StatusCode::BAD_REQUEST, cause),
                Err(_) => line(StatusCode::REQUEST_TIMEOUT, "the body took too long"),
            }
        }
        (&Method::GET, "/healthz") => line(StatusCode::OK, "ok"),
        (&Method::GET, "/readyz") => probe_answer(placer.is_synced().then_some(()).ok_or(NotReady::NotRead)),
        (&Method::GET, "/leader") => probe_answer(placer.ready()),
        (&Method::GET, "/metrics") => match metrics::text(placer) {
            Ok(text) => response(StatusCode::OK, OPEN_METRICS, text),
            Err(cause) => line(StatusCode::INTERNAL_SERVER_ERROR, cause),
        },
        _ if probe || call => line(StatusCode::METHOD_NOT_ALLOWED, "another method"),
        _ => line(StatusCode::NOT_FOUND, "no such path"),
    }
}

/// Answers a call of a scheduler.
async fn post(placer: &Arc<Placer>, path: &str, body: Bytes) -> Answer {
    let call: fn(&Placer, &[u8]) -> Result<Vec<u8>, CallError> = match path {
        "/bind" => return called(calls::bind(placer, &body).await),
        "/filter" => calls::filter,
        "/preempt" => calls::preempt,
        _ => calls::prioritize,
    };
    // The first question of its kind is evaluated for every node; meanwhile others are answered, and the Lease renewed.
    let asked = placer.clone();
    match placer.evaluate(move || call(&asked, &body)).await {
        Ok(result) => called(result),
        Err(cause) => line(StatusCode::INTERNAL_SERVER_ERROR, cause),
    }
}

fn called(result: Result<Vec<u8>, CallError>) -> Answer {
    match result {
        Ok(text) => response(StatusCode::OK, JSON, text),
        Err(cause @ CallError::NotReady(_)) => line(StatusCode::SERVICE_UNAVAILABLE, cause),
        Err(cause @ CallError::Unwritten(_)) => line(StatusCode::INTERNAL_SERVER_ERROR, cause),
        Err(cause) => line(StatusCode::BAD_REQUEST, cause),
    }
}
