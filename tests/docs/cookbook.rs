//! `docs/cookbook.md` as far as it can be held without a node; `tests/node/cookbook.rs` runs it.

use crate::blocks::{Recipe, printed, recipes};
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

#[test]
fn what_a_block_prints_is_looked_for_part_by_part() {
    let page = "\n```sh\nls\npwd\n```\n\n```text\na…c\n```\n\n```sh\nx\n```\n";
    let found = recipes(page);
    assert_eq!(found[0].lines, ["ls", "pwd"]);
    assert_eq!(found[0].prints, [["a", "c"]]);
    assert_eq!((found.len(), found[1].prints.len()), (2, 0));
    let parts = &found[0].prints[0];
    assert!(printed("x\na b c\n", parts));
    assert!(!printed("c a\n", parts) && !printed("a\nc\n", parts));
}
