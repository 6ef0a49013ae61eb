//! What `--help` and steliactl(1) say beside the options: the commands by groups, and examples of each.

use std::fmt::Write;

use clap::builder::Styles;
use clap::{Args, Command, Subcommand};
use stelia_table::with_examples;

use crate::shared::output;

/// Commands that belong together.
#[derive(Debug)]
pub struct Group {
    pub title: &'static str,
    pub commands: &'static [&'static str],
}

/// Every command is in exactly one.
pub const GROUPS: [Group; 5] = [
    Group {
        title: "View",
        commands: &["status", "list", "show", "top", "map", "monitor"],
    },
    Group {
        title: "Explain and check",
        commands: &["explain", "verify", "quiet", "ledger", "doctor", "report"],
    },
    Group {
        title: "Plan",
        commands: &["plan", "evaluate"],
    },
    Group {
        title: "Change",
        commands: &["reconcile", "rebind", "resize", "deregister"],
    },
    Group {
        title: "Node and integration",
        commands: &["node-topology", "metrics"],
    },
];

/// The examples of each command.
pub(super) const EXAMPLES: &str = include_str!("examples.txt");

/// The template of the program's help: the commands by groups, each with its first sentence. clap has groups of options only.
pub(super) fn template() -> String {
    let all = super::Command::augment_subcommands(Command::new("steliactl"));
    let style = Styles::styled();
    let (head, name_style) = (style.get_header(), style.get_literal());
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for group in &GROUPS {
        let _ = writeln!(text, "\n{head}{}:{head:#}", group.title);
        for command in group.commands.iter().filter_map(|name| all.find_subcommand(name)) {
            let (name, about) = (command.get_name(), command.get_about());
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {name_style}{name:<14}{name_style:#}  {about}");
        }
    }
    let _ = write!(
        text,
        "\n{head}Options of every command:{head:#}\n{}\n",
        common_options().trim_end()
    );
    let _ = write!(text, "\n{head}Options:{head:#}\n{{options}}{{after-help}}");
    text
}

/// The options that every command takes, as help.
fn common_options() -> String {
    let mut command = super::CommonOptions::augment_args(Command::new("steliactl"))
        .disable_help_flag(true)
        .term_width(output::width().clamp(40, 100))
        .mut_args(|option| option.hide_short_help(false).hide_long_help(false))
        .help_template("{options}");
    command.render_help().ansi().to_string()
}

/// Below the options of a command.
const SEE_COMMON_OPTIONS: &str = "Options of every command, such as -o json and -H HOST: steliactl --help";

/// The command with the end of its help: where the common options are, and examples.
pub(super) fn of_command(command: Command) -> Command {
    let command = with_examples(command, EXAMPLES);
    let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    command.after_help(format!("{SEE_COMMON_OPTIONS}\n\n{examples}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{CommandFactory, FromArgMatches};
    use stelia_table::examples_of;

    use super::super::Cli;
    use super::*;

    fn names() -> Vec<String> {
        let command = Cli::command();
        command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect()
    }

    #[test]
    fn every_command_is_in_one_group() {
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|group| group.commands).copied().collect();
        let once: BTreeSet<&str> = grouped.iter().copied().collect();
        let all = names();
        let all: BTreeSet<&str> = all.iter().map(String::as_str).collect();
        assert_eq!(grouped.len(), once.len(), "twice: {grouped:?}");
        assert_eq!(once, all);
    }

    /// The words of an example, without what is the shell's.
    fn words(line: &str) -> Vec<&str> {
        let (_, call) = line.split_once("steliactl ").unwrap();
        let call = call.split([')', '|', '>']).next().unwrap();
        std::iter::once("steliactl").chain(call.split_whitespace()).collect()
    }

    #[test]
    fn every_command_has_up_to_three_examples_and_each_is_understood() {
        for name in names() {
            let examples = examples_of(EXAMPLES, &name);
            assert!((1..=3).contains(&examples.len()), "{name}: {} examples", examples.len());
            for (_, line) in examples {
                let matches = Cli::command().try_get_matches_from(words(line));
                let matches = matches.unwrap_or_else(|error| panic!("{line}: {error}"));
                assert_eq!(matches.subcommand_name(), Some(name.as_str()), "{line}");
                let cli = Cli::from_arg_matches(&matches).unwrap();
                assert!(cli.output_options().is_ok(), "{line}");
            }
        }
    }

    #[test]
    fn help_has_the_groups_and_ends_with_examples() {
        let help = Cli::command().render_long_help().to_string();
        let begins = [
            "\nView:\n  status ",
            "\nExplain and check:\n  explain ",
            "\nPlan:\n  plan ",
            "\nChange:\n  reconcile ",
            "\nNode and integration:\n  node-topology ",
            "\nOptions of every command:\n",
            "\nOptions:\n",
        ];
        for begin in begins {
            assert!(help.contains(begin), "{begin:?} is not in\n{help}");
        }
        let mut command = Cli::command();
        command.build();
        for name in names() {
            let help = command
                .find_subcommand_mut(&name)
                .unwrap()
                .render_long_help()
                .to_string();
            let (_, last) = examples_of(EXAMPLES, &name).pop().unwrap();
            assert!(help.trim_end().ends_with(last), "{help}");
        }
    }

    /// clap wraps at the terminal's width, here 80; texts that are written line by line have to fit by themselves.
    #[test]
    fn no_line_of_any_help_is_wider_than_80_columns() {
        fn check(command: &mut Command) {
            let name = command.get_name().to_owned();
            for help in [command.render_help(), command.render_long_help()] {
                for line in help.to_string().lines() {
                    assert!(line.chars().count() <= 80, "{name}: {line}");
                }
            }
            command.get_subcommands_mut().for_each(check);
        }
        let mut command = Cli::command().term_width(80);
        command.build();
        check(&mut command);
    }

    #[test]
    fn options_of_every_command_are_in_the_help_of_the_program_alone() {
        let mut command = Cli::command();
        command.build();
        let help = command.render_long_help().to_string();
        let common = super::super::CommonOptions::augment_args(Command::new("steliactl"));
        let common: Vec<String> = common
            .get_arguments()
            .filter(|option| !option.is_hide_set())
            .filter_map(|option| option.get_long().map(|long| format!("--{long}")))
            .collect();
        assert!(common.len() > 5, "{common:?}");
        for option in &common {
            assert!(help.contains(option), "{option} is not in\n{help}");
        }
        for name in names() {
            let mut command = command.find_subcommand_mut(&name).unwrap().clone().after_help("");
            let help = command.render_long_help().to_string();
            let options: Vec<&str> = help
                .lines()
                .map(str::trim_start)
                .filter(|line| line.starts_with('-'))
                .collect();
            for option in &common {
                let has = |line: &&&str| line.split([' ', '=', '[']).any(|word| word == option);
                assert_eq!(options.iter().find(has), None, "{name} has {option}");
            }
        }
    }
}
