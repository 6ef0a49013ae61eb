//! What the documentation names exists.
#![allow(clippy::expect_used, clippy::panic)]

mod blocks;
mod catalog;
mod cookbook;
mod decisions;
mod limits;
mod man;
mod metrics;
mod names;

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

#[test]
fn every_test_that_the_documentation_names_exists() {
    let root = root();
    let sources = [files(&root.join("src"), "rs"), files(&root.join("tests"), "rs")].concat();
    let code: String = sources.iter().map(|path| read(path)).collect();
    let mut named = 0;
    for page in files(&root.join("docs"), "md") {
        for word in quoted(&read(&page)) {
            // Test names are sentences; settings and fields have fewer words. SELinux types end in _t, metrics begin with ours.
            let is_name = word
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
            if is_name && word.matches('_').count() >= 4 && !word.ends_with("_t") && !word.starts_with("stelia_") {
                assert!(code.contains(&format!("fn {word}(")), "{}: {word}", page.display());
                named += 1;
            }
        }
    }
    assert!(named >= 15, "only {named} names were found");
}

#[test]
fn every_file_of_ours_that_the_documentation_names_exists() {
    let root = root();
    let mut pages = files(&root.join("docs"), "md");
    pages.push(root.join("README.md"));
    for page in pages {
        for word in quoted(&read(&page)) {
            let ours = [
                "src/",
                "tests/",
                "docs/",
                "packaging/",
                "dbus-interfaces/",
                "systemd-units/",
            ];
            let path = word.split_whitespace().next().unwrap_or_default();
            if ours.iter().any(|folder| path.starts_with(folder)) {
                assert!(root.join(path).exists(), "{}: {path}", page.display());
            }
        }
    }
}

#[test]
fn mandoc_finds_nothing_wrong_in_the_man_pages() {
    let folder = root().join("docs/man");
    let pages: Vec<PathBuf> = fs::read_dir(folder)
        .expect("pages")
        .flatten()
        .map(|page| page.path())
        .collect();
    assert!(pages.len() >= 6, "{pages:?}");
    let mandoc = Command::new("mandoc")
        .args(["-T", "lint", "-W", "warning"])
        .args(&pages)
        .output();
    let mandoc = mandoc.unwrap_or_else(|e| panic!("mandoc cannot be run (make setup installs it): {e}"));
    let said = String::from_utf8_lossy(&mandoc.stdout) + String::from_utf8_lossy(&mandoc.stderr);
    assert!(mandoc.status.success(), "{said}");
}
