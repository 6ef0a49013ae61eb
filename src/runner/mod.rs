//! `stelia-runner`: PID 1 of the VM's container.
//!
//! It leaves the anchor in the container's own cgroup, registers the container with the daemon, starts QEMU paused,
//! hands the vCPU threads over, and lets the guest run only when the daemon says that its CPUs are its own.
//!
//! | module | what it is |
//! |---|---|
//! | [`cli`] | the command line and its help |
//! | [`command`] | QEMU's command line, completed |
//! | [`anchor`] | the placeholder process |
//! | [`children`] | reaping, as PID 1 must |
//! | [`daemon`] | the daemon's side of the contract, as a client |
//! | [`qmp`] | QEMU's side: the few QMP commands needed |
//! | [`bringup`] | from a paused QEMU to a running, isolated guest |
//! | [`shutdown`] | from SIGTERM to a QEMU that has ended |
//! | [`lifecycle`] | the order of it all |

pub mod anchor;
pub mod bringup;
pub mod children;
pub mod cli;
pub mod command;
pub mod daemon;
pub mod error;
pub mod lifecycle;
pub mod qmp;
pub mod shutdown;

#[cfg(test)]
mod tests;

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

/// The container could not be registered: the daemon refused it, or the registration failed for good (EX_UNAVAILABLE).
pub const EXIT_REFUSED: u8 = 69;
/// The runner itself failed: a process could not be started, a system call failed (EX_OSERR).
pub const EXIT_RUNNER: u8 = 71;
/// The daemon was not reachable within `--register-timeout` (EX_TEMPFAIL).
pub const EXIT_UNREACHABLE: u8 = 75;
/// QEMU was found and could not be executed.
pub const EXIT_NOT_EXECUTABLE: u8 = 126;
/// QEMU was not found.
pub const EXIT_NOT_FOUND: u8 = 127;

/// The whole program; answers the exit code that [`cli`]'s help documents.
pub fn main() -> ExitCode {
    let command = cli::Cli::parse().command;
    start_logging();
    match command {
        cli::Command::Anchor(options) => anchor::stay(options.parent),
        cli::Command::Run(options) => ExitCode::from(run(options)),
    }
}

/// One thread is enough, and every thread less is one less to move between cgroups.
fn run(options: cli::RunOptions) -> u8 {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            let code = runtime.block_on(lifecycle::run(options));
            // Nothing that is still queued may hold up the exit.
            runtime.shutdown_background();
            code
        }
        Err(error) => {
            tracing::error!("start the runtime: {error}");
            EXIT_RUNNER
        }
    }
}

fn start_logging() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,zbus=warn,qapi=warn"));
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .try_init();
    if let Err(error) = started {
        eprintln!("start logging: {error}");
    }
}
