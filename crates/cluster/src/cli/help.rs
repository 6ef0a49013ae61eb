//! What `--help` and stelia-cluster(1) say beside the options: examples of each command.

/// The examples of each command.
pub(super) const EXAMPLES: &str = include_str!("examples.txt");

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use stelia_table::examples_of;

    use super::super::Cli;
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
    fn a_line_of_the_commands_fits_a_terminal_and_help_ends_with_the_examples() {
        let mut command = Cli::command();
        command.build();
        let help = command.clone().render_long_help().to_string();
        let commands = help.split("Commands:").nth(1).unwrap().split("\n\n").next().unwrap();
        assert!(commands.lines().all(|line| line.chars().count() <= 80), "{commands}");
        for sub in command.clone().get_subcommands().filter(|sub| sub.get_name() != "help") {
            let help = command
                .find_subcommand_mut(sub.get_name())
                .unwrap()
                .render_long_help()
                .to_string();
            let (_, last) = examples_of(EXAMPLES, sub.get_name()).pop().unwrap();
            assert!(help.trim_end().ends_with(last), "{help}");
        }
    }
}
