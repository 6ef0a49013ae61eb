//! What is written, as JSON. Pure: of values alone.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};
use stelia_api::publication::{Event, EventKind, PublishedPod, SUMMARY, Summary};

use crate::decide::reconciler::digest;

/// Attribute (v1alpha2) or annotation (v1alpha1) of the object: absent while it is current, else `unusable` or `away`.
pub const STATE: &str = "isolation.stelia.io/state";
/// The Node's label.
pub const READY_LABEL: &str = "stelia.io/ready";
/// Annotation of the Node: the taints that were removed, as JSON, to be put back when steliad is removed.
pub const REMOVED_TAINTS: &str = "isolation.stelia.io/removed-taints";
/// The pods' condition and readiness gate.
pub const CONDITION: &str = "stelia.io/isolated";
/// `reportingController` of the events.
pub const CONTROLLER: &str = "stelia.io/steliad";
/// The group of the object.
pub const GROUP: &str = "topology.node.k8s.io";

/// Limit of an event's note, in bytes (validation of events.k8s.io/v1).
const MAX_NOTE_BYTES: usize = 1024;
/// Limit of the reporting instance, in characters (the same validation).
const MAX_INSTANCE_CHARS: usize = 128;
/// Limit of the part of a pod's name in an event's name: together with the hash it has at most 253 characters.
const MAX_NAME_PREFIX_BYTES: usize = 200;

/// Whether the object is what the node is like now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    Current,
    /// The daemon lives, and cannot tell the node's state; or its file cannot be used.
    Unusable,
    /// The daemon does not run.
    Away,
}

impl Freshness {
    fn word(self) -> Option<&'static str> {
        match self {
            Self::Current => None,
            Self::Unusable => Some("unusable"),
            Self::Away => Some("away"),
        }
    }
}

/// The version of the object's API: `v1alpha2` of `topology.node.k8s.io/v1alpha2`.
pub fn object_version(object: &Value) -> Option<&str> {
    object["apiVersion"].as_str()?.strip_prefix(GROUP)?.strip_prefix('/')
}

/// The object with its owner, the node's summary where it is known and, unless it is current, its state. What the node has free stays as it was last known: schedulers that
/// know nothing of VMs go on with it, and kubelet goes on admitting their pods.
pub fn object(object: &Value, freshness: Freshness, owner: Option<(&str, &str)>, summary: Option<&Summary>) -> Value {
    let mut object = object.clone();
    if let Some((name, uid)) = owner {
        object["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}]);
    }
    if let Some(text) = summary.and_then(|summary| serde_json::to_string(summary).ok()) {
        set(&mut object, SUMMARY, &text);
    }
    if let Some(word) = freshness.word() {
        set(&mut object, STATE, word);
    }
    object
}

/// Sets an attribute, or in v1alpha1, which has none, an annotation.
fn set(object: &mut Value, name: &str, value: &str) {
    if object_version(object) == Some("v1alpha1") {
        object["metadata"]["annotations"][name] = value.into();
    } else if let Value::Array(attributes) = &mut object["attributes"] {
        attributes.retain(|one| one["name"] != name);
        attributes.push(json!({"name": name, "value": value}));
    } else {
        object["attributes"] = json!([{"name": name, "value": value}]);
    }
}

/// The object as it stands at the API server, without what the server and others added: only what we apply. `None` if it is not ours.
pub fn recalled(mut stands: Value) -> Option<Value> {
    if stands["metadata"]["labels"]["app.kubernetes.io/managed-by"] != "steliad" {
        return None;
    }
    let ours = |key: &str| {
        let (domain, _) = key.split_once('/').unwrap_or_default();
        domain == "isolation.stelia.io" || domain.ends_with("koordinator.sh")
    };
    let mut annotations = match stands["metadata"]["annotations"].take() {
        Value::Object(annotations) => annotations,
        _ => Map::new(),
    };
    annotations.retain(|key, _| ours(key) && key != STATE);
    let name = stands["metadata"]["name"].take();
    stands["metadata"] = json!({"name": name, "labels": {"app.kubernetes.io/managed-by": "steliad"}});
    if !annotations.is_empty() {
        stands["metadata"]["annotations"] = Value::Object(annotations);
    }
    if let Value::Array(attributes) = &mut stands["attributes"] {
        attributes.retain(|one| one["name"] != STATE);
    } else if let Value::Object(fields) = &mut stands {
        fields.remove("attributes");
    }
    Some(stands)
}

fn node(name: &str, uid: Option<&str>) -> Value {
    let mut node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    // With the UID a Node that is gone is not made anew by applying to it (`uid mismatch`).
    if let Some(uid) = uid {
        node["metadata"]["uid"] = uid.into();
    }
    node
}

/// The Node's label; without `ready` nothing of ours, which removes it.
pub fn label(name: &str, uid: Option<&str>, ready: Option<bool>) -> Value {
    let mut node = node(name, uid);
    if let Some(ready) = ready {
        node["metadata"]["labels"] = json!({READY_LABEL: ready.to_string()});
    }
    node
}

fn pod(namespace: &str, name: &str, uid: &str, status: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        // A pod of the same name with another UID is not written to.
        "metadata": {"namespace": namespace, "name": name, "uid": uid},
        "status": status,
    })
}

/// The status of the pod with our condition alone.
pub fn condition(told: &PublishedPod) -> Value {
    let condition = json!({
        "type": CONDITION,
        "status": if told.isolated { "True" } else { "False" },
        "reason": told.reason,
        "message": told.message,
        "lastTransitionTime": time(told.since_us, 0),
    });
    let status = json!({"conditions": [condition]});
    pod(&told.namespace, &told.name, &told.uid, status)
}

/// The status of the pod with nothing of ours: the condition is removed.
pub fn no_condition(namespace: &str, name: &str, uid: &str) -> Value {
    pod(namespace, name, uid, json!({}))
}

fn time(microseconds: u64, digits: usize) -> String {
    let time = i64::try_from(microseconds).ok().map(Timestamp::from_microsecond);
    let time = time.and_then(Result::ok).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{time:.digits$}")
}

/// Its beginning, of so many bytes at most.
pub(crate) fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// The event's name: the same for the same event of the same boot, so that posting it twice makes one.
pub fn event_name(boot: &str, event: &Event) -> String {
    let hash = digest(format!("{boot} {} {}", event.uid, event.number).as_bytes());
    let hash: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let prefix = cut(&event.name, MAX_NAME_PREFIX_BYTES).trim_end_matches(['-', '.']);
    format!("{prefix}.{hash}")
}

/// How often the event was seen, once it is more than once (the API wants at least 2).
pub fn series(event: &Event) -> Option<Value> {
    (event.count > 1).then(|| json!({"count": event.count, "lastObservedTime": time(event.time_us, 6)}))
}

/// The event as events.k8s.io/v1 has it.
pub fn event(boot: &str, node: &str, event: &Event) -> Value {
    let mut made = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": event.namespace, "name": event_name(boot, event)},
        "eventTime": time(event.time_us, 6),
        "type": match event.kind { EventKind::Normal => "Normal", EventKind::Warning => "Warning" },
        "reason": cut(&event.reason, 128),
        "action": cut(&event.reason, 128),
        "note": cut(&event.message, MAX_NOTE_BYTES),
        "regarding": {
            "apiVersion": "v1", "kind": "Pod", "namespace": event.namespace, "name": event.name, "uid": event.uid,
        },
        "reportingController": CONTROLLER,
        "reportingInstance": cut(node, MAX_INSTANCE_CHARS),
    });
    if let Some(series) = series(event) {
        made["series"] = series;
    }
    made
}
