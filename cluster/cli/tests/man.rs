//! stelia-cluster(1) has the program's command line, and explains its columns.
//! `STELIA_WRITE_DOCS=1 cargo test -p stelia-cluster man_page` writes what is made.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "../../../tests/docs/man/command.rs"]
mod command;
#[path = "../../../tests/docs/man/page.rs"]
mod page;

use clap::CommandFactory;
use stelia_cluster::cli::Cli;

#[test]
fn the_man_page_says_what_help_says_and_explains_every_column() {
    let command = command::shown(Cli::command());
    let parts = [
        ("options", command::options(&command)),
        ("commands", command::commands(&command)),
        ("exit codes", command::section(&command, "Exit codes")),
    ];
    let page = page::hold("stelia-cluster.1", &parts);
    let headings = [
        stelia_cluster::nodes::COLUMNS.map(|column| column.heading()).to_vec(),
        stelia_cluster::vms::COLUMNS.map(|column| column.heading()).to_vec(),
        stelia_cluster::health::COLUMNS.map(|column| column.heading()).to_vec(),
        stelia_cluster::plan::COLUMNS.map(|column| column.heading()).to_vec(),
        stelia_cluster::why::COLUMNS.map(|column| column.heading()).to_vec(),
    ];
    for heading in headings.concat() {
        assert!(
            page.contains(&format!("B {heading}\n")) || page.contains(&format!("B {heading}\\fR")),
            "the column {heading} is not explained"
        );
    }
}
