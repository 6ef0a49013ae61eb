//! The command line of `steliactl`.

pub mod help;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Parser, Subcommand};
use clap_complete::engine::ArgValueCandidates;

use super::client::Failure;
use super::completions::vms;
use super::evaluate::EvaluateOptions;
use super::ledger::LedgerOptions;
use super::node_topology::TopologyOptions;
use super::plan::PlanOptions;
use super::remote::Host;
use super::verify::Required;
use super::view::{Form, How, Look};

const AFTER_HELP: &str = "\
`steliactl COMMAND --help` has the command's own options and examples, steliactl(1) what each column and event means.

VM is a pod's namespace/name as `list` prints it, its name where that is unambiguous, its UID, or the beginning of the UID
where that is unambiguous.

Exit codes:
  0  done; monitor, top, node-topology --watch: also when a signal or the reader ended them
  1  the daemon refused or failed, or could not be reached; a file of kubelet's is refused;
     doctor: a check failed; verify: a promise does not hold, or a VM has less than is required;
     quiet: interrupts or kernel threads are left on VMs' CPUs, or that is not known;
     ledger verify: the ring is not what was written, or what was given vouches for nothing;
     evaluate: a pod does not fit;
     plan: a pod is not admitted, kubelet would not start, or the answer is unknown
  2  wrong usage, or a VM that more than one instance fits
  3  no such instance
  255  -H: ssh failed

Standard output is data only; messages go to standard error. Output longer than the terminal goes through $SYSTEMD_PAGER,
$PAGER or less; NO_COLOR turns colours off.";

/// Above the options that every command has, in the help of each.
const EVERYWHERE: &str = "Options of every command";

/// See the virtual machines with exclusive CPUs on this node, and control steliad.
#[derive(Debug, Parser)]
#[command(name = "steliactl", version, after_help = AFTER_HELP, help_template = help::template(),
          mut_subcommands(help::with_examples))]
pub struct Cli {
    /// Print JSON: pretty, short (a line each) or off; --json alone is pretty
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "FORMAT", num_args = 0..=1, require_equals = true,
          value_parser = Form::parser([("pretty", "JSON for the eye", Form::Json), ("short", "JSON, one line each", Form::JsonLine),
                                       ("off", "Text", Form::Text)]),
          default_value = "off", default_missing_value = "pretty", hide_default_value = true, hide_possible_values = true)]
    pub(crate) json: Form,
    /// How to print: table, wide (more columns), json, yaml or name (a VM a line)
    #[arg(short, long, global = true, help_heading = EVERYWHERE, value_name = "FORMAT",
          value_parser = Form::parser([("table", "Text", Form::Text), ("wide", "Text with more columns", Form::Wide),
                                       ("json", "JSON", Form::Json), ("yaml", "YAML", Form::Yaml),
                                       ("name", "A VM a line", Form::Name)]), hide_possible_values = true)]
    pub(crate) output: Option<Form>,
    /// Cut nothing to the terminal's width
    #[arg(short = 'l', long, global = true, help_heading = EVERYWHERE)]
    pub(crate) full: bool,
    /// Do not pipe output into a pager
    #[arg(long, global = true, help_heading = EVERYWHERE)]
    pub(crate) no_pager: bool,
    /// Print no header lines
    #[arg(long, global = true, help_heading = EVERYWHERE)]
    pub(crate) no_legend: bool,
    /// Run the same command on another host, by ssh; files that it names are that host's
    #[arg(short = 'H', long, global = true, help_heading = EVERYWHERE, value_name = "[USER@]HOST[:PORT]", value_parser = Host::parse)]
    pub(crate) host: Option<Host>,
    /// Talk to a peer-to-peer D-Bus address instead of the system bus, e.g. unix:path=/run/stelia/runner/socket
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "ADDR")]
    pub(crate) address: Option<String>,
    /// Read /proc and /sys/fs/cgroup below this folder: of a simulated node
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "DIR", hide = true)]
    pub(crate) root: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// # Errors
    /// The command has no answer of this form. Nothing has been done yet.
    pub(crate) fn how(&self) -> Result<How, Failure> {
        let asked = (self.json != Form::Text).then_some(self.json).or(self.output);
        if let Some(form) = asked
            && let Some(why) = self.command.refuses(form)
        {
            return Err(Failure::Usage(why.to_owned()));
        }
        let form = asked.unwrap_or(self.command.form());
        Ok(How {
            form,
            look: Look::of_stdout(!self.no_legend, form == Form::Wide, self.full),
        })
    }

    /// Whether it takes over the terminal.
    pub(crate) fn is_live(&self) -> bool {
        let interactive = || io::stdin().is_terminal() && io::stdout().is_terminal();
        matches!(self.command, Command::Top { batch: false, .. }) && interactive()
    }
}

