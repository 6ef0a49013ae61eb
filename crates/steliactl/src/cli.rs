//! The command line of `steliactl`.

mod forms;
pub mod help;
pub(crate) mod remote;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::engine::ArgValueCandidates;

use crate::cli::remote::Host;
use crate::check::ledger::LedgerOptions;
use crate::explain_and_check::verify::Demands;
use crate::integration::node_topology::TopologyOptions;
use crate::plan::evaluate::EvaluateOptions;
use crate::plan::plan::PlanOptions;
use crate::shared::daemon::{Failure, Selection, vms};
use crate::shared::output::{Form, OutputOptions, TextStyle};

const AFTER_HELP: &str = "\
`steliactl COMMAND --help` shows the options and examples of a command.
steliactl(1) explains every column and event.

VM is the namespace/name of the VM's pod as `list` prints it, the pod's name,
the name of a KubeVirt VM, the pod's UID, or the beginning of the UID, and must
be unambiguous. PATTERN is any of these, or a pattern with *, ? or [a-z], which
selects every VM that fits. The beginning of a name is not a name.

Exit codes:
  0    success; also when a signal or the end of the reader ends monitor, top,
       or node-topology --watch
  1    the daemon refuses, fails or cannot be reached; a file of kubelet's is
       refused; or a check of the command fails:
       doctor: a check fails
       verify: a promise does not hold, now or in the ledger's last 24 hours, a VM has waited for its vCPUs for more than a minute, or has less than is required
       quiet: a device interrupt fires on VMs' CPUs, a kernel thread could not
       be moved off them, or this is unknown
       ledger verify: the ledger was modified, or no given key verifies it
       evaluate: a pod does not fit
       resize: the guest kept its vCPUs, or kubelet chose the CPUs, and nothing
       was changed
       plan: the pod is not admitted, kubelet would not start, or the answer
       is unknown
  2    wrong usage, or VM matches more than one instance
  3    no such instance, or PATTERN matches none
  255  with -H: ssh failed

Standard output has data only; messages go to standard error. Output longer
than the terminal goes through $SYSTEMD_PAGER, $PAGER or less. SYSTEMD_COLORS,
NO_COLOR and TERM=dumb decide on colours as in systemd(1); where the locale is
not UTF-8, output is ASCII.";

/// See the virtual machines with exclusive CPUs on this node, and control steliad.
#[derive(Debug, Parser)]
#[command(name = "steliactl", version, after_help = AFTER_HELP, help_template = help::template(),
          mut_subcommands(help::of_command))]
pub struct Cli {
    #[command(flatten)]
    pub(crate) common: CommonOptions,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes. The program's own help has these options; that of a command refers to it.
#[derive(Debug, Args)]
pub(crate) struct CommonOptions {
    /// Print JSON: pretty, short (one object per line) or off. --json alone means pretty
    #[arg(long, global = true, hide_short_help = true, hide_long_help = true, value_name = "FORMAT", num_args = 0..=1, require_equals = true,
          value_parser = Form::parser([("pretty", "Indented JSON", Form::Json), ("short", "JSON, one object per line", Form::JsonLine),
                                       ("off", "Text", Form::Text)]),
          default_value = "off", default_missing_value = "pretty", hide_default_value = true, hide_possible_values = true)]
    pub(crate) json: Form,
    /// Output format: table, wide (more columns), json, yaml or name (one VM per line)
    #[arg(short, long, global = true, hide_short_help = true, hide_long_help = true, value_name = "FORMAT",
          value_parser = Form::parser([("table", "Text", Form::Text), ("wide", "Text with more columns", Form::Wide),
                                       ("json", "JSON", Form::Json), ("yaml", "YAML", Form::Yaml),
                                       ("name", "One VM per line", Form::Name)]), hide_possible_values = true)]
    pub(crate) output: Option<Form>,
    /// Do not truncate output to the terminal's width
    #[arg(short = 'l', long, global = true, hide_short_help = true, hide_long_help = true)]
    pub(crate) full: bool,
    /// Do not pipe output into a pager
    #[arg(long, global = true, hide_short_help = true, hide_long_help = true)]
    pub(crate) no_pager: bool,
    /// Do not print header lines
    #[arg(long, global = true, hide_short_help = true, hide_long_help = true)]
    pub(crate) no_legend: bool,
    /// Run the command on another host over ssh. File names refer to that host
    #[arg(short = 'H', long, global = true, hide_short_help = true, hide_long_help = true, value_name = "[USER@]HOST[:PORT]", value_parser = Host::parse)]
    pub(crate) host: Option<Host>,
    /// Use a peer-to-peer D-Bus address instead of the system bus, such as unix:path=/run/stelia/runner/socket
    #[arg(
        long,
        global = true,
        hide_short_help = true,
        hide_long_help = true,
        value_name = "ADDR"
    )]
    pub(crate) address: Option<String>,
    /// Read /proc and /sys/fs/cgroup of a simulated node below this directory
    #[arg(long, global = true, value_name = "DIR", hide = true)]
    root: Option<PathBuf>,
}

