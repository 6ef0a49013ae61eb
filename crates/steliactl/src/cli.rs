//! The command line of `steliactl`.

pub mod help;

use std::io::{self, IsTerminal};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::engine::ArgValueCandidates;

use crate::check::ledger::LedgerOptions;
use crate::check::verify::Demands;
use crate::export::topology::TopologyOptions;
use crate::plan::PlanOptions;
use crate::shared::daemon::{Failure, Selection, vms};
use crate::shared::output::{Form, OutputOptions, TextStyle};

/// See the VMs with exclusive CPUs on this node, and control steliad.
#[derive(Debug, Parser)]
#[command(name = "steliactl", version, help_template = "{before-help}", mut_args(help::hidden), mut_subcommands(help::of_command),
          before_help = help::short(), before_long_help = help::long())]
pub struct Cli {
    #[command(flatten)]
    pub(crate) common: CommonOptions,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// What every command takes. The program's own help has these options; that of a command refers to it.
#[derive(Debug, Args)]
pub(crate) struct CommonOptions {
    /// Output format: table, wide (more columns) or json
    #[arg(short, long, global = true, value_name = "FORMAT", hide_possible_values = true,
          value_parser = Form::parser([("table", Form::Text), ("wide", Form::Wide), ("json", Form::Json)]))]
    pub(crate) output: Option<Form>,
    /// Print JSON: pretty, short (one object per line) or off. --json alone means pretty
    #[arg(long, global = true, value_name = "FORMAT", num_args = 0..=1, require_equals = true, hide_possible_values = true,
          value_parser = Form::parser([("pretty", Form::Json), ("short", Form::JsonLine), ("off", Form::Text)]),
          default_value = "off", default_missing_value = "pretty", hide_default_value = true)]
    pub(crate) json: Form,
    /// Do not shorten names and paths, nor cut lines at the terminal's width
    #[arg(short = 'l', long, global = true)]
    pub(crate) full: bool,
    /// Do not print headings and summaries
    #[arg(long, global = true)]
    pub(crate) no_legend: bool,
    /// Read /proc and /sys/fs/cgroup of a simulated node below this directory
    #[arg(long, global = true, value_name = "DIR", hide = true)]
    root: Option<PathBuf>,
}

impl Cli {
    /// What to do: without a command, `list`.
    pub(crate) fn asked(&self) -> &Command {
        static LIST: LazyLock<Command> = LazyLock::new(|| Command::List {
            selection: Selection::default(),
            problems: false,
            unmanaged: false,
            config: None,
        });
        self.command.as_ref().unwrap_or(&LIST)
    }

    /// # Errors
    /// The command has no answer of this form. Nothing has been done yet.
    pub(crate) fn output_options(&self) -> Result<OutputOptions, Failure> {
        let asked = (self.common.json != Form::Text)
            .then_some(self.common.json)
            .or(self.common.output);
        if let Some(form) = asked
            && let Some(why) = self.asked().refuses(form)
        {
            return Err(Failure::Usage(why.to_owned()));
        }
        let form = asked.unwrap_or(Form::Text);
        Ok(OutputOptions {
            form,
            style: TextStyle::of_stdout(!self.common.no_legend, form == Form::Wide, self.common.full),
        })
    }

    /// Where /proc, /sys and kubelet's files are read.
    pub(crate) fn root(&self) -> &Path {
        self.common.root.as_deref().unwrap_or(Path::new("/"))
    }

    /// Whether a command can take over the terminal.
    pub(crate) fn has_screen() -> bool {
        // A dumb terminal cannot move its cursor.
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        !is_dumb && io::stdin().is_terminal() && io::stdout().is_terminal()
    }
}

