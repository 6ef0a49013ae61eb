//! What the tests of all commands share: files of a node, command lines, and how an answer is looked at.

use std::fs;
use std::path::Path;

use clap::{Args, FromArgMatches, Parser};
use serde_json::Value;
use stelia_table::Column;
use tempfile::TempDir;

use crate::cli::Cli;
use crate::shared::daemon::{Pod, Selection};
use crate::shared::output::{Render, TextStyle};

/// Writes a file below `root`, and the folders around it.
pub(crate) fn write(root: &Path, path: &str, text: impl AsRef<str>) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text.as_ref()).unwrap();
}

/// A folder with these files.
pub(crate) fn folder(files: &[(&str, &str)]) -> TempDir {
    let root = TempDir::new().unwrap();
    for (path, text) in files {
        write(root.path(), path, text);
    }
    root
}

/// A command line without its first word, which clap accepts.
pub(crate) fn cli(line: &[&str]) -> Cli {
    Cli::try_parse_from([&["steliactl"], line].concat()).unwrap_or_else(|error| panic!("{line:?}: {error}"))
}

/// What these arguments select.
pub(crate) fn selection(line: &[&str]) -> Selection {
    let command = Selection::augment_args(clap::Command::new("x").no_binary_name(true));
    Selection::from_arg_matches(&command.get_matches_from(line)).unwrap()
}

pub(crate) fn is_refused(line: &[&str]) -> bool {
    Cli::try_parse_from([&["steliactl"], line].concat()).is_err()
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(future)
}

/// The text for a pipe, with headings.
pub(crate) fn text(answer: &impl Render) -> String {
    answer.text(TextStyle::from(true))
}

/// A terminal of this width.
pub(crate) fn columns(width: usize) -> TextStyle {
    TextStyle {
        width: Some(width),
        ..TextStyle::from(true)
    }
}

pub(crate) fn wide() -> TextStyle {
    TextStyle {
        wide: true,
        ..TextStyle::from(true)
    }
}

#[track_caller]
pub(crate) fn says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

#[track_caller]
pub(crate) fn never_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(!text.contains(part), "{part:?} is in {text}");
    }
}

/// Checks that the values at these JSON pointers are these; of an absent one it is null.
#[track_caller]
pub(crate) fn holds(answer: &Value, facts: Value) {
    for (pointer, expected) in facts.as_object().unwrap() {
        let found = answer.pointer(pointer).unwrap_or(&Value::Null);
        assert_eq!(found, expected, "{pointer} of {answer:#}");
    }
}

pub(crate) fn headings<T>(columns: &[Column<T>]) -> Vec<&'static str> {
    columns.iter().map(Column::heading).collect()
}

/// `name` is `namespace/name`, or empty where it is not known.
pub(crate) fn pod(uid: &str, name: &str) -> Pod {
    let (namespace, name) = name.split_once('/').unwrap_or_default();
    Pod {
        pod_uid: uid.to_owned(),
        pod_namespace: namespace.to_owned(),
        pod_name: name.to_owned(),
    }
}
