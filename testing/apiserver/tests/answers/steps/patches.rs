//! Patches: JSON, merge, strategic merge and apply.

use super::*;

pub(super) fn patched() -> Vec<Step> {
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

pub(super) fn applied() -> Vec<Step> {
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
pub(super) fn keyed() -> Vec<Step> {
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