/// What `steliactl` can do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List VMs with their states and CPUs
    List {
        #[command(flatten)]
        selection: Selection,
        /// Only VMs in trouble: degraded, evicted, waiting, or pinned although no setting says so
        #[arg(long)]
        problems: bool,
        /// List instead the VMs that an [[adopt]] rule matches and steliad does not manage, each with the reason
        #[arg(long, conflicts_with_all = ["patterns", "namespace", "problems"])]
        unmanaged: bool,
        /// With --unmanaged: preview the [[adopt]] rules of this configuration file, which need not be in force; the reason is Adoptable
        /// where steliad would register the VM. - is standard input
        #[arg(long, value_name = "FILE", requires = "unmanaged")]
        config: Option<PathBuf>,
    },
    /// Show the node: daemon, problems, VMs, CPUs
    Status,
    /// Show a VM: problems, CPUs, vCPUs, memory
    ///
    /// With -l, also cgroups and the NUMA nodes of memory, devices and interrupts. VFIO devices are shown to root only.
    Show {
        #[command(flatten)]
        selection: Selection,
        /// Also list the threads, with the CPUs on which each may run
        #[arg(long)]
        threads: bool,
    },
    /// Show live vCPU load and interference
    ///
    /// VMs in trouble come first. Press h for the columns and keys. Without a terminal, and with --json, it prints plain tables until
    /// interrupted.
    Top {
        #[command(flatten)]
        selection: Selection,
        /// Print N plain tables and exit, with -o wide also of vCPUs
        #[arg(long, value_name = "N", value_parser = |text: &str| number(text, 1..=1_000_000))]
        count: Option<u32>,
        /// Time between two samples, in seconds
        #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
        delay: Duration,
    },
    /// Draw the node: every CPU with its owner
    ///
    /// Marks each CPU with its owner and the owner's state. With PATTERN or -n, the CPUs of other pods have no mark of their own.
    Map {
        #[command(flatten)]
        selection: Selection,
        /// Print a picture (SVG) instead
        #[arg(long, conflicts_with_all = ["json", "output"])]
        svg: bool,
    },
    /// Print changes as they happen
    ///
    /// Prints one event per line, until interrupted. With PATTERN or -n, only events of these VMs.
    Monitor(Selection),
    /// Explain a VM, a CPU or the node: causes and fixes
    ///
    /// What may slow a VM down or interrupt its CPU is measured for one second.
    Why {
        /// A number is a CPU, node or the host's name is this node. Anything else is a VM, given as namespace/name, name or UID
        #[arg(value_name = "VM|CPU|node", add = ArgValueCandidates::new(vms))]
        what: String,
    },
    /// Check in the kernel that VMs are isolated
    ///
    /// Does not take the daemon's word, and changes nothing. What may pass by itself counts only if it stays for 2 s. The exit code is 1
    /// if a VM differs, waits for its CPUs for more than 60 s, could not be checked, or has more than a tenth and 64 MiB of its memory remote;
    /// for a problem of the node; and for an account of the ledger's last 24 hours above its guarantee. A pinned VM fails only with
    /// --require=isolated, or if the kernel refused it a partition.
    Verify {
        #[command(flatten)]
        selection: Selection,
        #[command(flatten)]
        demands: Demands,
    },
    /// Show interrupts and kernel threads on VMs' CPUs
    ///
    /// Counts device interrupts for one second and names the devices; those of a VM's own VFIO devices do not count. The exit code is 1 if
    /// one fires on VMs' CPUs, a kernel thread could not be moved off them, or interrupts could not be counted.
    Noise(Selection),
    /// Print what else ran on VMs' CPUs, and when
    ///
    /// Other tasks and other devices' interrupts are guaranteed to be 0. Without VM, prints one line per VM. With VM, prints its totals,
    /// the worst windows, and the periods that no reading covers. All times are UTC.
    Ledger(LedgerOptions),
    /// Check whether this node is ready for VMs
    ///
    /// Does not need the daemon; a running one is also asked about the node, interrupts, memory and the ledger.
    Doctor {
        /// Also print the checks that passed or were skipped
        #[arg(short, long)]
        verbose: bool,
        /// Only print what steliad reads from this file, or why it refuses it: kubelet's cpu_manager_state, or a copy
        #[arg(long, value_name = "FILE")]
        kubelet_state: Option<PathBuf>,
    },
    /// Print a report on the whole node, for a ticket
    ///
    /// Contains what the other commands print, kubelet's configuration, steliad's settings and the end of its journal. Processes of VMs are
    /// given by name only. VFIO devices and the findings of verify are included for root only.
    Report {
        /// How long to sample the load, in seconds
        #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
        seconds: Duration,
    },
    /// Predict the CPUs of a pod, or its rejection
    ///
    /// On this node, or on one described with --node. Where steliad assigns the CPUs, it is asked.
    #[command(override_usage = "steliactl plan [OPTIONS] FILE | -c cpus=4,memory=1Gi")]
    Plan(PlanOptions),
    /// Repair what differs from the intended state now
    ///
    /// steliad does this by itself at every event and every 30 s.
    Reconcile {
        /// Only print what would change
        #[arg(long)]
        dry_run: bool,
    },
    /// Move VMs to better CPUs while they run
    ///
    /// Waits until all moves are made. Where kubelet assigned the CPUs, a VM gets others only when its pod is recreated.
    Rebalance {
        /// Move only this VM, given as namespace/name, name or UID. Default: all
        #[arg(value_name = "VM", add = ArgValueCandidates::new(vms))]
        vm: Option<String>,
        /// Only print the moves and what each gains
        #[arg(long)]
        dry_run: bool,
        /// Start no move after this many seconds
        #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = |text: &str| number(text, 1..=86_400))]
        deadline: u32,
    },
    /// Give a VM another number of CPUs while it runs
    ///
    /// Waits until the VM has them. When shrinking, the guest has unplug-timeout-s to unplug vCPUs, or nothing changes. Where kubelet
    /// assigned the CPUs, nothing changes: the command prints what to do instead.
    #[command(override_usage = "steliactl resize [OPTIONS] VM --cpus NUMBER")]
    Resize {
        /// The VM, given as namespace/name, name or UID
        #[arg(value_name = "VM", add = ArgValueCandidates::new(vms))]
        vm: String,
        /// Number of CPUs that the VM is to have
        #[arg(long, value_name = "NUMBER", value_parser = |text: &str| number(text, 1..=8192))]
        cpus: u32,
        /// Only print what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Release a VM's CPUs; it keeps running, unisolated
    Release {
        /// The VM, given as namespace/name, name or UID
        #[arg(value_name = "VM", add = ArgValueCandidates::new(vms))]
        vm: String,
        /// Only print what would be released
        #[arg(long)]
        dry_run: bool,
    },
    /// Print metrics or the NodeResourceTopology object
    #[command(subcommand, subcommand_value_name = "metrics|topology")]
    Export(Export),
}

