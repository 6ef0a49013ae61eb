//! What `--help` and stelia-cluster(1) say beside the options: examples of each command.

use std::fmt::Write;

use clap::Command;

/// What each command line of a command does.
type Examples = &'static [(&'static str, &'static str)];

fn examples_of(command: &str) -> Examples {
    match command {
        "nodes" => &[
            ("Show all nodes", "stelia-cluster nodes"),
            (
                "Show the nodes of a zone, with policies",
                "stelia-cluster nodes -l topology.kubernetes.io/zone=a -o wide",
            ),
            ("Work offline", "stelia-cluster nodes --from cluster.json"),
        ],
        "map" => &[
            ("Draw all nodes", "stelia-cluster map"),
            (
                "Work offline, with at most 20 lines",
                "stelia-cluster map --from cluster.json --rows 20",
            ),
        ],
        "why" => &[
            ("Explain why a pod waits", "stelia-cluster why team-a/web"),
            ("Check a manifest before it is created", "stelia-cluster why -f vm.yaml"),
            ("Show each node's answer", "stelia-cluster why team-a/web -o wide"),
        ],
        "plan" => &[
            (
                "Print how many more pods of a manifest fit",
                "stelia-cluster plan --until-full -f vm.yaml",
            ),
            (
                "Describe the pod by options, and work offline",
                "stelia-cluster plan --until-full -c cpus=8,memory=16Gi --from cluster.json",
            ),
        ],
        "rebalance" => &[
            (
                "Make room for the pod of a manifest",
                "stelia-cluster rebalance --dry-run -f vm.yaml",
            ),
            (
                "Make room for a pod that waits, without live migrations",
                "stelia-cluster rebalance --dry-run --no-migrate team-a/big",
            ),
        ],
        "completions" => &[(
            "Enable completion in this shell",
            "source <(stelia-cluster completions bash)",
        )],
        _ => &[],
    }
}

/// The command with its examples as the end of its help.
pub(super) fn with_examples(command: Command) -> Command {
    let examples = examples_of(command.get_name());
    if examples.is_empty() {
        return command;
    }
    let mut text = "Examples:".to_owned();
    for (what, line) in examples {
        let _ = write!(text, "\n  # {what}\n  {line}");
    }
    command.after_help(text)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

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
            let examples = examples_of(name);
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
            let (_, last) = examples_of(sub.get_name()).last().unwrap();
            assert!(help.trim_end().ends_with(last), "{help}");
        }
    }
}
