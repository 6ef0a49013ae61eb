//! The process: its names, threads and children, and its end.

use std::convert::Infallible;
use std::env;
use std::ffi::CString;
use std::os::unix::process::CommandExt;
use std::process::{Command, exit};
use std::sync::mpsc::{Sender, channel};
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

/// How often it is looked whether the guest runs.
const LOOK_AGAIN: Timespec = Timespec {
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
    let ends: SigSet = [Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
    ends.thread_block().context("block SIGTERM")?;
    let ends = SignalFd::with_flags(&ends, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).context("signalfd")?;

    for name in options.like.devices() {
        let device = myself(program).args(["--like", program, "--device", name]).spawn();
        device.with_context(|| format!("start the process of {name}"))?;
    }
    for name in options.like.helpers() {
        idle(name)?;
    }
    let guest = make(options)?;
    wait_for_the_end(&guest, options.vcpus, &ends)
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

/// The VM, made and started by the thread that does so in the VMM that is looked like. KVM's events name that thread.
fn make(options: &Options) -> anyhow::Result<Guest> {
    let (like, vcpus, memory) = (options.like, options.vcpus, options.memory.clone());
    let Some(name) = like.maker() else {
        let mut guest = Guest::new(vcpus, memory.as_deref())?;
        start_vcpus(like, &mut guest)?;
        return Ok(guest);
    };
    let (made, answer) = channel();
    let maker = Builder::new().name(name.into()).spawn(move || {
        let guest = Guest::new(vcpus, memory.as_deref()).and_then(|mut guest| {
            start_vcpus(like, &mut guest)?;
            Ok(guest)
        });
        stay(&made, guest)
    });
    maker.with_context(|| format!("start the thread {name}"))?;
    answer.recv().context("the thread that makes the VM ended")?
}

fn stay<T>(sender: &Sender<T>, value: T) -> Infallible {
    // Nobody waits for it any more only when the process is ending.
    let _ = sender.send(value);
    loop {
        park();
    }
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

/// Says when every vCPU has counted, and returns at SIGTERM. The vCPUs end with the process.
fn wait_for_the_end(guest: &Guest, vcpus: u8, ends: &SignalFd) -> anyhow::Result<()> {
    let mut runs = false;
    loop {
        if !runs && guest.has_counted(vcpus)? {
            println!("guest running");
            runs = true;
        }
        let limit = (!runs).then_some(&LOOK_AGAIN);
        match poll(&mut [PollFd::new(ends, PollFlags::IN)], limit) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error).context("wait for SIGTERM"),
        }
    }
}
