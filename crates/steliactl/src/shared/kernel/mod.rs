//! The kernel's files: what runs on the VMs' CPUs, and where it runs.

pub(crate) mod interrupts;
pub(crate) mod locality;
pub(crate) mod rates;
pub(crate) mod sample;
pub(crate) mod threads;

use std::fs;
use std::path::{Path, PathBuf};

/// The mount points of the kernel's file systems; tests use a directory.
#[derive(Debug, Clone)]
pub(crate) struct Roots {
    pub proc: PathBuf,
    pub cgroup: PathBuf,
    pub sys: PathBuf,
}

impl Roots {
    pub(crate) fn below(root: &Path) -> Self {
        Self {
            proc: root.join("proc"),
            cgroup: root.join("sys/fs/cgroup"),
            sys: root.join("sys"),
        }
    }
}

/// The entries of a folder whose names are numbers, such as processes in /proc; none where it cannot be read.
pub(crate) fn numbered(folder: &Path) -> impl Iterator<Item = (i32, PathBuf)> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
}

/// The host's name, below `proc`; empty where it cannot be read.
pub(crate) fn host_name(proc: &Path) -> String {
    let name = fs::read_to_string(proc.join("sys/kernel/hostname"));
    name.map(|name| name.trim().to_owned()).unwrap_or_default()
}
