//! The command line of `stelia-cluster`.

pub mod help;

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, Parser, Subcommand, ValueHint};
use kube::core::Selector;
use stelia_allocator::AllocationRequest;
use stelia_table::{Form, How, Look};

use crate::selector;

const AFTER_HELP: &str = "\
Objects are read from the API server (lists only: nothing is written), or from files with what kubectl printed:

  kubectl get nodes,pods,noderesourcetopologies -A -o json > cluster.json
  stelia-cluster nodes --from cluster.json

Whoever may list Nodes and NodeResourceTopologies can use nodes and map; why, plan and rebalance list Pods too.

Exit codes:
  0  done; why, plan: a node has room; rebalance: one has, or would have
  1  the API server or a file cannot be read; why, plan: no node has room; rebalance: and no move was found that makes some
  2  wrong usage
  3  no such pod

Standard output is data only; messages go to standard error: so does a line for each object that could not be read. NO_COLOR turns
colours off.";

/// Above the options that every command has, in the help of each.
const EVERYWHERE: &str = "Options of every command";

/// See which CPUs a cluster's nodes have free, why a pod waits, and how many more fit.
#[derive(Debug, Parser)]
#[command(name = "stelia-cluster", version, after_help = AFTER_HELP, mut_subcommands(help::with_examples))]
pub struct Cli {
    /// Read objects from this file, from the files of this folder (.json, .yaml), or from standard input (-), instead of the API
    /// server; repeatable
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "FILE|DIR", value_hint = ValueHint::AnyPath)]
    pub from: Vec<PathBuf>,
    /// The kubeconfig [default: $KUBECONFIG, ~/.kube/config, or the pod's service account]
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "FILE", conflicts_with = "from", value_hint = ValueHint::FilePath)]
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig [default: its current one]
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "NAME", conflicts_with = "from")]
    pub context: Option<String>,
    /// Print JSON: pretty, short (one line) or off; --json alone is pretty
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "FORMAT", num_args = 0..=1, require_equals = true,
          value_parser = Form::parser([("pretty", "JSON for the eye", Form::Json), ("short", "JSON on one line", Form::JsonLine),
                                       ("off", "Text", Form::Text)]),
          default_value = "off", default_missing_value = "pretty", hide_default_value = true, hide_possible_values = true)]
    pub json: Form,
    /// How to print: table, wide (more columns), json, yaml or name (a node a line)
    #[arg(short, long, global = true, help_heading = EVERYWHERE, value_name = "FORMAT",
          value_parser = Form::parser([("table", "Text", Form::Text), ("wide", "Text with more columns", Form::Wide),
                                       ("json", "JSON", Form::Json), ("yaml", "YAML", Form::Yaml),
                                       ("name", "A node a line", Form::Name)]), hide_possible_values = true)]
    pub output: Option<Form>,
    /// Cut nothing to the terminal's width
    #[arg(long, global = true, help_heading = EVERYWHERE)]
    pub full: bool,
    /// Print no header lines
    #[arg(long, global = true, help_heading = EVERYWHERE)]
    pub no_legend: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// How the answer is printed.
    pub fn how(&self) -> How {
        let asked = (self.json != Form::Text).then_some(self.json).or(self.output);
        let form = asked.unwrap_or(Form::Text);
        How {
            form,
            look: Look::of_stdout(!self.no_legend, form == Form::Wide, self.full),
        }
    }
}

