//! The command line of `stelia-runner`.

mod help;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use stelia_api::RUNNER_SOCKET;
use stelia_koordinator::allocator::AllocationRequest;

use super::annotations;
use super::descriptors::{self, DescriptorSpec};
use super::error::Error;
use super::helpers::spec::{HelperSpec, parse_argument};
use super::vmm::VmmKind;

#[derive(Debug, Parser)]
#[command(
    name = "stelia-runner",
    version,
    about = "First process of a VM's container: registers it, starts the VMM, isolates vCPUs",
    after_help = help::ENVIRONMENT
)]
pub struct Cli {
    /// Format of the messages on standard error, one message per line
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
    /// Time, level and message
    Text,
    /// One JSON object
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Register the container, run its VMM, and exit when the VMM ends
    ///
    /// The VMM is QEMU, Cloud Hypervisor or Firecracker.
    #[command(after_help = help::RUN)]
    Run(RunOptions),
    /// Register and isolate a VM that another program started
    ///
    /// Registers the container of a running QEMU and keeps its vCPUs isolated until QEMU ends.
    #[command(after_help = help::ATTACH)]
    Attach(AttachOptions),
    /// Query the runner of this container; exit code 0 means yes
    #[command(after_help = help::PROBE)]
    Probe(ProbeOptions),
    /// Stop the runner of this container and wait for its end
    ///
    /// Sends SIGTERM to the runner. Use this as a preStop hook.
    Stop(RunnerOptions),
    /// Copy this program to a directory, for images that lack it
    ///
    /// Use this in an init container.
    Install(InstallOptions),
    /// Sleep until killed; used by `run` and `attach`
    ///
    /// Keeps the container's own cgroup in existence while the VM is in another cgroup.
    Anchor(AnchorOptions),
}

/// Options of `run`.
// These comments are the help texts. Text in brackets is not a link.
#[allow(rustdoc::broken_intra_doc_links)]
#[derive(Debug, Clone, Args)]
pub(crate) struct RunOptions {
    #[command(flatten)]
    pub(crate) control: ControlOptions,
    /// The kind of VMM. Default: by the name of the program file, if it begins with qemu, cloud-hypervisor or firecracker
    #[arg(long, value_name = "VMM")]
    pub(crate) vmm: Option<VmmKind>,
    /// Pass an open descriptor to the VMM as {fd:NAME} in its arguments: NAME=/PATH, NAME=socket:/PATH or NAME=tap:INTERFACE
    #[arg(long = "fd", value_name = "NAME=WHAT", value_parser = descriptors::parse)]
    pub(crate) descriptors: Vec<DescriptorSpec>,
    /// Run a program beside the VMM: name=NAME[,start=before|after][,on-exit=restart|fatal|ignore][,wait-for=PATH],command=LINE
    #[arg(long = "helper", value_name = "SPEC", value_parser = parse_argument)]
    pub(crate) helper: Vec<HelperSpec>,
    /// A TOML file with [[helper]] tables that have the keys of --helper
    #[arg(long, value_name = "FILE")]
    pub(crate) helpers: Option<PathBuf>,
    /// The VMM (QEMU, Cloud Hypervisor or Firecracker) and its arguments
    #[arg(last = true, required = true, value_name = "VMM ARGS")]
    pub(crate) program: Vec<OsString>,
    /// Options that `run` and `attach` share. Last, because its help heading applies to all options that follow.
    #[command(flatten)]
    pub(crate) common: CommonOptions,
}

/// The socket by which the runner controls the VMM.
#[derive(Debug, Clone, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct ControlOptions {
    /// QEMU: a QMP socket that only the runner uses. Adds -qmp to QEMU's arguments unless they already name this path
    #[arg(long, value_name = "PATH")]
    pub(crate) qmp: Option<PathBuf>,
    /// Cloud Hypervisor, Firecracker: the API socket. Adds --api-socket or --api-sock to the VMM's arguments unless they have it
    #[arg(long, value_name = "PATH")]
    pub(crate) api_socket: Option<PathBuf>,
}

