#![doc = include_str!("../README.md")]
//!
//! It leaves the anchor in the container's own cgroup, registers the container with the daemon, starts the VMM (QEMU, Cloud
//! Hypervisor, Firecracker), attaches the vCPU threads of the paused guest, and lets it run when the daemon says that it is
//! isolated. It follows what changes until the VMM ends.

mod anchor;
mod annotations;
mod attach;
mod children;
mod cli;
mod command;
mod daemon;
mod descriptors;
mod error;
mod exit_codes;
mod helpers;
mod install;
mod isolator;
mod log;
mod memory;
mod pause_mark;
mod probe;
mod probe_answers;
pub mod qmp;
mod resize;
mod run;
mod run_and_attach;
mod shutdown;
mod signals;
mod stale_sockets;
mod state;
mod status_socket;
mod supervise;
mod terminal;
mod vmm;

#[cfg(test)]
mod tests;

use std::future::Future;
use std::process::ExitCode;

use clap::Parser;

pub use cli::Cli;

/// The program. Its exit codes are in `--help`.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    log::start(cli.log_format);
    match cli.command {
        cli::Command::Anchor(options) => anchor::stay(options.parent),
        cli::Command::Run(options) => ExitCode::from(block_on(run::run(options))),
        cli::Command::Attach(options) => ExitCode::from(block_on(attach::run(options))),
        cli::Command::Probe(options) => probe::probe(&options),
        cli::Command::Install(place) => match install::install(&place.directory) {
            Ok(path) => {
                tracing::info!("installed {}", path.display());
                ExitCode::SUCCESS
            }
            Err(error) => ExitCode::from(logged(exit_codes::RUNNER)(error)),
        },
        cli::Command::Stop(place) => probe::stop(&place),
    }
}

/// Logs an error and returns the exit code for it.
fn logged(code: u8) -> impl Fn(error::Error) -> u8 {
    move |error| {
        tracing::error!("{error}");
        code
    }
}

/// Runs a command on one thread, because every thread has to be moved between cgroups. Its result is the exit code in either case.
fn block_on(program: impl Future<Output = Result<u8, u8>>) -> u8 {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            let code = runtime.block_on(program);
            // Do not wait for blocking tasks.
            runtime.shutdown_background();
            code.unwrap_or_else(|code| code)
        }
        Err(error) => {
            tracing::error!("start the runtime: {error}");
            exit_codes::RUNNER
        }
    }
}
