//! The published definition of NodeResourceTopology (`crd.yaml`), as a check of JSON. It is as strict as `kubectl apply` by
//! default: a field that a schema does not have is an error.

use serde_json::{Value, json};

use crate::report::ApiVersion;

/// The schema of a version.
pub(super) fn definition(version: ApiVersion) -> Value {
    let crd: Value = serde_saphyr::from_str(include_str!("crd.yaml")).unwrap();
    let versions = crd["spec"]["versions"].as_array().unwrap();
    let found = versions.iter().find(|one| one["name"] == version.name()).unwrap();
    assert_eq!(found["served"], true);
    assert_eq!(crd["spec"]["group"], super::object::GROUP);
    assert_eq!(crd["spec"]["names"]["kind"], super::object::KIND);
    let mut schema = found["schema"]["openAPIV3Schema"].clone();
    // What the API server checks of every object, whatever its schema says.
    schema["required"]
        .as_array_mut()
        .unwrap()
        .extend(["apiVersion", "kind", "metadata"].map(Value::from));
    let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
    schema["properties"]["metadata"] = json!({
        "type": "object", "required": ["name"],
        "properties": {"name": {"type": "string"}, "labels": texts, "annotations": texts},
    });
    schema
}

/// Every place where a value violates the schema.
pub(super) fn faults(schema: &Value, value: &Value, place: &str) -> Vec<String> {
    let unless = |good: bool, what: &str| {
        if good {
            Vec::new()
        } else {
            vec![format!("{place}: {value} is no {what}")]
        }
    };
    if schema["x-kubernetes-int-or-string"] == true {
        return unless(value.is_i64() || value.as_str().is_some_and(is_quantity), "quantity");
    }
    match schema["type"].as_str().unwrap() {
        "string" => unless(value.is_string(), "text"),
        "integer" => unless(value.is_i64(), "integer"),
        "array" => match value.as_array() {
            Some(items) => {
                let items = items.iter().enumerate();
                items
                    .flat_map(|(at, item)| faults(&schema["items"], item, &format!("{place}[{at}]")))
                    .collect()
            }
            None => unless(false, "list"),
        },
        "object" => {
            let Some(map) = value.as_object() else {
                return unless(false, "object");
            };
            let field = |name: &str| match &schema["additionalProperties"] {
                Value::Null => schema["properties"].get(name),
                of_all => Some(of_all),
            };
            let required = schema["required"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str);
            let missing = required.filter(|name| !map.contains_key(*name));
            let mut found: Vec<String> = missing.map(|name| format!("{place}.{name} is missing")).collect();
            for (name, value) in map {
                match field(name) {
                    Some(schema) => found.extend(faults(schema, value, &format!("{place}.{name}"))),
                    None => found.push(format!("{place}.{name} is not known")),
                }
            }
            found
        }
        other => panic!("{place}: a schema of {other}"),
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
            "text",
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
