//! The journal's messages: their ids, who logs them, and what the catalog says of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{files, read};

fn root() -> PathBuf {
    env!("CARGO_MANIFEST_DIR").into()
}

fn catalog() -> PathBuf {
    root().join("packaging/journal/steliad.catalog")
}

/// The constants of `src/journal.rs`: name and id.
fn constants() -> BTreeMap<String, String> {
    let source = read(&root().join("src/journal.rs"));
    let lines = source.lines().filter_map(|line| line.strip_prefix("pub const "));
    lines
        .map(|line| {
            let (name, value) = line.split_once(": &str = \"").expect("a constant of text");
            (name.to_owned(), value.trim_end_matches("\";").to_owned())
        })
        .collect()
}

/// The catalog's entries: id, header lines, text.
fn entries() -> BTreeMap<String, (String, String)> {
    let text = read(&catalog());
    let entries: Vec<&str> = text.split("\n-- ").skip(1).collect();
    let map: BTreeMap<String, (String, String)> = entries
        .iter()
        .map(|entry| {
            let (head, body) = entry.split_once("\n\n").expect("an empty line after the headers");
            let (id, headers) = head.split_once('\n').expect("headers");
            (id.to_owned(), (headers.to_owned(), body.to_owned()))
        })
        .collect();
    assert_eq!(map.len(), entries.len(), "an id is there twice");
    map
}

/// Names in a text that begin with `STELIA_`.
fn fields(text: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_uppercase() || c == '_';
    text.split(|c| !is_name(c))
        .filter(|word| word.starts_with("STELIA_"))
        .map(str::to_owned)
        .collect()
}

/// The text of each tracing macro's call, with the text in front of it in the same block: an id may be chosen there.
fn calls() -> Vec<String> {
    let mut calls = Vec::new();
    for path in files(&root().join("src"), "rs") {
        let source = read(&path);
        for (at, _) in source.match_indices("tracing::") {
            let rest = &source[at..];
            let open = rest.find('(').unwrap_or(0);
            let mut depth = 0_usize;
            let end = rest[open..].char_indices().find(|(_, c)| {
                depth = match c {
                    '(' => depth + 1,
                    ')' => depth - 1,
                    _ => depth,
                };
                depth == 0
            });
            let call = &rest[..open + end.map_or(0, |(end, _)| end)];
            if call.contains("MESSAGE_ID = id") {
                // What the id is chosen from stands in the same file.
                calls.push(format!("{call}{}", choices(&source)));
            } else {
                calls.push(call.to_owned());
            }
        }
    }
    calls
}

/// Every message that a file names outside of `MESSAGE_ID = journal::…`.
fn choices(source: &str) -> String {
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    let code = code.replace("MESSAGE_ID = journal::", "");
    let named = code.split("journal::").skip(1);
    named.map(|rest| format!(" journal::{rest:.24}")).collect()
}

fn names(call: &str, constant: &str) -> bool {
    let word = format!("journal::{constant}");
    call.match_indices(&word).any(|(at, _)| {
        let next = call[at + word.len()..].chars().next();
        next.is_none_or(|c| !c.is_ascii_uppercase() && c != '_')
    })
}

#[test]
fn every_message_has_an_entry_in_the_catalog_and_every_entry_a_message() {
    let constants = constants();
    let ids: BTreeSet<&String> = constants.values().collect();
    assert_eq!(ids.len(), constants.len(), "an id is used twice");
    assert!(constants.len() > 20, "only {} were found", constants.len());
    for id in &ids {
        assert!(
            id.len() == 32 && id.chars().all(|c| c.is_ascii_hexdigit() && !c.is_ascii_uppercase()),
            "{id}"
        );
    }
    let entries = entries();
    assert_eq!(ids, entries.keys().collect());
    for (id, (headers, body)) in &entries {
        for header in ["Subject: ", "Defined-By: steliad", "Support: ", "Documentation: man:"] {
            assert!(
                headers.lines().any(|line| line.starts_with(header)),
                "{id}: no {header}"
            );
        }
        assert!(!body.trim().is_empty(), "{id}");
    }
}

#[test]
fn the_catalog_names_only_fields_that_are_logged_with_the_message() {
    let (calls, entries) = (calls(), entries());
    for (name, id) in constants() {
        let of: Vec<&String> = calls.iter().filter(|call| names(call, &name)).collect();
        assert!(!of.is_empty(), "{name} is never logged");
        let (headers, body) = &entries[&id];
        let told = fields(&format!("{headers}{body}"));
        // More than one place may log it: each must have the fields.
        for call in of {
            let logged = fields(call);
            assert!(told.is_subset(&logged), "{name}: {told:?} of {logged:?} in {call}");
        }
    }
}

#[test]
fn journalctl_takes_the_catalog() {
    let host = tempfile::tempdir().expect("directory");
    let folder = host.path().join("usr/lib/systemd/catalog");
    std::fs::create_dir_all(&folder).expect("folder");
    std::fs::create_dir_all(host.path().join("var/lib/systemd/catalog")).expect("folder");
    std::fs::copy(catalog(), folder.join("steliad.catalog")).expect("copy");
    let journalctl = |arguments: &[&str], root: &Path| {
        let out = Command::new("journalctl")
            .arg(format!("--root={}", root.display()))
            .args(arguments)
            .output()
            .expect("journalctl");
        let complaints = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success() && complaints.is_empty(), "{complaints}");
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    journalctl(&["--update-catalog"], host.path());
    let listed = journalctl(&["--list-catalog"], host.path());
    for (id, (headers, _)) in entries() {
        let subject = headers.lines().next().and_then(|line| line.strip_prefix("Subject: "));
        let line = format!("{id} steliad: {}", subject.expect("a subject first"));
        assert!(listed.lines().any(|listed| listed == line), "{line}: {listed}");
    }
}
