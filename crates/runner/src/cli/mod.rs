//! The command line of `stelia-runner`.

mod help;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use stelia_allocator::AllocationRequest;
use stelia_api::RUNNER_SOCKET;

use super::annotations;
use super::daemon::Claims;
use super::descriptors::{self, DescriptorSpec};
use super::error::Error;
use super::helpers::spec::{HelperSpec, parse_argument};
use super::vmm::VmmKind;

#[derive(Debug, Parser)]
#[command(
    name = "stelia-runner",
    version,
    about = "PID 1 of a VM's container: registers it, starts its VMM, hands over its vCPUs",
    after_help = help::ENVIRONMENT
)]
pub struct Cli {
    /// How messages are written to standard error, one a line
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        default_value = "text",
        env = "STELIA_LOG_FORMAT"
    )]
    pub(crate) log_format: LogFormat,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// How messages are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Time, level, words
    Text,
    /// One JSON object
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Register the container, run QEMU, Cloud Hypervisor or Firecracker in it, and leave when that ends
    #[command(after_help = help::RUN)]
    Run(RunOptions),
    /// Register the container of a QEMU that something else started, and keep its vCPUs isolated until it ends
    #[command(after_help = help::ATTACH)]
    Attach(AttachOptions),
    /// Ask the runner of this container how it is; exit code 0 is yes
    #[command(after_help = help::PROBE)]
    Probe(ProbeOptions),
    /// Send the runner of this container SIGTERM and wait for its end (for preStop)
    Stop(WhereOptions),
    /// Copy this program into a directory, for images that do not hold it (as an init container)
    Install(InstallOptions),
    /// Sleep until killed: holds the container's own cgroup while the VM lives elsewhere (started by `run` and `attach`)
    Anchor(AnchorOptions),
}

/// Options of `run`.
// These comments are the help's text: what stands in brackets is no link.
#[allow(rustdoc::broken_intra_doc_links)]
#[derive(Debug, Clone, Args)]
pub(crate) struct RunOptions {
    #[command(flatten)]
    pub(crate) control: ControlOptions,
    /// What the program is; known by its file's name where that begins with qemu, cloud-hypervisor or firecracker
    #[arg(long, value_name = "VMM")]
    pub(crate) vmm: Option<VmmKind>,
    /// A descriptor that the VMM inherits, {fd:NAME} in its arguments: NAME=/PATH, NAME=socket:/PATH or NAME=tap:INTERFACE
    #[arg(long = "fd", value_name = "NAME=WHAT", value_parser = descriptors::parse)]
    pub(crate) descriptors: Vec<DescriptorSpec>,
    /// A program beside the VMM: name=NAME[,start=before|after][,on-exit=restart|fatal|ignore][,wait-for=PATH],command=LINE
    #[arg(long = "helper", value_name = "SPEC", value_parser = parse_argument)]
    pub(crate) helper: Vec<HelperSpec>,
    /// A TOML file of [[helper]] tables with the same keys
    #[arg(long, value_name = "FILE")]
    pub(crate) helpers: Option<PathBuf>,
    /// QEMU, Cloud Hypervisor or Firecracker, and its arguments
    #[arg(last = true, required = true, value_name = "VMM ARGS")]
    pub(crate) program: Vec<OsString>,
    /// What `run` and `attach` share. At the end: the heading in it holds for all options that follow.
    #[command(flatten)]
    pub(crate) common: CommonOptions,
}

/// The socket by which the runner controls the VMM.
#[derive(Debug, Clone, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct ControlOptions {
    /// QEMU: a QMP socket of the runner's own; -qmp is added to QEMU's arguments unless they name this path already
    #[arg(long, value_name = "PATH")]
    pub(crate) qmp: Option<PathBuf>,
    /// Cloud Hypervisor, Firecracker: the socket of its API; --api-socket or --api-sock is added to its arguments unless they have it
    #[arg(long, value_name = "PATH")]
    pub(crate) api_socket: Option<PathBuf>,
}

