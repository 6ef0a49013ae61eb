//! The manifests in `packaging/kubernetes/`: they are objects that the API server knows, they belong together, and each right has its flag. The
//! admission policies are evaluated over requests. No API server takes part: that one agrees is not shown here. kubectl builds
//! the folders.

#![allow(clippy::expect_used, clippy::panic)]

mod admission;
mod kustomization;
mod objects;
mod placement;
mod placement_admission;
mod policy;
mod rights;
mod rollout;
mod vms;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// A path of the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn cluster(path: &str) -> PathBuf {
    repository("packaging/cluster/kubernetes").join(path)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("read {}: {e}", path.display()))
}

/// The YAML documents of a file.
fn documents(path: &Path) -> Vec<Value> {
    serde_saphyr::from_multiple(&read(path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn folders(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).expect("a folder").flatten();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}

fn kind(object: &Value) -> &str {
    object["kind"].as_str().expect("a kind")
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().expect("a name")
}

/// The only object of this kind.
fn only<'a>(objects: &'a [Value], wanted: &str) -> &'a Value {
    let mut found = objects.iter().filter(|object| kind(object) == wanted);
    let object = found.next().unwrap_or_else(|| panic!("no {wanted}"));
    assert!(found.next().is_none(), "more than one {wanted}");
    object
}

/// The only object of this kind and name.
fn one<'a>(objects: &'a [Value], wanted: &str, named: &str) -> &'a Value {
    let found = objects.iter();
    let mut found = found.filter(|object| kind(object) == wanted && name(object) == named);
    let object = found.next().unwrap_or_else(|| panic!("no {wanted} {named}"));
    assert!(found.next().is_none(), "{wanted} {named} twice");
    object
}

/// The pods of a Deployment or DaemonSet, and their first container.
fn pods(of: &Value) -> (&Value, &Value) {
    let spec = &of["spec"]["template"]["spec"];
    (spec, &spec["containers"][0])
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn strings(of: &Value) -> Vec<&str> {
    list(of).iter().map(|one| one.as_str().expect("a string")).collect()
}

/// Whether the labels are among those that the selector names.
fn has(labels: &Value, selector: &Value) -> bool {
    let selector = selector.as_object().expect("labels");
    !selector.is_empty() && selector.iter().all(|(key, value)| &labels[key] == value)
}

/// What a role allows: group, resource, verb.
fn allowed(role: &Value) -> BTreeSet<(String, String, String)> {
    let rules = list(&role["rules"]).iter();
    let lists = rules.map(|rule| ["apiGroups", "resources", "verbs"].map(|key| strings(&rule[key])));
    let mut all = BTreeSet::new();
    for [groups, resources, verbs] in lists {
        for group in groups {
            for resource in &resources {
                all.extend(
                    verbs
                        .iter()
                        .map(|verb| (group.into(), (*resource).into(), (*verb).into())),
                );
            }
        }
    }
    all
}
