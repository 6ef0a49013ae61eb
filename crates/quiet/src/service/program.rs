//! The command line, start and end of `steliad-quiet`.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use crate::files::System;
use crate::irqbalance::SOCKETS;
use crate::kernel::{Directory, Kernel};
use crate::order::{Order, STORE};
use crate::{late_kernel_threads, trace};
use clap::Parser;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::fs::{FlockOperation, flock};
use sd_notify::NotifyState;
use stelia_api::quiet::Report;
use stelia_kernel::activation;
use stelia_kernel::cgroup::KernelCgroups;
use stelia_kernel::clock::now_us;

use crate::service::carry_out::{Memories, carry_out};
use crate::service::in_force::InForce;
use crate::service::journal::{Priority, log};
use crate::service::peer;
use crate::service::serve::{ConnectionState, End, PEER_TIMEOUT, Server};

/// The socket's name in its unit (`FileDescriptorName=`).
const SOCKET_NAME: &str = "quiet";

/// The program ends after this time without an order. The daemon sends one at each of its audits while it has VMs: every 30 s by default.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// Keeps device interrupts off the CPUs of virtual machines, on behalf of steliad.
#[derive(Debug, Parser)]
#[command(name = "steliad-quiet", version)]
pub struct Arguments {
    /// Undo all changes that were made for VMs, without the daemon, and exit (used when the package is removed).
    #[arg(long)]
    restore: bool,
}

/// Why the program ends with an error.
#[derive(Debug, thiserror::Error)]
enum QuietFailure {
    #[error("{what}: {cause}")]
    System { what: &'static str, cause: io::Error },
    #[error("systemd passed no socket: steliad-quiet.socket starts this program")]
    NoSocket,
    #[error("another steliad-quiet runs: systemctl stop steliad-quiet.socket steliad-quiet.service")]
    Runs,
}

fn failed<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> QuietFailure {
    move |cause| QuietFailure::System {
        what,
        cause: cause.into(),
    }
}

/// The program.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = if arguments.restore {
        restore()
    } else {
        serve().map(|()| ExitCode::SUCCESS)
    };
    result.unwrap_or_else(|failure| {
        log(Priority::Error, &failure.to_string());
        ExitCode::FAILURE
    })
}

fn serve() -> Result<(), QuietFailure> {
    // Blocked from the start, so that no signal ends the program in the middle of an order.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.thread_block().map_err(failed("block signals"))?;
    let signal_fd = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK);
    let signal_fd = signal_fd.map_err(failed("make a signalfd"))?;
    let listener = activation::listener(SOCKET_NAME).map_err(failed("take the socket from systemd"))?;
    let listener = listener.ok_or(QuietFailure::NoSocket)?;
    let store = Directory::open(STORE).map_err(failed("make /run/stelia/quiet"))?;
    let _lock = lock_store(&store)?;
    let (kernel, cgroups) = (Kernel::below("/"), KernelCgroups::new("/sys/fs/cgroup"));
    let system = System {
        files: &kernel,
        store: &store,
    };
    if let Err(error) = trace::expire(system, now_us()) {
        log(
            Priority::Warning,
            &format!("a count that nobody waits for is not removed: {error}"),
        );
    }
    let mut server = Server {
        system,
        cgroups: &cgroups,
        sockets: Path::new(SOCKETS),
        admit: &peer::is_daemon,
        peer_timeout: PEER_TIMEOUT,
        clock: &now_us,
        state: ConnectionState::default(),
    };
    // An error of a notification cannot be handled.
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    let end = server
        .serve(&listener, signal_fd.as_fd(), IDLE_TIMEOUT)
        .map_err(failed("wait for orders"))?;
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
    if end == End::Idle {
        log(
            Priority::Info,
            "nothing was ordered for two minutes: the socket starts it again",
        );
    }
    Ok(())
}

/// Lock the store: a second program would take the values of the first one for the node's own.
fn lock_store(store: &Directory) -> Result<File, QuietFailure> {
    let directory = File::open(store.path()).map_err(failed("open /run/stelia/quiet"))?;
    match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(directory),
        Err(rustix::io::Errno::AGAIN) => Err(QuietFailure::Runs),
        Err(cause) => Err(failed("lock /run/stelia/quiet")(cause)),
    }
}

fn restore() -> Result<ExitCode, QuietFailure> {
    if !Path::new(STORE).exists() {
        println!("nothing was changed since the boot");
        return Ok(ExitCode::SUCCESS);
    }
    let store = Directory::open(STORE).map_err(failed("open /run/stelia/quiet"))?;
    let _lock = lock_store(&store)?;
    let system = System {
        files: &Kernel::below("/"),
        store: &store,
    };
    let nothing = Order::default();
    let mut report = carry_out(system, Path::new(SOCKETS), &nothing, &mut Memories::default());
    // The daemon moves kernel threads itself: the kernel asks for CAP_SYS_NICE there, also of their owner.
    late_kernel_threads::carry_out(
        system,
        &nothing,
        &mut late_kernel_threads::ThreadHistory::default(),
        &mut report,
    );
    let mut not_restored = not_restored(&report);
    let failure = InForce::default().save(&store).err();
    not_restored.extend(failure.map(|failure| failure.to_string()));
    not_restored.extend(trace::remove(system).err().map(|error| error.to_string()));
    for line in &not_restored {
        eprintln!("steliad-quiet: not restored: {line}");
    }
    println!("{} values restored", report.writes);
    Ok(if not_restored.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The values that an order without VMs could not restore.
fn not_restored(report: &Report) -> Vec<String> {
    let problems = report.problems.iter().map(|problem| problem.text.clone());
    let threads = report.threads_remaining.iter();
    let threads = threads.map(|thread| format!("kernel thread {} ({}): {}", thread.id, thread.name, thread.text));
    let interrupts = report.remaining.iter();
    let interrupts = interrupts.map(|one| format!("interrupt {} ({}): {}", one.irq, one.name, one.text));
    problems.chain(threads).chain(interrupts).collect()
}

#[cfg(test)]
mod tests {
    use stelia_api::quiet::{Problem, Remaining, Thread};

    use super::*;

    #[test]
    fn whatever_is_not_restored_is_told() {
        assert_eq!(not_restored(&Report::default()), [""; 0]);
        let report = Report {
            problems: vec![Problem {
                text: "write \"0\" to /sys/x: EIO".into(),
                ..Problem::default()
            }],
            threads_remaining: vec![Thread {
                id: 7,
                name: "napi/eth0".into(),
                text: "EINVAL".into(),
                ..Thread::default()
            }],
            remaining: vec![Remaining {
                irq: 24,
                name: "nvme0q1".into(),
                text: "EIO".into(),
                ..Remaining::default()
            }],
            ..Report::default()
        };
        let lines = [
            "write \"0\" to /sys/x: EIO",
            "kernel thread 7 (napi/eth0): EINVAL",
            "interrupt 24 (nvme0q1): EIO",
        ];
        assert_eq!(not_restored(&report), lines);
    }

    #[test]
    fn only_one_holds_the_store() {
        let folder = tempfile::tempdir().unwrap();
        let store = Directory::open(folder.path()).unwrap();
        let first = lock_store(&store).unwrap();
        assert!(matches!(lock_store(&store), Err(QuietFailure::Runs)));
        drop(first);
        lock_store(&store).unwrap();
    }
}
