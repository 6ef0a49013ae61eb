//! The command line of `stelia-runner`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::dbus::RUNNER_SOCKET;

/// `stelia-runner`.
#[derive(Debug, Parser)]
#[command(
    name = "stelia-runner",
    version,
    about = "PID 1 of a VM's container: registers it, starts QEMU, hands over its vCPUs"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Register the container, run QEMU in it, and leave when QEMU ends
    #[command(after_help = EXIT_CODES)]
    Run(RunOptions),
    /// Sleep until killed: holds the container's own cgroup while the VM lives elsewhere (started by `run`)
    Anchor(AnchorOptions),
}

const EXIT_CODES: &str = "\
The guest executes nothing before its CPUs are verified to be its own: QEMU is started with -S, and continued when the
daemon says isolated or contained. With -incoming the runner never continues it: whoever drives the migration does.

SIGTERM, SIGINT: power the guest down; QEMU is told to quit after --grace (at once if the guest never ran), and
killed 3 s later. SIGHUP is ignored.

Exit codes:
  0..255   QEMU's own; 128 + N when signal N ended it
  2        wrong usage
  69       registration refused by the daemon (the D-Bus error's name and text are on stderr)
  71       the runner failed: anchor, QMP path, system call
  75       the daemon was not reachable within --register-timeout
  126      QEMU cannot be executed
  127      QEMU not found
  128+N    signal N came before QEMU was started

Environment: RUST_LOG sets what is logged (info).";

/// Options of `run`.
#[derive(Debug, Clone, Args)]
pub struct RunOptions {
    /// QMP socket of the runner's own; -qmp is added to QEMU's arguments unless they name this path already
    #[arg(long, value_name = "PATH")]
    pub qmp: PathBuf,
    /// The daemon's socket; mount its directory into the container
    #[arg(long, value_name = "PATH", default_value = RUNNER_SOCKET)]
    pub socket: PathBuf,
    /// How long the guest may take to power down (5 or 5s); keep it 5 s below the pod's terminationGracePeriodSeconds
    #[arg(long, value_name = "SECONDS", default_value = "25s", value_parser = seconds)]
    pub grace: Duration,
    /// How long to wait for the daemon before giving up (60 or 60s)
    #[arg(long, value_name = "SECONDS", default_value = "60s", value_parser = seconds)]
    pub register_timeout: Duration,
    /// The pod's UID, checked by the daemon; it knows by itself
    #[arg(long, value_name = "UID", default_value = "")]
    pub pod_uid: String,
    /// The container's exclusive CPUs, checked by the daemon; it knows by itself
    #[arg(long, value_name = "LIST", default_value = "")]
    pub cpuset: String,
    /// The anchor's program and first arguments; the tests have their own.
    #[arg(skip = anchor_program())]
    pub anchor: Vec<OsString>,
    /// QEMU and its arguments
    #[arg(last = true, required = true, value_name = "QEMU ARGS")]
    pub qemu: Vec<OsString>,
}

/// Options of `anchor`.
#[derive(Debug, Clone, Args)]
pub struct AnchorOptions {
    /// The runner's PID: leave at once if it is not the parent any more
    #[arg(long, value_name = "PID")]
    pub parent: Option<i32>,
}

/// The image holds no other program that could sleep, so the anchor is the runner's own executable.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_come_with_and_without_unit() {
        assert_eq!(seconds("25"), Ok(Duration::from_secs(25)));
        assert_eq!(seconds("25s"), Ok(Duration::from_secs(25)));
        for wrong in ["", "s", "-1", "1m", "1.5"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn qemu_keeps_its_own_options_behind_the_dashes() {
        let cli = Cli::try_parse_from(["stelia-runner", "run", "--qmp", "/q", "--", "qemu", "-S", "--help"]).unwrap();
        let Command::Run(options) = cli.command else {
            panic!("not run")
        };
        assert_eq!(options.qemu, ["qemu", "-S", "--help"]);
        assert_eq!(options.socket.to_str(), Some(RUNNER_SOCKET));
        assert_eq!((options.grace.as_secs(), options.register_timeout.as_secs()), (25, 60));
        assert_eq!(options.anchor.first().unwrap(), "/proc/self/exe");
    }

    #[test]
    fn qemu_and_qmp_are_needed() {
        assert!(Cli::try_parse_from(["stelia-runner", "run", "--qmp", "/q"]).is_err());
        assert!(Cli::try_parse_from(["stelia-runner", "run", "--", "qemu"]).is_err());
    }
}
