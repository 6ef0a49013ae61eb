//! The command line of `steliactl`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Parser, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCandidates;
use stelia_allocator::AllocationRequest;
use stelia_allocator::command_line::names;
use stelia_allocator::evaluate::ScoringStrategy;
use stelia_kubelet::QosClass;
use stelia_node_report::ApiVersion;

use super::completions::uids;
use super::plan::PlanOptions;

const AFTER_HELP: &str = "\
UID is a pod's UID as `list` prints it, or its beginning where that is unambiguous.

Exit codes:
  0  done; monitor, top, node-topology --watch: also when a signal or the reader ended them
  1  the daemon refused or failed, or could not be reached; a file of kubelet's is refused;
     doctor: a check failed; verify: a promise does not hold; evaluate: a pod does not fit;
     plan: a pod is not admitted
  2  wrong usage, or a UID that more than one instance fits
  3  no such instance

Standard output is data only; messages go to standard error. Output longer than the terminal goes through $SYSTEMD_PAGER,
$PAGER or less; NO_COLOR turns colours off.";

/// See the virtual machines with exclusive CPUs on this node, and control steliad.
#[derive(Debug, Parser)]
#[command(name = "steliactl", version, after_help = AFTER_HELP)]
pub struct Cli {
    /// Print JSON: pretty, short (a line each) or off; --json alone is pretty
    #[arg(long, global = true, value_enum, value_name = "FORMAT", num_args = 0..=1, require_equals = true,
          default_value_t = Json::Off, default_missing_value = "pretty", hide_default_value = true, hide_possible_values = true)]
    pub(crate) json: Json,
    /// Do not pipe output into a pager
    #[arg(long, global = true)]
    pub(crate) no_pager: bool,
    /// Print no header lines
    #[arg(long, global = true)]
    pub(crate) no_legend: bool,
    /// Talk to a peer-to-peer D-Bus address instead of the system bus, e.g. unix:path=/run/stelia/runner/socket
    #[arg(long, global = true, value_name = "ADDR")]
    pub(crate) address: Option<String>,
    /// Read /proc and /sys/fs/cgroup below this folder: of a simulated node
    #[arg(long, global = true, value_name = "DIR", hide = true)]
    pub(crate) root: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// How output is written, as systemd's tools have it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Json {
    /// JSON for the eye.
    Pretty,
    /// JSON, one line each.
    Short,
    /// Text.
    #[default]
    Off,
}

impl Json {
    /// Whether it is JSON at all.
    pub(crate) fn is_on(self) -> bool {
        self != Json::Off
    }
}

