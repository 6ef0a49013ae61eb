//! Which fields of an object a manager owns: sets of paths, and how they are written in `metadata.managedFields`.
//!
//! The rules are those of sigs.k8s.io/structured-merge-diff. A path ends at a leaf: a scalar, a list or object that is replaced whole, an
//! empty object, or an item of a list that is merged.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::schema::{Merged, Schema, key_of};

/// The parts of a path as `fieldsV1` writes them: `f:zones`, `k:{"name":"node-0"}`, `v:"a"`.
pub(crate) type Path = Vec<String>;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Fields(pub(crate) BTreeSet<Path>);

/// What differs between two versions of an object.
#[derive(Debug, Default)]
pub(crate) struct Difference {
    /// New, or of another value.
    pub(crate) written: Fields,
    pub(crate) removed: Fields,
}

impl Fields {
    /// Every field of an object.
    pub(crate) fn of(schema: &Schema, object: &Value) -> Self {
        let mut found = Self::default();
        collect(schema, object, &mut Vec::new(), &mut found.0);
        found
    }

    pub(crate) fn common(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).cloned().collect())
    }

    pub(crate) fn without(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).cloned().collect())
    }

    pub(crate) fn extend(&mut self, other: &Self) {
        self.0.extend(other.0.iter().cloned());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the path or one below it is in the set.
    pub(crate) fn reaches(&self, path: &[String]) -> bool {
        let from = self.0.range(path.to_vec()..).next();
        from.is_some_and(|found| found.starts_with(path))
    }

    /// As in `fieldsV1`.
    pub(crate) fn written(&self) -> Value {
        let mut root = Value::Object(Map::new());
        for path in &self.0 {
            let mut at = &mut root;
            for part in path {
                at = &mut at[part.as_str()];
                if at.is_null() {
                    *at = Value::Object(Map::new());
                }
            }
            // Written of every member; where nothing is below it, the empty object says as much.
            at["."] = Value::Object(Map::new());
        }
        tidy(&mut root);
        root
    }

    pub(crate) fn read(from: &Value) -> Self {
        let mut found = Self::default();
        parse(from, &mut Vec::new(), &mut found.0);
        found
    }
}

fn tidy(value: &mut Value) {
    if let Value::Object(map) = value {
        if map.len() == 1 {
            map.remove(".");
        }
        map.values_mut().for_each(tidy);
    }
}

fn parse(from: &Value, path: &mut Path, found: &mut BTreeSet<Path>) {
    let Some(map) = from.as_object() else { return };
    if (map.is_empty() || map.contains_key(".")) && !path.is_empty() {
        found.insert(path.clone());
    }
    for (part, below) in map.iter().filter(|(part, _)| *part != ".") {
        path.push(part.clone());
        parse(below, path, found);
        path.pop();
    }
}

/// Whether the value has fields or items of its own.
pub(crate) fn is_merged(schema: &Schema, value: &Value) -> bool {
    match value {
        Value::Object(map) => !schema.atomic && !map.is_empty(),
        Value::Array(_) => *schema.merged() != Merged::Whole,
        _ => false,
    }
}

/// The same of an empty object, which another one may be compared with.
fn merges(schema: &Schema, value: &Value) -> bool {
    is_merged(schema, value) || value.is_object() && !schema.atomic
}

fn collect(schema: &Schema, value: &Value, path: &mut Path, found: &mut BTreeSet<Path>) {
    if !is_merged(schema, value) {
        found.insert(path.clone());
        return;
    }
    for (part, schema, value) in parts(schema, value) {
        path.push(part);
        if matches!(path.last(), Some(part) if !part.starts_with("f:")) {
            found.insert(path.clone());
        }
        collect(schema, value, path, found);
        path.pop();
    }
}

/// What a merged object or list consists of.
pub(crate) fn parts<'a>(schema: &'a Schema, value: &'a Value) -> Vec<(String, &'a Schema, &'a Value)> {
    match value {
        Value::Object(map) => {
            let members = map.iter();
            members
                .map(|(name, value)| (format!("f:{name}"), schema.member(name), value))
                .collect()
        }
        Value::Array(list) => {
            let items = list.iter();
            items
                .map(|item| (key_of(schema.merged(), item), schema.items(), item))
                .collect()
        }
        _ => Vec::new(),
    }
}

pub(crate) fn difference(schema: &Schema, old: &Value, new: &Value) -> Difference {
    let mut found = Difference::default();
    compare(schema, Some(old), Some(new), &mut Vec::new(), &mut found);
    found
}

fn compare(schema: &Schema, old: Option<&Value>, new: Option<&Value>, path: &mut Path, found: &mut Difference) {
    if old == new {
        return;
    }
    let item = path.last().is_some_and(|part| !part.starts_with("f:"));
    match (old, new) {
        (Some(old), None) => {
            if !path.is_empty() {
                found.removed.0.insert(path.clone());
            }
            collect(schema, old, path, &mut found.removed.0);
        }
        (None, Some(new)) => {
            // A list or object that appears is written itself, beside what is in it; the whole object has no path.
            if !path.is_empty() && (item || is_merged(schema, new)) {
                found.written.0.insert(path.clone());
            }
            collect(schema, new, path, &mut found.written.0);
        }
        (Some(old), Some(new)) if merges(schema, old) && merges(schema, new) => {
            let (old, new) = (parts(schema, old), parts(schema, new));
            for (part, below, value) in &old {
                let other = new.iter().find(|(name, ..)| name == part).map(|(.., value)| *value);
                path.push(part.clone());
                compare(below, Some(value), other, path, found);
                path.pop();
            }
            for (part, below, value) in new
                .iter()
                .filter(|(part, ..)| !old.iter().any(|(name, ..)| name == part))
            {
                path.push(part.clone());
                compare(below, None, Some(value), path, found);
                path.pop();
            }
        }
        (Some(old), Some(new)) => {
            // One of them is a leaf: what the other one had below it is gone, or new.
            if is_merged(schema, old) {
                collect(schema, old, path, &mut found.removed.0);
            }
            collect(schema, new, path, &mut found.written.0);
        }
        (None, None) => {}
    }
}

/// As the API server names a field: `.zones[name="node-0"].resources`.
pub(crate) fn shown(path: &[String]) -> String {
    let mut text = String::new();
    for part in path {
        match part.split_at_checked(2) {
            Some(("f:", name)) => {
                text.push('.');
                text.push_str(name);
            }
            Some(("k:", keys)) => {
                let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
                let keys: Vec<String> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
                text.push_str(&format!("[{}]", keys.join(",")));
            }
            Some((_, value)) => text.push_str(&format!("[={value}]")),
            None => {}
        }
    }
    text
}
