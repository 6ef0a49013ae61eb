//! Options and commands of kubectl, machinectl and systemctl that do not exist here: what to use instead.

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Options of other programs, and what does the same here.
const OPTIONS: [(&[&str], &str); 17] = [
    (
        &["-w", "--watch"],
        "steliactl top shows the VMs live, steliactl monitor prints each change",
    ),
    (
        &["-A", "--all-namespaces"],
        "all namespaces are shown, unless -n NAMESPACE selects one",
    ),
    (
        &["-a", "--all"],
        "all VMs are shown; -o wide shows more columns of each",
    ),
    (
        &["--sort", "--sort-by"],
        "list is sorted by name; steliactl top shows VMs with a problem first, and its key s sorts by a column",
    ),
    (
        &["--selector", "--field-selector"],
        "PATTERN, -n NAMESPACE and --state STATE select VMs; labels of pods are not known on the node",
    ),
    (
        &["--failed"],
        "--state degraded selects the VMs with a problem; steliactl verify lists each broken promise",
    ),
    (&["--no-headers", "--plain"], "--no-legend prints no header lines"),
    (
        &["-q", "--quiet"],
        "--no-legend prints no header lines, -o name prints names alone",
    ),
    (&["-v", "--verbose"], "-o wide shows more columns, --full cuts nothing"),
    (&["-M", "--machine"], "-H [USER@]HOST runs the command on another host"),
    (
        &["-p", "-P", "--property", "--value"],
        "-o json has every property; jq selects one: steliactl show VM -o json | jq -r .state",
    ),
    (
        &["-f", "--follow", "--filename", "--file"],
        "steliactl monitor prints changes until it is interrupted; plan and kubelet-state take the file without an option",
    ),
    (
        &["--lines", "--since"],
        "journalctl -u steliad has the daemon's messages",
    ),
    (
        &["--context", "--kubeconfig", "--cluster", "--server"],
        "steliactl works on one node; stelia-cluster reads the cluster's API",
    ),
    (
        &["--fix", "--repair"],
        "steliactl doctor prints what to do and changes nothing; steliactl reconcile repairs what other programs changed",
    ),
    (
        &["--force", "--now", "--yes", "-y"],
        "the command acts at once and asks nothing",
    ),
    (&["--user", "--system"], "steliad is a service of the system"),
];

/// Commands of other programs, and what does the same here.
const COMMANDS: [(&[&str], &str); 11] = [
    (
        &["get", "ls", "ps", "vms", "list-units", "list-machines"],
        "steliactl list lists the VMs",
    ),
    (
        &["logs", "log", "journal"],
        "journalctl -u steliad has the daemon's messages, kubectl logs those of a pod",
    ),
    (
        &["events", "watch", "wait"],
        "steliactl monitor prints changes as they happen",
    ),
    (
        &[
            "start",
            "stop",
            "restart",
            "reboot",
            "poweroff",
            "kill",
            "terminate",
            "pause",
            "migrate",
        ],
        "a VM is started and ended by what runs it (virtctl, kubectl, virsh); systemctl restart steliad restarts the daemon and leaves the VMs alone",
    ),
    (
        &["delete", "remove", "release", "unregister", "detach"],
        "steliactl deregister releases the CPUs of a VM; kubectl delete ends it",
    ),
    (
        &["drain", "cordon", "uncordon", "taint", "evict"],
        "kubectl does this for nodes; steliactl plan and stelia-cluster plan say where a pod would fit",
    ),
    (
        &["exec", "shell", "login", "ssh", "console"],
        "virtctl console and kubectl exec enter a VM or its pod",
    ),
    (&["version"], "steliactl --version"),
    (
        &["check", "check-config", "lint", "preflight"],
        "steliactl doctor checks the node, /usr/libexec/stelia/steliad --check-config the settings",
    ),
    (
        &["config", "edit", "cat", "set"],
        "the settings are in /etc/stelia/steliad.toml; /usr/libexec/stelia/steliad --print-config prints them with their sources",
    ),
    (
        &["daemon-reload", "reload-config"],
        "steliactl reload makes the daemon read its configuration",
    ),
];

