use serde_json::{Value, json};

use super::Step;

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

fn patched() -> Vec<Step> {
    let patch = |shows, body| step(shows, "PATCH", format!("{TOPOLOGIES}/m"), MERGE, body);
    let labelled = || json!({"metadata": {"labels": {"a": "b"}}});
    vec![
        patch("patched with another UID", json!({"metadata": {"uid": "x"}})),
        patch(
            "patched at an old version",
            json!({"metadata": {"resourceVersion": "1", "labels": {"a": "b"}}}),
        ),
        patch("patched", labelled()),
        patch("patched the same: not written", labelled()),
        step(
            "selected by its label",
            "GET",
            format!("{TOPOLOGIES}?labelSelector=a%3Db"),
            JSON,
            Value::Null,
        ),
        patch("a null takes away", json!({"metadata": {"labels": {"a": null}}})),
        patch("a patch that is a list", json!([])),
        patch("patched into nonsense", json!({"zones": [{"name": "a"}]})),
        patch("patched into another name", json!({"metadata": {"name": "other"}})),
        step(
            "patched and not there",
            "PATCH",
            format!("{TOPOLOGIES}/zz"),
            MERGE,
            labelled(),
        ),
        step(
            "a strategic patch",
            "PATCH",
            format!("{TOPOLOGIES}/m"),
            "application/strategic-merge-patch+json",
            labelled(),
        ),
        step(
            "a patch of no kind",
            "PATCH",
            format!("{TOPOLOGIES}/m"),
            JSON,
            labelled(),
        ),
        step(
            "a dry run",
            "PATCH",
            format!("{TOPOLOGIES}/m?dryRun=All"),
            MERGE,
            labelled(),
        ),
        step("is not written", "GET", format!("{TOPOLOGIES}/m"), JSON, Value::Null),
    ]
}

fn applied() -> Vec<Step> {
    let at = |query: &str| format!("{TOPOLOGIES}/s?fieldManager={query}");
    let apply = |shows, query, members| step(shows, "PATCH", at(query), APPLY, topology("s", members));
    let other = |shows, members| {
        step(
            shows,
            "PATCH",
            format!("{TOPOLOGIES}/t?fieldManager=a"),
            APPLY,
            topology("t", members),
        )
    };
    let labels = |labels: Value| json!({"metadata": {"labels": labels}});
    vec![
        apply("applied", "a", json!({})),
        apply("applied the same: not written", "a", json!({})),
        apply("applied with a change", "a", json!({"zones": zones("3")})),
        apply("a second manager", "b", json!({})),
        apply("a second manager of the same mind", "b", json!({"zones": zones("3")})),
        apply("what two own, changed by one", "a", json!({})),
        apply("forced", "b&force=true", json!({})),
        apply("labels of its own", "a", labels(json!({"x": "1", "y": "2"}))),
        apply("fewer labels", "a", labels(json!({"x": "1"}))),
        apply("no labels", "a", json!({})),
        step(
            "written over by a patch",
            "PATCH",
            format!("{TOPOLOGIES}/s?fieldManager=u"),
            MERGE,
            json!({"zones": zones("3"), "metadata": {"labels": {"u": "1"}}}),
        ),
        apply("against the patch", "a", json!({})),
        apply("against the patch, in two fields", "a", labels(json!({"u": "2"}))),
        step(
            "without a manager",
            "PATCH",
            format!("{TOPOLOGIES}/s"),
            APPLY,
            topology("s", json!({})),
        ),
        apply(
            "with managed fields",
            "a",
            json!({"metadata": {"managedFields": [{"manager": "x"}]}}),
        ),
        apply(
            "at an old version",
            "a",
            json!({"zones": zones("3"), "metadata": {"resourceVersion": "1"}}),
        ),
        apply(
            "with another UID",
            "a",
            json!({"zones": zones("3"), "metadata": {"uid": "1"}}),
        ),
        apply(
            "under another's name",
            "a",
            json!({"zones": zones("3"), "metadata": {"name": "zz"}}),
        ),
        apply("of another kind, applied", "a", json!({"kind": "X"})),
        step(
            "without a name",
            "PATCH",
            at("a"),
            APPLY,
            json!({"apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology", "zones": zones("3")}),
        ),
        step(
            "a new one without a name",
            "PATCH",
            format!("{TOPOLOGIES}/nameless?fieldManager=a"),
            APPLY,
            json!({"apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology", "zones": zones("3")}),
        ),
        apply(
            "an owner",
            "a&force=true",
            json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u1"}]}}),
        ),
        apply("the owner gone", "a", json!({})),
        other("a scalar for a list", json!({"zones": 5})),
        other(
            "a number for a text, applied",
            json!({"zones": [{"name": 1, "type": "Node"}]}),
        ),
        other(
            "an unknown member, applied",
            json!({"zones": [{"name": "a", "type": "Node", "bad": 1}]}),
        ),
        other("a required member, applied", json!({"zones": [{"name": "a"}]})),
        other("a UID of what is not there", json!({"metadata": {"uid": "1"}})),
        other(
            "a version of what is not there",
            json!({"metadata": {"resourceVersion": "1"}}),
        ),
        step(
            "a status that it does not have",
            "PATCH",
            format!("{TOPOLOGIES}/s/status?fieldManager=a"),
            APPLY,
            topology("s", json!({})),
        ),
    ]
}

