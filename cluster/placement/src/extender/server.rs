//! Connections. A client that is slow or broken does not delay others.

use std::convert::Infallible;
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
    let Service { paths, tls, bounds } = service;
    let free = Arc::new(Semaphore::new(bounds.connections));
    let tls = tls.map(Arc::new);
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
        let (placer, tls, ended) = (placer.clone(), tls.clone(), ended.clone());
        tokio::spawn(async move {
            let client = Client {
                placer,
                paths,
                bounds,
                ended,
            };
            client.connection(stream, tls).await;
            drop(permit);
        });
    }
    // Every open connection holds a permit.
    let all = u32::try_from(bounds.connections).unwrap_or(u32::MAX);
    let _ = tokio::time::timeout(bounds.body, free.acquire_many(all)).await;
}

/// One connection.
struct Client {
    placer: Arc<Placer>,
    paths: Paths,
    bounds: Bounds,
    ended: CancellationToken,
}

impl Client {
    async fn connection(self, stream: TcpStream, tls: Option<Arc<Tls>>) {
        let _ = stream.set_nodelay(true);
        let Some(tls) = tls else {
            return self.http(stream).await;
        };
        match tokio::time::timeout(self.bounds.headers, tls.acceptor().accept(stream)).await {
            Ok(Ok(stream)) => self.http(stream).await,
            Ok(Err(cause)) => debug!("a client's TLS handshake: {cause}"),
            Err(_) => debug!("a client's TLS handshake took too long"),
        }
    }

    async fn http<S: AsyncRead + AsyncWrite + Unpin>(self, stream: S) {
        let Self {
            placer,
            paths,
            bounds,
            ended,
        } = self;
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
                    answer
                        .headers_mut()
                        .insert(CONNECTION, http::HeaderValue::from_static("close"));
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

fn response(code: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = code;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response
}

fn probe_answer(ready: Result<(), NotReady>) -> Response<Full<Bytes>> {
    match ready {
        Ok(()) => response(StatusCode::OK, TEXT, "ok\n"),
        Err(cause) => response(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{cause}\n")),
    }
}

async fn answer(
    placer: &Arc<Placer>,
    request: Request<Incoming>,
    paths: Paths,
    bounds: Bounds,
) -> Response<Full<Bytes>> {
    let path = request.uri().path().to_owned();
    let probe = ["/healthz", "/readyz", "/leader", "/metrics"].contains(&path.as_str());
    if paths == Paths::Probes && !probe {
        return response(StatusCode::NOT_FOUND, TEXT, "no such path\n");
    }
    let verb = Verb::parse(&path);
    if let (&Method::POST, Some(verb)) = (request.method(), verb) {
        let body = Limited::new(request.into_body(), bounds.body_bytes).collect();
        return match tokio::time::timeout(bounds.body, body).await {
            Ok(Ok(body)) => post(placer, verb, body.to_bytes()).await,
            Ok(Err(cause)) if cause.is::<http_body_util::LengthLimitError>() => response(
                StatusCode::PAYLOAD_TOO_LARGE,
                TEXT,
                format!("more than {} bytes\n", bounds.body_bytes),
            ),
            Ok(Err(cause)) => response(StatusCode::BAD_REQUEST, TEXT, format!("{cause}\n")),
            Err(_) => response(StatusCode::REQUEST_TIMEOUT, TEXT, "the body took too long\n"),
        };
    }
    match (request.method(), path.as_str()) {
        (&Method::GET, "/healthz") => response(StatusCode::OK, TEXT, "ok\n"),
        (&Method::GET, "/readyz") => probe_answer(placer.is_synced().then_some(()).ok_or(NotReady::NotRead)),
        (&Method::GET, "/leader") => probe_answer(placer.ready()),
        (&Method::GET, "/metrics") => match metrics::text(placer) {
            Ok(text) => response(StatusCode::OK, OPEN_METRICS, text),
            Err(cause) => response(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{cause}\n")),
        },
        _ if probe || verb.is_some() => response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "another method\n"),
        _ => response(StatusCode::NOT_FOUND, TEXT, "no such path\n"),
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

async fn post(placer: &Arc<Placer>, verb: Verb, body: Bytes) -> Response<Full<Bytes>> {
    let failed = |cause: String| response(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{cause}\n"));
    if verb == Verb::Bind {
        return match calls::bind(placer, &body).await {
            Ok(text) => response(StatusCode::OK, JSON, text),
            Err(cause) => failed(cause.to_string()),
        };
    }
    // The first question of its kind is evaluated for every node; meanwhile others are answered, and the Lease renewed.
    let asked = placer.clone();
    let call_failed = |cause: calls::CallError| {
        if cause.is_temporary() {
            (StatusCode::SERVICE_UNAVAILABLE, cause.to_string())
        } else {
            (StatusCode::BAD_REQUEST, cause.to_string())
        }
    };
    let answered = placer.evaluate(move || match verb {
        Verb::Filter => {
            calls::filter(&asked, &body).map_err(|cause| (StatusCode::INTERNAL_SERVER_ERROR, cause.to_string()))
        }
        Verb::Preempt => calls::preempt(&asked, &body).map_err(call_failed),
        Verb::Prioritize | Verb::Bind => calls::prioritize(&asked, &body).map_err(call_failed),
    });
    match answered.await {
        Ok(Ok(text)) => response(StatusCode::OK, JSON, text),
        Ok(Err((code, cause))) => response(code, TEXT, format!("{cause}\n")),
        Err(cause) => failed(cause.to_string()),
    }
}
