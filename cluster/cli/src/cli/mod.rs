//! The command line of `stelia-cluster`.

pub mod help;

use std::path::PathBuf;

use clap::builder::{NonEmptyStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueHint};
use kube::core::Selector;
use stelia_koordinator::allocator::AllocationRequest;
use stelia_ledger::day::Month;
use stelia_ledger::ring::key::is_public;
use stelia_table::{Form, OutputOptions, TextStyle, with_examples};

use crate::{ledger, selector, vms};

const AFTER_HELP: &str = "\
Objects are listed from the API server, to which nothing is written, or read
from files with the output of kubectl:

  kubectl get nodes,pods,noderesourcetopologies -A -o json > cluster.json
  stelia-cluster nodes --from cluster.json

nodes and health need the right to list Nodes and NodeResourceTopologies;
vms, why and plan also need to list Pods.

Exit codes:
  0  success; why, plan: a node has room; health: no node needs attention
  1  the API server or a file cannot be read; why, plan: no node has room;
     health: a node needs attention; ledger: a ring cannot be counted
  2  wrong usage
  3  no such pod, VM or node; no node has the labels of -l

Standard output has data only; messages go to standard error, with one line for
each object that could not be read. NO_COLOR turns colours off.";

/// Above the options that every command has, in the help of each.
const GLOBAL_OPTIONS_HEADING: &str = "Options of every command";

/// See how a cluster's nodes and VMs are, which CPUs are free, why a pod waits, and how many more fit.
#[derive(Debug, Parser)]
#[command(name = "stelia-cluster", version, after_help = AFTER_HELP, mut_subcommands(|command| with_examples(command, help::EXAMPLES)))]
pub struct Cli {
    /// Read objects from this file, from the .json and .yaml files of this directory, or from standard input (-), instead of the API
    /// server. May be repeated
    #[arg(long, global = true, help_heading = GLOBAL_OPTIONS_HEADING, value_name = "FILE|DIR", value_hint = ValueHint::AnyPath)]
    pub from: Vec<PathBuf>,
    /// The kubeconfig. Default: $KUBECONFIG, ~/.kube/config, or the service account of the pod
    #[arg(long, global = true, help_heading = GLOBAL_OPTIONS_HEADING, value_name = "FILE", conflicts_with = "from", value_hint = ValueHint::FilePath)]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig. Default: its current context
    #[arg(long, global = true, help_heading = GLOBAL_OPTIONS_HEADING, value_name = "NAME", conflicts_with = "from")]
    pub context: Option<String>,
    /// Print JSON: pretty, short (one line) or off. --json alone means pretty
    #[arg(long, global = true, help_heading = GLOBAL_OPTIONS_HEADING, value_name = "FORMAT", num_args = 0..=1, require_equals = true,
          value_parser = Form::parser([("pretty", Form::Json), ("short", Form::JsonLine), ("off", Form::Text)]),
          default_value = "off", default_missing_value = "pretty", hide_default_value = true, hide_possible_values = true)]
    pub json: Form,
    /// Output format: table, wide (more columns) or json
    #[arg(short, long, global = true, help_heading = GLOBAL_OPTIONS_HEADING, value_name = "FORMAT",
          value_parser = Form::parser([("table", Form::Text), ("wide", Form::Wide), ("json", Form::Json)]),
          hide_possible_values = true)]
    pub output: Option<Form>,
    /// Do not truncate output to the terminal's width
    #[arg(long, global = true, help_heading = GLOBAL_OPTIONS_HEADING)]
    pub full: bool,
    /// Do not print header lines
    #[arg(long, global = true, help_heading = GLOBAL_OPTIONS_HEADING)]
    pub no_legend: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// How the answer is printed.
    pub fn output_options(&self) -> OutputOptions {
        let asked = (self.json != Form::Text).then_some(self.json).or(self.output);
        let form = asked.unwrap_or(Form::Text);
        OutputOptions {
            form,
            style: TextStyle::of_stdout(!self.no_legend, form == Form::Wide, self.full),
        }
    }
}