impl RunOptions {
    /// The VMM and its control socket.
    pub(crate) fn vmm(&self) -> Result<(VmmKind, &Path), Error> {
        let named = self.program.first().and_then(|program| VmmKind::of_program(program));
        let kind = self.vmm.or(named);
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
                "the program's name does not identify the VMM: give --vmm cloud-hypervisor or --vmm firecracker".into(),
            )),
        }
    }
}

/// Options of `attach`.
#[derive(Debug, Clone, Args)]
pub(crate) struct AttachOptions {
    /// A QMP socket of QEMU that no other program uses. Without it, vCPUs are identified by the names of the threads
    #[arg(long, value_name = "PATH")]
    pub(crate) qmp: Option<PathBuf>,
    /// QEMU's process. Default: the process that listens on --qmp, or the only process with named vCPU threads
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) pid: Option<i32>,
    /// What `run` and `attach` share.
    #[command(flatten)]
    pub(crate) common: CommonOptions,
}

/// Options of `run` and `attach`.
#[derive(Debug, Clone, Args)]
pub(crate) struct CommonOptions {
    /// The daemon's socket. Mount its directory into the container
    #[arg(long, value_name = "PATH", default_value = RUNNER_SOCKET)]
    pub(crate) socket: PathBuf,
    /// yes: the runner is not ready until the CPUs are exclusive, and keeps a guest that it starts paused until then. no: the guest runs on
    /// shared CPUs meanwhile, and the state says so
    #[arg(long, value_name = "yes|no", default_value = "yes", action = clap::ArgAction::Set, value_parser = yes_or_no)]
    pub(crate) require_isolation: bool,
    /// Give each I/O thread one of the exclusive CPUs that the vCPUs do not use. yes needs a container with more CPUs than vCPUs
    #[arg(long, value_name = "yes|no", default_value = "no", action = clap::ArgAction::Set, value_parser = yes_or_no)]
    pub(crate) iothread_cpus: bool,
    /// Plug and unplug vCPUs when the number of the container's exclusive CPUs changes, as far as the VMM and the guest can
    #[arg(long, value_name = "yes|no", default_value = "yes", action = clap::ArgAction::Set, value_parser = yes_or_no)]
    pub(crate) resize: bool,
    /// Change the guest's memory with the VM's memory limit, by virtio-mem or a balloon if the VMM has one that no other program uses
    #[arg(long, value_name = "yes|no", default_value = "no", action = clap::ArgAction::Set, value_parser = yes_or_no)]
    pub(crate) resize_memory: bool,
    /// With --resize-memory: file of a downward API volume with limits.memory of the container, in bytes. The guest gives up memory as soon
    /// as that is lower, before kubelet lowers the limit
    #[arg(long, value_name = "FILE")]
    pub(crate) memory_limit: Option<PathBuf>,
    /// QEMU: the socket of its guest agent, which only the runner uses. The guest takes vCPUs offline by it before they are unplugged
    #[arg(long, value_name = "PATH", requires = "qmp")]
    pub(crate) guest_agent: Option<PathBuf>,
    /// How long the guest may take to power down, such as 5 or 5s. Must be at least 5 s less than the pod's
    /// terminationGracePeriodSeconds
    #[arg(long, value_name = "SECONDS", default_value = "25s", value_parser = seconds)]
    pub(crate) grace: Duration,
    /// How long to wait for the daemon, and in `attach` for QEMU, before giving up or going on without it, such as 60 or 60s
    #[arg(long, value_name = "SECONDS", default_value = "60s", value_parser = seconds)]
    pub(crate) register_timeout: Duration,
    /// Directory of the socket for `probe` and `stop`. Default: the directory of --qmp or --api-socket
    #[arg(long, value_name = "DIR", env = "STELIA_STATE_DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// The pod's UID, which the daemon checks. Not needed, because the daemon determines it
    #[arg(long, value_name = "UID", default_value = "", hide_default_value = true)]
    pub(crate) pod_uid: String,
    /// The container's exclusive CPUs, which the daemon checks. Not needed, because the daemon determines them
    #[arg(long, value_name = "LIST", default_value = "", hide_default_value = true)]
    pub(crate) cpuset: String,
    /// Wake-up latency of the VM's CPUs, as far as the node's administrator allows it
    #[arg(long, value_name = "LEVEL", value_parser = ["default", "low", "polling"])]
    pub(crate) latency: Option<String>,
    /// Class of L3 cache and memory bandwidth for the VM, as the node defines it
    #[arg(long, value_name = "NAME")]
    pub(crate) cache_class: Option<String>,
    /// The request to steliad's own allocator.
    #[command(flatten)]
    pub(crate) allocation: AllocationRequest,
    /// File of a downward API volume with the pod's annotation scheduling.koordinator.sh/resource-spec. An empty file requests nothing
    #[arg(long, value_name = "FILE")]
    pub(crate) resource_spec: Option<PathBuf>,
    /// File of a downward API volume with the pod's annotation scheduling.koordinator.sh/resource-status: the CPUs that
    /// koord-scheduler chose
    #[arg(long, value_name = "FILE")]
    pub(crate) resource_status: Option<PathBuf>,
    /// The anchor's program and its arguments. Tests replace them.
    #[arg(skip = anchor_program())]
    pub(crate) anchor: Vec<OsString>,
}

