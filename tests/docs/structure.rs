//! The shape of the tree: which crate may use which, and what never gets into the daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::{read, root};

/// Who may use what: each crate's folder (`src` is the daemon) with those that it depends on, tests aside.
type Uses = BTreeMap<String, BTreeSet<String>>;

fn cargo(arguments: &[&str]) -> String {
    let run = Command::new(std::env::var("CARGO").unwrap_or("cargo".into()))
        .args(arguments)
        .args(["--locked", "--manifest-path"])
        .arg(root().join("Cargo.toml"))
        .output()
        .expect("cargo");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).expect("text")
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

/// The crate in this folder as the picture calls it: one of `crates/` by its name, others by their path.
fn called(folder: &Path) -> String {
    match folder.strip_prefix(root()).expect("below the root").to_str() {
        Some("") => "src".into(),
        path => {
            let path = path.expect("UTF-8");
            path.strip_prefix("crates/").unwrap_or(path).to_owned()
        }
    }
}

/// What a line of the picture calls a crate; `None` for one of the daemon's modules.
fn drawn_crate(named: &str) -> Option<&str> {
    let (folder, name) = named.split_once('/').unwrap_or(("", named));
    match folder {
        "crates" => Some(name),
        "" if name != "src" => None,
        _ => Some(named),
    }
}

fn uses(metadata: &Value) -> Uses {
    let ours = array(&metadata["packages"])
        .iter()
        .filter(|package| package["source"].is_null());
    ours.map(|package| {
        let normal = array(&package["dependencies"])
            .iter()
            .filter(|one| one["kind"].is_null());
        let paths = normal.filter_map(|one| Some(called(Path::new(one["path"].as_str()?))));
        let folder = Path::new(text(&package["manifest_path"])).parent().expect("a folder");
        (called(folder), paths.collect())
    })
    .collect()
}

/// The picture of `docs/architecture.md`, from the top: a crate, and at what its arrow points. Lines of the daemon's own modules
/// count as the daemon's.
fn picture() -> Vec<(String, BTreeSet<String>)> {
    let page = read(&root().join("docs/architecture.md"));
    let block = page.split("\n```").nth(1).expect("a picture");
    let mut drawn: Vec<(String, BTreeSet<String>)> = Vec::new();
    let mut modules = BTreeSet::new();
    for line in block.lines().filter(|line| !line.trim().is_empty()) {
        let (left, right) = line.split_once('→').unwrap_or((line, ""));
        let named = left
            .split_whitespace()
            .find(|word| word.ends_with('/') || word.ends_with(".rs"));
        let named = named.expect("a folder").trim_end_matches('/');
        let targets = right.split(',').map(str::trim).filter(|target| !target.is_empty());
        match drawn_crate(named) {
            Some(name) => drawn.push((name.into(), targets.map(str::to_owned).collect())),
            None => {
                modules.insert(named.to_owned());
                let daemon = drawn.last_mut().filter(|(name, _)| name == "src");
                daemon
                    .expect("a module is the daemon's")
                    .1
                    .extend(targets.map(str::to_owned));
            }
        }
    }
    for (_, targets) in &mut drawn {
        let crates = targets.iter().filter(|target| !modules.contains(*target));
        // A crate that has the name of one of the daemon's modules is drawn with its folder.
        *targets = crates
            .map(|target| target.strip_prefix("crates/").unwrap_or(target).to_owned())
            .collect();
    }
    drawn
}

/// What can be reached along arrows.
fn reached<'a>(uses: &'a Uses, from: &'a str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open = vec![from];
    while let Some(next) = open.pop() {
        let more = uses.get(next).into_iter().flatten().map(String::as_str);
        open.extend(more.filter(|name| found.insert(*name)));
    }
    found
}

#[test]
fn the_picture_of_the_crates_is_what_cargo_builds() {
    let metadata = cargo(&["metadata", "--no-deps", "--format-version=1"]);
    let (drawn, built) = (picture(), uses(&serde_json::from_str(&metadata).expect("JSON")));
    let arrows: Uses = drawn.iter().cloned().collect();
    assert_eq!(arrows.keys().collect::<Vec<_>>(), built.keys().collect::<Vec<_>>());
    for (at, (name, targets)) in drawn.iter().enumerate() {
        for target in targets {
            assert!(
                built[name].contains(target),
                "{name} → {target} is drawn and not in its Cargo.toml"
            );
            let below = drawn[at..].iter().any(|(lower, _)| lower == target && lower != name);
            assert!(below, "{name} → {target} points upward");
        }
        let reached = reached(&arrows, name);
        for used in &built[name] {
            assert!(
                reached.contains(used.as_str()),
                "{name} uses {used}, and no arrow leads there"
            );
        }
    }
}

/// The crates that a program is linked with.
fn linked(package: &str) -> BTreeSet<String> {
    let tree = cargo(&["tree", "-p", package, "-e", "normal", "--prefix=none"]);
    tree.lines()
        .filter_map(|line| line.split(' ').next())
        .map(str::to_owned)
        .collect()
}

/// What of the cluster, of tests or of other programs must not be in a program of the node.
const KEPT_OUT: [&str; 16] = [
    "k8s-openapi",
    "kube",
    "openssl",
    "reqwest",
    "rustls",
    "stelia-cluster",
    "stelia-placement",
    "stelia-publish",
    "stelia-simulator",
    "stelia-testnode",
    // Of programs with a screen, or of others' APIs: not in the daemon either.
    "comfy-table",
    "hyper",
    "prometheus-client",
    "proptest",
    "qapi",
    "ratatui",
];

#[test]
fn nothing_of_the_cluster_of_tests_or_of_other_programs_is_in_the_nodes_programs() {
    for (program, has, more) in [
        (
            "steliad",
            "zbus",
            &["kubelet-planner", "stelia-runner", "steliactl"][..],
        ),
        ("steliactl", "clap", &[]),
        ("steliad-quiet", "clap", &[]),
        ("stelia-runner", "clap", &[]),
    ] {
        let names = linked(program);
        assert!(names.contains(has), "{names:?}");
        let kept_out = if program == "steliad" {
            &KEPT_OUT[..]
        } else {
            &KEPT_OUT[..10]
        };
        for name in kept_out.iter().chain(more) {
            assert!(!names.contains(*name), "{name} is in {program}");
        }
    }
}
