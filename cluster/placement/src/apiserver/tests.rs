use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use serde_json::value::RawValue;
use test_apiserver::Server;

use super::*;
use crate::reservations::Version;

/// Another server's client once the first one has answered 401.
struct Other {
    server: Server,
    refusals: Arc<AtomicUsize>,
}

impl Credentials for Other {
    fn renewed(&mut self, refused: bool) -> Option<Result<Client, String>> {
        if !refused {
            return None;
        }
        match self.refusals.fetch_add(1, Ordering::Relaxed) {
            0 => Some(Err("the file is being written".to_owned())),
            _ => Some(Ok(Client::new(self.server.clone(), "default"))),
        }
    }
}

#[tokio::test]
async fn credentials_that_are_not_accepted_are_read_again() {
    let (strict, open) = (Server::default(), Server::default());
    strict.accept(Some(vec!["another".to_owned()]));
    open.put("", "pods", json!({"metadata": {"namespace": "vms", "name": "vm"}}));
    let refusals = Arc::new(AtomicUsize::new(0));
    let credentials = Other {
        server: open,
        refusals: refusals.clone(),
    };
    let api = Api::new(Client::new(strict, "default")).with_credentials(credentials);
    // Where they cannot be read the old ones are tried on.
    for tried in [0, 1] {
        let failed = api.pod("vms", "vm").await.unwrap_err();
        assert!(matches!(failed, ServerFailure::Refused(401, _)), "{failed:?}");
        assert_eq!(refusals.load(Ordering::Relaxed), tried);
    }
    for _ in 0..2 {
        let pod = api.pod("vms", "vm").await.unwrap();
        assert_eq!(pod["metadata"]["name"], "vm");
    }
    assert_eq!(refusals.load(Ordering::Relaxed), 2);
}

fn endpoint(address: &str) -> endpoint::Endpoint {
    endpoint::Endpoint {
        namespace: "n".to_owned(),
        service: "stelia-placement".to_owned(),
        address: address.parse().unwrap(),
        port: 8890,
    }
}

#[tokio::test]
async fn the_service_leads_to_whoever_wrote_the_slice_last() {
    let server = Server::default();
    let api = Api::new(Client::new(server.clone(), "default"));
    let (one, other) = (endpoint("10.0.0.1"), endpoint("10.0.0.2"));
    let slice = || server.object("discovery.k8s.io", "endpointslices", "n", "stelia-placement");
    // Whoever does not lead leaves it alone.
    assert_eq!((one.lead_nowhere(&api).await, slice()), (Ok(false), None));
    assert_eq!(one.lead_here(&api).await, Ok(true));
    assert_eq!(one.lead_here(&api).await, Ok(false));
    let written = slice().unwrap();
    let labels = &written["metadata"]["labels"];
    assert_eq!(labels["kubernetes.io/service-name"], "stelia-placement");
    assert_eq!(labels["endpointslice.kubernetes.io/managed-by"], "stelia-placement");
    assert_eq!(written["addressType"], "IPv4");
    let ports = json!([{"name": "extender", "port": 8890, "protocol": "TCP"}]);
    assert_eq!(written["ports"], ports);

    assert_eq!(other.lead_here(&api).await, Ok(true));
    assert_eq!(one.lead_nowhere(&api).await, Ok(false));
    let endpoints = json!([{"addresses": ["10.0.0.2"], "conditions": {"ready": true}}]);
    assert_eq!(slice().unwrap()["endpoints"], endpoints);
    // Ended, it leads nowhere, so that whoever calls is refused at once.
    assert_eq!(other.lead_nowhere(&api).await, Ok(true));
    assert_eq!(slice().unwrap()["endpoints"], json!([]));
}

/// It follows whether this instance places pods, and repairs what somebody else wrote.
#[tokio::test(start_paused = true)]
async fn the_service_is_led_here_for_as_long_as_this_instance_places_pods() {
    let server = Server::default();
    let api = Api::new(Client::new(server.clone(), "default"));
    let endpoint = endpoint("fd00::1");
    let (places, is) = tokio::sync::watch::channel(false);
    tokio::spawn(async move { endpoint.lead_for_ever(&api, || *is.borrow()).await });
    let slice = || server.object("discovery.k8s.io", "endpointslices", "n", "stelia-placement");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(slice().is_none());
    places.send_replace(true);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut written = slice().unwrap();
    assert_eq!(written["addressType"], "IPv6");
    assert_eq!(written["endpoints"][0]["addresses"][0], "fd00::1");
    written["endpoints"] = json!([]);
    server.put("discovery.k8s.io", "endpointslices", written);
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!(slice().unwrap()["endpoints"][0]["addresses"][0], "fd00::1");
}

