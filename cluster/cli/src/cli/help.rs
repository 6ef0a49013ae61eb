//! What `--help` and stelia-cluster(1) say beside the options: examples of each command, and where the options of all are.

use clap::{Arg, Command, CommandFactory};

use super::Cli;

/// In the help of each command, which does not list them.
const GLOBAL_OPTIONS: &str = "Options of every command (--from, -o and others): see stelia-cluster --help";

/// The command line as it is parsed: options of every command are in the help of the program alone.
pub(crate) fn command() -> Command {
    let mut command = Cli::command();
    // Options reach the commands when they are built.
    command.build();
    command.mut_subcommands(|command| {
        let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let hide = |arg: Arg| if arg.is_global_set() { arg.hide(true) } else { arg };
        if examples.is_empty() {
            command.mut_args(hide)
        } else {
            command
                .mut_args(hide)
                .after_help(format!("{GLOBAL_OPTIONS}\n\n{examples}"))
        }
    })
}

/// The examples of each command.
pub(super) const EXAMPLES: &str = include_str!("examples.txt");

#[cfg(test)]
mod tests {
    use stelia_table::examples_of;

    use super::*;

    /// The words of an example, without what is the shell's.
    fn words(line: &str) -> Vec<&str> {
        let (_, call) = line.split_once("stelia-cluster ").unwrap();
        let call = call.split([')', '|', '>']).next().unwrap();
        std::iter::once("stelia-cluster")
            .chain(call.split_whitespace())
            .collect()
    }

    #[test]
    fn every_command_has_examples_and_each_is_understood() {
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            let examples = examples_of(EXAMPLES, name);
            assert!((1..=3).contains(&examples.len()), "{name}");
            for (_, line) in examples {
                let matches = Cli::command().try_get_matches_from(words(line));
                let matches = matches.unwrap_or_else(|error| panic!("{line}: {error}"));
                assert_eq!(matches.subcommand_name(), Some(name), "{line}");
            }
        }
    }

    #[test]
    fn no_line_of_help_is_wider_than_a_terminal_and_options_of_all_are_there_once_before_the_examples() {
        let mut command = command().term_width(80);
        let all = command.clone().render_long_help().to_string();
        assert!(all.contains("--kubeconfig"), "{all}");
        let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
        for name in names.iter().filter(|name| *name != "help") {
            let sub = command.find_subcommand_mut(name).unwrap();
            *sub = sub.clone().term_width(80);
            for help in [sub.render_long_help().to_string(), sub.render_help().to_string()] {
                let wide = help.lines().find(|line| line.chars().count() > 80);
                assert_eq!(wide, None, "{name}");
                assert!(
                    help.contains("stelia-cluster --help") && !help.contains("--kubeconfig <"),
                    "{help}"
                );
                // An example can be copied only from one line.
                for (_, line) in examples_of(EXAMPLES, name) {
                    assert!(help.contains(&format!("  {line}\n")), "{line}: {help}");
                }
            }
        }
        assert!(all.lines().all(|line| line.chars().count() <= 80), "{all}");
    }

    #[test]
    fn an_empty_namespace_is_refused() {
        let parse = |namespace| command().try_get_matches_from(["stelia-cluster", "vms", "-n", namespace]);
        assert!(parse("team-a").is_ok());
        let error = parse("").map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("--namespace"), "{error}");
        assert!(command().try_get_matches_from(["stelia-cluster", "vms", "-A"]).is_ok());
    }
}
