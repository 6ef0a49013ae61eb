//! `docs/decisions.md` has a line for each crate of `Cargo.toml`, and for each that was asked for and is not there.

use std::collections::BTreeSet;

use crate::{read, root};

/// The cells of the rows of the page's `number`-th table, without its head.
fn rows(page: &str, number: usize) -> Vec<Vec<String>> {
    let table = page.split("\n\n").filter(|part| part.starts_with("| ")).nth(number);
    let lines = table.expect("a table").lines().skip(2);
    let cells = |line: &str| {
        line.trim_matches('|')
            .split(" | ")
            .map(|cell| cell.trim().to_owned())
            .collect()
    };
    lines.map(cells).collect()
}

#[test]
fn the_tables_of_crates_are_those_of_the_manifest() {
    let manifest: toml::Table = read(&root().join("Cargo.toml")).parse().expect("TOML");
    let all = manifest["workspace"]["dependencies"].as_table().expect("a table");
    let others = all.iter().filter(|(_, of)| of.get("path").is_none());
    let built: BTreeSet<String> = others.map(|(name, _)| name.clone()).collect();
    let page = read(&root().join("docs/decisions.md"));
    let (asked, joined) = (rows(&page, 0), rows(&page, 1));
    assert!(asked.len() >= 30, "{asked:#?}");
    let mut named = BTreeSet::new();
    for row in &asked {
        let [name, used, why] = row.as_slice() else {
            panic!("{row:?}")
        };
        assert_eq!(built.contains(name), used == "yes", "{name}");
        assert!(used == "yes" || !why.is_empty(), "{name}: why not?");
        if used == "tool" {
            let make = read(&root().join("Makefile"));
            assert!(
                make.contains(&format!("install {name}")) || make.contains(&format!(" {name}\n")),
                "{name}"
            );
        }
        assert!(named.insert(name.clone()), "{name} twice");
    }
    for row in &joined {
        assert!(row.len() == 2 && !row[1].is_empty(), "{row:?}");
        assert!(named.insert(row[0].clone()), "{} twice", row[0]);
    }
    let without: Vec<&String> = built.difference(&named).collect();
    assert!(
        without.is_empty(),
        "in Cargo.toml and not in docs/decisions.md: {without:?}"
    );
    let gone: Vec<&String> = joined
        .iter()
        .map(|row| &row[0])
        .filter(|name| !built.contains(*name))
        .collect();
    assert!(gone.is_empty(), "in docs/decisions.md and not in Cargo.toml: {gone:?}");
}
