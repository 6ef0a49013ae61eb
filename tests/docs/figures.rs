//! The figures in README.md are those that `docs/demo.txt` has from `make demo`.

use crate::{hold, read, root};

/// The first words of the table that `tests/vm/jobs/demo/run.sh` prints.
const TABLE: &str = "| 5 s of noise ";

/// What is before the table, the table, and what is behind it.
fn split(text: &str) -> (&str, &str, &str) {
    let from = text.find(TABLE).expect("the table");
    let length = text[from..].find("\n\n").expect("its end");
    (&text[..from], &text[from..from + length], &text[from + length..])
}

#[test]
fn the_readmes_figures_are_what_the_demo_printed() {
    let readme = root().join("README.md");
    let (text, demo) = (read(&readme), read(&root().join("docs/demo.txt")));
    let (_, measured, _) = split(&demo);
    let (before, _, after) = split(&text);
    hold(&readme, &format!("{before}{measured}{after}"));
    assert!(measured.contains("| switch-ins of other tasks |"), "{measured}");
}