impl Command {
    /// Why there is no answer of this form.
    fn refuses(&self, form: Form) -> Option<&'static str> {
        match self {
            Self::Export(Export::Metrics { .. }) => Some("metrics have no other form"),
            Self::Export(_) if !form.is_data() => Some("the object has no table: use -o json"),
            Self::Ledger(asked) if asked.html => Some("--html has no other form"),
            _ => None,
        }
    }
}

/// What other programs read.
#[derive(Debug, Subcommand)]
pub(crate) enum Export {
    /// Print metrics as OpenMetrics text
    ///
    /// Does not start the daemon.
    Metrics {
        /// Write the metrics to this file, for node-exporter's textfile collector, which reads names that end in .prom
        #[arg(long, value_name = "FILE")]
        textfile: Option<PathBuf>,
    },
    /// Print the node's NodeResourceTopology object
    ///
    /// kubectl apply -f - accepts it.
    Topology(TopologyOptions),
}

/// A number of seconds, with a fraction.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text
        .parse::<f64>()
        .ok()
        .filter(|seconds| (0.1..=3600.0).contains(seconds));
    let seconds = seconds.ok_or("expected a number of seconds, 0.1 to 3600")?;
    Ok(Duration::from_secs_f64(seconds))
}

/// A whole number of a range.
fn number(text: &str, range: RangeInclusive<u32>) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("expected a whole number, {} to {}", range.start(), range.end()))
}
