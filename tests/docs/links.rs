//! Sections, tests and pages that the documents point at.

use std::collections::BTreeSet;

use crate::{files, pages, quoted, read, root};

/// The headings of a page, as they are written.
fn headings(page: &str) -> BTreeSet<String> {
    let outside: String = page.split("\n```").step_by(2).collect();
    let lines = outside.lines().filter(|line| line.starts_with('#'));
    lines
        .map(|line| line.trim_start_matches('#').trim().replace('`', ""))
        .collect()
}

/// The anchors of a page's sections, as forges and most renderers of Markdown make them: lower case, hyphens for spaces, no punctuation.
pub fn anchors(page: &str) -> BTreeSet<String> {
    let anchor = |heading: &String| -> String {
        let kept = heading
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.flat_map(char::to_lowercase)
            .map(|c| if c == ' ' { '-' } else { c })
            .collect()
    };
    headings(page).iter().map(anchor).collect()
}

/// Where a page names a section of another one: `docs/runner.md`, "Probes".
#[test]
fn every_section_that_is_named_with_its_page_exists() {
    let mut named = 0;
    for (page, text) in pages() {
        // The name of a section may continue on the next line.
        let text = text.replace('\n', " ");
        for (at, _) in text.match_indices(".md`, \"") {
            let path = text[..at].rsplit('`').next().unwrap_or_default();
            let section = text[at + ".md`, \"".len()..].split('"').next().unwrap_or_default();
            let of = ["", "docs/"].map(|folder| root().join(format!("{folder}{path}.md")));
            let of = of.iter().find(|path| path.exists());
            let of = of.unwrap_or_else(|| panic!("{page}: {path}.md"));
            assert!(
                headings(&read(of)).contains(section),
                "{page}: {path}.md has no section {section:?}"
            );
            named += 1;
        }
    }
    assert!(named >= 8, "{named}");
}

/// Names of four words and more, which nothing else between backticks has.
#[test]
fn every_test_that_is_named_exists() {
    let folders = ["src", "crates", "cluster", "testing", "tests", "benches"];
    let sources: String = folders
        .iter()
        .flat_map(|folder| files(&root().join(folder), "rs"))
        .map(|path| read(&path))
        .collect();
    let mut named = BTreeSet::new();
    for (page, text) in pages() {
        for word in quoted(&text) {
            let of_tests = word.matches('_').count() >= 3
                && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
                // Metrics, types of SELinux, and functions of the kernel.
                && !["stelia_", "steliad_", "node_", "workqueue_"].iter().any(|prefix| word.starts_with(prefix));
            if of_tests {
                assert!(sources.contains(&format!("fn {word}(")), "{page}: {word}");
                named.insert(word);
            }
        }
    }
    assert!(named.len() >= 30, "{named:?}");
}

#[test]
fn the_index_lists_every_page_once_and_nothing_else() {
    let index = read(&root().join("docs/README.md"));
    let rows = index.lines().filter_map(|line| line.strip_prefix("- ["));
    // "[a.md](a.md), [b.md](b.md): what they are about"
    let targets = |row: &str| -> Vec<String> {
        let links = row.split(": ").next().unwrap_or_default().split("](").skip(1);
        links
            .filter_map(|link| Some(link.split_once(')')?.0.to_owned()))
            .collect()
    };
    let mut listed: Vec<String> = rows.flat_map(targets).collect();
    listed.retain(|target| !target.starts_with("../"));
    listed.sort();
    let docs = root().join("docs");
    let mut pages: Vec<String> = files(&docs, "md")
        .iter()
        .map(|path| path.strip_prefix(&docs).expect("below docs").display().to_string())
        .filter(|name| name != "README.md")
        .collect();
    pages.sort();
    assert_eq!(listed, pages);
}
