//! `docs/support.md` has the versions that the test nodes run.

use crate::{read, root};

/// The test node's recipes name their kernel and systemd; the page of what was seen has both.
#[test]
fn the_support_matrix_has_the_versions_of_the_test_nodes() {
    let page = read(&root().join("docs/support.md"));
    for image in ["trixie", "bookworm", "sid"] {
        let recipe = read(&root().join("tests/vm/images").join(image));
        let head: String = recipe.lines().take_while(|line| line.starts_with('#')).collect();
        let after = |word: &str| -> String {
            let rest = head.split_once(word).unwrap_or_else(|| panic!("{image}: no {word}")).1;
            rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect()
        };
        let (kernel, systemd) = (after("kernel "), after("systemd "));
        let row = page
            .lines()
            .find(|line| line.starts_with(&format!("| {image} |")))
            .unwrap_or_else(|| panic!("docs/support.md has no row of {image}"));
        for version in [kernel.trim_end_matches('.'), systemd.trim_end_matches('.')] {
            assert!(row.contains(&format!("| {version} |")), "{image}: {version}: {row}");
            let seen = page
                .lines()
                .any(|line| line.starts_with(&format!("| {version} |")) && line.contains(image));
            assert!(seen, "docs/support.md: {version} was seen on {image}");
        }
    }
}