impl RunOptions {
    /// The VMM and its control socket.
    pub(crate) fn vmm(&self) -> Result<(VmmKind, &std::path::Path), Error> {
        let known = self.program.first().and_then(|program| VmmKind::of_program(program));
        let kind = self.vmm.or(known);
        match (&self.control.qmp, &self.control.api_socket, kind) {
            (Some(qmp), _, None | Some(VmmKind::Qemu)) => Ok((VmmKind::Qemu, qmp)),
            (Some(_), _, Some(other)) => Err(Error::Usage(format!(
                "{} has no QMP: give --api-socket instead of --qmp",
                other.name()
            ))),
            (None, Some(socket), Some(kind @ (VmmKind::CloudHypervisor | VmmKind::Firecracker))) => Ok((kind, socket)),
            (None, _, Some(VmmKind::Qemu)) => Err(Error::Usage(
                "QEMU has no HTTP API: give --qmp instead of --api-socket".into(),
            )),
            (None, _, _) => Err(Error::Usage(
                "which VMM this is cannot be told by its name: give --vmm cloud-hypervisor or --vmm firecracker".into(),
            )),
        }
    }
}

/// Options of `attach`.
#[derive(Debug, Clone, Args)]
pub(crate) struct AttachOptions {
    /// A QMP socket of QEMU's that nobody else uses; without it the vCPUs are found by the names of QEMU's threads
    #[arg(long, value_name = "PATH")]
    pub(crate) qmp: Option<PathBuf>,
    /// QEMU's process; found by itself when it listens on --qmp, or is the only one whose threads are named
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) pid: Option<i32>,
    /// What `run` and `attach` share.
    #[command(flatten)]
    pub(crate) common: CommonOptions,
}

/// Options of `run` and `attach`.
#[derive(Debug, Clone, Args)]
pub(crate) struct CommonOptions {
    /// The daemon's socket; mount its directory into the container
    #[arg(long, value_name = "PATH", default_value = RUNNER_SOCKET)]
    pub(crate) socket: PathBuf,
    /// yes: the guest stays paused until its CPUs are its own. no: it runs on shared CPUs meanwhile, and that is said
    #[arg(long, value_name = "yes|no", default_value = "yes", action = clap::ArgAction::Set, value_parser = yes_or_no)]
    pub(crate) require_isolation: bool,
    /// Give I/O threads the exclusive CPUs that the vCPUs leave over, one each; yes needs a container with more CPUs than vCPUs
    #[arg(long, value_name = "yes|no", default_value = "no", action = clap::ArgAction::Set, value_parser = yes_or_no)]
    pub(crate) iothread_cpus: bool,
    /// How long the guest may take to power down (5 or 5s); keep it 5 s below the pod's terminationGracePeriodSeconds
    #[arg(long, value_name = "SECONDS", default_value = "25s", value_parser = seconds)]
    pub(crate) grace: Duration,
    /// How long to wait for the daemon (`attach`: and for QEMU) before giving up or going on without (60 or 60s)
    #[arg(long, value_name = "SECONDS", default_value = "60s", value_parser = seconds)]
    pub(crate) register_timeout: Duration,
    /// Where the socket for `probe` and `stop` is made; the directory of --qmp or --api-socket when not given
    #[arg(long, value_name = "DIR", env = "STELIA_STATE_DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// The pod's UID, checked by the daemon; it knows by itself
    #[arg(long, value_name = "UID", default_value = "", hide_default_value = true)]
    pub(crate) pod_uid: String,
    /// The container's exclusive CPUs, checked by the daemon; it knows by itself
    #[arg(long, value_name = "LIST", default_value = "", hide_default_value = true)]
    pub(crate) cpuset: String,
    /// How fast the VM's CPUs wake up, as far as the node's administrator allows it
    #[arg(long, value_name = "LEVEL", value_parser = ["default", "low", "polling"])]
    pub(crate) latency: Option<String>,
    /// The node's class of L3 cache and memory bandwidth that the VM is in
    #[arg(long, value_name = "NAME")]
    pub(crate) cache_class: Option<String>,
    /// What is asked of steliad's own allocator.
    #[command(flatten)]
    pub(crate) allocation: AllocationRequest,
    /// The pod's annotation scheduling.koordinator.sh/resource-spec, as a file of a downward API volume; an empty one asks nothing
    #[arg(long, value_name = "FILE")]
    pub(crate) resource_spec: Option<PathBuf>,
    /// The annotation scheduling.koordinator.sh/resource-status, the same way: the CPUs that koord-scheduler chose
    #[arg(long, value_name = "FILE")]
    pub(crate) resource_status: Option<PathBuf>,
    /// The anchor's program and first arguments; the tests have their own.
    #[arg(skip = anchor_program())]
    pub(crate) anchor: Vec<OsString>,
}

