//! Connections. A client that is slow or broken does not delay others.

use std::convert::Infallible;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::header::{CONNECTION, CONTENT_TYPE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use stelia_cpus::text::named;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::calls::CallError;
use super::idle_timeout::{IdleTimeout, TimedStream};
use super::tls::Tls;
use super::{calls, metrics};
use crate::placer::{NotReady, Placer};

/// What a client may cost.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub connections: usize,
    /// Until a request's headers are there, and until a TLS handshake is done.
    pub headers: Duration,
    /// Until an answer is read and the next request of a connection begins. kube-scheduler closes an idle one after 90 s.
    pub idle: Duration,
    /// Until its body is there.
    pub body: Duration,
    pub body_bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: 256,
            headers: Duration::from_secs(5),
            idle: Duration::from_secs(120),
            body: Duration::from_secs(10),
            // 10,000 names of 253 characters and the largest pod are 4 MB.
            body_bytes: 8 << 20,
        }
    }
}

/// The pause after accept(2) failed, for example with too many open files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// How often each connection checks whether this instance is still the leader.
const LEADER_CHECK_PERIOD: Duration = Duration::from_secs(1);

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
    let client = Client {
        placer,
        service: Arc::new(service),
        ended: ended.clone(),
    };
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
        let client = client.clone();
        tokio::spawn(async move {
            client.connection(stream).await;
            drop(permit);
        });
    }
    // Every open connection holds a permit.
    let all = u32::try_from(bounds.connections).unwrap_or(u32::MAX);
    let _ = tokio::time::timeout(bounds.body, free.acquire_many(all)).await;
}

/// One connection.
#[derive(Clone)]
struct Client {
    placer: Arc<Placer>,
    service: Arc<Service>,
    ended: CancellationToken,
}

impl Client {
    async fn connection(self, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.service.tls else {
            return self.http(stream).await;
        };
        match tokio::time::timeout(self.service.bounds.headers, tls.acceptor().accept(stream)).await {
            Ok(Ok(stream)) => self.http(stream).await,
            Ok(Err(cause)) => debug!("a client's TLS handshake: {cause}"),
            Err(_) => debug!("a client's TLS handshake took too long"),
        }
    }

    async fn http<S: AsyncRead + AsyncWrite + Unpin>(self, stream: S) {
        let (placer, ended) = (self.placer, self.ended);
        let Service { paths, bounds, .. } = *self.service;
        let timeout = IdleTimeout::new(bounds.headers, bounds.idle);
        let stream = TimedStream::new(stream, timeout.clone());
        let idle_clock = timeout.clone();
        let (called, leader_check) = (Arc::new(AtomicBool::new(false)), placer.clone());
        let mark_called = called.clone();
        let service = service_fn(move |request| {
            let (placer, timeout) = (placer.clone(), timeout.clone());
            mark_called.store(true, Ordering::Relaxed);
            timeout.begins();
            async move {
                let mut answer = answer(&placer, request, paths, bounds).await;
                // A scheduler calls on its open connections for as long as they last. A new one goes through the Service, which leads to the
                // instance that places pods.
                if paths == Paths::All && placer.ready().is_err() {
                    let close = http::HeaderValue::from_static("close");
                    answer.headers_mut().insert(CONNECTION, close);
                }
                timeout.ends();
                Ok::<_, Infallible>(answer)
            }
        });
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.header_read_timeout(None).max_headers(64);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let overdue = idle_clock.overdue();
        tokio::pin!(connection, overdue);
        let mut ending = false;
        let mut leader_checks = tokio::time::interval(LEADER_CHECK_PERIOD);
        loop {
            tokio::select! {
                done = connection.as_mut() => {
                    if let Err(cause) = done {
                        debug!("a connection: {cause}");
                    }
                    return;
                }
                () = overdue.as_mut() => {
                    debug!("a connection: the client was silent for too long");
                    return;
                }
                () = ended.cancelled(), if !ending => {
                    ending = true;
                    connection.as_mut().graceful_shutdown();
                }
                // A scheduler must not call on this connection once another instance places pods.
                _ = leader_checks.tick(), if !ending && paths == Paths::All => {
                    if called.load(Ordering::Relaxed) && leader_check.ready().is_err() {
                        ending = true;
                        connection.as_mut().graceful_shutdown();
                    }
                }
            }
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
    let kind = http::HeaderValue::from_static(kind);
    response.headers_mut().insert(CONTENT_TYPE, kind);
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
    if paths == Paths::Probes && !probe {
        return line(StatusCode::NOT_FOUND, "no such path");
    }
    let verb = Verb::parse(&path);
    if let (&Method::POST, Some(verb)) = (request.method(), verb) {
        let body = Limited::new(request.into_body(), bounds.body_bytes).collect();
        return match tokio::time::timeout(bounds.body, body).await {
            Ok(Ok(body)) => post(placer, verb, body.to_bytes()).await,
            Ok(Err(cause)) if cause.is::<http_body_util::LengthLimitError>() => {
                let most = format!("more than {} bytes", bounds.body_bytes);
                line(StatusCode::PAYLOAD_TOO_LARGE, most)
            }
            Ok(Err(cause)) => line(StatusCode::BAD_REQUEST, cause),
            Err(_) => line(StatusCode::REQUEST_TIMEOUT, "the body took too long"),
        };
    }
    match (request.method(), path.as_str()) {
        (&Method::GET, "/healthz") => line(StatusCode::OK, "ok"),
        (&Method::GET, "/readyz") => probe_answer(placer.is_synced().then_some(()).ok_or(NotReady::NotRead)),
        (&Method::GET, "/leader") => probe_answer(placer.ready()),
        (&Method::GET, "/metrics") => match metrics::text(placer) {
            Ok(text) => response(StatusCode::OK, OPEN_METRICS, text),
            Err(cause) => line(StatusCode::INTERNAL_SERVER_ERROR, cause),
        },
        _ if probe || verb.is_some() => line(StatusCode::METHOD_NOT_ALLOWED, "another method"),
        _ => line(StatusCode::NOT_FOUND, "no such path"),
    }
}

named! {
    /// What a scheduler asks.
    enum Verb {
        Filter = "/filter",
        Prioritize = "/prioritize",
        Preempt = "/preempt",
        Bind = "/bind",
    }
}

async fn post(placer: &Arc<Placer>, verb: Verb, body: Bytes) -> Answer {
    if verb == Verb::Bind {
        return called(calls::bind(placer, &body).await);
    }
    // The first question of its kind is evaluated for every node; meanwhile others are answered, and the Lease renewed.
    let asked = placer.clone();
    let answered = placer.evaluate(move || match verb {
        Verb::Filter => calls::filter(&asked, &body),
        Verb::Preempt => calls::preempt(&asked, &body),
        Verb::Prioritize | Verb::Bind => calls::prioritize(&asked, &body),
    });
    match answered.await {
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
