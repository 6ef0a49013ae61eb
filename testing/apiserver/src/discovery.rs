//! What the server says of itself.

use std::sync::Arc;

use http::Response;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use serde_json::{Value, json};

use crate::resources::Resource;
use crate::service::{Body, no_such_path, object};

pub(crate) fn answer(resources: &[Arc<Resource>], path: &str) -> Response<Body> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match parts.as_slice() {
        ["readyz" | "livez" | "healthz"] => Response::new(Full::new(Bytes::from_static(b"ok")).boxed_unsync()),
        ["version"] => {
            object(&json!({"major": "1", "minor": "36", "gitVersion": "v1.36.0", "platform": "linux/amd64"}))
        }
        ["api"] => object(&json!({"kind": "APIVersions", "versions": ["v1"]})),
        ["apis"] => object(&groups(resources)),
        ["api", version] => versioned(resources, "", version),
        ["apis", group, version] => versioned(resources, group, version),
        _ => no_such_path().0,
    }
}

fn groups(resources: &[Arc<Resource>]) -> Value {
    let mut names: Vec<&str> = resources
        .iter()
        .map(|one| one.group.as_str())
        .filter(|group| !group.is_empty())
        .collect();
    names.sort_unstable();
    names.dedup();
    let groups = names.into_iter().map(|name| {
        let of_group = resources.iter().filter(|one| one.group == name);
        let mut versions: Vec<&String> = of_group.flat_map(|one| one.versions.keys()).collect();
        versions.sort_unstable();
        versions.dedup();
        let versions: Vec<Value> = versions
            .into_iter()
            .map(|version| json!({"groupVersion": format!("{name}/{version}"), "version": version}))
            .collect();
        json!({"name": name, "preferredVersion": versions.last(), "versions": versions})
    });
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups.collect::<Vec<_>>()})
}

fn versioned(resources: &[Arc<Resource>], group: &str, version: &str) -> Response<Body> {
    let served = resources
        .iter()
        .filter(|one| one.group == group && one.versions.contains_key(version));
    let mut listed = Vec::new();
    let mut api_version = String::new();
    for one in served {
        api_version = one.api_version(version);
        let of = |name: String| json!({"name": name, "kind": one.kind, "namespaced": one.namespaced, "singularName": "", "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"]});
        listed.push(of(one.plural.clone()));
        if one.has_status() {
            listed.push(of(format!("{}/status", one.plural)));
        }
    }
    if listed.is_empty() {
        no_such_path().0
    } else {
        object(
            &json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": listed}),
        )
    }
}
