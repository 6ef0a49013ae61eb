//! What `--help` and steliactl(1) say beside the options: the commands by groups, and examples of each.

use std::fmt::Write;

use clap::builder::Styles;
use clap::{Command, Subcommand};

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
        commands: &["status", "list", "show", "top", "map", "monitor", "describe"],
    },
    Group {
        title: "Explain and check",
        commands: &[
            "explain",
            "verify",
            "quiet",
            "ledger",
            "doctor",
            "report",
            "kubelet-state",
        ],
    },
    Group {
        title: "Plan",
        commands: &["plan", "evaluate", "adopt"],
    },
    Group {
        title: "Change",
        commands: &["reconcile", "rebind", "deregister", "reload"],
    },
    Group {
        title: "Node and integration",
        commands: &["node-topology", "cluster", "metrics", "completions"],
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
    let _ = write!(text, "\n{head}Options:{head:#}\n{{options}}{{after-help}}");
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

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

    /// Whoever knows a command finds its module: the groups of the help are folders.
    #[test]
    fn every_command_is_a_module_in_the_folder_of_its_group() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let folders = ["view", "explain_and_check", "plan", "change", "integration"];
        for (group, folder) in GROUPS.iter().zip(folders) {
            for command in group.commands {
                let module = source.join(folder).join(command.replace('-', "_"));
                assert!(
                    module.is_dir() || module.with_extension("rs").is_file(),
                    "{command} is not in {folder}"
                );
            }
        }
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
    fn help_has_the_groups_and_ends_with_examples_and_a_line_of_a_command_fits_a_terminal() {
        let help = Cli::command().render_long_help().to_string();
        let begins = [
            "\nView:\n  status ",
            "\nExplain and check:\n  explain ",
            "\nPlan:\n  plan ",
            "\nChange:\n  reconcile ",
            "\nNode and integration:\n  node-topology ",
            "\nOptions:\n",
        ];
        for begin in begins {
            assert!(help.contains(begin), "{begin:?} is not in\n{help}");
        }
        let (commands, _) = help.split_once("\nOptions:").unwrap();
        for line in commands.lines() {
            assert!(line.chars().count() <= 80, "{line}");
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
}
