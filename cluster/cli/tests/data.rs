//! The objects in tests/data/cluster, which the documents' examples are run on, are those of a small cluster as the API server would
//! keep them. `STELIA_WRITE_DOCS=1 cargo test -p stelia-cluster the_objects` writes them.
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod shared;

use std::fs;
use std::path::Path;

use serde_json::Value;

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/cluster"))
}

fn list(items: Vec<Value>) -> Value {
    serde_json::json!({ "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "" }, "items": items })
}

fn hold(name: &str, text: &str) {
    let path = folder().join(name);
    if std::env::var_os("STELIA_WRITE_DOCS").is_some() {
        fs::write(&path, text).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == text,
        "tests/data/cluster/{name}: STELIA_WRITE_DOCS=1 cargo test -p stelia-cluster the_objects"
    );
}

#[test]
fn the_objects_are_those_of_a_small_cluster() {
    let json = |items| serde_json::to_string_pretty(&list(items)).unwrap() + "\n";
    hold("nodes.json", &json(shared::nodes()));
    hold("topologies.json", &json(shared::topologies()));
    // One of the two forms that kubectl prints, in each.
    let pods = serde_saphyr::to_string(&list(shared::pods())).unwrap();
    hold("pods.yaml", &pods);
    // Those with devices, apart: what is said of the others is about six nodes.
    hold("gpus/cluster.json", &json(shared::gpus()));
}
