mod patches;

use serde_json::{Value, json};

use super::Step;
use patches::{applied, keyed, patched};

const TOPOLOGIES: &str = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies";
const OLDER: &str = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies";
const SAMPLES: &str = "/apis/stelia.io/v1/namespaces/ns/samples";
const JSON: &str = "application/json";
const APPLY: &str = "application/apply-patch+yaml";
const MERGE: &str = "application/merge-patch+json";

fn step(shows: &'static str, method: &'static str, path: impl Into<String>, kind: &'static str, body: Value) -> Step {
    Step {
        shows,
        method,
        path: path.into(),
        kind,
        body,
    }
}

fn zones(available: &str) -> Value {
    json!([{"name": "node-0", "type": "Node",
        "resources": [{"name": "cpu", "capacity": "4", "allocatable": "4", "available": available}]}])
}

fn topology(name: &str, members: Value) -> Value {
    let mut object = json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
        "metadata": {"name": name}, "zones": zones("2"),
    });
    with(&mut object, members);
    object
}

fn sample(name: &str, members: Value) -> Value {
    let mut object = json!({"apiVersion": "stelia.io/v1", "kind": "Sample", "metadata": {"name": name}});
    with(&mut object, members);
    object
}

/// Members of the object, and of its metadata.
fn with(object: &mut Value, members: Value) {
    for (name, value) in members.as_object().unwrap() {
        match (name.as_str(), value) {
            ("metadata", Value::Object(more)) => {
                let metadata = object["metadata"].as_object_mut().unwrap();
                metadata.extend(more.clone());
            }
            _ => object[name] = value.clone(),
        }
    }
}

