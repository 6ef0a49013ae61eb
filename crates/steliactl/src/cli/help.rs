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

/// What each command line of a command does.
type Examples = &'static [(&'static str, &'static str)];

fn examples_of(command: &str) -> Examples {
    match command {
        "status" => &[
            ("Show this node", "steliactl status"),
            ("Show another node", "steliactl -H root@node2 status"),
        ],
        "list" => &[
            ("List the instances", "steliactl list"),
            ("Include UIDs and D-Bus objects", "steliactl list -o wide"),
            (
                "Print the state of each instance, for a script",
                "steliactl list -o json | jq -r '.[].state'",
            ),
        ],
        "show" => &[
            ("Show an instance by name", "steliactl show team-a/web"),
            (
                "Include the mapped pages of each process",
                "steliactl show web --numa-maps",
            ),
        ],
        "top" => &[
            ("Watch live", "steliactl top"),
            (
                "Print two tables, five seconds apart",
                "steliactl top --batch -n 2 -d 5",
            ),
        ],
        "map" => &[
            ("Draw on the terminal", "steliactl map"),
            ("Write a picture", "steliactl map --svg=node.svg"),
            ("Write a page for a browser", "steliactl map --html=node.html"),
        ],
        "monitor" => &[
            ("Print all events until Ctrl-C", "steliactl monitor"),
            (
                "Print only changes, as JSON",
                "steliactl monitor -o json | jq -c 'select(.event == \"PropertiesChanged\")'",
            ),
        ],
        "describe" => &[(
            "Print how often others interfered",
            "steliactl describe | jq .node.counters",
        )],
        "explain" => &[
            ("Explain who chooses CPUs, and the pools", "steliactl explain"),
            (
                "Explain one instance and what may slow it down",
                "steliactl explain team-a/web",
            ),
            ("Explain who owns CPU 7", "steliactl explain 7"),
        ],
        "verify" => &[
            ("Check all VMs", "steliactl verify"),
            (
                "Check one VM, which must be isolated",
                "steliactl verify team-a/web --require=isolated",
            ),
        ],
        "quiet" => &[
            ("Show all VMs", "steliactl quiet"),
            ("Show one VM, for a script", "steliactl quiet team-a/web -o json"),
        ],
        "ledger" => &[
            ("Print all VMs in the last week", "steliactl ledger --since -7d"),
            (
                "Write a month's report on one VM",
                "steliactl ledger team-a/web --report html --month 2026-10 > web.html",
            ),
            (
                "Print what runs on a VM's CPUs now",
                "steliactl ledger team-a/web --watch 60s",
            ),
        ],
        "doctor" => &[("Check the node before the first VM starts", "steliactl doctor")],
        "report" => &[
            ("Write a report for a ticket", "steliactl report > node.txt"),
            (
                "Watch the threads for 10 seconds",
                "steliactl report --seconds 10 > node.txt",
            ),
        ],
        "kubelet-state" => &[
            ("Print kubelet's own files", "steliactl kubelet-state"),
            ("Print a copy", "steliactl kubelet-state ./cpu_manager_state"),
        ],
        "plan" => &[
            ("Plan the pod of a manifest", "steliactl plan vm.yaml"),
            (
                "Print how many pods with one such container fit",
                "steliactl plan -c cpus=4,memory=8Gi --until-full",
            ),
            (
                "Plan for another node, and with kubelet's other policies",
                "steliactl plan vm.yaml --node node2.yaml --what-if",
            ),
        ],
        "evaluate" => &[
            (
                "Evaluate four CPUs on whole cores",
                "steliactl evaluate --qos LSE --cpus 4 --cpu-bind-policy FullPCPUs",
            ),
            (
                "Evaluate many pods on another node",
                "steliactl evaluate --node node2.yaml --requests pods.json",
            ),
        ],
        "adopt" => &[
            (
                "Compare before and after a change of the rules",
                "steliactl adopt --dry-run",
            ),
            (
                "Print only the names of VMs that would be adopted",
                "steliactl adopt --dry-run -o name",
            ),
            (
                "Print why the other VMs would not be adopted, for a script",
                "steliactl adopt --dry-run -o json | jq -r '.vms[] | select(.reason) | .reason'",
            ),
        ],
        "reconcile" => &[
            ("Print what a pass would do", "steliactl reconcile --dry-run"),
            ("Run a pass", "steliactl reconcile"),
        ],
        "rebind" => &[
            ("Print the moves and what each gains", "steliactl rebind --dry-run"),
            (
                "Move one instance within a minute",
                "steliactl rebind team-a/web --deadline 60",
            ),
        ],
        "deregister" => &[("Deregister one instance", "steliactl deregister team-a/web")],
        "reload" => &[("Apply a change of steliad.toml", "steliactl reload")],
        "node-topology" => &[
            (
                "Write the object to the cluster",
                "steliactl node-topology | kubectl apply -f -",
            ),
            (
                "Write the object for kube-scheduler's plugin",
                "steliactl node-topology --profile nrt | kubectl apply -f -",
            ),
            (
                "Save the object for plan and evaluate on another host",
                "steliactl node-topology > node2.yaml",
            ),
        ],
        "cluster" => &[("Show the free cores of a cluster's nodes", "steliactl cluster nodes")],
        "metrics" => &[
            ("Print to standard output", "steliactl metrics"),
            (
                "Write for node-exporter",
                "steliactl metrics --textfile /var/lib/prometheus/node-exporter/stelia.prom",
            ),
        ],
        "completions" => &[(
            "Enable completion in this shell",
            "source <(steliactl completions bash)",
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
        let folders = ["view", "explain", "plan", "change", "integration"];
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
            let examples = examples_of(&name);
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
            let (_, last) = examples_of(&name).last().unwrap();
            assert!(help.trim_end().ends_with(last), "{help}");
        }
    }
}
