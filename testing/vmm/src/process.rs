//! The process: its names, threads and children, and its end.

use std::env;
use std::ffi::CString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::exit;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use test_vmm::recording::{Moment, Vmm};

use crate::Options;
use crate::guest::Guest;
use crate::idle::{Idle, be_device, myself, start_device_in_namespaces};
use crate::shape::Shape;

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
    let shape = Shape::of(options.like)?;
    if env::args_os().next().is_none_or(|name| name != shape.program()) {
        let error = myself(shape.program()).args(env::args_os().skip(1)).exec();
        return Err(error).context("exec under another name");
    }
    if let Some(name) = &options.device {
        return device(&shape, name, options.namespaces);
    }
    name_this_thread(shape.comm())?;
    // Before there are threads, which inherit it. As a container's first process it would not be ended by a signal it ignores.
    let signals = [Signal::SIGTERM, Signal::SIGINT, SHUT_DOWN, BOOT];
    let signals: SigSet = signals.into_iter().collect();
    signals.thread_block().context("block SIGTERM")?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).context("signalfd")?;

    let mut idle = Idle::new()?;
    idle.show_moment(&shape, Moment::Booting)?;
    let creator = VmCreator::new(&shape, options)?;
    let guest = creator.create(options)?;
    let vm = Vm {
        shape,
        idle,
        creator,
        guest: Some(guest),
        runs: false,
    };
    vm.wait_for_the_end(options, &signals)
}

fn device(shape: &Shape, name: &str, namespaces: bool) -> anyhow::Result<()> {
    if !namespaces {
        return be_device(name);
    }
    let arguments = env::args().skip(1).filter(|word| word != "--namespaces");
    start_device_in_namespaces(shape.program(), &arguments.collect::<Vec<_>>())
}

pub fn name_this_thread(name: &str) -> anyhow::Result<()> {
    let text = CString::new(name).context("a thread's name")?;
    rustix::thread::set_name(&text).with_context(|| format!("name a thread {name}"))
}

/// The thread that creates and starts the VM, as in the VMM that is imitated. KVM's events name that thread.
enum VmCreator {
    ThisThread,
    Thread {
        orders: Sender<()>,
        created: Receiver<anyhow::Result<Guest>>,
    },
}

impl VmCreator {
    fn new(shape: &Shape, options: &Options) -> anyhow::Result<Self> {
        let (like, vcpus, memory) = (options.like, options.vcpus, options.memory.clone());
        let Some(name) = shape.vm_creator() else {
            return Ok(Self::ThisThread);
        };
        let (orders, ordered) = channel();
        let (answer, created) = channel();
        let thread = Builder::new().name(name.into()).spawn(move || {
            for () in ordered {
                // Nobody waits for it any more only when the process is ending.
                let _ = answer.send(boot(like, vcpus, memory.as_deref()));
            }
        });
        thread.with_context(|| format!("start the thread {name}"))?;
        Ok(Self::Thread { orders, created })
    }

    fn create(&self, options: &Options) -> anyhow::Result<Guest> {
        match self {
            Self::ThisThread => boot(options.like, options.vcpus, options.memory.as_deref()),
            Self::Thread { orders, created } => {
                orders.send(()).context("the thread that creates the VM ended")?;
                created.recv().context("the thread that creates the VM ended")?
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
        let name = format!("{}{index}", like.vcpu_prefix());
        let thread = Builder::new().name(name.clone()).spawn(move || {
            let Err(error) = vcpu.run() else { return };
            eprintln!("vCPU {index}: {error:#}");
            exit(1);
        });
        thread.with_context(|| format!("start the thread {name}"))?;
    }
    Ok(())
}

/// The VMM and its guest, if that is not shut down.
struct Vm {
    shape: Shape,
    idle: Idle,
    creator: VmCreator,
    guest: Option<Guest>,
    /// Whether every vCPU has counted.
    runs: bool,
}

impl Vm {
    /// Says when every vCPU has counted, shuts the guest down and boots it when it is told to, and returns at SIGTERM. The vCPUs end
    /// with the process.
    fn wait_for_the_end(mut self, options: &Options, signals: &SignalFd) -> anyhow::Result<()> {
        loop {
            self.look(options)?;
            let limit = (!self.runs && self.guest.is_some()).then_some(&POLL_INTERVAL);
            match poll(&mut [PollFd::new(signals, PollFlags::IN)], limit) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error).context("wait for SIGTERM"),
            }
            let Some(signal) = signals.read_signal().context("read a signal")? else {
                continue;
            };
            let number = i32::try_from(signal.ssi_signo).ok();
            match number.and_then(|number| Signal::try_from(number).ok()) {
                Some(SHUT_DOWN) => {
                    self.shut_down()?;
                    if !self.shape.stays_when_shut_down() {
                        return Ok(());
                    }
                }
                Some(BOOT) => self.boot(options)?,
                _ => return Ok(()),
            }
        }
    }

    fn look(&mut self, options: &Options) -> anyhow::Result<()> {
        if let Some(guest) = &self.guest
            && !self.runs
            && guest.has_counted(options.vcpus)?
        {
            self.idle.show_moment(&self.shape, Moment::Booted)?;
            println!("guest running");
            self.runs = true;
        }
        Ok(())
    }

    fn shut_down(&mut self) -> anyhow::Result<()> {
        let Some(guest) = self.guest.take() else { return Ok(()) };
        guest.shut_down()?;
        if self.shape.stays_when_shut_down() {
            self.idle.show_moment(&self.shape, Moment::ShutDown)?;
        }
        println!("guest shut down");
        Ok(())
    }

    fn boot(&mut self, options: &Options) -> anyhow::Result<()> {
        if self.guest.is_none() {
            self.idle.show_moment(&self.shape, Moment::Booting)?;
            self.guest = Some(self.creator.create(options)?);
            self.runs = false;
        }
        Ok(())
    }
}
