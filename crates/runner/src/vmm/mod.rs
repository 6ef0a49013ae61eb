//! A VM as the runner needs it: its threads, its run state, how its guest is started and ended. The source is QMP, the HTTP API of
//! Cloud Hypervisor and Firecracker, or only the names of threads.

mod api;
mod kind;
mod qemu;
mod thread_names;

pub(crate) use api::{ApiVmm, Dialect};
pub(crate) use kind::VmmKind;
pub(crate) use qemu::Qemu;
pub(crate) use thread_names::{ThreadNames, find_vm};

use std::future::Future;
use std::path::Path;
use std::time::{Duration, Instant};

use super::error::Error;
use super::memory::GuestMemory;
use super::qmp::{Iothread, Vcpu};
use super::state::Window;

/// The run state of a guest that was shut down while its VMM stays: its QMP name.
pub(crate) const SHUT_DOWN: &str = "shutdown";

/// The threads of a VM, as they were when asked.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Threads {
    /// By ascending index.
    pub(crate) vcpus: Vec<Vcpu>,
    /// They stay on the shared CPUs unless `--iothread-cpus=yes` is given.
    pub(crate) iothreads: Vec<Iothread>,
    /// Whether a vCPU may be plugged. No event reports that, so the threads have to be queried repeatedly.
    pub(crate) may_grow: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// The threads may have changed.
    Threads,
    /// The run state may have changed.
    RunState,
    /// The guest's memory may have changed.
    Memory,
}

/// How a guest is started once its vCPUs are in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Release {
    /// It was started paused: QMP `cont`.
    Continue,
    /// It was started with `-incoming defer` in place of this address: QMP `migrate-incoming`.
    Migration(String),
    /// The program that drives the incoming migration continues the guest.
    External,
    AlreadyRunning,
}

/// Whether the guest executes nothing, so that its vCPUs can be attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Not needed: the guest was started paused, or ran before the runner started.
    Unneeded,
    /// It does not run. The time is how long it may have run before ([`Window::wall_us`]); `None` if it did not run.
    Paused(Option<Duration>),
    /// It is not booted, or was not paused yet. The text is its run state.
    NotYet(String),
    /// It runs and cannot be paused, for this reason.
    Runs(String),
}

/// How a guest was asked to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PowerDown {
    Requested,
    /// It never ran, has migrated away, or has ended.
    NotRunning,
    /// The VMM cannot ask it, for this reason.
    Refused(String),
    /// Without a control channel, by SIGTERM.
    BySignal,
}

/// How the VMM was told to end at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quit {
    Requested,
    /// The VMM has no command for that, so by SIGTERM.
    BySignal,
}

/// How a VMM began to change the number of vCPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ResizeStart {
    /// So many vCPUs were plugged, or the guest was asked to give up so many.
    Begun(usize),
    /// The VMM cannot do it, for this reason.
    Impossible(String),
}

/// The memory of a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Memory {
    Is(GuestMemory),
    /// The VMM cannot change it, for this reason.
    Fixed(String),
}

