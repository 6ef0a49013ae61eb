//! Server-side apply, as far as the publisher and the placement ask for it: without conflicts, and `force` changes nothing.
//!
//! Of a custom resource one manager applies the whole object, which replaces what there was (`write.rs`). Of Nodes and pods a manager applies
//! labels, or by the path of the status conditions: those that it applied before and does not apply now go, and those of others stay. Whose
//! they are is in `metadata.managedFields`, for the fields of this kind alone.

use serde_json::{Map, Value, json};

/// The live object with what of the applied one this path writes.
pub(crate) fn merged(live: &Value, applied: &Value, manager: &str, subresource: &str) -> Value {
    let mut object = live.clone();
    let entries = live["metadata"]["managedFields"].as_array().cloned();
    let mut entries = entries.unwrap_or_default();
    let own = |entry: &Value| entry["manager"] == manager && entry["subresource"] == subresource;
    let before = entries.iter().position(own).map(|at| entries.remove(at));
    let before = before.unwrap_or_default();
    let fields = if subresource == "status" {
        let last = &before["fieldsV1"]["f:status"]["f:conditions"];
        let conditions = applied["status"]["conditions"].as_array().cloned().unwrap_or_default();
        json!({"f:status": {"f:conditions": set_conditions(&mut object, last, conditions)}})
    } else {
        let last = &before["fieldsV1"]["f:metadata"]["f:labels"];
        let labels = applied["metadata"]["labels"].as_object().cloned().unwrap_or_default();
        json!({"f:metadata": {"f:labels": set_labels(&mut object, last, labels)}})
    };
    entries.push(json!({
        "manager": manager, "operation": "Apply", "subresource": subresource, "apiVersion": applied["apiVersion"],
        "fieldsType": "FieldsV1", "fieldsV1": fields,
    }));
    entries.sort_by_key(|entry| format!("{} {}", entry["manager"], entry["subresource"]));
    object["metadata"]["managedFields"] = entries.into();
    object
}

/// Returns the fields that the manager now has.
fn set_labels(object: &mut Value, last: &Value, applied: Map<String, Value>) -> Value {
    let owned: Map<String, Value> = applied.keys().map(|name| (format!("f:{name}"), json!({}))).collect();
    let mut labels = object["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    labels.retain(|name, _| last.get(format!("f:{name}")).is_none());
    labels.extend(applied);
    object["metadata"]["labels"] = labels.into();
    owned.into()
}

/// A condition keeps its place in the list, so that one that is applied unchanged changes nothing.
fn set_conditions(object: &mut Value, last: &Value, applied: Vec<Value>) -> Value {
    let key = |condition: &Value| format!("k:{}", json!({"type": condition["type"]}));
    let owned: Map<String, Value> = applied.iter().map(|one| (key(one), json!({}))).collect();
    let mut conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.retain(|one| last.get(key(one)).is_none() || owned.contains_key(&key(one)));
    for one in applied {
        match conditions.iter_mut().find(|there| there["type"] == one["type"]) {
            Some(there) => *there = one,
            None => conditions.push(one),
        }
    }
    object["status"]["conditions"] = conditions.into();
    owned.into()
}
