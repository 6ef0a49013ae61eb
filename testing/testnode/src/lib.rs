#![doc = include_str!("../README.md")]
//!
//! [`Model`] implements the traits [`Cgroups`](stelia_kernel::cgroup::Cgroups), [`Procs`](stelia_kernel::proc::Procs),
//! [`Systemd`](stelia_kernel::systemd::Systemd) and [`Holders`](stelia_kernel::holder::Holders), so that the real engine runs on
//! it. Rules and errno values are those of Linux 6.12; [`conformance`] is a list of them that can be run on the model and on a
//! real kernel alike.
//!
//! `cgroup-v2.rst` is `Documentation/admin-guide/cgroup-v2.rst`.

// Only tests use this crate: a comment explains a rule or a reason where one is needed.
#![allow(missing_docs)]

mod cgroups;
pub mod conformance;
mod counts;
mod cpusets;
mod files;
mod freezer;
mod hardware;
pub mod kubelet;
mod node;
mod partitions;
mod population;
mod procs;
mod systemd;
mod tenants;
mod tree;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use stelia_cpus::{CpuSet, Topology};
use stelia_kernel::cgroup::CgroupPath;
use stelia_kubelet::PodUid;
use tokio::sync::watch;

pub use counts::{Counts, Touched};
pub use files::KernelFiles;
pub use freezer::Chain;
pub use node::{Pod, Qemu, Runtime, topology};
pub use tenants::tenant_of;

use counts::CallLog;
use freezer::Link;
use partitions::Partitions;
use population::Population;
use procs::{Pidfd, Task};
use systemd::Unit;
use tree::Group;

/// What the kernel and systemd can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// Linux 6.12: remote partitions, and a thread's own affinity outlives cpuset writes.
    V6_12,
    /// Linux 6.1: no `cpuset.cpus.exclusive`, and a cpuset write drops the affinity of the threads in it.
    V6_1,
}

/// When systemd removes a scope that became empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScopeRemoval {
    /// With the call that emptied it.
    AtOnce,
    /// When [`Model::settle`] is called.
    OnCall,
}

/// The node. Clones share its state.
#[derive(Clone)]
pub struct Model {
    state: Arc<Mutex<State>>,
    /// The daemon that calls through this clone; `None` for the test itself.
    daemon: Option<u32>,
    /// The tenant who wrote what it likes into its files: [`Model::as_told_by`].
    told_by: Option<PodUid>,
    /// Whether systemd currently answers no calls.
    hanging: Arc<watch::Sender<bool>>,
}

struct State {
    kernel: Kernel,
    /// As `uname -r` prints it.
    release: String,
    scope_removal: ScopeRemoval,
    /// Whether OCI runtimes cope with threaded cgroups in a container.
    copes: bool,
    topology: Topology,
    /// Every CPU of the node, including offline ones.
    cpus: CpuSet,
    online: CpuSet,
    /// NUMA nodes.
    memory_nodes: CpuSet,
    groups: HashMap<CgroupPath, Group>,
    partitions: Partitions,
    /// Threads by id.
    tasks: BTreeMap<i32, Task>,
    /// The threads of each process.
    processes: HashMap<i32, BTreeSet<i32>>,
    population: Population,
    /// For each PID namespace: its first process, and the number of its next task.
    namespaces: Vec<(i32, i32)>,
    next_id: i32,
    clock: u64,
    /// The processes of pidfds, by device and inode: duplicates and passed descriptors are the same one.
    pidfds: BTreeMap<(u64, u64), Pidfd>,
    units: BTreeMap<String, Unit>,
    /// The directory of `sys`, `run`, `cgroup` and `kubelet`: files that are read without the traits, and files that
    /// are watched.
    directory: PathBuf,
    /// The number of the running daemon.
    daemon: u32,
    /// How many more changes it may make; `None`: any number.
    budget: Option<u32>,
    /// Whether it attempted more.
    cut: bool,
    changes: u32,
    /// A cgroup whose files the daemon cannot read.
    unreadable: Option<CgroupPath>,
    /// Chains of forks, in the order in which they were started.
    chains: Vec<Link>,
    call_log: CallLog,
}

impl Model {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A test that panicked reports that itself; the state is consistent after every call.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A change by another program than the daemon. It is not counted, and never fails because of [`Self::cut_after`].
    fn outside<T>(&self, change: impl FnOnce(&mut State) -> Result<T, Errno>) -> io::Result<T> {
        let mut state = self.lock();
        let done = change(&mut state);
        state.after_change();
        Ok(done?)
    }

    /// How many changes daemons have attempted since the node was made.
    pub fn changes(&self) -> u32 {
        self.lock().changes
    }

    /// Allows the daemon this many more changes; every later one fails with EIO, as if it had been killed there. A
    /// daemon that was cut off stays so: the next one calls [`Self::system`].
    pub fn cut_after(&self, changes: u32) {
        self.lock().budget = Some(changes);
    }

    /// Whether the daemon has attempted more changes than allowed.
    pub fn is_cut(&self) -> bool {
        self.lock().cut
    }
}

impl State {
    /// Applies the consequences of a change.
    fn after_change(&mut self) {
        if self.scope_removal == ScopeRemoval::AtOnce {
            self.remove_empty_scopes();
        }
        self.mirror_events();
    }
}

#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;