/// What `steliactl` can do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the node: daemon, instances, pools, drift, last pass
    Status,
    /// List the instances
    List,
    /// Show one instance and every thread of it
    ///
    /// Its properties, on which NUMA nodes its memory and devices are and how much of it is away from its CPUs, and every thread
    /// of it with the CPUs it may run on. Devices of VFIO are shown to root only.
    Show {
        /// Its pod: namespace/name, name, UID, or the beginning of the UID
        #[arg(value_name = "VM", add = ArgValueCandidates::new(vms))]
        vm: String,
        /// Also print on which NUMA nodes the pages are that each process has mapped; root only. The kernel walks all its page
        /// tables for it: seconds for a large VM without huge pages
        #[arg(long)]
        numa_maps: bool,
    },
    /// Print the daemon's whole view as JSON
    Describe,
    /// Print the node's NodeResourceTopology object
    ///
    /// As kubectl apply -f - takes it: NUMA nodes, CPUs, memory, CPU owners.
    NodeTopology(TopologyOptions),
    /// Print what steliad's allocator would answer for a pod
    ///
    /// Where steliad chooses the CPUs: whether a pod fits, its CPUs and the score; or many pods, each as if it were the only one.
    Evaluate(EvaluateOptions),
    /// Show live how busy the vCPU threads are and what disturbs them
    ///
    /// The key h shows the keys.
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
    /// Print what changes as it changes, one event a line
    ///
    /// The daemon's signals, until interrupted.
    Monitor,
    /// Compare every promise with the kernel and repair what differs
    Reconcile {
        /// Print the steps that a pass would begin with, change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Move instances to better CPUs while they run
    ///
    /// Where steliad chose the CPUs; waits for the end. Where kubelet chose them, --dry-run advises which VMs to restart, in
    /// which order, and what each gains; it reads kubelet's files: root only.
    Rebind {
        /// Only this one: namespace/name, name, UID, or the beginning of the UID
        #[arg(value_name = "VM", add = ArgValueCandidates::new(vms))]
        vm: Option<String>,
        /// Print what would move, or which restarts would help, and what is gained; change nothing
        #[arg(long)]
        dry_run: bool,
        /// Begin no move after this time
        #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = clap::value_parser!(u32).range(1..=86_400))]
        deadline: u32,
    },
    /// Print the whole node in one text, for a ticket
    ///
    /// Host, versions, pools, kubelet's configuration, every thread of every VM with its cgroup, where it may run and where it
    /// ran, memory and devices by NUMA node, and what verify finds. Of the guests' processes it has the names only. Devices of
    /// VFIO and verify's findings are for root only.
    Report {
        /// Watch the threads for this long
        #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
        seconds: Duration,
    },
    /// Check that every promise holds; print what does not, and cures
    ///
    /// Counts the VMs by state and compares every promise of these states with the kernel now; changes nothing. A VM with more
    /// than a tenth of its memory, and 64 MiB, on other NUMA nodes than its CPUs' is printed too.
    Verify {
        /// Only of this one: namespace/name, name, UID, or the beginning of the UID
        #[arg(value_name = "VM", add = ArgValueCandidates::new(vms))]
        vm: Option<String>,
        /// Fail also where a VM has less than this state
        #[arg(long, value_name = "STATE")]
        require: Option<Required>,
    },
    /// Show what besides tasks disturbs VMs' CPUs, and what is left
    ///
    /// Device interrupts on the CPUs of each VM, measured for a second; those that were moved away and those that are left, and
    /// kernel threads that are left, each with why and what to do about it. Exit code 1 where something is left.
    Quiet {
        /// Only of this one: namespace/name, name, UID, or the beginning of the UID
        #[arg(value_name = "VM", add = ArgValueCandidates::new(vms))]
        vm: Option<String>,
    },
    /// Print who ran on VMs' CPUs, when, and for how long
    ///
    /// What the daemon booked of the kernel's counters since it keeps the ledger: other tasks and other devices' interrupts, of
    /// which 0 is promised, and all that is not the VM's besides. Without a VM a line for each; with one its totals, the worst
    /// windows, and the times that no reading covers. All times are UTC.
    Ledger(LedgerOptions),
    /// Give an instance's CPUs back; its VM runs on without isolation
    Deregister {
        /// Its pod: namespace/name, name, UID, or the beginning of the UID
        #[arg(value_name = "VM", add = ArgValueCandidates::new(vms))]
        vm: String,
    },
    /// Print what is understood of kubelet's checkpoint files
    ///
    /// Or why one is refused. Needs no daemon.
    KubeletState {
        /// cpu_manager_state, memory_manager_state, or a folder with both [default: kubelet's, as the daemon reads it]
        path: Option<PathBuf>,
    },
    /// Print what kubelet would do with a pod
    ///
    /// On this node or a described one: which CPUs and NUMA nodes, or the exact rejection. Needs no daemon.
    Plan(PlanOptions),
    /// Print which VMs that did not register the rules would adopt
    ///
    /// And which not, and why: the VMs in this node's containers, by the rules of [[adopt]] in the daemon's configuration. Changes
    /// nothing, and needs no daemon; root only, because the container runtimes' files are root's.
    Adopt {
        /// Only print it: who is adopted is for the daemon's configuration to say
        #[arg(long, required = true)]
        dry_run: bool,
    },
    /// Draw the node: every CPU with its owner
    ///
    /// Sockets, NUMA nodes, L3 caches, cores and their CPUs, each marked with its owner and the owner's state, and the devices of
    /// VMs.
    Map {
        /// Write a picture (SVG) instead, to this file or, without one or with -, to standard output
        #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", conflicts_with_all = ["html", "json"])]
        svg: Option<PathBuf>,
        /// Write a page (HTML) that needs no other file instead, in the same way; pointing at a CPU shows its VM
        #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", conflicts_with = "json")]
        html: Option<PathBuf>,
    },
    /// Explain who has which CPUs, and why; or one instance, or a CPU
    ///
    /// Who chooses CPUs, the pools and what each instance asked for; or one instance: its CPUs, states, shared CPUs, NUMA nodes
    /// and, measured for a second, what may slow it down; or the owner of a CPU.
    Explain {
        /// A number is a CPU: its owner, with the source of each fact. Otherwise an instance, by namespace/name, name, UID, or the
        /// beginning of the UID: its story
        #[arg(value_name = "VM|CPU", add = ArgValueCandidates::new(vms))]
        what: Option<String>,
    },
    /// Print metrics as OpenMetrics text
    ///
    /// Does not start the daemon.
    Metrics {
        /// Write them to this file instead, for node-exporter's textfile collector
        #[arg(long, value_name = "PATH")]
        textfile: Option<PathBuf>,
    },
    /// Check whether this node is fit for isolated VMs
    ///
    /// With a cure for what is not, and advice on what only a boot or the administrator can take off the VMs' CPUs, measured for a
    /// second. Needs no daemon; one that runs is asked about interrupts.
    Doctor,
    /// Make the daemon read its configuration again
    Reload,
    /// Show a cluster's nodes, by stelia-cluster(1)
    ///
    /// Runs stelia-cluster, a program of the package of the same name, with the words that follow: nodes, map, why, plan.
    #[command(disable_help_flag = true)]
    Cluster {
        /// Its command and options
        #[arg(value_name = "ARGUMENTS", trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Print the completion script of a shell
    Completions {
        /// Which shell
        #[arg(value_parser = PossibleValuesParser::new([("bash", "bash(1)"), ("zsh", "zsh(1)"), ("fish", "fish(1)")]
              .map(|(shell, help)| PossibleValue::new(shell).help(help))))]
        shell: String,
    },
}

