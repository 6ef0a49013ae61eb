//! virt-handler's side of virt-launcher's command socket: gRPC's unary calls, each on a connection of its own. A call that fails in any
//! other way than by virt-launcher's answer fails the test.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ::http::Uri;
use ::http::uri::PathAndQuery;
use prost::Message;
use stelia_device_plugin::api::Status;
use stelia_device_plugin::api::transport::Channel;
use tokio::time::timeout;
use tonic_prost::ProstCodec;

use crate::support::*;

/// Limit of a call. virt-handler waits 20 s; this node is emulated.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// `Response` of KubeVirt's `pkg/handler-launcher-com/cmd/v1/cmd.proto`.
#[derive(Clone, PartialEq, Message)]
struct Response {
    #[prost(bool, tag = "1")]
    success: bool,
    #[prost(string, tag = "2")]
    message: String,
}

pub struct Socket(pub PathBuf);

impl Socket {
    /// virt-launcher gives the socket this name when it is ready.
    pub fn is_there(&self) -> bool {
        UnixStream::connect(&self.0).is_ok()
    }

    /// A call that virt-launcher answers with success, or its message.
    pub fn call(&self, method: &str, request: impl Message + 'static) -> Result<(), String> {
        let started = Instant::now();
        let answer = block_on(async { timeout(CALL_TIMEOUT, self.exchange(method, request)).await });
        let answer = answer.unwrap_or_else(|_| panic!("{method}: no answer after {CALL_TIMEOUT:?}"));
        let Response { success, message } = answer.unwrap_or_else(|status| panic!("{method}: {status}"));
        let took = started.elapsed().as_millis();
        println!("  {method}: success {success} {message:?}, after {took} ms");
        if success { Ok(()) } else { Err(message) }
    }

    async fn exchange(&self, method: &str, request: impl Message + 'static) -> Result<Response, Status> {
        let unavailable = |error: &dyn std::error::Error| Status::unavailable(error.to_string());
        let channel = Channel::connect(&self.0).await.map_err(|error| unavailable(&error))?;
        let mut client = tonic::client::Grpc::with_origin(channel, Uri::from_static("http://localhost"));
        client.ready().await.map_err(|error| unavailable(&error))?;
        let path = format!("/kubevirt.cmd.v1.Cmd/{method}");
        let path = PathAndQuery::try_from(path).expect("a method's path");
        let request = tonic::Request::new(request);
        Ok(client.unary(request, path, ProstCodec::default()).await?.into_inner())
    }
}
