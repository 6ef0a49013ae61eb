//! stelia-placement(8) has the program's command line, and names its paths.
//! `STELIA_WRITE_DOCS=1 cargo test -p stelia-placement man_page` writes what is made.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "../../../tests/docs/man/command.rs"]
mod command;
#[path = "../../../tests/docs/man/page.rs"]
mod page;

use clap::CommandFactory;
use stelia_placement::cli::Cli;

#[test]
fn the_man_page_has_the_command_line_and_names_every_path() {
    let page = page::hold("stelia-placement.8", &command::parts(Cli::command()));
    for path in [
        "/filter",
        "/prioritize",
        "/preempt",
        "/bind",
        "/healthz",
        "/readyz",
        "/leader",
        "/metrics",
    ] {
        assert!(page.contains(path), "{path}");
    }
}
