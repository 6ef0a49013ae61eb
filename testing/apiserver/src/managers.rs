//! `metadata.managedFields`: who owns what.

use std::cmp::Ordering;

use serde_json::{Value, json};

use crate::fields::{Fields, Path, shown};

/// How a manager wrote, which is part of who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Apply,
    Update,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manager {
    pub(crate) name: String,
    pub(crate) operation: Operation,
    pub(crate) api_version: String,
    /// Empty: the object itself.
    pub(crate) subresource: String,
}

#[derive(Debug, Clone)]
pub(crate) struct Owner {
    pub(crate) manager: Manager,
    pub(crate) time: String,
    pub(crate) fields: Fields,
}

impl Manager {
    /// Those who apply are one whatever version of the API they use; those who write otherwise are not.
    pub(crate) fn same(&self, other: &Self) -> bool {
        self.name == other.name
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    /// As conflicts name it.
    fn shown(&self) -> String {
        let mut text = format!("{:?}", self.name);
        if !self.subresource.is_empty() {
            text.push_str(&format!(" with subresource {:?}", self.subresource));
        }
        if self.operation == Operation::Update {
            text.push_str(&format!(" using {}", self.api_version));
        }
        text
    }
}

pub(crate) fn read(object: &Value) -> Vec<Owner> {
    let text = |entry: &Value, name: &str| entry[name].as_str().unwrap_or_default().to_owned();
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    entries
        .map(|entry| Owner {
            manager: Manager {
                name: text(entry, "manager"),
                operation: match entry["operation"].as_str() {
                    Some("Apply") => Operation::Apply,
                    _ => Operation::Update,
                },
                api_version: text(entry, "apiVersion"),
                subresource: text(entry, "subresource"),
            },
            time: text(entry, "time"),
            fields: Fields::read(&entry["fieldsV1"]),
        })
        .collect()
}

/// Those who own nothing any more are not written.
pub(crate) fn write(owners: &[Owner], object: &mut Value) {
    let with_fields = owners.iter().filter(|owner| !owner.fields.is_empty());
    let entries = with_fields.map(|owner| {
        let mut entry = json!({
            "manager": owner.manager.name, "apiVersion": owner.manager.api_version, "time": owner.time,
            "operation": match owner.manager.operation { Operation::Apply => "Apply", Operation::Update => "Update" },
            "fieldsType": "FieldsV1", "fieldsV1": owner.fields.written(),
        });
        if !owner.manager.subresource.is_empty() {
            entry["subresource"] = owner.manager.subresource.clone().into();
        }
        entry
    });
    let entries: Vec<Value> = entries.collect();
    if entries.is_empty() {
        let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
        metadata.map(|metadata| metadata.remove("managedFields"));
    } else {
        object["metadata"]["managedFields"] = Value::Array(entries)
    }
}

/// Fields that a manager wants to change and others own, by owner as [`Manager::shown`].
pub(crate) type Conflicts = Vec<(String, Path)>;

/// What of `written` others than the manager own.
pub(crate) fn conflicts(owners: &[Owner], manager: &Manager, written: &Fields) -> Conflicts {
    let others = owners.iter().filter(|owner| !owner.manager.same(manager));
    let mut found: Conflicts = others
        .flat_map(|owner| {
            let name = owner.manager.shown();
            let common = owner.fields.common(written).0;
            common.into_iter().map(move |path| (name.clone(), path))
        })
        .collect();
    found.sort_by(|(one, left), (other, right)| one.cmp(other).then_with(|| order(left, right)));
    found
}

/// As sets of fields are walked: at each level what ends there comes first.
fn order(left: &[String], right: &[String]) -> Ordering {
    match (left, right) {
        ([one, rest @ ..], [other, others @ ..]) => {
            let ends = others.is_empty().cmp(&rest.is_empty());
            ends.then_with(|| one.cmp(other)).then_with(|| order(rest, others))
        }
        (left, right) => left.len().cmp(&right.len()),
    }
}

/// In the words of the API server.
pub(crate) fn conflict_message(conflicts: &Conflicts) -> String {
    if let [(manager, path)] = conflicts.as_slice() {
        return format!("Apply failed with 1 conflict: conflict with {manager}: {}", shown(path));
    }
    let mut lines = Vec::new();
    let mut last = None;
    for (manager, path) in conflicts {
        if last != Some(manager) {
            lines.push(format!("conflicts with {manager}:"));
        }
        last = Some(manager);
        lines.push(format!("- {}", shown(path)));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

pub(crate) fn conflict_causes(conflicts: &Conflicts) -> Vec<Value> {
    let causes = conflicts.iter().map(|(manager, path)| {
        json!({"reason": "FieldManagerConflict", "message": format!("conflict with {manager}"), "field": shown(path)})
    });
    causes.collect()
}
