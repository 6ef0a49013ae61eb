//! What tests share: clusters of a few objects, pods in words, and terminals.

use serde_json::{Value, json};
use stelia_koordinator::allocator::AllocationRequest;
use stelia_koordinator::report::fingerprint::Method;
use stelia_koordinator::report::profile::{Profile, object};
use stelia_koordinator::report::{ApiVersion, Facts};
use stelia_table::TextStyle;

use crate::cluster::{Chosen, Cluster};
use crate::objects::Objects;
use crate::pod_request::PodRequest;

/// A cluster of these objects, of which some may be unreadable.
pub(crate) fn cluster(items: &[Value]) -> Cluster {
    let mut objects = Objects::new(true);
    objects.read("dump", &json!({"kind": "List", "items": items}).to_string());
    Cluster::of(objects, &Chosen::default()).unwrap()
}

/// What a publisher writes of a node.
pub(crate) fn topology(facts: &Facts, name: &str, profile: Profile) -> Value {
    let facts = Facts {
        name: name.to_owned(),
        ..facts.clone()
    };
    serde_json::to_value(object(&facts, profile, ApiVersion::V1Alpha2, Method::default())).unwrap()
}

pub(crate) fn pod_request(words: &str) -> PodRequest {
    PodRequest::in_words(&[words.to_owned()], &AllocationRequest::default()).unwrap()
}

pub(crate) fn node(name: &str, labels: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
}

/// A node that has not been Ready since its kubelet stopped.
pub(crate) fn dead(name: &str) -> Value {
    let mut dead = node(name, json!({"stelia.io/ready": "true"}));
    dead["status"]["conditions"] = json!([
        {"type": "MemoryPressure", "status": "Unknown"},
        {"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."},
    ]);
    dead
}

pub(crate) fn terminal(width: usize) -> TextStyle {
    TextStyle {
        width: Some(width),
        ..pipe()
    }
}

pub(crate) fn wide() -> TextStyle {
    TextStyle {
        wide: true,
        ..terminal(120)
    }
}

pub(crate) fn pipe() -> TextStyle {
    TextStyle::from(true)
}
