//! stelia-publish(8) has the program's command line, and names its metrics and environment.
//! `STELIA_WRITE_DOCS=1 cargo test -p stelia-publish man_page` writes what is made.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "../../../tests/docs/man/command.rs"]
mod command;
#[allow(dead_code)]
#[path = "../../../tests/docs/man/page.rs"]
mod page;

use clap::CommandFactory;
use page::{hold, path};
use stelia_publish::Status;
use stelia_publish::program::Arguments;
use stelia_publish::status::Part;

#[test]
fn the_man_page_has_the_command_line() {
    hold("stelia-publish.8", &command::parts(Arguments::command()));
}

#[test]
fn every_option_that_a_unit_sets_has_a_variable() {
    let command = Arguments::command();
    for argument in command.get_arguments() {
        let (name, variable) = (argument.get_id().as_str(), argument.get_env());
        match name {
            // What is done once, by hand or by a script.
            "once" | "withdraw" | "help" | "version" => assert_eq!(variable, None),
            _ => assert_eq!(
                variable.unwrap().to_str(),
                Some(&*format!("STELIA_{}", name.to_uppercase()))
            ),
        }
    }
}

#[test]
fn the_man_page_names_every_metric_and_every_part() {
    let page = std::fs::read_to_string(path("stelia-publish.8")).unwrap();
    let text = stelia_publish::metrics::text(&Status::default()).unwrap();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let names: Vec<String> = types
        .map(|line| match line.split_once(' ').unwrap() {
            (name, "counter") => format!("{name}_total"),
            (name, _) => name.to_owned(),
        })
        .collect();
    assert_eq!(names.len(), 7, "{text}");
    for name in names {
        assert!(page.contains(&name), "{name} is not in the page");
    }
    let parts: Vec<&str> = Part::ALL.map(Part::name).into();
    let parts = parts.join(", ");
    assert!(page.contains(&format!("({parts})")), "({parts}) is not in the page");
}
