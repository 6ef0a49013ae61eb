//! HTTP/2 over a Unix socket, with limits on what the other side may occupy.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use thiserror::Error;
use tokio::net::UnixStream;
use tonic::body::Body;
use tonic::client::GrpcService;

use crate::api::service::MAX_REQUEST_BYTES;

/// How many calls a connection may have at a time. kubelet has one stream and few calls.
const MAX_CONCURRENT_STREAMS: u32 = 8;

/// How many bytes of a request's headers a server reads.
const MAX_HEADER_BYTES: u32 = 8 << 10;

/// How many bytes of one answer wait for the client to read them.
const MAX_SEND_BUFFER_BYTES: usize = 64 << 10;

/// How many calls a client may take back before the server has looked at them.
const MAX_PENDING_RESETS: usize = 16;

/// After how much silence a server asks whether the client still answers.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(60);

/// How long the client may take to answer that. A client that ended is seen without it, and kubelet may have no CPU for a while.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(120);

/// How long connecting to a socket may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves one connection until it ends. Dropping the future ends the connection and all its streams.
///
/// # Errors
///
/// What the client did that HTTP/2 or the limits do not permit, or how the connection broke.
pub async fn serve_connection<S>(stream: UnixStream, service: S) -> Result<(), hyper::Error>
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    let window = u32::try_from(MAX_REQUEST_BYTES).unwrap_or(u32::MAX);
    hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_CONCURRENT_STREAMS)
        .max_header_list_size(MAX_HEADER_BYTES)
        .max_send_buf_size(MAX_SEND_BUFFER_BYTES)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .initial_stream_window_size(window)
        .initial_connection_window_size(window)
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

/// Why there is no connection to a socket.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The kernel refused it.
    #[error("connect to {}: {cause}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The kernel's reason.
        cause: io::Error,
    },
    /// Something listens there that does not speak HTTP/2.
    #[error("begin HTTP/2 on {}: {cause}", path.display())]
    Handshake {
        /// The socket.
        path: PathBuf,
        /// What happened instead.
        cause: hyper::Error,
    },
    /// The listener's queue stayed full.
    #[error("connect to {}: not accepted within {} s", path.display(), CONNECT_TIMEOUT.as_secs())]
    Timeout {
        /// The socket.
        path: PathBuf,
    },
}

/// A connection to a gRPC server on a Unix socket. Clones share it; it ends with the last clone and the last stream.
#[derive(Clone)]
pub struct Channel {
    sender: SendRequest<Body>,
    server_pid: Option<i32>,
}

impl Channel {
    /// Connects to the socket at `path`. Calls have no time limit of their own.
    ///
    /// # Errors
    ///
    /// See [`ConnectError`].
    pub async fn connect(path: &Path) -> Result<Self, ConnectError> {
        match tokio::time::timeout(CONNECT_TIMEOUT, connect(path)).await {
            Ok(connected) => connected,
            Err(_) => Err(ConnectError::Timeout { path: path.to_owned() }),
        }
    }

    /// The process that began to listen on the socket, if this process can see it.
    pub fn server_pid(&self) -> Option<i32> {
        self.server_pid
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

async fn connect(path: &Path) -> Result<Channel, ConnectError> {
    let failed = |cause| ConnectError::Connect {
        path: path.to_owned(),
        cause,
    };
    let stream = UnixStream::connect(path).await.map_err(failed)?;
    let server_pid = stream.peer_cred().map_err(failed)?.pid().filter(|pid| *pid > 0);
    let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_header_list_size(MAX_HEADER_BYTES)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|cause| ConnectError::Handshake {
            path: path.to_owned(),
            cause,
        })?;
    // How it ended is what the calls on it report.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(Channel { sender, server_pid })
}

impl GrpcService<Body> for Channel {
    type ResponseBody = Incoming;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Incoming>, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.sender.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.sender.send_request(request))
    }
}