/// What to use instead of an unknown option or word after `command`.
fn option(command: Option<&str>, option: &str) -> Option<&'static str> {
    let name = option.split('=').next().unwrap_or_default();
    match (command, name.starts_with('-')) {
        (Some("explain"), false) => Some("a CPU is a number: steliactl explain 8"),
        (Some("describe"), false) => Some("steliactl show VM has its properties, steliactl explain VM says why"),
        (Some("list" | "status"), false) => None,
        _ => find(&OPTIONS, name),
    }
}

fn find(table: &[(&'static [&'static str], &'static str)], name: &str) -> Option<&'static str> {
    let found = table.iter().find(|(names, _)| names.contains(&name));
    found.map(|(_, instead)| *instead)
}

/// The error of a command line that is wrong, with what to use instead where another program's option or command was meant.
pub(crate) fn explained(mut error: clap::Error, arguments: impl Iterator<Item = OsString>) -> clap::Error {
    let of = |error: &clap::Error, kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let instead = match error.kind() {
        ErrorKind::UnknownArgument => {
            let words = arguments.skip(1).filter_map(|word| word.into_string().ok());
            let command = words.into_iter().find(|word| !word.starts_with('-'));
            of(&error, ContextKind::InvalidArg).and_then(|word| option(command.as_deref(), &word))
        }
        ErrorKind::InvalidSubcommand => {
            of(&error, ContextKind::InvalidSubcommand).and_then(|word| find(&COMMANDS, &word))
        }
        ErrorKind::InvalidValue => of(&error, ContextKind::InvalidValue)
            .filter(|value| {
                ["custom-columns", "jsonpath", "go-template"]
                    .iter()
                    .any(|form| value.starts_with(form))
            })
            .map(|_| "jq selects members of -o json: steliactl list -o json | jq -r '.[].state'"),
        _ => None,
    };
    if let Some(instead) = instead {
        // clap's own guesses are of names that are spelt alike.
        for kind in [
            ContextKind::SuggestedArg,
            ContextKind::SuggestedSubcommand,
            ContextKind::SuggestedValue,
        ] {
            error.remove(kind);
        }
        let tip = ContextValue::StyledStrs(vec![StyledStr::from(instead)]);
        error.insert(ContextKind::Suggested, tip);
    }
    error
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::super::Cli;
    use super::*;

    fn said(line: &str) -> String {
        let words: Vec<&str> = std::iter::once("steliactl").chain(line.split(' ')).collect();
        let error = Cli::try_parse_from(&words).unwrap_err();
        let error = explained(error, words.iter().map(OsString::from));
        assert_eq!(error.exit_code(), 2, "{line}");
        error.to_string()
    }

    #[test]
    fn habits_of_other_programs_are_answered() {
        for (line, tip) in [
            ("list -w", "steliactl top"),
            ("list -A", "all namespaces are shown"),
            ("list --all-namespaces", "all namespaces are shown"),
            ("list --sort-by=.metadata.name", "sorted by name"),
            ("list --no-headers", "--no-legend"),
            ("show -p State", "jq"),
            ("-M node-7 list", "-H [USER@]HOST"),
            ("get vms", "steliactl list"),
            ("restart web", "virtctl"),
            ("version", "steliactl --version"),
            ("explain cpu 8", "steliactl explain 8"),
            ("describe web", "steliactl show VM"),
            ("list -o jsonpath={.x}", "jq"),
        ] {
            let text = said(line);
            assert!(text.contains("tip: ") && text.contains(tip), "{line}: {text}");
            // One tip, not clap's guess beside it.
            assert_eq!(text.matches("tip:").count(), 1, "{line}: {text}");
        }
        assert!(
            said("lst").contains("'list'"),
            "clap's guess stays where there is no other"
        );
        assert!(!said("list --nonsense").contains("steliactl top"));
    }

    /// There is no hint for a command that exists.
    #[test]
    fn no_habit_is_a_command_here() {
        let commands = Cli::command();
        for (names, _) in COMMANDS {
            for name in names {
                assert!(commands.find_subcommand(name).is_none(), "{name}");
            }
        }
    }
}
