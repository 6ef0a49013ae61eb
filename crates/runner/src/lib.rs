#![doc = include_str!("../README.md")]
//!
//! It leaves the anchor in the container's own cgroup, registers the container with the daemon, starts QEMU paused,
//! hands the vCPU threads over, lets the guest run only when the daemon says that its CPUs are its own, and keeps it so.
//!
//! | module | what it is |
//! |---|---|
//! | [`cli`] | the command line and its help |
//! | [`annotations`] | what Koordinator's annotations of the pod ask for |
//! | [`command`] | QEMU's command line, completed |
//! | [`anchor`] | the placeholder process |
//! | [`signals`], [`children`], [`terminal`] | what PID 1 must do |
//! | [`helpers`] | programs beside QEMU |
//! | [`daemon`] | the daemon's side of the contract, as a client |
//! | [`qmp`], [`vmm`] | QEMU's side: the few QMP commands needed; where its threads are found |
//! | [`keeper`] | from a paused QEMU to a running, isolated guest, and whatever changes then |
//! | [`state`], [`status`], [`probe`] | what it says of itself, and who asks |
//! | [`shutdown`] | from SIGTERM to a QEMU that has ended |
//! | [`socket`] | sockets that the last life left |
//! | [`install`] | the program copied out of its image |
//! | [`base`], [`lifecycle`], [`attach`], [`supervise`] | the order of it all |

pub mod anchor;
pub mod annotations;
pub mod attach;
pub mod base;
pub mod children;
pub mod cli;
pub mod command;
pub mod daemon;
pub mod error;
pub mod helpers;
pub mod install;
pub mod keeper;
pub mod lifecycle;
pub mod log;
pub mod probe;
pub mod qmp;
pub mod shutdown;
pub mod signals;
pub mod socket;
pub mod state;
pub mod status;
pub mod supervise;
pub mod terminal;
pub mod vmm;

#[cfg(test)]
mod tests;

use std::future::Future;
use std::process::ExitCode;

use clap::Parser;

/// The container could not be registered: the daemon refused it, or the registration failed for good (EX_UNAVAILABLE).
pub const EXIT_REFUSED: u8 = 69;
/// A helper that was declared fatal ended, or one did not get ready (EX_SOFTWARE).
pub const EXIT_HELPER: u8 = 70;
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
    let cli = cli::Cli::parse();
    log::start(cli.log_format);
    match cli.command {
        cli::Command::Anchor(options) => anchor::stay(options.parent),
        cli::Command::Run(options) => ExitCode::from(block_on(lifecycle::run(options))),
        cli::Command::Attach(options) => ExitCode::from(block_on(attach::run(options))),
        cli::Command::Probe(options) => probe::probe(&options),
        cli::Command::Install(place) => match install::install(&place.directory) {
            Ok(path) => {
                tracing::info!("installed {}", path.display());
                ExitCode::SUCCESS
            }
            Err(error) => {
                tracing::error!("{error}");
                ExitCode::from(EXIT_RUNNER)
            }
        },
        cli::Command::Stop(place) => probe::stop(&place),
    }
}

/// One thread is enough, and every thread less is one less to move between cgroups.
fn block_on(program: impl Future<Output = u8>) -> u8 {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            let code = runtime.block_on(program);
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
