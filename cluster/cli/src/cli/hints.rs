//! What to use instead of an option or a command of kubectl that does not exist here.

use clap::Error;
use clap::error::{ContextKind, ContextValue};

/// The error, with a tip if its argument or command is one of kubectl's.
pub(crate) fn with_hint(mut error: Error) -> Error {
    let hint = [ContextKind::InvalidArg, ContextKind::InvalidSubcommand]
        .into_iter()
        .find_map(|kind| match error.get(kind) {
            Some(ContextValue::String(wrong)) => hint(wrong),
            _ => None,
        });
    if let Some(hint) = hint {
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    }
    error
}

fn hint(wrong: &str) -> Option<&'static str> {
    Some(match wrong {
        "-w" | "--watch" => "to see changes, use watch(1): watch -n 10 stelia-cluster vms",
        "-A" | "--all-namespaces" => "all namespaces are considered",
        "-n" | "--namespace" => "nodes have no namespace; vms, why and rebalance have -n",
        "--node" | "--field-selector" => "give the names of nodes as arguments; vms has --node",
        "--sort" | "--sort-by" | "--state" => "nodes, vms and health have --sort and --state",
        "get" => "use stelia-cluster nodes or stelia-cluster vms",
        "list" | "pods" | "instances" | "vm" | "vmi" | "vmis" => "use stelia-cluster vms",
        "node" => "use stelia-cluster nodes",
        "status" | "doctor" => "use stelia-cluster health",
        "describe" | "explain" => {
            "use stelia-cluster why for a pod that waits, and stelia-cluster nodes -o wide for a node"
        }
        "top" | "free" => "use stelia-cluster map or stelia-cluster nodes for free CPUs",
        "show" | "verify" | "quiet" => "the node answers this: kubectl stelia POD -- COMMAND",
        "drain" | "cordon" | "migrate" => {
            "stelia-cluster changes nothing; stelia-cluster rebalance --dry-run plans moves"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::Cli;
    use super::*;

    fn shown(words: &[&str]) -> String {
        let words = std::iter::once(&"stelia-cluster").chain(words);
        with_hint(Cli::try_parse_from(words).unwrap_err()).to_string()
    }

    #[test]
    fn what_people_type_who_are_used_to_kubectl_is_answered() {
        for (words, expected) in [
            (&["vms", "-w"][..], "watch -n 10"),
            (&["get", "nodes"], "stelia-cluster nodes"),
            (&["map", "--sort", "name"], "vms and health have --sort"),
            (&["pods"], "use stelia-cluster vms"),
            (&["nodes", "-n", "team-a"], "nodes have no namespace"),
            (&["describe", "node", "w-1"], "stelia-cluster why"),
        ] {
            let text = shown(words);
            assert!(text.contains(expected), "{words:?}: {text}");
            assert!(!text.contains("to pass"), "{words:?}: {text}");
        }
        assert!(shown(&["nods"]).contains("'nodes'"));
        assert!(Cli::try_parse_from(["stelia-cluster", "vms", "-A"]).is_ok());
    }
}
