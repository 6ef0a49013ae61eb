//! The seams behind which the system stands, gathered.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::holder::{Holders, KernelHolders};
use crate::cgroup::{CgroupError, Cgroups, KernelCgroups};
use crate::proc::{KernelProcs, ProcError, Procs};
use crate::systemd::{Systemd, SystemdError};
use crate::workqueue::WorkqueueError;
use stelia_api::{Kind, Refusal};
use stelia_cpus::CpuSet;

/// Everything the engine touches outside itself.
#[derive(Clone)]
pub struct System {
    /// cgroup v2.
    pub cgroups: Arc<dyn Cgroups>,
    /// Processes.
    pub procs: Arc<dyn Procs>,
    /// systemd.
    pub systemd: Arc<dyn Systemd>,
    /// Processes of ours that keep a new scope alive.
    pub holders: Arc<dyn Holders>,
    /// Where the cgroup hierarchy is mounted; for inotify watches.
    pub cgroup_root: PathBuf,
    /// `/sys`: CPU topology.
    pub sys: PathBuf,
    /// The kernel's release, as `uname -r` prints it.
    pub kernel: String,
    /// `/run`: the runtimes' container configurations.
    pub run: PathBuf,
    /// Where the process is to die, in tests of what is found afterwards.
    pub failpoint: Failpoint,
}

impl System {
    /// `/`: what `/sys` is in.
    pub fn root(&self) -> &Path {
        self.sys.parent().unwrap_or(Path::new("/"))
    }

    /// The real system.
    pub fn kernel(systemd: Arc<dyn Systemd>) -> Self {
        let cgroup_root = PathBuf::from("/sys/fs/cgroup");
        Self {
            cgroups: Arc::new(KernelCgroups::new(&cgroup_root)),
            procs: Arc::new(KernelProcs::new("/proc")),
            systemd,
            holders: Arc::new(KernelHolders),
            cgroup_root,
            sys: "/sys".into(),
            kernel: nix::sys::utsname::uname()
                .map(|names| names.release().to_string_lossy().into_owned())
                .unwrap_or_default(),
            run: "/run".into(),
            failpoint: Failpoint::from_environment(),
        }
    }
}

/// Kills this process with SIGKILL before its n-th change of the system: what a crash leaves behind is tested with it.
/// The number is the environment variable `STELIAD_FAILPOINT`; without it nothing happens.
#[derive(Debug, Clone, Default)]
pub struct Failpoint(Option<Arc<AtomicU32>>);

impl Failpoint {
    fn from_environment() -> Self {
        let number = std::env::var("STELIAD_FAILPOINT").ok();
        Self(
            number
                .and_then(|text| text.parse().ok())
                .map(|n| Arc::new(AtomicU32::new(n))),
        )
    }

    /// A change of the system comes next.
    pub fn here(&self) {
        if let Some(left) = &self.0
            && left.fetch_sub(1, Ordering::Relaxed) == 1
        {
            // It cannot fail for a process itself, and there is nobody left to tell.
            let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL);
        }
    }
}