impl Command {
    /// What is printed when no form is asked for.
    fn form(&self) -> Form {
        match self {
            Self::NodeTopology(_) => Form::Yaml,
            Self::Describe => Form::Json,
            _ => Form::Text,
        }
    }

    /// Why there is no answer of this form.
    fn refuses(&self, form: Form) -> Option<&'static str> {
        match (self, form) {
            (Self::Completions { .. }, _) => Some("a completion script has no other form"),
            (Self::Cluster { .. }, _) => Some("give options of stelia-cluster behind the word cluster"),
            (Self::Describe | Self::NodeTopology(_) | Self::Metrics { .. }, _) if !form.is_data() => {
                Some("there is no table of this: -o json or yaml")
            }
            (
                Self::List
                | Self::Show { .. }
                | Self::Verify { .. }
                | Self::Rebind { .. }
                | Self::Deregister { .. }
                | Self::Adopt { .. },
                Form::Name,
            ) => None,
            (Self::Ledger(asked), Form::Name) if asked.is_about_vms() => None,
            (Self::Ledger(asked), _) if asked.is_document() => {
                Some("a report has no other form: --report html or json")
            }
            (_, Form::Name) => Some(
                "-o name is for list, show, verify, rebind, deregister, adopt and ledger, whose answers are about VMs",
            ),
            _ => None,
        }
    }
}

/// A number of seconds, with a fraction.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds".to_owned())?;
    if !(0.1..=3600.0).contains(&seconds) {
        return Err("expected 0.1 to 3600 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}
