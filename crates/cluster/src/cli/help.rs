//! What `--help` and stelia-cluster(1) say beside the options: examples of each command.

use std::fmt::Write;

use clap::Command;

/// What each command line of a command does.
type Examples = &'static [(&'static str, &'static str)];

fn examples_of(command: &str) -> Examples {
    match command {
        "nodes" => &[
            ("all nodes", "stelia-cluster nodes"),
            (
                "those of a zone, with policies",
                "stelia-cluster nodes -l topology.kubernetes.io/zone=a -o wide",
            ),
            (
                "offline",
                "kubectl get nodes,noderesourcetopologies -o json | stelia-cluster nodes --from -",
            ),
        ],
        "completions" => &[("in this shell", "source <(stelia-cluster completions bash)")],
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
