//! Server-side apply: what an object becomes, and who owns what afterwards.
//!
//! The rules are those of sigs.k8s.io/structured-merge-diff: an applied object is merged into the one that there is; what its manager applied before,
//! applies no longer and nobody else owns is removed; what it changes and another one owns is a conflict, unless it is forced.

use serde_json::{Map, Value};

use crate::fields::{Fields, Path, difference, is_merged, parts};
use crate::managers::{self, Conflicts, Manager, Operation, Owner};
use crate::schema::{Merged, Schema, key_of};

/// What nobody owns: the object's name, and what the API server itself writes.
const OWNERLESS: [&str; 11] = [
    "f:apiVersion",
    "f:kind",
    "f:metadata",
    "f:metadata/f:name",
    "f:metadata/f:namespace",
    "f:metadata/f:creationTimestamp",
    "f:metadata/f:uid",
    "f:metadata/f:generation",
    "f:metadata/f:managedFields",
    "f:metadata/f:resourceVersion",
    "f:metadata/f:selfLink",
];

pub(crate) struct Applied {
    pub(crate) object: Value,
    pub(crate) owners: Vec<Owner>,
}

/// # Errors
/// The fields that others own and `config` would change, if not forced.
pub(crate) fn apply(
    schema: &Schema,
    live: &Value,
    mut owners: Vec<Owner>,
    config: &Value,
    manager: &Manager,
    force: bool,
    now: &str,
) -> Result<Applied, Conflicts> {
    let merged = merge(schema, live, config);
    let own = owned(schema, config);
    let last = owners
        .iter()
        .find(|owner| owner.manager.same(manager))
        .map(|owner| owner.fields.clone());
    let time = owners
        .iter()
        .find(|owner| owner.manager.same(manager) && owner.fields == own && owner.manager == *manager)
        .map_or(now.to_owned(), |owner| owner.time.clone());
    let entry = Owner {
        manager: manager.clone(),
        time,
        fields: own,
    };
    match owners.iter().position(|owner| owner.manager.same(manager)) {
        Some(at) => owners[at] = entry,
        None => owners.push(entry),
    }
    let object = match last {
        Some(last) => {
            let mut all = Fields::default();
            owners.iter().for_each(|owner| all.extend(&owner.fields));
            let gone = last.0.iter().filter(|path| !all.reaches(path)).cloned();
            let gone = Fields(gone.collect());
            without(schema, &merged, &gone, &all, &mut Vec::new()).unwrap_or_default()
        }
        None => merged,
    };
    let changes = difference(schema, live, &object);
    let conflicts = managers::conflicts(&owners, manager, &changes.written);
    if !force && !conflicts.is_empty() {
        return Err(conflicts);
    }
    take(&mut owners, manager, &changes.written, &changes.removed);
    Ok(Applied { object, owners })
}

/// Who owns what after a write that is not an apply: its manager owns what it changed.
pub(crate) fn update(
    schema: &Schema,
    live: &Value,
    new: &Value,
    mut owners: Vec<Owner>,
    manager: &Manager,
    now: &str,
) -> Vec<Owner> {
    let mut changes = difference(schema, live, new);
    strip(&mut changes.written);
    take(&mut owners, manager, &changes.written, &changes.removed);
    if !changes.written.is_empty() {
        match owners.iter_mut().find(|owner| owner.manager.same(manager)) {
            Some(owner) => {
                owner.fields = owner.fields.without(&changes.removed);
                owner.fields.extend(&changes.written);
                owner.time = now.to_owned();
            }
            None => owners.push(Owner {
                manager: manager.clone(),
                time: now.to_owned(),
                fields: changes.written,
            }),
        }
    } else if let Some(owner) = owners.iter_mut().find(|owner| owner.manager.same(manager)) {
        owner.fields = owner.fields.without(&changes.removed);
    }
    owners
}

