//! The command line of `stelia-cluster`.

pub mod help;

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, Parser, Subcommand, ValueHint};
use kube::core::Selector;
use stelia_allocator::AllocationRequest;
use stelia_table::{Form, OutputOptions, TextStyle, with_examples};

use crate::selector;

const AFTER_HELP: &str = "\
Objects are listed from the API server, to which nothing is written, or read
from files with the output of kubectl:

  kubectl get nodes,pods,noderesourcetopologies -A -o json > cluster.json
  stelia-cluster nodes --from cluster.json

nodes and map need the right to list Nodes and NodeResourceTopologies; why,
plan and rebalance also need to list Pods.

Exit codes:
  0  success; why, plan: a node has room; rebalance: a node has room, or would
     have room after the moves
  1  the API server or a file cannot be read; why, plan: no node has room;
     rebalance: no node has room, and no moves were found that make room
  2  wrong usage
  3  no such pod

Standard output has data only; messages go to standard error, with one line for
each object that could not be read. NO_COLOR turns colours off.";

/// Above the options that every command has, in the help of each.
const GLOBAL_OPTIONS_HEADING: &str = "Options of every command";

/// See which CPUs a cluster's nodes have free, why a pod waits, and how many more fit.
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
          value_parser = Form::parser([("pretty", "Indented JSON", Form::Json), ("short", "JSON on one line", Form::JsonLine),
                                       ("off", "Text", Form::Text)]),
          default_value = "off", default_missing_value = "pretty", hide_default_value = true, hide_possible_values = true)]
    pub json: Form,
    /// Output format: table, wide (more columns), json, yaml or name (one node per line)
    #[arg(short, long, global = true, help_heading = GLOBAL_OPTIONS_HEADING, value_name = "FORMAT",
          value_parser = Form::parser([("table", "Text", Form::Text), ("wide", "Text with more columns", Form::Wide),
                                       ("json", "JSON", Form::Json), ("yaml", "YAML", Form::Yaml),
                                       ("name", "One node per line", Form::Name)]), hide_possible_values = true)]
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
    /// Draw the free cores of all nodes
    ///
    /// Draws one line per node, with its NUMA nodes side by side and one sign for a core or for a share of the cores. If there are more
    /// nodes than lines, nodes that look alike share a line.
    Map {
        /// Maximum number of lines
        #[arg(long, value_name = "N", default_value = "50", value_parser = clap::value_parser!(u32).range(1..=100_000))]
        rows: u32,
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
        #[arg(short, long, value_name = "NAMESPACE")]
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
    /// Print which VMs would have to move to make room for a pod
    ///
    /// If no node has room, searches for the fewest VMs that would have to move to other CPUs of their node (a rebind) or to another
    /// node (a live migration). Prints the moves in order and what they gain, and checks every step by the nodes' own rules. Changes
    /// nothing. The nodes must be published with the profile stelia.
    Rebalance {
        /// Required. This command only prints the moves
        #[arg(long, required = true)]
        dry_run: bool,
        /// A pod of the cluster, given as namespace/name, or as a name with -n
        #[arg(value_name = "POD", required_unless_present_any = ["file", "containers"], conflicts_with_all = ["file", "containers"])]
        pod: Option<String>,
        /// The namespace of a pod that is given by its name alone. Default: the namespace of the kubeconfig's context; with --from, any
        #[arg(short, long, value_name = "NAMESPACE")]
        namespace: Option<String>,
        /// Do not plan rebinds: a VM that stays on its node keeps its CPUs
        #[arg(long)]
        no_rebind: bool,
        /// Do not plan live migrations
        #[arg(long)]
        no_migrate: bool,
        /// Maximum number of VMs that move in one plan
        #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u8).range(1..=8))]
        moves: u8,
        /// Maximum number of plans to print, best first
        #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u8).range(1..=20))]
        plans: u8,
        #[command(flatten)]
        chosen: BySelector,
        #[command(flatten)]
        asked: PodOptions,
    },
    /// Print a completion script for a shell
    Completions {
        /// The shell
        #[arg(value_parser = PossibleValuesParser::new([("bash", "bash(1)"), ("zsh", "zsh(1)"), ("fish", "fish(1)")]
              .map(|(shell, help)| PossibleValue::new(shell).help(help))))]
        shell: String,
    },
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
    /// A manifest with the pod, as YAML or JSON. - is standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "containers", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// The name of the Pod, if the manifest has several
    #[arg(long = "pod", value_name = "NAME", requires = "file")]
    pub of_file: Option<String>,
    /// A container of a pod that has no manifest: its resources, which are both requests and limits, such as
    /// cpus=4,memory=8Gi,hugepages-2Mi=1Gi,example.com/nic=1, and optionally name=NAME and kind=app|init|sidecar. May be repeated
    #[arg(short, long = "container", value_name = "KEY=VALUE,...")]
    pub containers: Vec<String>,
    /// What is asked of steliad's allocator.
    #[command(flatten)]
    pub allocation: AllocationRequest,
}
