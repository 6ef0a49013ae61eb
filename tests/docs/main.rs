//! What the documentation names exists.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod allocator;
// What a recipe prints is for who runs it.
#[allow(dead_code)]
mod blocks;
mod catalog;
mod completions;
mod cookbook;
mod decisions;
mod figures;
mod first_vm;
mod installed;
mod limits;
mod links;
mod man;
mod metrics;
mod names;
mod sections;
mod structure;
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.extension().is_some_and(|e| e == ending) {
            found.push(path);
        }
    }
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// What stands between backticks, outside of blocks of code.
fn quoted(text: &str) -> Vec<String> {
    let outside: String = text.split("\n```").step_by(2).collect();
    outside.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Holds a file to what is made for it, which is written there when that is asked for.
fn hold(path: &Path, made: &str) {
    if std::env::var_os("STELIA_WRITE_DOCS").is_some() {
        fs::write(path, made).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
    let is_so = fs::read_to_string(path).is_ok_and(|written| written == made);
    let path = path.display();
    assert!(
        is_so,
        "{path} is not what is made: STELIA_WRITE_DOCS=1 cargo test --test docs"
    );
}

/// The pages for people, with their paths in the repository.
fn pages() -> Vec<(String, String)> {
    let named = [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "tests/README.md",
        "fuzz/README.md",
        "cluster/README.md",
        "testing/README.md",
    ]
    .map(|page| root().join(page));
    let paths = files(&root().join("docs"), "md").into_iter().chain(named);
    let relative = |path: &Path| path.strip_prefix(root()).expect("below the root").display().to_string();
    paths.map(|path| (relative(&path), read(&path))).collect()
}

#[test]
fn every_file_of_ours_that_the_documentation_names_exists() {
    let ours = [
        "src/",
        "crates/",
        "cluster/",
        "testing/",
        "benches/",
        "tests/",
        "docs/",
        "packaging/",
        "dbus-interfaces/",
        "systemd-units/",
    ];
    for (page, text) in pages() {
        for word in quoted(&text) {
            let path = word.split_whitespace().next().unwrap_or_default();
            if ours.iter().any(|folder| path.starts_with(folder)) {
                assert!(root().join(path).exists(), "{page}: {path}");
            }
        }
    }
}

#[test]
fn mandoc_finds_nothing_wrong_in_the_man_pages() {
    let pages: Vec<PathBuf> = man::page::FOLDERS
        .iter()
        .flat_map(|folder| fs::read_dir(root().join(folder)).expect("pages").flatten())
        .map(|page| page.path())
        .collect();
    assert!(pages.len() >= 11, "{pages:?}");
    let mandoc = Command::new("mandoc")
        .args(["-T", "lint", "-W", "warning"])
        .args(&pages)
        .output();
    let mandoc = mandoc.unwrap_or_else(|e| panic!("mandoc cannot be run (make setup installs it): {e}"));
    let said = String::from_utf8_lossy(&mandoc.stdout) + String::from_utf8_lossy(&mandoc.stderr);
    assert!(mandoc.status.success(), "{said}");
}
