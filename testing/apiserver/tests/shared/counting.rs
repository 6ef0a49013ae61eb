//! A client of the real server that counts requests for objects. Nodes, which that server has not, are in memory.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{Request, Response};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use kube::Client;
use kube::client::Body;
use serde_json::json;
use test_apiserver::Server;
use tower::BoxError;

/// Requests for objects.
#[derive(Debug, Clone, Copy)]
pub struct Counts {
    pub sent: u64,
    pub succeeded: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, succeeded } = self;
        write!(to, "{sent} requests for objects were sent, {succeeded} succeeded")
    }
}

#[derive(Default)]
struct Counters {
    sent: AtomicU64,
    succeeded: AtomicU64,
}

pub struct Counting {
    counters: Arc<Counters>,
    real: Client,
    nodes: Server,
}

type Answer = Response<UnsyncBoxBody<hyper::body::Bytes, BoxError>>;

impl Counting {
    pub fn new<'a>(real: Client, nodes: impl IntoIterator<Item = &'a str>) -> Self {
        let server = Server::default();
        for name in nodes {
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
            server.put("", "nodes", node);
        }
        Self {
            counters: Arc::default(),
            real,
            nodes: server,
        }
    }

    pub fn client(&self) -> Client {
        let (counters, real, nodes) = (self.counters.clone(), self.real.clone(), self.nodes.clone());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (counters, real, nodes) = (counters.clone(), real.clone(), nodes.clone());
            async move {
                if request.uri().path().starts_with("/api/v1/nodes") {
                    let answer = nodes.answer(request).await?;
                    let answer = answer.map(|body| body.map_err(|never| match never {}).boxed_unsync());
                    return Ok::<Answer, BoxError>(answer);
                }
                counters.sent.fetch_add(1, Ordering::Relaxed);
                let answer = real.send(request).await?;
                let succeeded = u64::from(answer.status().is_success());
                counters.succeeded.fetch_add(succeeded, Ordering::Relaxed);
                Ok(answer.map(|body| body.map_err(Into::into).boxed_unsync()))
            }
        });
        Client::new(service, "default")
    }

    /// Since the last call.
    pub fn take(&self) -> Counts {
        let take = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        Counts {
            sent: take(&self.counters.sent),
            succeeded: take(&self.counters.succeeded),
        }
    }
}
