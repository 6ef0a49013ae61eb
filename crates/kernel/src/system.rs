//! Everything that the engine reads and changes outside itself, in one value.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::holder::{Holders, KernelHolders};
use crate::cgroup::{Cgroups, KernelCgroups};
use crate::proc::{KernelProcs, Procs};
use crate::systemd::Systemd;

/// The kernel's and systemd's, or those of a test node.
#[derive(Clone)]
pub struct System {
    pub cgroups: Arc<dyn Cgroups>,
    pub procs: Arc<dyn Procs>,
    pub systemd: Arc<dyn Systemd>,
    pub holders: Arc<dyn Holders>,
    /// Where the cgroup hierarchy is mounted; for inotify watches.
    pub cgroup_root: PathBuf,
    /// `/sys`: CPU topology.
    pub sys: PathBuf,
    /// The kernel's release, as `uname -r` prints it.
    pub kernel: String,
    /// `/run`: the runtimes' container configurations.
    pub run: PathBuf,
}

impl System {
    /// `/`: what `/sys` is in.
    pub fn root(&self) -> &Path {
        self.sys.parent().unwrap_or(Path::new("/"))
    }

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
        }
    }
}
