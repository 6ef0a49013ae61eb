//! `docs/cookbook.md` as far as it can be held without a node; `tests/node/cookbook.rs` runs it.

use crate::blocks::{Recipe, recipes};
use crate::{read, root};

#[test]
fn every_line_is_one_a_shell_takes_and_none_stops_the_slice() {
    let recipes = recipes(&read(&root().join("docs/cookbook.md")));
    let lines: Vec<&String> = recipes.iter().flat_map(|recipe| &recipe.lines).collect();
    assert!(lines.len() >= 40, "{} lines", lines.len());
    for line in lines {
        let shell = std::process::Command::new("sh").args(["-n", "-c", line]).status();
        assert!(shell.expect("sh").success(), "{line}");
        assert!(!line.contains("stop") && !line.contains("jq"), "{line}");
        // What never ends is ended.
        let endless = line.contains("monitor") || line.contains(" -f ");
        assert_eq!(endless, line.starts_with("timeout "), "{line}");
    }
    let giving_back = |recipe: &Recipe| recipe.lines.iter().any(|line| line.contains("eregister "));
    let last = recipes.iter().position(giving_back);
    assert_eq!(
        last,
        Some(recipes.len() - 1),
        "the CPUs are given back last, and only then"
    );
}