impl CommonOptions {
    /// Adds what the pod's annotations ask for.
    pub(crate) fn read_annotations(&mut self) -> Result<(), Error> {
        let (spec, status) = (self.resource_spec.as_deref(), self.resource_status.as_deref());
        annotations::add(&mut self.allocation, spec, status)
    }

    /// The arguments of RegisterInstance.
    pub(crate) fn claims(&self) -> Claims<'_> {
        Claims {
            pod_uid: &self.pod_uid,
            cpuset: &self.cpuset,
            allocation: &self.allocation,
            latency: self.latency.as_deref(),
            cache_class: self.cache_class.as_deref(),
        }
    }
}

/// Options of `install`.
#[derive(Debug, Clone, Args)]
pub(crate) struct InstallOptions {
    /// Where to: a volume that the VM's container mounts too
    #[arg(value_name = "DIRECTORY")]
    pub(crate) directory: PathBuf,
}

/// Where a runner is found.
#[derive(Debug, Clone, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct WhereOptions {
    /// The runner's --state-dir
    #[arg(long, value_name = "DIR", env = "STELIA_STATE_DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// The runner's --qmp, beside which its socket is when it has no --state-dir
    #[arg(long, value_name = "PATH")]
    pub(crate) qmp: Option<PathBuf>,
    /// The runner's --api-socket, likewise
    #[arg(long, value_name = "PATH")]
    pub(crate) api_socket: Option<PathBuf>,
}

impl WhereOptions {
    /// Where the socket is.
    pub(crate) fn directory(&self) -> Option<PathBuf> {
        let control = self.qmp.as_deref().or(self.api_socket.as_deref());
        state_directory(self.state_dir.as_deref(), control)
    }
}

/// Options of `probe`.
#[derive(Debug, Clone, Args)]
pub(crate) struct ProbeOptions {
    /// What is asked
    #[arg(value_name = "WHAT", default_value = "readiness")]
    pub(crate) what: What,
    #[command(flatten)]
    pub(crate) place: WhereOptions,
}

/// What a probe asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum What {
    /// The guest runs, with what its class promises (isolated) unless --require-isolation=no, or is ready for its migration
    Readiness,
    /// The runner answers
    Liveness,
    /// Everything it knows, as one line of JSON
    State,
}

/// Options of `anchor`.
#[derive(Debug, Clone, Args)]
pub(crate) struct AnchorOptions {
    /// The runner's PID: leave at once if it is not the parent any more
    #[arg(long, value_name = "PID")]
    pub(crate) parent: Option<i32>,
}

/// `--state-dir`, else the directory of the VMM's control socket, which can be written.
pub(crate) fn state_directory(given: Option<&std::path::Path>, control: Option<&std::path::Path>) -> Option<PathBuf> {
    let beside = |socket: &std::path::Path| match socket.parent() {
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        Some(parent) => parent.to_owned(),
        None => PathBuf::from("/"),
    };
    given.map(ToOwned::to_owned).or_else(|| control.map(beside))
}

/// The runner itself: the image may have no other program that sleeps.
fn anchor_program() -> Vec<OsString> {
    vec![
        "/proc/self/exe".into(),
        "anchor".into(),
        "--parent".into(),
        std::process::id().to_string().into(),
    ]
}

/// `25` or `25s`.
fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix('s').unwrap_or(text);
    number
        .parse::<u32>()
        .map(|n| Duration::from_secs(n.into()))
        .map_err(|_| format!("{text:?} is not a number of seconds"))
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("give yes or no".into()),
    }
}

#[cfg(test)]
mod docs;
#[cfg(test)]
mod tests;
