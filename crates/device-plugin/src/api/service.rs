//! One call of a service on top of HTTP/2, on either side.

use std::future::Future;
use std::time::Duration;

use futures_util::Stream;
use http::{Request, Response, uri::PathAndQuery};
use prost::Message;
use tonic::body::Body;
use tonic::server::{ServerStreamingService, UnaryService};
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;

use crate::api::transport::Channel;

/// The largest message that a server reads, in bytes. kubelet asks for one container at a time, so its largest request names
/// that container's devices.
pub(crate) const MAX_REQUEST_BYTES: usize = 64 << 10;

/// The largest message that a client reads, in bytes: a list of all devices of a plugin.
const MAX_RESPONSE_BYTES: usize = 4 << 20;

/// How long a client may take to send its request and a service to begin its answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The error type of a body that hyper or a test delivers.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

struct Handler<F>(F);

impl<F, Fut, M, R> UnaryService<M> for Handler<F>
where
    F: FnMut(M) -> Fut,
    Fut: Future<Output = Result<R, Status>>,
{
    type Response = R;
    type Future = futures_util::future::MapOk<Fut, fn(R) -> tonic::Response<R>>;

    fn call(&mut self, request: tonic::Request<M>) -> Self::Future {
        futures_util::TryFutureExt::map_ok((self.0)(request.into_inner()), tonic::Response::new as fn(R) -> _)
    }
}

struct StreamHandler<F>(F);

impl<F, S, M, R> ServerStreamingService<M> for StreamHandler<F>
where
    F: FnMut(M) -> S,
    S: Stream<Item = Result<R, Status>>,
{
    type Response = R;
    type ResponseStream = S;
    type Future = std::future::Ready<Result<tonic::Response<S>, Status>>;

    fn call(&mut self, request: tonic::Request<M>) -> Self::Future {
        std::future::ready(Ok(tonic::Response::new((self.0)(request.into_inner()))))
    }
}

/// Answers a call that has one answer.
pub(crate) async fn unary<B, M, R, Fut>(request: Request<B>, handle: impl FnMut(M) -> Fut) -> Response<Body>
where
    B: http_body::Body + Send + 'static,
    B::Error: Into<BoxError> + Send,
    M: Message + Default + 'static,
    R: Message + 'static,
    Fut: Future<Output = Result<R, Status>>,
{
    let mut grpc = tonic::server::Grpc::new(ProstCodec::<R, M>::new()).max_decoding_message_size(MAX_REQUEST_BYTES);
    in_time(grpc.unary(Handler(handle), request)).await
}

/// Answers a call whose answer is a stream.
pub(crate) async fn streaming<B, M, R, S>(request: Request<B>, handle: impl FnMut(M) -> S) -> Response<Body>
where
    B: http_body::Body + Send + 'static,
    B::Error: Into<BoxError> + Send,
    M: Message + Default + 'static,
    R: Message + 'static,
    S: Stream<Item = Result<R, Status>> + Send + 'static,
{
    let mut grpc = tonic::server::Grpc::new(ProstCodec::<R, M>::new()).max_decoding_message_size(MAX_REQUEST_BYTES);
    in_time(grpc.server_streaming(StreamHandler(handle), request)).await
}

async fn in_time(answer: impl Future<Output = Response<Body>>) -> Response<Body> {
    match tokio::time::timeout(REQUEST_TIMEOUT, answer).await {
        Ok(response) => response,
        Err(_) => {
            let seconds = REQUEST_TIMEOUT.as_secs();
            Status::deadline_exceeded(format!("the call did not end within {seconds} s")).into_http()
        }
    }
}

/// Answers a call that the service does not have.
pub(crate) fn unknown_method(path: &str) -> Response<Body> {
    Status::unimplemented(format!("there is no method {path}")).into_http()
}

/// Makes a call that has one answer.
pub(crate) async fn call<M, R>(channel: &Channel, method: &'static str, message: M) -> Result<R, Status>
where
    M: Message + 'static,
    R: Message + Default + 'static,
{
    let mut grpc = client(channel).await?;
    let path = PathAndQuery::from_static(method);
    let response = grpc
        .unary(tonic::Request::new(message), path, ProstCodec::<M, R>::new())
        .await?;
    Ok(response.into_inner())
}

/// Makes a call whose answer is a stream.
pub(crate) async fn call_streaming<M, R>(
    channel: &Channel,
    method: &'static str,
    message: M,
) -> Result<Streaming<R>, Status>
where
    M: Message + 'static,
    R: Message + Default + 'static,
{
    let mut grpc = client(channel).await?;
    let path = PathAndQuery::from_static(method);
    let response = grpc
        .server_streaming(tonic::Request::new(message), path, ProstCodec::<M, R>::new())
        .await?;
    Ok(response.into_inner())
}

async fn client(channel: &Channel) -> Result<tonic::client::Grpc<Channel>, Status> {
    let origin = http::Uri::from_static("http://localhost");
    let mut grpc =
        tonic::client::Grpc::with_origin(channel.clone(), origin).max_decoding_message_size(MAX_RESPONSE_BYTES);
    grpc.ready()
        .await
        .map_err(|error| Status::unavailable(error.to_string()))?;
    Ok(grpc)
}
