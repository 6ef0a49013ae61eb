//! The commands of a program that has many, as steliactl(1) has them: each with its usage, a sentence and its own options. What many commands take
//! is explained once, and examples are in the help alone.

use std::fmt::Write;

use clap::{Arg, ArgAction, Command};

use super::roff;

/// The title of a group of commands, and their names.
type Group<'a> = (&'a str, &'a [&'a str]);

/// The arguments that select VMs, by their ids.
const SELECTION: [&str; 3] = ["patterns", "namespace", "states"];
/// Explained in the page's DESCRIPTION.
const VM: &str = "VM";

/// The options that every command takes.
pub fn common(command: &Command) -> String {
    one_below_another(command.get_arguments().filter(|arg| !arg.is_hide_set()).map(item))
}

/// What selects VMs, of a command that takes it.
pub fn selection(command: &Command) -> String {
    let selects = |arg: &&Arg| SELECTION.contains(&arg.get_id().as_str());
    one_below_another(command.get_arguments().filter(selects).map(item))
}

/// The commands by groups.
pub fn grouped(command: &Command, groups: &[Group<'_>]) -> String {
    let mut page = String::new();
    for (title, names) in groups {
        let _ = writeln!(page, ".SS {title}");
        for name in *names {
            page += &told(command.find_subcommand(name).unwrap());
        }
    }
    page
}

/// A command, and those below it.
fn told(command: &Command) -> String {
    let program = "steliactl ";
    let usage = command.clone().render_usage().to_string();
    let usages = usage.trim_start_matches("Usage: ").lines().map(|line| {
        let line = line.trim().trim_start_matches(program).replace(" [OPTIONS]", "");
        let words = command.get_name();
        let at = line.find(words).map_or(0, |at| at + words.len());
        let (name, arguments) = line.split_at(at);
        format!("\\fB{}\\fR{}\n", escaped(name), escaped(arguments))
    });
    let below: Vec<&Command> = command
        .get_subcommands()
        .filter(|sub| sub.get_name() != "help" && !sub.is_hide_set())
        .collect();
    // Commands below it have usages of their own.
    let usages: Vec<String> = usages.filter(|usage| !usage.ends_with("<COMMAND>\n")).collect();
    let mut page = String::new();
    if !usages.is_empty() {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let _ = write!(page, ".TP 4\n{}{}\n", usages.concat(), sentence(&about));
        let own = command.get_arguments().filter(|arg| is_own(arg));
        let own = one_below_another(own.map(item));
        if !own.is_empty() {
            let _ = write!(page, ".RS 4\n{own}.RE\n");
        }
    }
    page + &below.into_iter().map(told).collect::<String>()
}

fn is_own(arg: &Arg) -> bool {
    let is_vm = value_names(arg) == [VM];
    !arg.is_hide_set() && !SELECTION.contains(&arg.get_id().as_str()) && !is_vm
}

fn value_names(arg: &Arg) -> Vec<String> {
    let names = arg.get_value_names().unwrap_or_default();
    names.iter().map(ToString::to_string).collect()
}

/// An option or argument with its explanation.
fn item(arg: &Arg) -> String {
    let flags = [
        arg.get_short().map(|short| format!("-{short}")),
        arg.get_long().map(|long| format!("--{long}")),
    ];
    let flags = flags
        .into_iter()
        .flatten()
        .map(|flag| format!("\\fB{}\\fR", escaped(&flag)));
    let flags = flags.collect::<Vec<_>>().join(", ");
    let takes_value = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    let value = if takes_value {
        value_names(arg).join(" ")
    } else {
        String::new()
    };
    let value = escaped(&value);
    let is_optional = arg.get_num_args().is_some_and(|range| range.min_values() == 0);
    let tag = match (flags.is_empty(), value.is_empty()) {
        (true, _) => format!("\\fI{value}\\fR"),
        (_, true) => flags,
        _ if is_optional => format!("{flags}[=\\fI{value}\\fR]"),
        _ => format!("{flags} \\fI{value}\\fR"),
    };
    let mut text = sentence(&arg.get_help().map(ToString::to_string).unwrap_or_default());
    let values = arg.get_possible_values();
    let names: Vec<&str> = values.iter().map(clap::builder::PossibleValue::get_name).collect();
    let is_told = names.iter().all(|name| text.contains(&escaped(name)));
    if takes_value && !arg.is_hide_possible_values_set() && !is_told {
        let _ = write!(text, " One of {}.", escaped(&names.join(", ")));
    }
    if takes_value
        && !arg.is_hide_default_value_set()
        && let [default] = arg.get_default_values()
    {
        let _ = write!(text, " Default: {}.", escaped(&default.to_string_lossy()));
    }
    format!(".TP 4\n{tag}\n{text}\n")
}

/// Without space between them.
fn one_below_another(items: impl Iterator<Item = String>) -> String {
    let items: String = items.collect();
    if items.is_empty() {
        items
    } else {
        format!(".PD 0\n{items}.PD\n")
    }
}

fn sentence(text: &str) -> String {
    let end = if text.ends_with('.') { "" } else { "." };
    escaped(text) + end
}

fn escaped(text: &str) -> String {
    roff::escaped(text).replace('\'', "\\(aq")
}
