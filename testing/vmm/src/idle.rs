//! Threads and processes that do nothing but bear a name.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};

use anyhow::Context;
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_child_subreaper;
use test_vmm::recording::{Moment, Process};

use crate::process::name_this_thread;
use crate::shape::Shape;

/// Idle threads of this process.
#[derive(Default)]
pub struct Threads(Vec<Thread>);

struct Thread {
    name: String,
    handle: JoinHandle<()>,
    /// The thread ends when this is dropped.
    end: Sender<()>,
}

impl Thread {
    fn start(name: &str) -> anyhow::Result<Self> {
        let (end, ended) = channel();
        let handle = Builder::new().name(name.to_owned()).spawn(move || {
            // Nothing is ever sent.
            let _ = ended.recv();
        });
        let handle = handle.with_context(|| format!("start the thread {name}"))?;
        let name = name.to_owned();
        Ok(Self { name, handle, end })
    }

    fn stop(self) {
        drop(self.end);
        // It cannot panic.
        let _ = self.handle.join();
    }
}

impl Threads {
    /// Have exactly those of these names.
    pub fn set_names(&mut self, names: &[&str]) -> anyhow::Result<()> {
        let mut missing = names.to_vec();
        for thread in std::mem::take(&mut self.0) {
            match missing.iter().position(|name| *name == thread.name) {
                Some(at) => {
                    missing.remove(at);
                    self.0.push(thread);
                }
                None => thread.stop(),
            }
        }
        for name in missing {
            self.0.push(Thread::start(name)?);
        }
        Ok(())
    }
}

/// The process of a device, which is told the names of its threads line by line and ends with its VMM's.
struct Device {
    comm: String,
    pipe: ChildStdin,
}

impl Device {
    fn start(shape: &Shape, process: &Process) -> anyhow::Result<Self> {
        let failed = || format!("start the process of {}", process.comm);
        let mut command = myself(&process.argv0);
        command.args(["--like", shape.vmm.name(), "--device", &process.comm]);
        if process.has_namespaces {
            command.arg("--namespaces");
        }
        let mut child = command.stdin(Stdio::piped()).spawn().with_context(failed)?;
        let pipe = child.stdin.take().with_context(failed)?;
        if process.has_namespaces {
            // It ends as soon as it has started the process in the namespaces.
            child.wait().with_context(failed)?;
        }
        let comm = process.comm.clone();
        Ok(Self { comm, pipe })
    }

    fn set_names(&mut self, names: &[String]) -> anyhow::Result<()> {
        let told = writeln!(self.pipe, "{}", names.join(","));
        told.with_context(|| format!("write to the process of {}", self.comm))
    }
}

/// All of a VMM that does nothing.
#[derive(Default)]
pub struct Idle {
    threads: Threads,
    devices: Vec<Device>,
}

impl Idle {
    /// The processes of devices are this one's children, also those that another process started for it.
    pub fn new() -> anyhow::Result<Self> {
        set_child_subreaper(true).context("PR_SET_CHILD_SUBREAPER")?;
        Ok(Self::default())
    }

    /// Look as at this moment.
    pub fn show_moment(&mut self, shape: &Shape, moment: Moment) -> anyhow::Result<()> {
        let mut old = std::mem::take(&mut self.devices);
        for process in shape.devices(moment) {
            let mut device = match old.iter().position(|device| device.comm == process.comm) {
                Some(at) => old.remove(at),
                None => Device::start(shape, process)?,
            };
            device.set_names(&process.threads)?;
            self.devices.push(device);
        }
        self.threads.set_names(&shape.idle_threads(moment))
    }
}

/// Be the process of a device.
pub fn be_device(comm: &str) -> anyhow::Result<()> {
    name_this_thread(comm)?;
    let mut threads = Threads::default();
    for line in io::stdin().lines() {
        let line = line.context("read from the VMM's process")?;
        let names: Vec<&str> = line.split(',').filter(|name| !name.is_empty()).collect();
        threads.set_names(&names)?;
    }
    Ok(())
}

/// Start the process of a device in PID and user namespaces of its own. Only a child gets into a new PID namespace.
pub fn start_device_in_namespaces(program: &str, arguments: &[String]) -> anyhow::Result<()> {
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWPID).context("unshare")?;
    let device = myself(program).args(arguments).spawn();
    device.map(drop).context("start a process in the namespaces")
}

/// This program under another name.
pub fn myself(program: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(program);
    command
}
