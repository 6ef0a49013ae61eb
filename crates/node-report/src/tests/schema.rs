//! The published definitions of NodeResourceTopology (k8stopologyawareschedwg/noderesourcetopology-api, the CRD with
//! both versions), as a check of JSON. It is as strict as `kubectl apply` by default: a field that a definition does
//! not have is an error.

use serde_json::Value;

use crate::ApiVersion;

/// A type of the schema.
pub(super) enum Kind {
    Text,
    Whole,
    /// An integer, or a string in a quantity's form.
    Quantity,
    List(Box<Kind>),
    /// A map of strings.
    Texts,
    /// Fields, each with whether it is required.
    Object(Vec<(&'static str, Kind, bool)>),
}

use Kind::{List, Object, Quantity, Text, Texts, Whole};

fn list(kind: Kind) -> Kind {
    List(Box::new(kind))
}

fn attributes() -> Kind {
    list(Object(vec![("name", Text, true), ("value", Text, true)]))
}

pub(super) fn definition(version: ApiVersion) -> Kind {
    let cost = Object(vec![("name", Text, true), ("value", Whole, true)]);
    let resource = Object(vec![
        ("name", Text, true),
        ("capacity", Quantity, true),
        ("allocatable", Quantity, true),
        ("available", Quantity, true),
    ]);
    let zone = Object(vec![
        ("name", Text, true),
        ("type", Text, true),
        ("parent", Text, false),
        ("costs", list(cost), false),
        ("attributes", attributes(), false),
        ("resources", list(resource), false),
    ]);
    // Metadata has the fields of every Kubernetes object.
    let metadata = Object(vec![
        ("name", Text, true),
        ("labels", Texts, false),
        ("annotations", Texts, false),
    ]);
    let first = version == ApiVersion::V1Alpha1;
    let mut fields = vec![
        ("apiVersion", Text, true),
        ("kind", Text, true),
        ("metadata", metadata, true),
        ("topologyPolicies", list(Text), first),
        ("zones", list(zone), true),
    ];
    if !first {
        fields.push(("attributes", attributes(), false));
    }
    Object(fields)
}

/// Every place where a value violates the schema.
pub(super) fn faults(kind: &Kind, value: &Value, place: &str) -> Vec<String> {
    let unless = |good: bool, what: &str| {
        if good {
            Vec::new()
        } else {
            vec![format!("{place}: {value} is no {what}")]
        }
    };
    match kind {
        Text => unless(value.is_string(), "text"),
        Whole => unless(value.is_i64(), "integer"),
        Quantity => unless(value.is_i64() || value.as_str().is_some_and(is_quantity), "quantity"),
        List(kind) => match value.as_array() {
            Some(items) => {
                let items = items.iter().enumerate();
                items
                    .flat_map(|(at, item)| faults(kind, item, &format!("{place}[{at}]")))
                    .collect()
            }
            None => unless(false, "list"),
        },
        Texts => unless(
            value.as_object().is_some_and(|map| map.values().all(Value::is_string)),
            "map of texts",
        ),
        Object(fields) => {
            let Some(map) = value.as_object() else {
                return unless(false, "object");
            };
            let unknown = map.keys().filter(|key| fields.iter().all(|(name, ..)| name != key));
            let mut found: Vec<String> = unknown.map(|key| format!("{place}.{key} is not known")).collect();
            for (name, kind, required) in fields {
                match map.get(*name) {
                    Some(value) => found.extend(faults(kind, value, &format!("{place}.{name}"))),
                    None if *required => found.push(format!("{place}.{name} is missing")),
                    None => {}
                }
            }
            found
        }
    }
}

/// A sign, a decimal number, and a binary or decimal suffix or an exponent.
fn is_quantity(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let decimal = |text: &str| text.bytes().any(|b| b.is_ascii_digit()) && text.matches('.').count() <= 1;
    let exponent = |rest: &str| {
        let rest = rest.strip_prefix(['+', '-']).unwrap_or(rest);
        decimal(rest) && rest.bytes().all(|b| b.is_ascii_digit() || b == b'.')
    };
    let suffixes = [
        "", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "n", "u", "m", "k", "M", "G", "T", "P", "E",
    ];
    decimal(number) && (suffixes.contains(&suffix) || suffix.strip_prefix(['e', 'E']).is_some_and(exponent))
}

#[test]
fn the_check_finds_what_a_server_would_refuse() {
    let good = serde_json::json!({
        "apiVersion": "topology.node.k8s.io/v1alpha1", "kind": "NodeResourceTopology", "metadata": {"name": "n"},
        "topologyPolicies": [], "zones": [{"name": "node-0", "type": "Node", "costs": [{"name": "node-0", "value": 10}],
            "resources": [{"name": "cpu", "capacity": 4, "allocatable": "3500m", "available": "1e3"}]}],
    });
    let first = definition(ApiVersion::V1Alpha1);
    assert_eq!(faults(&first, &good, ""), Vec::<String>::new());
    for (pointer, value, says) in [
        ("/zones/0/resources/0/capacity", serde_json::json!("4 Gi"), "quantity"),
        ("/zones/0/resources/0/capacity", serde_json::json!(0.5), "quantity"),
        ("/zones/0/costs/0/value", serde_json::json!("10"), "integer"),
        ("/zones/0/type", serde_json::json!(null), "text"),
        ("/topologyPolicies", serde_json::json!("None"), "list"),
        (
            "/metadata",
            serde_json::json!({"name": "n", "labels": {"a": 1}}),
            "map of texts",
        ),
        (
            "/metadata",
            serde_json::json!({"nam": "n"}),
            ".metadata.name is missing",
        ),
    ] {
        let mut bad = good.clone();
        *bad.pointer_mut(pointer).unwrap() = value;
        let found = faults(&first, &bad, "");
        assert!(found.iter().any(|fault| fault.contains(says)), "{pointer}: {found:?}");
    }
    let mut second = good.clone();
    second.as_object_mut().unwrap().remove("topologyPolicies");
    assert_eq!(faults(&first, &second, ""), [".topologyPolicies is missing"]);
    second["attributes"] = serde_json::json!([{"name": "a", "value": "b"}]);
    assert_eq!(
        faults(&definition(ApiVersion::V1Alpha2), &second, ""),
        Vec::<String>::new()
    );
    second["topologyPolicies"] = serde_json::json!([]);
    assert_eq!(faults(&first, &second, ""), [".attributes is not known"]);
}
