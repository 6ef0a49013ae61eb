//! The man pages in `docs/man/` and `docs/cluster/man/`. What the code knows is made from it and held to the page: command lines by clap_mangen, settings from
//! `packaging/steliad.toml`, the D-Bus interface from `dbus-interfaces/`, members of JSON from `docs/json.md`. The rest is written by hand, in the page itself.
//! `STELIA_WRITE_DOCS=1 cargo test man_page` writes what is made. The pages of the cluster's programs are held by their crates' tests.

// The page of stelia-cluster is made of the rest.
#[allow(dead_code)]
mod command;
mod interface;
mod json;
pub mod page;
mod roff;
mod settings;
mod short;

use clap::CommandFactory;
use steliactl::cli::help::GROUPS;

use page::{hold, path};

#[test]
fn the_man_page_of_the_runner_says_what_help_says() {
    let command = command::shown(stelia_runner::Cli::command());
    let parts = [
        ("synopsis", command::synopsis(&command)),
        ("options", command::options(&command)),
        ("commands", command::commands(&command)),
        ("environment", command::section(&command, "Environment")),
    ];
    hold("stelia-runner.1", &parts);
}

#[test]
fn the_man_page_of_steliactl_says_what_help_says() {
    let command = command::shown(steliactl::cli::Cli::command());
    let parts = [
        ("options", short::common(&command)),
        ("selection", short::selection(command.find_subcommand("list").unwrap())),
        ("commands", short::grouped(&command, &GROUPS)),
        ("exit codes", command::section(&command, "Exit codes")),
    ];
    hold("steliactl.1", &parts);
}

#[test]
fn the_man_pages_of_programs_without_commands_have_their_command_lines() {
    for (page, command) in [
        ("steliad.8", steliad::daemon::Arguments::command()),
        ("steliad-quiet.8", steliad_quiet::service::program::Arguments::command()),
        (
            "steliad-device-plugin.8",
            stelia_device_plugin::program::Arguments::command(),
        ),
    ] {
        hold(page, &command::parts(command));
    }
}

#[test]
fn the_man_page_of_the_configuration_has_every_setting() {
    hold("steliad.toml.5", &settings::parts());
}

#[test]
fn the_man_page_of_the_bus_says_what_the_interfaces_say() {
    let parts = [("interfaces", interface::interfaces()), ("errors", interface::errors())];
    hold("io.stelia.Isolation1.5", &parts);
}

#[test]
fn the_man_page_of_fields_has_every_member_of_json() {
    hold("steliactl-fields.5", &[("json", json::members())]);
}

#[test]
fn the_man_page_of_the_daemon_names_every_attribute_of_a_record() {
    let page = std::fs::read_to_string(path("steliad.8")).unwrap().replace('\\', "");
    for (name, _) in stelia_model::record::testing::allocated().attributes() {
        let named = page.contains(&format!("user.stelia.{name}")) || page.contains(&format!("\" {name}"));
        assert!(named, "user.stelia.{name} is not in the page");
    }
}
