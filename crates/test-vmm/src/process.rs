//! The process: its names, threads and children, and its end.

use std::env;
use std::ffi::CString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, exit};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, park};

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::set_parent_process_death_signal;

use crate::Options;
use crate::guest::Guest;
use crate::shape::Vmm;

/// Shuts the guest down: its vCPU threads end.
const SHUT_DOWN: Signal = Signal::SIGUSR1;
/// Boots it again, with new threads.
const BOOT: Signal = Signal::SIGUSR2;
/// How often the program checks whether the guest runs.
const POLL_INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

pub fn main(options: &Options) -> anyhow::Result<()> {
    let program = options.like.program();
    if env::args_os().next().is_none_or(|name| name != program) {
        let error = myself(program).args(env::args_os().skip(1)).exec();
        return Err(error).context("exec under another name");
    }
    if let Some(name) = &options.device {
        set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).context("PR_SET_PDEATHSIG")?;
        name_this_thread(name)?;
        loop {
            park();
        }
    }
    name_this_thread(program)?;
    // Before there are threads, which inherit it. As a container's first process it would not be ended by a signal it ignores.
    let signals = [Signal::SIGTERM, Signal::SIGINT, SHUT_DOWN, BOOT];
    let signals: SigSet = signals.into_iter().collect();
    signals.thread_block().context("block SIGTERM")?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).context("signalfd")?;

    for name in options.like.devices() {
        let device = myself(program).args(["--like", program, "--device", name]).spawn();
        device.with_context(|| format!("start the process of {name}"))?;
    }
    for name in options.like.helpers() {
        idle(name)?;
    }
    let maker = VmCreator::new(options)?;
    let guest = maker.make(options)?;
    wait_for_the_end(guest, options, &maker, &signals)
}

fn myself(program: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(program);
    command
}

fn name_this_thread(name: &str) -> anyhow::Result<()> {
    let text = CString::new(name).context("a thread's name")?;
    rustix::thread::set_name(&text).with_context(|| format!("name a thread {name}"))
}

fn idle(name: &str) -> anyhow::Result<()> {
    let thread = Builder::new().name(name.into()).spawn(|| {
        loop {
            park();
        }
    });
    thread.map(drop).with_context(|| format!("start the thread {name}"))
}

/// The thread that creates and starts the VM, as in the VMM that is imitated. KVM's events name that thread.
enum VmCreator {
    ThisThread,
    Thread {
        orders: Sender<()>,
        made: Receiver<anyhow::Result<Guest>>,
    },
}

impl VmCreator {
    fn new(options: &Options) -> anyhow::Result<Self> {
        let (like, vcpus, memory) = (options.like, options.vcpus, options.memory.clone());
        let Some(name) = like.maker() else {
            return Ok(Self::ThisThread);
        };
        let (orders, ordered) = channel();
        let (answer, made) = channel();
        let thread = Builder::new().name(name.into()).spawn(move || {
            for () in ordered {
                // Nobody waits for it any more only when the process is ending.
                let _ = answer.send(boot(like, vcpus, memory.as_deref()));
            }
        });
        thread.with_context(|| format!("start the thread {name}"))?;
        Ok(Self::Thread { orders, made })
    }

    fn make(&self, options: &Options) -> anyhow::Result<Guest> {
        match self {
            Self::ThisThread => boot(options.like, options.vcpus, options.memory.as_deref()),
            Self::Thread { orders, made } => {
                orders.send(()).context("the thread that makes the VM ended")?;
                made.recv().context("the thread that makes the VM ended")?
            }
        }
    }
}

/// A VM whose vCPUs run.
fn boot(like: Vmm, vcpus: u8, memory: Option<&Path>) -> anyhow::Result<Guest> {
    let mut guest = Guest::new(vcpus, memory)?;
    start_vcpus(like, &mut guest)?;
    Ok(guest)
}

fn start_vcpus(like: Vmm, guest: &mut Guest) -> anyhow::Result<()> {
    for (index, mut vcpu) in (0..).zip(guest.take_vcpus()) {
        let name = like.vcpu(index);
        let thread = Builder::new().name(name.clone()).spawn(move || {
            let Err(error) = vcpu.run() else { return };
            eprintln!("vCPU {index}: {error:#}");
            exit(1);
        });
        thread.with_context(|| format!("start the thread {name}"))?;
    }
    Ok(())
}

/// Says when every vCPU has counted, shuts the guest down and boots it when it is told to, and returns at SIGTERM. The vCPUs end
/// with the process.
fn wait_for_the_end(first: Guest, options: &Options, maker: &VmCreator, signals: &SignalFd) -> anyhow::Result<()> {
    let mut guest = Some(first);
    let mut runs = false;
    loop {
        if let Some(guest) = &guest
            && !runs
            && guest.has_counted(options.vcpus)?
        {
            println!("guest running");
            runs = true;
        }
        let limit = (!runs && guest.is_some()).then_some(&POLL_INTERVAL);
        match poll(&mut [PollFd::new(signals, PollFlags::IN)], limit) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error).context("wait for SIGTERM"),
        }
        let Some(signal) = signals.read_signal().context("read a signal")? else {
            continue;
        };
        match i32::try_from(signal.ssi_signo)
            .ok()
            .and_then(|number| Signal::try_from(number).ok())
        {
            Some(SHUT_DOWN) => {
                if let Some(guest) = guest.take() {
                    guest.shut_down()?;
                    println!("guest shut down");
                }
                if !options.like.stays_when_shut_down() {
                    return Ok(());
                }
            }
            Some(BOOT) if guest.is_none() => {
                guest = Some(maker.make(options)?);
                runs = false;
            }
            Some(BOOT) => {}
            _ => return Ok(()),
        }
    }
}
