//! The journal's messages, and what the catalog says of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use steliad::journal;

use crate::{files, read, root};

fn catalog() -> PathBuf {
    root().join("packaging/journal/steliad.catalog")
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

#[test]
fn every_message_has_an_entry_in_the_catalog_and_every_entry_a_message() {
    let ids = BTreeSet::from(journal::ALL);
    assert_eq!(ids.len(), journal::ALL.len(), "an id is used twice");
    for id in &ids {
        assert!(
            id.len() == 32 && id.chars().all(|c| c.is_ascii_hexdigit() && !c.is_ascii_uppercase()),
            "{id}"
        );
    }
    let entries = entries();
    assert_eq!(ids, entries.keys().map(String::as_str).collect());
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

#[test]
fn the_man_page_of_the_daemon_names_every_field() {
    let page = read(&root().join("docs/man/steliad.8")).replace('\\', "");
    let sources = files(&root().join("src"), "rs");
    let mut logged = BTreeSet::new();
    for path in sources {
        let text = read(&path);
        // `STELIA_REASON = text`, as `tracing` takes it.
        for (at, _) in text.match_indices("STELIA_") {
            let (name, rest) = text[at..].split_at(
                text[at..]
                    .find(|c: char| c != '_' && !c.is_ascii_uppercase())
                    .unwrap_or(0),
            );
            if rest.starts_with(" = ") {
                logged.insert(name.to_owned());
            }
        }
    }
    assert!(logged.len() > 10 && logged.contains("STELIA_POD_NAME"), "{logged:?}");
    for field in logged {
        assert!(page.contains(&format!("{field}=")), "{field} is not in the page");
    }
}