/// What `steliactl` can do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the node: the daemon, the pools, the instances, kubelet's state, drift and the last pass
    Status,
    /// List the instances
    List,
    /// Show one instance: its properties, on which NUMA nodes its memory and devices are and how much of it is away from its CPUs,
    /// and every thread of it with the CPUs it may run on. Devices of VFIO are shown to root only
    Show {
        /// The pod's UID, or the beginning of it
        #[arg(add = ArgValueCandidates::new(uids))]
        uid: String,
        /// Also print on which NUMA nodes the pages are that each process has mapped; root only. The kernel walks all its page
        /// tables for it: seconds for a large VM without huge pages
        #[arg(long)]
        numa_maps: bool,
    },
    /// Print the daemon's whole view as JSON
    Describe,
    /// Print the node's NodeResourceTopology object as kubectl apply -f - takes it: NUMA nodes, CPUs, memory, CPU owners
    NodeTopology {
        /// How to write it; --json writes JSON too
        #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "yaml")]
        output: Output,
        /// The version of topology.node.k8s.io
        #[arg(long, value_name = "VERSION", default_value = "v1alpha1",
              value_parser = PossibleValuesParser::new(ApiVersion::ALL.map(ApiVersion::name)))]
        api_version: String,
        /// The Node's name [default: as kubelet calls it, by its --hostname-override or the host's name]
        #[arg(long, value_name = "NAME")]
        node_name: Option<String>,
        /// Print it again whenever it changed, until interrupted: YAML documents, or JSON objects on a line each. Free memory
        /// alone is no change
        #[arg(short, long)]
        watch: bool,
    },
    /// Print what the allocator would answer, where steliad chooses the CPUs: whether a pod fits, its CPUs and the score; or many
    /// pods, each as if it were the only one
    Evaluate {
        /// The pod.
        #[command(flatten)]
        pod: AllocationRequest,
        /// Kubernetes' class of the pod, which bounds what it may have; without it nothing does
        #[arg(long, value_name = "CLASS", value_parser = names(QosClass::ALL.map(QosClass::name), QosClass::parse))]
        kubernetes_class: Option<QosClass>,
        /// What the score favours [default: MostAllocated]
        #[arg(long, value_name = "STRATEGY",
              value_parser = names(ScoringStrategy::ALL.map(ScoringStrategy::name), ScoringStrategy::parse))]
        scoring_strategy: Option<ScoringStrategy>,
        /// Ask about every pod of a JSON list instead, whose names are those of the options; - is standard input
        #[arg(long, value_name = "FILE", conflicts_with_all = ["AllocationRequest", "kubernetes_class", "scoring_strategy"])]
        requests: Option<PathBuf>,
        /// Ask a node that is only described, by what node-topology printed there; - is standard input. Needs no daemon
        #[arg(long, value_name = "FILE")]
        node: Option<PathBuf>,
    },
    /// Show what the vCPU threads do, live: how busy they are and what disturbs them; h shows the keys
    Top {
        /// Print plain tables instead, as without a terminal or with --json
        #[arg(short, long)]
        batch: bool,
        /// Exit after N tables
        #[arg(short = 'n', value_name = "N")]
        count: Option<u32>,
        /// Seconds between two samples
        #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
        delay: Duration,
    },
    /// Print the daemon's signals as they come, one a line, until interrupted
    Monitor,
    /// Compare every promise with the kernel now, repair what differs, and report
    Reconcile {
        /// Print the steps that a pass would begin with, change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Move instances to better CPUs while they run, where steliad chose the CPUs, and wait for the end
    Rebind {
        /// Only this pod's: its UID, or the beginning of it
        #[arg(add = ArgValueCandidates::new(uids))]
        uid: Option<String>,
        /// Print what would move and what it gains, change nothing
        #[arg(long)]
        dry_run: bool,
        /// Begin no move after this time
        #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = clap::value_parser!(u32).range(1..=86_400))]
        deadline: u32,
    },
    /// Compare every promise with the kernel now and print what does not hold, with its cure; changes nothing. A VM with more than a
    /// tenth of its memory, and 64 MiB, on other NUMA nodes than its CPUs' is printed too
    Verify {
        /// Only of this pod: its UID, or the beginning of it
        #[arg(add = ArgValueCandidates::new(uids))]
        uid: Option<String>,
    },
    /// Give an instance's CPUs back; its VM runs on without isolation
    Deregister {
        /// The pod's UID, or the beginning of it
        #[arg(add = ArgValueCandidates::new(uids))]
        uid: String,
    },
    /// Print what is understood of kubelet's checkpoint files, or why one is refused; needs no daemon
    KubeletState {
        /// cpu_manager_state, memory_manager_state, or a folder with both [default: kubelet's, as the daemon reads it]
        path: Option<PathBuf>,
    },
    /// Print what kubelet would do with a pod, on this node or a described one: which CPUs and NUMA nodes, or the exact rejection;
    /// needs no daemon
    Plan(PlanOptions),
    /// Draw the node: sockets, NUMA nodes, cores and their CPUs, each marked with its owner
    Map {
        /// Write a picture to this file instead
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Explain who chooses CPUs, the pools and what each instance asked for; or why one instance or CPU is as it is
    Explain {
        /// A number is a CPU: its owner, with the source of each fact. Otherwise a pod's UID, or the beginning of it: its allocation
        #[arg(value_name = "UID|CPU", add = ArgValueCandidates::new(uids))]
        what: Option<String>,
    },
    /// Print metrics as OpenMetrics text; does not start the daemon
    Metrics {
        /// Write them to this file instead, for node-exporter's textfile collector
        #[arg(long, value_name = "PATH")]
        textfile: Option<PathBuf>,
    },
    /// Check whether this node is fit for isolated VMs, with a cure for what is not; needs no daemon
    Doctor,
    /// Make the daemon read its configuration again
    Reload,
    /// Print the completion script of a shell, e.g. for source <(steliactl completions bash)
    Completions {
        /// Which shell
        shell: Shell,
    },
}

/// How an object for Kubernetes is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// The shells that can be taught.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    /// bash(1)
    Bash,
    /// zsh(1)
    Zsh,
    /// fish(1)
    Fish,
}

/// A number of seconds, with a fraction.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds".to_owned())?;
    if !(0.1..=3600.0).contains(&seconds) {
        return Err("expected 0.1 to 3600 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}
