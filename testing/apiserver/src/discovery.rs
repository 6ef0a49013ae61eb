//! Which groups and resources there are: what kubectl asks first.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::resources::Resource;

const VERBS: [&str; 7] = ["create", "delete", "get", "list", "patch", "update", "watch"];

/// The answer to a path of discovery; `None`: it is none.
pub(crate) fn answer(resources: &[Arc<Resource>], path: &str) -> Option<Value> {
    let path: Vec<&str> = path.trim_matches('/').split('/').collect();
    match path[..] {
        ["api"] => Some(json!({"kind": "APIVersions", "versions": ["v1"]})),
        ["api", version] => list(resources, "", version),
        ["apis"] => Some(groups(resources)),
        ["apis", group, version] => list(resources, group, version),
        _ => None,
    }
}

fn groups(resources: &[Arc<Resource>]) -> Value {
    let named = resources.iter().map(|one| one.group.as_str());
    let named: BTreeSet<&str> = named.filter(|group| !group.is_empty()).collect();
    let groups = named.into_iter().map(|group| {
        let of_group = resources.iter().filter(|one| one.group == group);
        let versions: BTreeSet<&str> = of_group.flat_map(|one| one.versions.iter().copied()).collect();
        let versions = versions
            .into_iter()
            .map(|version| json!({"groupVersion": format!("{group}/{version}"), "version": version}));
        let versions: Vec<Value> = versions.collect();
        json!({"name": group, "versions": versions, "preferredVersion": versions.last()})
    });
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups.collect::<Vec<_>>()})
}

fn list(resources: &[Arc<Resource>], group: &str, version: &str) -> Option<Value> {
    let known = resources
        .iter()
        .filter(|one| one.group == group && one.versions.contains(&version));
    let known: Vec<Value> = known
        .map(|one| {
            let singular = one.kind.to_lowercase();
            json!({"name": one.plural, "singularName": singular, "namespaced": one.namespaced, "kind": one.kind, "verbs": VERBS})
        })
        .collect();
    let version = if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    };
    let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": known});
    (!known.is_empty()).then_some(list)
}
