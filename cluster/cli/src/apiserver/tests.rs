use std::sync::{Arc, Mutex};

use kube::client::Body;
use serde_json::{Value, json};
use stelia_koordinator::report::profile::Profile;
use stelia_koordinator::report::testing::facts;

use super::*;
use crate::tests::topology;

/// A server that answers each request, and what it was asked: method, path and query.
fn server(answer: impl Fn(usize, &str) -> (u16, Value) + Send + 'static) -> (Client, Arc<Mutex<Vec<String>>>) {
    let (service, mut handle) = tower_test::mock::pair::<http::Request<Body>, http::Response<Body>>();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Some((request, send)) = handle.next_request().await {
            let uri = request.uri().to_string();
            let number = {
                let mut asked = record.lock().unwrap();
                asked.push(format!("{} {uri}", request.method()));
                asked.len()
            };
            let (status, body) = answer(number, &uri);
            let body = Body::from(body.to_string().into_bytes());
            send.send_response(http::Response::builder().status(status).body(body).unwrap());
        }
    });
    (Client::new(service, "team-a"), asked)
}

fn status(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message,
    });
    (code, body)
}

fn list(kind: &str, next: &str, items: Vec<Value>) -> (u16, Value) {
    let body = json!({ "kind": kind, "metadata": { "continue": next }, "items": items });
    (200, body)
}

/// Answers so where the URI has this, and as usual elsewhere.
fn but(has: &'static str, other: (u16, Value)) -> (Client, Arc<Mutex<Vec<String>>>) {
    server(move |_, uri| if uri.contains(has) { other.clone() } else { answer(uri) })
}

fn named(name: &str) -> Value {
    json!({ "metadata": { "name": name }, "spec": {} })
}

/// A cluster of three nodes in two pages, one of which has an object.
fn answer(uri: &str) -> (u16, Value) {
    match uri {
        uri if uri.starts_with("/api/v1/nodes") && uri.contains("continue") => {
            list("NodeList", "", vec![named("worker-3")])
        }
        uri if uri.starts_with("/api/v1/nodes") => list("NodeList", "more", vec![named("worker-1"), named("worker-2")]),
        uri if uri.contains("noderesourcetopologies") => list(
            "NodeResourceTopologyList",
            "",
            vec![topology(&facts(), "worker-1", Profile::Stelia)],
        ),
        _ => list("PodList", "", Vec::new()),
    }
}

#[tokio::test]
async fn lists_are_read_page_by_page_and_nothing_but_read() {
    let (client, asked) = server(|_, uri| answer(uri));
    let mut objects = Objects::new(true);
    read(&mut objects, &client, Some("zone=a"), true).await.unwrap();
    assert_eq!((objects.nodes.len(), objects.reports.len()), (3, 1));
    let asked = asked.lock().unwrap().clone();
    assert_eq!(asked.len(), 4, "{asked:#?}");
    assert!(asked.iter().all(|one| one.starts_with("GET ")), "{asked:#?}");
    let selects = |one: &String| one.contains("labelSelector=zone%3Da") && one.contains("limit=500");
    assert!(asked[..2].iter().all(selects) && asked[1].contains("continue=more"));
    assert!(asked[3].contains("fieldSelector=status.phase%21%3DSucceeded"));
}

#[tokio::test]
async fn nodes_alone_need_no_right_to_list_pods() {
    let (client, asked) = server(|_, uri| answer(uri));
    read(&mut Objects::new(false), &client, None, false).await.unwrap();
    assert!(!asked.lock().unwrap().iter().any(|one| one.contains("/pods")));
}

#[tokio::test]
async fn a_list_whose_continuation_expired_is_read_again_in_one_piece() {
    let (client, asked) = server(|_, uri| match uri {
        uri if uri.contains("continue") => status(410, "Expired", "too old"),
        uri if uri.contains("/nodes") && !uri.contains("limit") => {
            list("NodeList", "", vec![named("worker-1"), named("worker-3")])
        }
        uri => answer(uri),
    });
    let mut objects = Objects::new(false);
    read(&mut objects, &client, None, false).await.unwrap();
    assert!(objects.nodes.contains_key("worker-3"));
    assert!(!asked.lock().unwrap()[2].contains("limit"));
}

#[tokio::test]
async fn without_the_newer_version_the_older_is_asked_for_and_without_the_crd_that_is_told() {
    let (client, _) = but("v1alpha2", status(404, "NotFound", "not found"));
    let mut objects = Objects::new(false);
    read(&mut objects, &client, None, false).await.unwrap();
    assert_eq!(objects.reports.len(), 1);
    let (client, _) = but("noderesource", status(404, "NotFound", "not found"));
    let told = read(&mut Objects::new(false), &client, None, false).await.unwrap_err();
    assert!(told.contains("CRD is not installed"), "{told}");
}

#[tokio::test]
async fn who_may_not_list_nodes_gets_the_rest_and_a_line() {
    let refuses = |what| but(what, status(403, "Forbidden", "may not list")).0;
    let client = refuses("/nodes");
    let mut objects = Objects::new(false);
    read(&mut objects, &client, None, false).await.unwrap();
    assert_eq!((objects.nodes.len(), objects.reports.len()), (0, 1));
    assert_eq!(objects.problems.lines(), ["list nodes: may not list"]);
    // Chosen by labels nothing could be.
    for (path, labels, kind) in [
        ("/nodes", Some("a=b"), "nodes"),
        ("/pods", None, "pods"),
        ("noderesourcetopologies", None, "noderesourcetopologies"),
    ] {
        let told = read(&mut Objects::new(false), &refuses(path), labels, true).await;
        assert_eq!(told, Err(format!("list {kind}: Forbidden: may not list")));
    }
}

#[tokio::test]
async fn a_pod_is_there_or_not() {
    let (client, asked) = server(|number, _| match number {
        1 => {
            let metadata = json!({ "name": "web", "namespace": "team-a" });
            (
                200,
                json!({ "kind": "Pod", "metadata": metadata, "spec": { "containers": [{ "name": "c" }] } }),
            )
        }
        2 => status(404, "NotFound", "pods \"web\" not found"),
        _ => (500, json!("overloaded")),
    });
    let mut objects = Objects::new(true);
    assert_eq!(read_pod(&mut objects, &client, "team-a", "web").await, Ok(true));
    assert_eq!(objects.pods.len(), 1);
    assert_eq!(read_pod(&mut objects, &client, "team-a", "web").await, Ok(false));
    let failed = read_pod(&mut objects, &client, "team-a", "web").await.unwrap_err();
    assert!(failed.starts_with("get pod team-a/web: "), "{failed}");
    assert!(asked.lock().unwrap()[0].starts_with("GET /api/v1/namespaces/team-a/pods/web"));
}

#[test]
fn a_kubeconfig_that_is_none_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config");
    std::fs::write(&file, "contexts: []\n").unwrap();
    for (path, context) in [(&*file, None), (Path::new("/nonexistent"), Some("x"))] {
        let error = connect(Some(path), context).err().unwrap().to_string();
        assert!(error.starts_with(&format!("{}: ", path.display())), "{error}");
    }
}