/// Lists that are merged by a key, and sets.
fn keyed() -> Vec<Step> {
    let apply = |shows, manager: &str, members| {
        step(
            shows,
            "PATCH",
            format!("{SAMPLES}/x?fieldManager={manager}"),
            APPLY,
            sample("x", members),
        )
    };
    let alone = |shows, members| {
        step(
            shows,
            "PATCH",
            format!("{SAMPLES}/alone?fieldManager=a"),
            APPLY,
            sample("alone", members),
        )
    };
    vec![
        apply(
            "lists by key",
            "a",
            json!({
                "zones": [{"name": "node-0", "value": "1", "resources": [{"name": "cpu", "free": "1"}]}, {"name": "node-1"}],
                "tags": ["p", "q"], "spec": {"a": "1", "free": {"deep": "1"}},
            }),
        ),
        apply(
            "a conflict in one item",
            "b",
            json!({"zones": [{"name": "node-0", "resources": [{"name": "cpu", "free": "2"}]}]}),
        ),
        apply(
            "conflicts in many",
            "b",
            json!({
                "zones": [{"name": "node-0", "value": "2", "resources": [{"name": "cpu", "free": "2"}]}],
                "tags": ["r"], "spec": {"a": "2", "free": {"deep": "2"}},
            }),
        ),
        apply(
            "more items by another one",
            "b",
            json!({
                "zones": [{"name": "node-2", "value": "2"}, {"name": "node-0"}], "tags": ["r"], "spec": {"b": "2"},
            }),
        ),
        apply(
            "fewer items",
            "a",
            json!({"zones": [{"name": "node-0", "value": "1"}], "tags": ["q"]}),
        ),
        apply("no lists", "a", json!({})),
        apply("an object", "e", json!({"spec": {"free": {"x": "1"}}})),
        apply("the object emptied", "e", json!({"spec": {"free": {}}})),
        apply("the object emptied, again", "e", json!({"spec": {"free": {}}})),
        apply(
            "the object filled by another one",
            "f",
            json!({"spec": {"free": {"y": "1"}}}),
        ),
        apply("the object not applied any more", "e", json!({})),
        apply("nor by the other one", "f", json!({})),
        apply("a list", "g", json!({"tags": ["z"]})),
        apply("the list emptied", "g", json!({"tags": []})),
        apply("the list emptied, again", "g", json!({"tags": []})),
        alone(
            "alone: a set, a keyed list, an object",
            json!({"tags": ["z"], "zones": [{"name": "node-0"}], "spec": {"a": "1"}}),
        ),
        alone(
            "alone: the set emptied",
            json!({"tags": [], "zones": [{"name": "node-0"}], "spec": {"a": "1"}}),
        ),
        alone(
            "alone: the set emptied, again",
            json!({"tags": [], "zones": [{"name": "node-0"}], "spec": {"a": "1"}}),
        ),
        alone(
            "alone: the keyed list emptied",
            json!({"zones": [], "spec": {"a": "1"}}),
        ),
        alone("alone: the object emptied", json!({"zones": [], "spec": {}})),
        alone("alone: nothing left", json!({})),
        alone("alone: nothing left, again", json!({})),
        alone(
            "alone: empty from the beginning",
            json!({"zones": [], "spec": {}, "tags": []}),
        ),
        alone(
            "alone: empty from the beginning, again",
            json!({"zones": [], "spec": {}, "tags": []}),
        ),
        step(
            "an item twice, applied",
            "PATCH",
            format!("{SAMPLES}/y?fieldManager=a"),
            APPLY,
            sample("y", json!({"zones": [{"name": "node-0"}, {"name": "node-0"}]})),
        ),
        step(
            "lists by key, created",
            "POST",
            SAMPLES,
            JSON,
            sample(
                "z",
                json!({"zones": [{"name": "node-0", "value": "1"}], "tags": ["q"], "spec": {"a": "1", "free": {}}}),
            ),
        ),
        step(
            "a member less",
            "PATCH",
            format!("{SAMPLES}/z"),
            MERGE,
            json!({"spec": {"a": null}}),
        ),
        step(
            "not of the cluster",
            "GET",
            "/apis/stelia.io/v1/samples/z",
            JSON,
            Value::Null,
        ),
        step(
            "of all namespaces",
            "GET",
            "/apis/stelia.io/v1/samples",
            JSON,
            Value::Null,
        ),
        step(
            "in another namespace",
            "POST",
            SAMPLES,
            JSON,
            sample("w", json!({"metadata": {"namespace": "other"}})),
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