impl CommonOptions {
    /// Adds what the pod's annotations ask for.
    pub(crate) fn read_annotations(&mut self) -> Result<(), Error> {
        let (spec, status) = (self.resource_spec.as_deref(), self.resource_status.as_deref());
        annotations::add(&mut self.allocation, spec, status)
    }

    /// The container's memory limit as the file of `--memory-limit` has it.
    pub(crate) fn announced_memory_limit(&self) -> Option<u64> {
        let text = std::fs::read_to_string(self.memory_limit.as_deref()?).ok()?;
        text.trim().parse().ok()
    }
}

/// Options of `install`.
#[derive(Debug, Clone, Args)]
pub(crate) struct InstallOptions {
    /// Target directory, on a volume that the VM's container also mounts
    #[arg(value_name = "DIRECTORY")]
    pub(crate) directory: PathBuf,
}

/// Identifies a runner.
#[derive(Debug, Clone, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct RunnerOptions {
    /// The runner's --state-dir
    #[arg(long, value_name = "DIR", env = "STELIA_STATE_DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// The runner's --qmp, if the runner has no --state-dir: the runner's socket is in the same directory
    #[arg(long, value_name = "PATH")]
    pub(crate) qmp: Option<PathBuf>,
    /// The runner's --api-socket, if the runner has no --state-dir: the runner's socket is in the same directory
    #[arg(long, value_name = "PATH")]
    pub(crate) api_socket: Option<PathBuf>,
}

impl RunnerOptions {
    /// The directory of the runner's socket.
    pub(crate) fn directory(&self) -> Option<PathBuf> {
        let control = self.qmp.as_deref().or(self.api_socket.as_deref());
        state_directory(self.state_dir.as_deref(), control)
    }
}

/// Options of `probe`.
#[derive(Debug, Clone, Args)]
pub(crate) struct ProbeOptions {
    /// What to query
    #[arg(value_name = "WHAT", default_value = "readiness")]
    pub(crate) what: ProbeKind,
    #[command(flatten)]
    pub(crate) place: RunnerOptions,
}

/// What a probe asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProbeKind {
    /// The guest runs, with what its class promises (isolated) unless --require-isolation=no, or is ready for an incoming migration
    Readiness,
    /// The runner answers
    Liveness,
    /// The whole state of the runner, as one line of JSON
    State,
}

/// Options of `anchor`.
#[derive(Debug, Clone, Args)]
pub(crate) struct AnchorOptions {
    /// The runner's PID. Exits at once if the runner is no longer the parent
    #[arg(long, value_name = "PID")]
    pub(crate) parent: Option<i32>,
}

/// `--state-dir`, else the directory of the VMM's control socket, which is writable.
pub(crate) fn state_directory(given: Option<&Path>, control: Option<&Path>) -> Option<PathBuf> {
    let beside = |socket: &Path| match socket.parent() {
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        Some(parent) => parent.to_owned(),
        None => PathBuf::from("/"),
    };
    given.map(ToOwned::to_owned).or_else(|| control.map(beside))
}

/// The runner itself, because the image may have no other program that sleeps.
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