/// What `stelia-cluster` can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show each node's CPUs: free ones, whole cores, the largest VM
    ///
    /// Free CPUs are those that are neither reserved nor a pod's own. LARGEST is how many CPUs the largest VM has that would be
    /// admitted now, as kubelet or steliad decides on that node.
    Nodes {
        /// Only these
        #[arg(value_name = "NODE")]
        names: Vec<String>,
        #[command(flatten)]
        chosen: BySelector,
    },
    /// Draw the free cores of all nodes
    ///
    /// A line a node, its NUMA nodes beside each other, a sign for a core or for a share of them. Where nodes are more than lines,
    /// nodes that look alike are one line.
    Map {
        /// Lines at most
        #[arg(long, value_name = "N", default_value = "50", value_parser = clap::value_parser!(u32).range(1..=100_000))]
        rows: u32,
        #[command(flatten)]
        chosen: BySelector,
    },
    /// Explain why a pod has room on no node, and who has its CPUs
    ///
    /// Each node is asked as kubelet or steliad would decide there, and by its labels, taints and what pods request; reasons are
    /// counted. Of the nodes that lack the fewest CPUs the pods are named that have them.
    Why {
        /// A pod of the cluster: namespace/name, or a name (see -n)
        #[arg(value_name = "POD", required_unless_present_any = ["file", "containers"], conflicts_with_all = ["file", "containers"])]
        pod: Option<String>,
        /// The namespace of a pod that is given by its name alone [default: that of the kubeconfig's context; with --from any]
        #[arg(short, long, value_name = "NAMESPACE")]
        namespace: Option<String>,
        #[command(flatten)]
        chosen: BySelector,
        #[command(flatten)]
        asked: PodOptions,
    },
    /// Print on which nodes a pod fits, or how many more
    Plan {
        /// Fill each node with it: how many fit by node and in all, and what stops the next one
        #[arg(long)]
        until_full: bool,
        #[command(flatten)]
        chosen: BySelector,
        #[command(flatten)]
        asked: PodOptions,
    },
    /// Print which VMs would have to move so that a pod finds room
    ///
    /// Where no node has room it searches for as few VMs as possible that would go to other CPUs of their node (a rebind) or to another
    /// node (a live migration), in which order, and what that brings. Every step is asked of the nodes' own rules. It is printed, and
    /// nothing is done. Nodes must be published with profile stelia.
    Rebalance {
        /// Nothing is done by this command, and one that does it must ask for more
        #[arg(long, required = true)]
        dry_run: bool,
        /// A pod of the cluster: namespace/name, or a name (see -n)
        #[arg(value_name = "POD", required_unless_present_any = ["file", "containers"], conflicts_with_all = ["file", "containers"])]
        pod: Option<String>,
        /// The namespace of a pod that is given by its name alone [default: that of the kubeconfig's context; with --from any]
        #[arg(short, long, value_name = "NAMESPACE")]
        namespace: Option<String>,
        /// VMs keep their CPUs as long as they stay on their node
        #[arg(long)]
        no_rebind: bool,
        /// VMs stay on their nodes
        #[arg(long)]
        no_migrate: bool,
        /// VMs that move in one plan, at most
        #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u8).range(1..=8))]
        moves: u8,
        /// Plans that are printed, the best ones
        #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u8).range(1..=20))]
        plans: u8,
        #[command(flatten)]
        chosen: BySelector,
        #[command(flatten)]
        asked: PodOptions,
    },
    /// Print the completion script of a shell
    Completions {
        /// Which shell
        #[arg(value_parser = PossibleValuesParser::new([("bash", "bash(1)"), ("zsh", "zsh(1)"), ("fish", "fish(1)")]
              .map(|(shell, help)| PossibleValue::new(shell).help(help))))]
        shell: String,
    },
}

/// Which nodes.
#[derive(Debug, Clone, Default, Args)]
pub struct BySelector {
    /// Only nodes with these labels, as kubectl takes them: a=b, a!=b, a, !a, "a in (b,c)"
    #[arg(short = 'l', long, value_name = "LABELS", value_parser = selector::parse)]
    pub selector: Option<Selector>,
}

/// The pod that is asked about.
#[derive(Debug, Clone, Default, Args)]
pub struct PodOptions {
    /// A manifest with the pod, YAML or JSON; - is standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "containers", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// Which Pod of the manifest, where it has several
    #[arg(long = "pod", value_name = "NAME", requires = "file")]
    pub of_file: Option<String>,
    /// A container of a pod without a manifest: resources by their names, which are requests and limits, such as
    /// cpus=4,memory=8Gi,hugepages-2Mi=1Gi,example.com/nic=1; also name=NAME and kind=app|init|sidecar. Repeatable
    #[arg(short, long = "container", value_name = "KEY=VALUE,...")]
    pub containers: Vec<String>,
    /// What is asked of steliad's allocator.
    #[command(flatten)]
    pub allocation: AllocationRequest,
}