/// What `stelia-cluster` can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show each node's free CPUs, free cores and largest VM
    ///
    /// A CPU is free if it is neither reserved nor exclusive to a pod. LARGEST is the number of CPUs of the largest VM that the node
    /// would admit now, by the rules of kubelet or steliad, whichever chooses the CPUs there.
    Nodes {
        /// Show only these nodes. Default: all
        #[arg(value_name = "NODE")]
        names: Vec<String>,
        #[command(flatten)]
        chosen: BySelector,
    },
    /// List the cluster's VMs: node, state, since when, and why
    ///
    /// The state is what the publisher of the VM's node wrote into the pod's condition stelia.io/isolated, which it does for all VMs with
    /// --pod-conditions=all. A pod without it is listed as unknown if it requests a VM, or if its node publishes that it has exclusive
    /// CPUs. VMs that need attention come first.
    Vms {
        #[command(flatten)]
        filter: vms::VmFilter,
        /// Show only VMs on this node. May be repeated
        #[arg(long = "node", value_name = "NODE")]
        nodes: Vec<String>,
        /// Show VMs of all namespaces. This is the default
        #[arg(short = 'A', long, conflicts_with = "namespace")]
        all_namespaces: bool,
        #[command(flatten)]
        chosen: BySelector,
    },
    /// Show what is wrong on which nodes, and which versions run
    ///
    /// Counts the nodes by health and by steliad's version, and the VMs by state, and lists the nodes that need attention (all with
    /// -o wide), from what the nodes publish. The exit code is 1 if a node is away, unpublished, unreadable, node-not-ready, not-ready (it
    /// admits no VM), degraded, waiting (VMs are not isolated for more than 120 s) or left-behind (it publishes, and its Node does not
    /// exist), if an object cannot be read, or if no node is meant to run steliad.
    Health {
        /// Consider only these nodes. Default: all
        #[arg(value_name = "NODE")]
        names: Vec<String>,
        #[command(flatten)]
        chosen: BySelector,
    },
    /// Explain why no node has room for a pod, and who has the CPUs
    ///
    /// Decides for each node as kubelet or steliad would decide there, and checks labels, taints and the requests of other pods. Counts
    /// the reasons, and for the nodes that lack the fewest CPUs names the pods that have them.
    Why {
        /// A pod of the cluster, given as namespace/name, or as a name with -n
        #[arg(value_name = "POD", required_unless_present_any = ["file", "containers"], conflicts_with_all = ["file", "containers"])]
        pod: Option<String>,
        /// The namespace of a pod that is given by its name alone. Default: the namespace of the kubeconfig's context; with --from, any
        #[arg(short, long, value_name = "NAMESPACE", value_parser = NonEmptyStringValueParser::new())]
        namespace: Option<String>,
        #[command(flatten)]
        chosen: BySelector,
        #[command(flatten)]
        asked: PodOptions,
    },
    /// Print on which nodes a pod fits, or how many more
    Plan {
        /// Fill each node with the pod. Prints how many fit on each node and in total, and why the next one does not
        #[arg(long)]
        until_full: bool,
        #[command(flatten)]
        chosen: BySelector,
        #[command(flatten)]
        asked: PodOptions,
    },
    /// Merge copied ledgers of several nodes into one account of a VM
    ///
    /// Adds up the accounts of all pods that are the VM, on all nodes: after a restart or a live migration it is another pod. Prints what
    /// is missing: rings that were changed, that end too early or of which older entries were removed, times without readings, and hours
    /// in which no ring has the VM. A ring with a fault is not counted. Needs no cluster.
    Ledger {
        /// The copied ring of a node (/var/lib/stelia/ledger), or a folder with one folder for each node. NODE is the folder's name if it
        /// is not given
        #[arg(value_name = "[NODE=]DIR", required = true)]
        directories: Vec<String>,
        /// The VM's pods, given as namespace/name or name, in which * and ? may stand for characters, or as a UID. A name without namespace
        /// must not be in several. May be repeated
        #[arg(long = "vm", value_name = "VM", required = true, value_parser = vms::Pattern::parse)]
        vms: Vec<vms::Pattern>,
        /// Only this month (UTC), such as 2026-10. Default: everything
        #[arg(long, value_name = "MONTH")]
        month: Option<Month>,
        /// A node's public key, as steliactl ledger key prints it. May be repeated. With it, each ring must be signed with one of the keys; with NODE=, the key counts for that node's ring only
        #[arg(long = "key", value_name = "[NODE=]KEY", value_parser = public_key)]
        keys: Vec<ledger::NodeKey>,
    },
    /// Print a completion script for a shell
    Completions {
        /// The shell
        #[arg(value_parser = PossibleValuesParser::new([("bash", "bash(1)"), ("zsh", "zsh(1)"), ("fish", "fish(1)")]
              .map(|(shell, help)| PossibleValue::new(shell).help(help))))]
        shell: String,
    },
}

/// A value that is one of these names.
pub(crate) fn words<T: Clone + Send + Sync + 'static, const N: usize>(
    names: [&'static str; N],
    parse: fn(&str) -> Option<T>,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(names).try_map(move |name| parse(&name).ok_or("it is not one of them"))
}

/// A public key as `steliactl ledger key` prints it; after `NODE=`, if it is of one node alone.
fn public_key(text: &str) -> Result<ledger::NodeKey, String> {
    /// 32 bytes in base64.
    const LENGTH: usize = 44;
    let parse = |(node, key): (&str, &str)| {
        let node = match node {
            "" => None,
            node => Some(node.strip_suffix('=').filter(|node| !node.is_empty())?.to_owned()),
        };
        is_public(key).then(|| ledger::NodeKey {
            node,
            key: key.to_owned(),
        })
    };
    let parts = text.split_at_checked(text.len().saturating_sub(LENGTH));
    let wrong = || format!("{text} is not a key: expected what steliactl ledger key prints");
    parts.and_then(parse).ok_or_else(wrong)
}

/// Which nodes.
#[derive(Debug, Clone, Default, Args)]
pub struct BySelector {
    /// Consider only nodes with these labels, in the syntax of kubectl: a=b, a!=b, a, !a, "a in (b,c)"
    #[arg(short = 'l', long, value_name = "LABELS", value_parser = selector::parse)]
    pub selector: Option<Selector>,
}

/// The pod that is asked about.
#[derive(Debug, Clone, Default, Args)]
pub struct PodOptions {
    /// A manifest, YAML or JSON, with the pod, an object with its template such as a Deployment, or a VM of KubeVirt. - is standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "containers", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// The Pod, or the object with its template, if the manifest has several: its name, or its kind and name, such as Deployment/web
    #[arg(long = "pod", value_name = "[KIND/]NAME", requires = "file")]
    pub of_file: Option<String>,
    /// A container of a pod that has no manifest: its resources, which are both requests and limits, such as
    /// cpus=4,memory=8Gi,hugepages-2Mi=1Gi,example.com/nic=1, and optionally name=NAME and kind=app|init|sidecar. May be repeated
    #[arg(short, long = "container", value_name = "KEY=VALUE,...")]
    pub containers: Vec<String>,
    /// What is asked of steliad's allocator.
    #[command(flatten)]
    pub allocation: AllocationRequest,
}
