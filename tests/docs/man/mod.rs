//! The man pages in `docs/man/` and `docs/cluster/man/`. What the code knows is made from it and held to the page: command lines from clap, settings from
//! `packaging/steliad.toml`, the D-Bus interface from `dbus-interfaces/`. The rest is written by hand, in the page itself.
//! `STELIA_WRITE_DOCS=1 cargo test man_page` writes what is made. The pages of the cluster's programs are held by their crates' tests.

mod command;
mod interface;
pub mod page;
mod roff;
mod settings;

use std::collections::BTreeSet;

use clap::CommandFactory;
use steliactl::cli::help::GROUPS;

use page::{END, PART, filled, hold, path};
use roff::Header;

#[test]
fn the_man_page_of_the_runner_says_what_help_says() {
    let header = Header {
        title: "STELIA-RUNNER",
        section: 1,
        volume: "User Commands",
        source: "crates/runner/src/cli",
    };
    let also = &["stelia(7)", "steliad(8)", "/usr/share/doc/steliad/runner.md"];
    let page = command::page(stelia_runner::Cli::command(), &header, also);
    hold("stelia-runner.1", &page);
}

#[test]
fn the_man_page_of_steliactl_says_what_help_says() {
    let page = std::fs::read_to_string(path("steliactl.1")).unwrap();
    let mut command = steliactl::cli::Cli::command();
    command.build();
    let groups = GROUPS.map(|group| (group.title, group.commands));
    let page = filled(&page, "options", &command::options(&command, true));
    let page = filled(&page, "commands", &command::grouped(&command, &groups));
    let page = filled(&page, "exit codes", &command::section(&command, "Exit codes"));
    hold("steliactl.1", &page);
}

#[test]
fn the_man_page_of_steliactl_names_every_property_that_changes() {
    let page = std::fs::read_to_string(path("steliactl.1")).unwrap();
    let (_, events) = page.split_once(".B PropertiesChanged\n").unwrap();
    let (events, _) = events.split_once(".SH ").unwrap();
    let named = events.split(|char: char| !char.is_ascii_alphanumeric());
    let named: BTreeSet<&str> = named.collect();
    let changing = interface::changing_properties();
    assert!(changing.len() > 5, "{changing:?}");
    for property in changing {
        assert!(named.contains(property.as_str()), "{property} is not in {events}");
    }
}

#[test]
fn the_man_page_of_the_daemon_has_its_command_line() {
    let page = std::fs::read_to_string(path("steliad.8")).unwrap();
    let mut command = steliad::daemon::Arguments::command();
    command.build();
    let page = filled(&page, "synopsis", &command::synopsis(&command));
    let page = filled(&page, "options", &command::options(&command, true));
    hold("steliad.8", &page);
}

#[test]
fn the_man_page_of_steliad_quiet_has_its_command_line() {
    let page = std::fs::read_to_string(path("steliad-quiet.8")).unwrap();
    let mut command = steliad_quiet::service::program::Arguments::command();
    command.build();
    let page = filled(&page, "synopsis", &command::synopsis(&command));
    let page = filled(&page, "options", &command::options(&command, true));
    hold("steliad-quiet.8", &page);
}

#[test]
fn the_man_page_of_the_device_plugin_has_its_command_line() {
    let page = std::fs::read_to_string(path("steliad-device-plugin.8")).unwrap();
    let mut command = stelia_device_plugin::program::Arguments::command();
    command.build();
    let page = filled(&page, "synopsis", &command::synopsis(&command));
    let page = filled(&page, "options", &command::options(&command, true));
    hold("steliad-device-plugin.8", &page);
}

#[test]
fn the_man_page_of_the_configuration_has_every_setting() {
    let page = std::fs::read_to_string(path("steliad.toml.5")).unwrap();
    let page = filled(&page, "settings", &settings::part());
    let page = filled(&page, "class", &settings::class());
    hold("steliad.toml.5", &filled(&page, "rule", &settings::rule()));
}

#[test]
fn the_man_page_of_the_bus_says_what_the_interfaces_say() {
    hold("io.stelia.Isolation1.5", &interface::page());
}

#[test]
fn a_made_part_is_replaced_and_the_rest_of_the_page_stays() {
    let page = format!("a\n{PART}x\nold\n{END}b\n");
    assert_eq!(filled(&page, "x", "new\n"), format!("a\n{PART}x\nnew\n{END}b\n"));
}

#[test]
fn the_man_page_of_the_daemon_names_every_attribute_of_a_record() {
    let page = std::fs::read_to_string(path("steliad.8")).unwrap().replace('\\', "");
    for (name, _) in stelia_model::record::testing::allocated().attributes() {
        let named = page.contains(&format!("user.stelia.{name}")) || page.contains(&format!("\" {name}"));
        assert!(named, "user.stelia.{name} is not in the page");
    }
}
