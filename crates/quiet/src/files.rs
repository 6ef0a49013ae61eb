//! The interface to the system: files below /proc and /sys, affinities of threads, and saved records.

use std::io;

use stelia_cpus::CpuSet;

/// The kernel's files, by absolute path.
pub trait Files {
    /// The whole file.
    fn read(&self, path: &str) -> io::Result<String>;

    /// In one `write`, with a newline appended: the kernel's files take a value at a time.
    fn write(&self, path: &str, value: &str) -> io::Result<()>;

    /// The names in a directory, sorted.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;

    /// The last part of what a symbolic link points at.
    fn link(&self, path: &str) -> io::Result<String>;

    /// The permission bits.
    fn mode(&self, path: &str) -> io::Result<u32>;

    /// Set the permission bits, which the owner may without a capability.
    ///
    /// # Errors
    /// The system's, with its number; a system without permissions does not support it.
    fn set_mode(&self, _path: &str, _mode: u32) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Make a directory; in resctrl it becomes a group with all its files.
    ///
    /// # Errors
    /// The system's, with its number; a system that has no such directories does not support it.
    fn make_directory(&self, _path: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Remove a directory of the kernel's, which need not be empty.
    ///
    /// # Errors
    /// The system's, with its number; a system that has no such directories does not support it.
    fn remove_directory(&self, _path: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The CPUs on which a thread may run.
    fn affinity(&self, thread: i32) -> io::Result<CpuSet> {
        let status = self.read(&format!("/proc/{thread}/status"))?;
        stelia_kernel::proc::allowed(&status).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Let a thread run on these CPUs. The kernel has a call and no file for this.
    ///
    /// # Errors
    /// The system's, with its number; a system without threads does not support it.
    fn set_affinity(&self, _thread: i32, _cpus: &CpuSet) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Holds the records from which changes are undone. It is lost at a reboot, as the kernel's values are.
pub trait Store {
    /// `None` if nothing was saved under this name.
    fn load(&self, name: &str) -> io::Result<Option<String>>;

    /// Replaces the whole value at once, or not at all.
    ///
    /// # Errors
    /// The system's; the former value is still there.
    fn save(&self, name: &str, value: &str) -> io::Result<()>;
}

/// The system that an order is carried out on.
#[derive(Clone, Copy)]
pub struct System<'a> {
    pub files: &'a dyn Files,
    pub store: &'a dyn Store,
}
