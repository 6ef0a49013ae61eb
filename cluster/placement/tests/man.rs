//! stelia-placement(8) names what the program has: options, paths.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::path::Path;

use clap::CommandFactory;
use stelia_placement::cli::Cli;

#[test]
fn the_man_page_names_every_option_and_every_path() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cluster/man/stelia-placement.8");
    let page = std::fs::read_to_string(path).unwrap().replace("\\-", "-");
    let command = Cli::command();
    for option in command.get_arguments().filter_map(|argument| argument.get_long()) {
        assert!(page.contains(&format!("--{option}")), "--{option}");
    }
    for path in [
        "/filter",
        "/prioritize",
        "/preempt",
        "/bind",
        "/explain",
        "/healthz",
        "/readyz",
        "/leader",
        "/metrics",
    ] {
        assert!(page.contains(path), "{path}");
    }
}