/// The owner of everything in an object that was written before ownership was recorded.
pub(crate) fn before(schema: &Schema, live: &Value, api_version: &str, now: &str) -> Owner {
    let mut fields = difference(schema, &Value::Object(Map::new()), live).written;
    strip(&mut fields);
    Owner {
        manager: Manager {
            name: "before-first-apply".into(),
            operation: Operation::Update,
            api_version: api_version.to_owned(),
            subresource: String::new(),
        },
        time: now.to_owned(),
        fields,
    }
}

fn owned(schema: &Schema, object: &Value) -> Fields {
    let mut fields = Fields::of(schema, object);
    strip(&mut fields);
    fields
}

fn strip(fields: &mut Fields) {
    // What is below managedFields, an atomic list, has no path of its own.
    fields.0.retain(|path| !OWNERLESS.contains(&path.join("/").as_str()));
}

/// Others lose what was written over, everybody what was removed.
fn take(owners: &mut Vec<Owner>, manager: &Manager, written: &Fields, removed: &Fields) {
    for owner in owners.iter_mut().filter(|owner| !owner.manager.same(manager)) {
        owner.fields = owner.fields.without(written).without(removed);
    }
    owners.retain(|owner| !owner.fields.is_empty() || owner.manager.same(manager));
}

fn merge(schema: &Schema, live: &Value, config: &Value) -> Value {
    match (live, config) {
        (Value::Object(old), Value::Object(new)) if !schema.atomic => {
            let mut merged = old.clone();
            for (name, value) in new {
                let below = match old.get(name) {
                    Some(old) => merge(schema.member(name), old, value),
                    None => value.clone(),
                };
                merged.insert(name.clone(), below);
            }
            Value::Object(merged)
        }
        (Value::Array(old), Value::Array(new)) if *schema.merged() != Merged::Whole => {
            Value::Array(merge_lists(schema, old, new))
        }
        (_, config) => config.clone(),
    }
}

/// In the order of the applied items; the others stay after the items that they came after.
fn merge_lists(schema: &Schema, old: &[Value], new: &[Value]) -> Vec<Value> {
    let key = |item: &Value| key_of(schema.merged(), item);
    let applied: Vec<String> = new.iter().map(key).collect();
    let mut rest = old.iter().peekable();
    let mut merged = Vec::new();
    for (item, name) in new.iter().zip(&applied) {
        while let Some(other) = rest.next_if(|other| !applied.contains(&key(other))) {
            merged.push(other.clone());
        }
        rest.next_if(|other| key(other) == *name);
        merged.push(match old.iter().find(|other| key(other) == *name) {
            Some(before) => merge(schema.items(), before, item),
            None => item.clone(),
        });
    }
    merged.extend(rest.filter(|other| !applied.contains(&key(other))).cloned());
    merged
}

/// The value without the fields, `None` if nothing of it is left. A list or map that is applied as empty stays, as in kube-apiserver 1.36; older servers
/// make it null, which the schema then refuses.
fn without(schema: &Schema, value: &Value, gone: &Fields, owned: &Fields, path: &mut Path) -> Option<Value> {
    if !path.is_empty() && gone.0.contains(path.as_slice()) {
        return None;
    }
    if !gone.reaches(path) || !is_merged(schema, value) {
        return Some(value.clone());
    }
    let mut left = Vec::new();
    for (part, below, value) in parts(schema, value) {
        path.push(part);
        if let Some(value) = without(below, value, gone, owned, path) {
            let part = path.last().map(|part| part[2..].to_owned()).unwrap_or_default();
            left.push((part, value));
        }
        path.pop();
    }
    if left.is_empty() && !path.is_empty() {
        let stays = owned.0.contains(path.as_slice());
        // Empty members of the metadata do not stay.
        if !stays || path.first().is_some_and(|part| *part == "f:metadata") {
            return stays.then_some(Value::Null);
        }
    }
    Some(match value {
        Value::Array(_) => left.into_iter().map(|(_, value)| value).collect(),
        _ => Value::Object(left.into_iter().collect::<Map<_, _>>()),
    })
}