impl Cli {
    /// # Errors
    /// The command has no answer of this form. Nothing has been done yet.
    pub(crate) fn output_options(&self) -> Result<OutputOptions, Failure> {
        let asked = (self.common.json != Form::Text)
            .then_some(self.common.json)
            .or(self.common.output);
        if let Some(form) = asked
            && let Some(why) = self.command.refuses(form)
        {
            return Err(Failure::Usage(why.to_owned()));
        }
        let form = asked.unwrap_or(self.command.form());
        Ok(OutputOptions {
            form,
            style: TextStyle::of_stdout(!self.common.no_legend, form == Form::Wide, self.common.full),
        })
    }

    /// Where /proc, /sys and kubelet's files are read.
    pub(crate) fn root(&self) -> &Path {
        self.common.root.as_deref().unwrap_or(Path::new("/"))
    }

    /// Whether it takes over the terminal.
    pub(crate) fn is_live(&self) -> bool {
        let interactive = || io::stdin().is_terminal() && io::stdout().is_terminal();
        matches!(
            self.command,
            Command::Top {
                batch: false,
                count: None,
                ..
            }
        ) && interactive()
    }
}

/// What `steliactl` can do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the node: daemon, instances, pools, drift, last pass
    ///
    /// With PATTERN, -n or --state, shows these VMs and, of the node's lines, those that concern them.
    Status(Selection),
    /// List the instances
    List {
        #[command(flatten)]
        selection: Selection,
        /// List instead the VMs that an [[adopt]] rule matches and steliad has not adopted, each with the reason
        #[arg(long, conflicts_with_all = ["patterns", "namespace", "states"])]
        unmanaged: bool,
    },
    /// Show instances and all their threads
    ///
    /// Shows the properties of the instance, the NUMA nodes of its memory and devices, how much of that is remote from its CPUs,
    /// and each thread with the CPUs on which it may run. VFIO devices are shown to root only.
    Show {
        #[command(flatten)]
        selection: Selection,
        /// Also show on which NUMA nodes the mapped pages of each process are (root only). The kernel walks all page tables of the
        /// process for this, which takes seconds for a large VM without huge pages
        #[arg(long)]
        numa_maps: bool,
    },
    /// Print the node's NodeResourceTopology object
    ///
    /// The object lists the NUMA nodes, CPUs, memory and CPU owners. kubectl apply -f - accepts it.
    NodeTopology(TopologyOptions),
    /// Print what steliad's allocator would answer for a pod
    ///
    /// For nodes on which steliad chooses the CPUs. Prints whether the pod fits, its CPUs and its score. With --requests, evaluates
    /// many pods, each as if it were the only one.
    Evaluate(EvaluateOptions),
    /// Show the load of vCPU threads and what disturbs them, live
    ///
    /// VMs with a problem come first. Press h for a list of the keys.
    #[command(mut_arg("namespace", |arg| arg.short(None::<char>)))]
    Top {
        #[command(flatten)]
        selection: Selection,
        /// Print plain tables. This is the default without a terminal, with -n and with --json
        #[arg(short, long)]
        batch: bool,
        /// Print N plain tables and exit. Here -n is not the namespace: use --namespace
        #[arg(short = 'n', value_name = "N")]
        count: Option<u32>,
        /// Time between two samples, in seconds
        #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
        delay: Duration,
    },
    /// Print changes as they happen, one event per line
    ///
    /// Prints the daemon's signals until interrupted. With PATTERN or -n, only events of these VMs; with --state, only changes to
    /// these states.
    Monitor(Selection),
    /// Compare every promise with the kernel and repair differences
    Reconcile {
        /// Only print the steps with which a pass would begin
        #[arg(long)]
        dry_run: bool,
    },
    /// Move instances to better CPUs while they run
    ///
    /// Works where steliad chose the CPUs, and waits until the job ends. Where kubelet chose them, only a restart gives a VM others.
    Rebind {
        /// Move only this VM, given as namespace/name, name, UID or at least the first 8 characters of the UID. Default: all
        #[arg(value_name = "VM", add = ArgValueCandidates::new(vms))]
        vm: Option<String>,
        /// Only print the moves and what each gains
        #[arg(long)]
        dry_run: bool,
        /// Start no move after this many seconds
        #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = clap::value_parser!(u32).range(1..=86_400))]
        deadline: u32,
    },
    /// Give a VM another number of CPUs while it runs
    ///
    /// Works where steliad chose its CPUs, and waits until the VM has them. If the VM has more vCPUs than CPUs would remain, it leaves CPUs
    /// when its guest has given up vCPUs, for which it has unplug-timeout-s; otherwise it keeps all. The pod's requests and limits do not
    /// change. Where kubelet chose the CPUs, nothing changes: the command prints what kubelet would do, which only root can find out, and the
    /// command that resizes the pod.
    Resize {
        /// The VM, given as namespace/name, name, UID or at least the first 8 characters of the UID
        #[arg(value_name = "VM", add = ArgValueCandidates::new(vms))]
        vm: String,
        /// How many CPUs it is to have
        #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=8192))]
        cpus: u32,
        /// Only print what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Print a report on the whole node, for a ticket
    ///
    /// Contains the host, versions, pools, kubelet's configuration, the threads of VMs with their cgroups, the CPUs on which they
    /// may run and did run, memory and devices by NUMA node, what verify, quiet and doctor find, the ledger of the last 24 hours,
    /// steliad's settings, and the end of its journal. What cannot be read is listed with the reason. Processes of VMs are given by
    /// name only. VFIO devices and the findings of verify are included for root only.
    Report {
        /// How long to watch the threads, in seconds
        #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
        seconds: Duration,
    },
    /// Check that every promise holds; print violations and cures
    ///
    /// Counts the VMs by state and compares every promise of these states with the kernel. Changes nothing. A VM that has waited for its
    /// vCPUs for more than a minute is a failure, and so is an account of the ledger's last 24 hours above the promised 0. Also prints VMs
    /// that have more than a tenth of their memory, and more than 64 MiB, on other NUMA nodes than their CPUs. What may pass by itself
    /// is read three times within about 2 s, and counts only if it stays.
    Verify {
        #[command(flatten)]
        selection: Selection,
        #[command(flatten)]
        demands: Demands,
    },
    /// Show interrupts and kernel threads that disturb VMs' CPUs
    ///
    /// Counts device interrupts on the CPUs of each VM for one second. Prints how many interrupts were moved away, and lists the
    /// interrupts and kernel threads that remain, each with the reason and a cure. The exit code is 1 if a device interrupt fires on
    /// VMs' CPUs, a kernel thread could not be moved off them, or this is unknown.
    Quiet(Selection),
    /// Print what else ran on VMs' CPUs, when, and for how long
    ///
    /// The daemon's ledger records this from kernel counters: other tasks and other devices' interrupts (0 of both is guaranteed),
    /// and everything else that is not the VM's, such as kernel interrupts. Without VM, prints one line per VM. With VM, prints its
    /// totals, the worst windows, and the periods that no reading covers. All times are UTC.
    Ledger(LedgerOptions),
    /// Release an instance's CPUs; its tasks run on without isolation
    Deregister {
        /// The VM's pod, given as namespace/name, name, UID or at least the first 8 characters of the UID
        #[arg(value_name = "VM", add = ArgValueCandidates::new(vms))]
        vm: String,
    },
    /// Print what kubelet would do with a pod
    ///
    /// Prints the CPUs and NUMA nodes that kubelet would assign, or its exact rejection, on this node or on a node described with
    /// --node. Does not need the daemon.
    Plan(PlanOptions),
    /// Draw the node: every CPU with its owner
    ///
    /// Shows sockets, NUMA nodes, L3 caches, cores and CPUs, marks each CPU with its owner and the owner's state, and lists the
    /// devices of VMs. With PATTERN, -n or --state, the CPUs of other pods have no mark of their own.
    Map {
        #[command(flatten)]
        selection: Selection,
        /// Write an SVG picture to FILE instead. Without FILE, or if FILE is -, writes to standard output
        #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", conflicts_with = "json")]
        svg: Option<PathBuf>,
    },
    /// Explain who has which CPUs and why
    ///
    /// Explains the CPUs, states, shared CPUs and NUMA nodes of a VM, and what may slow it down, measured for one second; or who owns a
    /// CPU.
    Explain {
        /// A number is a CPU: its owner is printed with the source of each fact. Anything else is a VM, given as namespace/name,
        /// name, UID or the beginning of the UID
        #[arg(value_name = "VM|CPU", add = ArgValueCandidates::new(vms))]
        what: String,
    },
    /// Print metrics as OpenMetrics text
    ///
    /// Does not start the daemon.
    Metrics {
        /// Write the metrics to this file, for node-exporter's textfile collector
        #[arg(long, value_name = "PATH")]
        textfile: Option<PathBuf>,
    },
    /// Check whether this node is fit for isolated VMs
    ///
    /// Prints a cure for each failed check. Also measures for one second what disturbs the VMs' CPUs and advises what only boot
    /// options or the administrator can keep off them. Does not need the daemon, but asks a running one about interrupts.
    Doctor {
        /// Only print what steliad reads from this file, or why it refuses it: cpu_manager_state or memory_manager_state of kubelet, or a
        /// copy
        #[arg(long, value_name = "FILE")]
        kubelet_state: Option<PathBuf>,
    },
}

/// A number of seconds, with a fraction.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds".to_owned())?;
    if !(0.1..=3600.0).contains(&seconds) {
        return Err("expected 0.1 to 3600 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}