/// In order: each one finds what those before it left.
pub fn steps() -> Vec<Step> {
    [
        created(),
        validated(),
        replaced(),
        patched(),
        applied(),
        keyed(),
        statuses(),
        versions(),
        removed(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn created() -> Vec<Step> {
    let post = |shows, body| step(shows, "POST", TOPOLOGIES, JSON, body);
    vec![
        post("created", topology("n", json!({}))),
        post("a second time", topology("n", json!({}))),
        step("read", "GET", format!("{TOPOLOGIES}/n"), JSON, Value::Null),
        step("not there", "GET", format!("{TOPOLOGIES}/none"), JSON, Value::Null),
        step("all", "GET", TOPOLOGIES, JSON, Value::Null),
        step(
            "no such resource",
            "GET",
            "/apis/stelia.io/v1/things",
            JSON,
            Value::Null,
        ),
        step(
            "no such version",
            "GET",
            "/apis/topology.node.k8s.io/v1/noderesourcetopologies",
            JSON,
            Value::Null,
        ),
        step(
            "a field nobody can select by",
            "GET",
            format!("{TOPOLOGIES}?fieldSelector=spec.x%3D1"),
            JSON,
            Value::Null,
        ),
        step(
            "selected by name",
            "GET",
            format!("{TOPOLOGIES}?fieldSelector=metadata.name%3Dn"),
            JSON,
            Value::Null,
        ),
        step(
            "selected by a label that it lacks",
            "GET",
            format!("{TOPOLOGIES}?labelSelector=a%3Db"),
            JSON,
            Value::Null,
        ),
        post(
            "with a version",
            topology("w", json!({"metadata": {"resourceVersion": "1"}})),
        ),
        post("a name in capitals", topology("W", json!({}))),
        post("without a name", topology("", json!({}))),
        post("of another kind", topology("w", json!({"kind": "X"}))),
        post(
            "of another version",
            topology("w", json!({"apiVersion": "topology.node.k8s.io/v1"})),
        ),
        post("without a kind", json!({"metadata": {"name": "w"}, "zones": []})),
        post(
            "an owner without a UID",
            topology(
                "w",
                json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n"}]}}),
            ),
        ),
    ]
}

fn validated() -> Vec<Step> {
    let post = |shows, zones: Value| step(shows, "POST", TOPOLOGIES, JSON, topology("m", json!({"zones": zones})));
    let spec = |shows, spec: Value| step(shows, "POST", SAMPLES, JSON, sample("v", json!({"spec": spec})));
    let post_sample = |shows, members| step(shows, "POST", SAMPLES, JSON, sample("y", members));
    vec![
        post("a number for a text", json!([{"name": 1, "type": "Node"}])),
        post("a text for a list", json!("zones")),
        post("a list for an object", json!([[]])),
        post("required members", json!([{"name": "a"}, {"type": "x"}])),
        post(
            "no quantity",
            json!([{"name": "a", "type": "b",
            "resources": [{"name": "cpu", "capacity": "4 Gi", "allocatable": "4", "available": "2"}]}]),
        ),
        step(
            "an unknown member, strictly",
            "POST",
            format!("{TOPOLOGIES}?fieldValidation=Strict"),
            JSON,
            topology("m", json!({"zones": [{"name": "a", "type": "b", "extra": 1}]})),
        ),
        post(
            "an unknown member is dropped",
            json!([{"name": "a", "type": "b", "extra": 1}]),
        ),
        spec("another word than the schema's", json!({"level": "middle"})),
        spec("a fraction for an integer", json!({"size": 1.5})),
        spec("a text for a number", json!({"ratio": "1"})),
        spec("a text for a flag", json!({"on": "yes"})),
        spec(
            "null is dropped but where it may be",
            json!({"a": null, "n": null, "ratio": 1}),
        ),
        post_sample(
            "an item twice",
            json!({"zones": [{"name": "node-0"}, {"name": "node-0"}]}),
        ),
        post_sample("a value twice", json!({"tags": ["q", "q"]})),
    ]
}

fn replaced() -> Vec<Step> {
    let put = |shows, body| step(shows, "PUT", format!("{TOPOLOGIES}/m"), JSON, body);
    vec![
        put("replaced without a version", topology("m", json!({}))),
        put(
            "replaced at an old version",
            topology("m", json!({"metadata": {"resourceVersion": "1"}})),
        ),
        put(
            "replaced with another UID",
            topology("m", json!({"metadata": {"resourceVersion": "1", "uid": "x"}})),
        ),
        put(
            "replaced by another's name",
            topology("o", json!({"metadata": {"resourceVersion": "1"}})),
        ),
        step(
            "replaced and not there",
            "PUT",
            format!("{TOPOLOGIES}/q"),
            JSON,
            topology("q", json!({"metadata": {"resourceVersion": "1"}})),
        ),
    ]
}

fn statuses() -> Vec<Step> {
    let at = |query: &str| format!("{SAMPLES}/x/status{query}");
    vec![
        step(
            "the status by its own path alone",
            "PATCH",
            format!("{SAMPLES}/x?fieldManager=a"),
            APPLY,
            sample("x", json!({"spec": {"a": "3"}, "status": {"state": "s"}})),
        ),
        step(
            "nothing but the status by that path",
            "PATCH",
            at("?fieldManager=a"),
            APPLY,
            sample("x", json!({"spec": {"a": "no"}, "status": {"state": "t"}})),
        ),
        step(
            "the status patched",
            "PATCH",
            at(""),
            MERGE,
            json!({"status": {"state": "u"}, "spec": {"a": "no"}, "metadata": {"labels": {"l": "1"}}}),
        ),
        step(
            "the status of another one",
            "PATCH",
            at("?fieldManager=a"),
            APPLY,
            sample("x", json!({"status": {"state": "t"}})),
        ),
        step(
            "the status of nothing",
            "PATCH",
            format!("{SAMPLES}/none/status?fieldManager=a"),
            APPLY,
            sample("none", json!({"status": {"state": "t"}})),
        ),
    ]
}

fn versions() -> Vec<Step> {
    vec![
        step(
            "members of the newer version",
            "PATCH",
            format!("{TOPOLOGIES}/v?fieldManager=a"),
            APPLY,
            topology("v", json!({"attributes": [{"name": "a", "value": "b"}]})),
        ),
        step(
            "are not in the older one",
            "GET",
            format!("{OLDER}/v"),
            JSON,
            Value::Null,
        ),
        step(
            "which asks for members of its own",
            "PATCH",
            format!("{OLDER}/v"),
            MERGE,
            json!({"metadata": {"labels": {"a": "b"}}}),
        ),
        step("nothing was lost", "GET", format!("{TOPOLOGIES}/v"), JSON, Value::Null),
    ]
}

fn removed() -> Vec<Step> {
    let delete = |shows, body| step(shows, "DELETE", format!("{TOPOLOGIES}/n"), JSON, body);
    let if_only = |what: &str| json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {what: "1"}});
    vec![
        delete("removed if it has this UID", if_only("uid")),
        delete("removed", Value::Null),
        delete("removed twice", Value::Null),
    ]
}
