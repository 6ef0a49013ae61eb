//! HTTP/2 over a Unix socket, with limits on what the other side may occupy.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use thiserror::Error;
use tokio::net::UnixStream;
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::codegen::Service;
use tonic::{Code, Status};

use super::v1beta1::device_plugin_client::DevicePluginClient;
use super::v1beta1::device_plugin_server::{DevicePlugin, DevicePluginServer};
use super::v1beta1::registration_client::RegistrationClient;
use super::v1beta1::registration_server::{Registration, RegistrationServer};

/// The largest message that a server reads, in bytes. kubelet asks for one container at a time, so its largest request names
/// that container's devices.
const MAX_REQUEST_BYTES: usize = 64 << 10;

/// The largest message that a client reads, in bytes: a list of all devices of a plugin.
const MAX_RESPONSE_BYTES: usize = 4 << 20;

/// How long a client may take to send its request and a service to begin its answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// How many calls a connection may have at a time. kubelet has one stream and few calls.
const MAX_CONCURRENT_STREAMS: u32 = 8;

/// How many bytes of a request's headers a server reads.
const MAX_HEADER_BYTES: u32 = 8 << 10;

/// How many bytes of one answer wait for the client to read them.
const MAX_SEND_BUFFER_BYTES: usize = 64 << 10;

/// How many calls a client may take back before the server has looked at them.
const MAX_PENDING_RESETS: usize = 16;

/// What HTTP/2 wants of a request, and a Unix socket does not have.
const ORIGIN: &str = "http://localhost";

/// After how much silence a server asks whether the client still answers.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(60);

/// How long the client may take to answer that. A client that ended is seen without it, and kubelet may have no CPU for a while.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(120);

/// How long connecting to a socket may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves one connection to a plugin until it ends. Dropping the future ends the connection and all its streams.
///
/// # Errors
///
/// What the client did that HTTP/2 or the limits do not permit, or how the connection broke.
pub async fn serve_plugin(stream: UnixStream, plugin: Arc<impl DevicePlugin>) -> Result<(), hyper::Error> {
    let server = DevicePluginServer::from_arc(plugin);
    serve_connection(stream, server.max_decoding_message_size(MAX_REQUEST_BYTES)).await
}

/// Serves one connection to kubelet, as [`serve_plugin`] does.
pub async fn serve_kubelet(stream: UnixStream, kubelet: Arc<impl Registration>) -> Result<(), hyper::Error> {
    let server = RegistrationServer::from_arc(kubelet);
    serve_connection(stream, server.max_decoding_message_size(MAX_REQUEST_BYTES)).await
}

async fn serve_connection<S>(stream: UnixStream, server: S) -> Result<(), hyper::Error>
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Clone,
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
        .serve_connection(
            TokioIo::new(stream),
            service_fn(move |request| {
                let path = request.uri().path().to_owned();
                in_time(path, server.clone().call(request))
            }),
        )
        .await
}

async fn in_time(
    path: String,
    answer: impl Future<Output = Result<Response<Body>, Infallible>>,
) -> Result<Response<Body>, Infallible> {
    let Ok(answer) = tokio::time::timeout(REQUEST_TIMEOUT, answer).await else {
        let seconds = REQUEST_TIMEOUT.as_secs();
        return Ok(Status::deadline_exceeded(format!("the call did not end within {seconds} s")).into_http());
    };
    let answer = answer?;
    // The server refuses a method that it does not have without a word.
    match Status::from_header_map(answer.headers()) {
        Some(status) if status.code() == Code::Unimplemented && status.message().is_empty() => {
            Ok(Status::unimplemented(format!("there is no method {path}")).into_http())
        }
        _ => Ok(answer),
    }
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
    pub async fn connect(path: &Path) -> Result<Self, ConnectError> {
        match tokio::time::timeout(CONNECT_TIMEOUT, connect(path)).await {
            Ok(connected) => connected,
            Err(_) => Err(ConnectError::Timeout { path: path.to_owned() }),
        }
    }

    /// The client of the plugin at the other end.
    pub fn plugin(self) -> DevicePluginClient<Self> {
        DevicePluginClient::with_origin(self, Uri::from_static(ORIGIN)).max_decoding_message_size(MAX_RESPONSE_BYTES)
    }

    /// The client of the kubelet at the other end.
    pub fn kubelet(self) -> RegistrationClient<Self> {
        RegistrationClient::with_origin(self, Uri::from_static(ORIGIN)).max_decoding_message_size(MAX_RESPONSE_BYTES)
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