/// A virtual machine monitor, as the runner needs it.
pub(crate) trait Vmm {
    /// For messages.
    fn name(&self) -> &'static str {
        VmmKind::Qemu.name()
    }
    /// Makes the guest execute nothing until its release. It is called again until that succeeds.
    fn hold(&mut self) -> impl Future<Output = Result<Hold, Error>> {
        std::future::ready(Ok(Hold::Unneeded))
    }
    /// The window until now.
    fn window(&self) -> Window {
        Window::default()
    }
    fn threads(&mut self) -> impl Future<Output = Result<Threads, Error>>;
    /// Whether [`Vmm::change`] reports every change of the threads and of the run state, so that they need not be queried.
    fn reports_every_change(&self) -> bool {
        false
    }
    /// Waits for a change. Cancel-safe.
    fn change(&mut self) -> impl Future<Output = Result<Change, Error>>;
    /// The run state by its QMP name; `unknown` without a monitor. A guest that was shut down while its VMM stays is
    /// [`SHUT_DOWN`], whatever the VMM calls that.
    fn run_state(&mut self) -> impl Future<Output = Result<String, Error>>;
    fn release(&mut self, how: &Release) -> impl Future<Output = Result<(), Error>>;
    /// Asks the guest to end.
    fn power_down(&mut self) -> impl Future<Output = Result<PowerDown, Error>>;
    /// Tells the VMM to end.
    fn quit(&mut self) -> impl Future<Output = Result<Quit, Error>>;
    /// Pauses a guest that runs.
    fn pause(&mut self) -> impl Future<Output = Result<(), Error>> {
        std::future::ready(Ok(()))
    }
    /// Lets a guest run that [`Vmm::pause`] paused. Returns whether it was still paused, and not in another state, as after a migration.
    fn resume(&mut self) -> impl Future<Output = Result<bool, Error>> {
        std::future::ready(Ok(false))
    }
    /// Why no vCPU can be plugged; `None` if one can be.
    fn why_not_grow(&mut self) -> impl Future<Output = Result<Option<String>, Error>> {
        std::future::ready(Ok(Some(cannot_resize(self.name()))))
    }
    /// Whether the guest is being migrated: the VMM plugs and unplugs no vCPU then.
    fn is_migrating(&mut self) -> impl Future<Output = Result<bool, Error>> {
        std::future::ready(Ok(false))
    }
    /// Changes the number of vCPUs from one to another, as far as the VM can have more. Fewer are a request to the guest, which may refuse and
    /// has until `_deadline`.
    fn resize(
        &mut self,
        _from: usize,
        _to: usize,
        _deadline: Instant,
    ) -> impl Future<Output = Result<ResizeStart, Error>> {
        std::future::ready(Ok(ResizeStart::Impossible(cannot_resize(self.name()))))
    }
    /// Repeats a request for so many vCPUs less: a guest that was booting has not seen it.
    fn request_again(&mut self, _count: usize) -> impl Future<Output = Result<(), Error>> {
        std::future::ready(Ok(()))
    }
    /// The request for fewer vCPUs has ended, with or without success. What the guest did to give them up and what stays is undone.
    fn shrunk(&mut self) -> impl Future<Output = ()> {
        std::future::ready(())
    }
    /// The guest's memory, and what the VMM can make of it.
    fn memory(&mut self) -> impl Future<Output = Result<Memory, Error>> {
        let text = format!("{} changes no guest's memory", self.name());
        std::future::ready(Ok(Memory::Fixed(text)))
    }
    /// Requests so many bytes of memory for the guest, within what [`Vmm::memory`] says. The guest plugs them or gives them up by itself, or
    /// does not. Returns why the VMM refuses.
    fn resize_memory(&mut self, _to: u64) -> impl Future<Output = Result<Option<String>, Error>> {
        let text = format!("{} changes no guest's memory", self.name());
        std::future::ready(Ok(Some(text)))
    }
    /// Closes the connection, if it has one; the next call opens a new one.
    fn disconnect(&mut self) {}
}

/// Why the number of vCPUs of a VMM of this name stays.
fn cannot_resize(name: &str) -> String {
    format!("{name} cannot change the number of vCPUs")
}

/// Whether a thread may be executing a guest: it is on a CPU, or sleeps in an ioctl, as KVM_RUN is one. A vCPU's thread whose
/// guest is paused sleeps in another call. `false` if the kernel has no `/proc/PID/task/TID/syscall` (proc(5)).
fn is_in_guest(proc: &Path, pid: i32, thread: i32) -> bool {
    let text = std::fs::read_to_string(proc.join(format!("{pid}/task/{thread}/syscall"))).unwrap_or_default();
    matches!(text.split_whitespace().next(), Some("running" | IOCTL))
}

/// The number of ioctl(2).
const IOCTL: &str = if cfg!(target_arch = "x86_64") { "16" } else { "29" };

/// How long a thread was on a CPU since its start.
fn run_time(proc: &Path, pid: i32, thread: i32) -> Option<Duration> {
    let text = std::fs::read(proc.join(format!("{pid}/task/{thread}/schedstat"))).ok()?;
    let counters = stelia_kernel::counters::task::parse(&text).ok()?;
    Some(Duration::from_nanos(counters.run_ns))
}