/// Counts what it is told.
#[derive(Default)]
struct Counted {
    changed: AtomicUsize,
    lists: AtomicUsize,
    failures: AtomicUsize,
}

impl Follower for Counted {
    fn changed(&self, _: &RawValue) {
        self.changed.fetch_add(1, Ordering::Relaxed);
    }

    fn list_ends(&self, _: Version, _: u64) {
        self.lists.fetch_add(1, Ordering::Relaxed);
    }

    fn failed(&self, _: &ServerFailure) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }
}

impl Counted {
    fn get(&self) -> [usize; 3] {
        [&self.changed, &self.lists, &self.failures].map(|count| count.load(Ordering::Relaxed))
    }
}

type Following = tokio::task::JoinHandle<Result<(), WentBack>>;

/// Follows pods, in the term that is told.
fn follow_pods(api: Api) -> (Arc<Counted>, tokio::sync::watch::Sender<u64>, Following) {
    let (follower, (terms, term)) = (Arc::new(Counted::default()), tokio::sync::watch::channel(1));
    let seen = follower.clone();
    let following = tokio::spawn(async move { follow(&api, parse::PODS, seen, term).await });
    (follower, terms, following)
}

fn pod(number: usize, bytes: usize) -> Value {
    json!({"metadata": {"namespace": "vms", "name": format!("vm-{number}"), "annotations": {"long": "x".repeat(bytes)}}})
}

/// 20 pods of 1 MiB are more than an answer may have, and are all read.
#[tokio::test(start_paused = true)]
async fn pages_are_as_small_as_the_objects_are_large() {
    let server = Server::default();
    for number in 0..20 {
        server.put("", "pods", pod(number, 1 << 20));
    }
    let api = Api::new(Client::new(server.clone(), "default"));
    let (follower, _terms, following) = follow_pods(api);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(follower.get(), [20, 1, 0]);
    following.abort();
    // Those that follow are small, and their pages are large again.
    for number in 20..3000 {
        server.put("", "pods", pod(number, 1));
    }
    server.asked();
    let (follower, _terms, following) = follow_pods(Api::new(Client::new(server.clone(), "default")));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(follower.get(), [3000, 1, 0]);
    let lists = server.asked().iter().filter(|asked| asked.verb == "list").count();
    assert!(lists < 50, "{lists} pages");
    following.abort();
    // An answer of one object is not read either if it is too long.
    let api = Api::new(Client::new(server, "default"));
    let answer = api.text(REQUEST_TIMEOUT, Method::GET, "/api/v1/pods", None).await;
    assert_eq!(answer.unwrap_err(), ServerFailure::TooLong(MAX_ANSWER_BYTES));
}

/// A backup is restored: the data are of an earlier time.
#[tokio::test(start_paused = true)]
async fn data_that_go_back_in_time_end_the_watch() {
    let (later, earlier) = (Server::default(), Server::default());
    for number in 0..9 {
        later.put("", "pods", pod(number, 1));
    }
    let restored = Arc::new(AtomicUsize::new(0));
    let is_restored = restored.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = [&later, &earlier][is_restored.load(Ordering::Relaxed)].clone();
        async move { server.answer(request).await }
    });
    let api = Api::new(Client::new(service, "default"));
    let (follower, terms, following) = follow_pods(api);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(follower.get(), [9, 1, 0]);
    restored.store(1, Ordering::Relaxed);
    terms.send_replace(2);
    let ended = following.await.unwrap().unwrap_err().to_string();
    assert!(ended.contains("/api/v1/pods"), "{ended}");
    assert_eq!(follower.get()[1], 1, "nothing of it is believed");
}

/// An answer without content, that ends after a watch's time.
struct Silence(std::pin::Pin<Box<tokio::time::Sleep>>);

impl hyper::body::Body for Silence {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
        self.0.as_mut().poll(context).map(|()| None)
    }
}

/// As from a version that is yet to come. The API server sends bookmarks otherwise.
#[tokio::test(start_paused = true)]
async fn a_watch_that_tells_nothing_is_listed_again() {
    let server = Server::default();
    server.put("", "pods", pod(1, 1));
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = server.clone();
        async move {
            if request.uri().query().is_some_and(|query| query.contains("watch=true")) {
                let silence = Silence(Box::pin(tokio::time::sleep(Duration::from_secs(290))));
                Ok(Response::new(silence.boxed_unsync()))
            } else {
                server.answer(request).await
            }
        }
    });
    let api = Api::new(Client::new(service, "default"));
    let (follower, _terms, _following) = follow_pods(api);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(follower.get(), [3, 3, 0]);
}
