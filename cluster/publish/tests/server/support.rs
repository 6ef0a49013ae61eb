//! An API server of which a test decides each answer, and publications.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use stelia_api::publication::{Event, EventKind, Publication, PublishedPod, VERSION};
use stelia_publish::{PublishOptions, Publisher, Reading, Status};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub const NODE: &str = "/api/v1/nodes/worker-1";
pub const OBJECT: &str = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/worker-1";
pub const UID: &str = "11111111-0000-4000-8000-000000000001";

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Seen {
    pub at: Duration,
    pub method: Method,
    pub path: String,
    pub query: String,
    pub content_type: String,
    pub body: Value,
}

impl Seen {
    pub fn is(&self, method: &str, path: &str) -> bool {
        self.method == method && self.path == path
    }
}

pub enum Reply {
    Json(u16, Value),
    Text(u16, &'static str),
    /// With Retry-After.
    Later(u16, u64),
    /// The connection is closed without an answer, for this reason.
    Closed(&'static str),
    /// The request is carried out or not; nobody hears of it.
    Never,
}

pub fn ok() -> Reply {
    Reply::Json(200, json!({}))
}

/// What a healthy API server answers to everything.
pub fn healthy(seen: &Seen) -> Reply {
    if seen.method == "GET" && seen.path == NODE {
        let metadata = json!({"uid": UID, "name": "worker-1", "resourceVersion": "5"});
        return Reply::Json(200, json!({"metadata": metadata}));
    }
    ok()
}

pub fn status(code: u16, reason: &str, message: &str, causes: Value) -> Reply {
    let details = json!({"causes": causes});
    let body = json!({"kind": "Status", "code": code, "reason": reason, "message": message, "details": details});
    Reply::Json(code, body)
}

pub fn conflict(manager: &str) -> Reply {
    let message = format!("conflict with {manager:?} using topology.node.k8s.io/v1alpha2");
    let cause = json!({"reason": "FieldManagerConflict", "message": message, "field": ".zones"});
    status(409, "Conflict", "Apply failed with 1 conflict", json!([cause]))
}

#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<Seen>>>);

impl Log {
    pub fn all(&self) -> Vec<Seen> {
        self.0.lock().unwrap().clone()
    }

    pub fn of(&self, method: &str, path: &str) -> Vec<Seen> {
        self.all().into_iter().filter(|seen| seen.is(method, path)).collect()
    }

    pub fn objects(&self) -> Vec<Seen> {
        self.of("PATCH", OBJECT)
    }

    pub fn clear(&self) {
        self.0.lock().unwrap().clear();
    }
}

/// A client of an API server that answers like this.
pub fn server(mut reply: impl FnMut(&Seen) -> Reply + Send + 'static) -> (Client, Log) {
    let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let log = Log::default();
    let kept = log.clone();
    let started = Instant::now();
    tokio::spawn(async move {
        let mut unanswered = Vec::new();
        handle.allow(u64::MAX);
        while let Some((request, answer)) = handle.next_request().await {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let header = |name| parts.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
            let seen = Seen {
                at: started.elapsed(),
                method: parts.method.clone(),
                path: parts.uri.path().to_owned(),
                query: parts.uri.query().unwrap_or_default().to_owned(),
                content_type: header("content-type").unwrap_or_default(),
                body: serde_json::from_slice(&body).unwrap_or_default(),
            };
            kept.0.lock().unwrap().push(seen.clone());
            let response = |code: u16, body: Vec<u8>| Response::builder().status(code).body(Body::from(body)).unwrap();
            match reply(&seen) {
                Reply::Json(code, value) => answer.send_response(response(code, value.to_string().into_bytes())),
                Reply::Text(code, text) => answer.send_response(response(code, text.into())),
                Reply::Later(code, seconds) => {
                    let mut response = response(code, b"Too many requests, please try again later.".to_vec());
                    response.headers_mut().insert("retry-after", seconds.into());
                    answer.send_response(response);
                }
                Reply::Closed(why) => answer.send_error(why),
                Reply::Never => unanswered.push(answer),
            }
        }
    });
    (Client::new(service, "default"), log)
}

/// A client of an API server that answers these requests like this, and all others as a healthy one.
pub fn answering(
    method: &'static str,
    path: &'static str,
    mut reply: impl FnMut(&Seen) -> Reply + Send + 'static,
) -> (Client, Log) {
    server(move |seen| {
        if seen.is(method, path) {
            reply(seen)
        } else {
            healthy(seen)
        }
    })
}

/// A publisher that runs, and what it is told.
pub struct Running {
    pub readings: watch::Sender<Reading>,
    pub status: watch::Receiver<Status>,
    cancel: CancellationToken,
}

impl Running {
    pub fn new(client: Client, options: PublishOptions, first: Publication) -> Self {
        Self::of(Publisher::new(client, options), Reading::of(first))
    }

    pub fn of(publisher: Publisher, first: Reading) -> Self {
        let (readings, receiver) = watch::channel(first);
        let (status, cancel) = (publisher.status(), CancellationToken::new());
        tokio::spawn(publisher.run(receiver, cancel.clone()));
        Self {
            readings,
            status,
            cancel,
        }
    }

    pub fn tell(&self, publication: Publication) {
        self.readings.send_replace(Reading::of(publication));
    }

    pub fn problems(&self) -> usize {
        self.status.borrow().problems.len()
    }

    /// Settled, with nothing wrong.
    pub fn is_done(&self) -> bool {
        self.problems() == 0 && self.status.borrow().settled
    }

    pub fn problem(&self, part: &str) -> Option<String> {
        let status = self.status.borrow();
        let mut problems = status.problems.iter();
        Some(problems.find(|(of, _)| of.name() == part)?.1.clone())
    }
}

/// A publisher of this server's.
pub fn run((client, log): (Client, Log), options: PublishOptions, first: Publication) -> (Running, Log) {
    (Running::new(client, options, first), log)
}

impl Drop for Running {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// Moves the clock; whatever is due meanwhile happens at its time.
pub async fn pass(seconds: f64) {
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
}

/// At once, and no opt-ins.
pub fn options() -> PublishOptions {
    PublishOptions {
        start_spread: Duration::ZERO,
        ..PublishOptions::new("worker-1")
    }
}

/// At once, and the Node's label.
pub fn with_label() -> PublishOptions {
    PublishOptions {
        ready_label: true,
        ..options()
    }
}

/// A node with this many free CPUs.
pub fn told(free: u32) -> Publication {
    let object = json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": "worker-1", "labels": {"app.kubernetes.io/managed-by": "steliad"}},
        "attributes": [{"name": "topologyManagerPolicy", "value": "none"}],
        "zones": [{"name": "node-0", "type": "Node", "resources":
            [{"name": "cpu", "capacity": "8", "allocatable": "6", "available": free.to_string()}]}],
    });
    let ready = json!({"status": true, "reason": "Ready", "message": ""});
    let told =
        json!({"version": VERSION, "node": "worker-1", "ready": ready, "object": object, "pods": [], "events": []});
    serde_json::from_value(told).unwrap()
}

/// The same, where no VM can be admitted.
pub fn unready() -> Publication {
    let mut told = told(6);
    told.ready.status = false;
    told
}

pub fn available(seen: &Seen) -> &str {
    seen.body["zones"][0]["resources"][0]["available"].as_str().unwrap()
}

pub fn state(seen: &Seen) -> Option<&str> {
    let mut attributes = seen.body["attributes"].as_array()?.iter();
    let state = attributes.find(|one| one["name"] == "isolation.stelia.io/state")?;
    state["value"].as_str()
}

pub fn pod(number: u32, isolated: bool) -> PublishedPod {
    PublishedPod {
        uid: format!("22222222-0000-4000-8000-{number:012}"),
        namespace: "tenant".into(),
        name: format!("vm-{number}"),
        container: "compute".into(),
        isolation: "vcpus".into(),
        state: if isolated { "isolated" } else { "waiting" }.into(),
        isolated,
        reason: if isolated { "Isolated" } else { "Waiting" }.into(),
        message: String::new(),
        since_us: 1_700_000_000_000_000,
    }
}

pub fn event(number: u64, count: u32) -> Event {
    Event {
        number,
        uid: pod(1, true).uid,
        namespace: "tenant".into(),
        name: "vm-1".into(),
        kind: EventKind::Warning,
        reason: "Intruded".into(),
        message: "ksoftirqd ran on CPU 2".into(),
        time_us: 1_700_000_000_000_000,
        count,
    }
}
