//! cgroup v2: paths, the files that are used, and the trait [`Cgroups`], which the kernel and the test node's model
//! implement.
//!
//! Names and rules are those of the kernel's `Documentation/admin-guide/cgroup-v2.rst`.

mod file;
pub mod hierarchy;
mod kernel;
mod limits;
pub(crate) mod names;
pub mod numa_stat;
mod read;

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use stelia_cpus::text::json_string;

pub use file::{File, HugePage};
pub use kernel::KernelCgroups;
pub use limits::{CpuQuota, IoMax, Limits};
pub use read::{
    is_populated, numbers, optional, populated, read_cpus, read_mems, read_optional_cpus, recorded_cpus, value,
};

/// The units directly in the root that have the host's own processes.
pub const OUTSIDE: [&str; 3] = ["system.slice", "user.slice", "init.scope"];

/// A cgroup's path below the cgroup root, as `/proc/<pid>/cgroup` prints it: `/stelia.slice/…`. Bytes that are not UTF-8 are
/// characters for private use (names.rs).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CgroupPath(String);

impl CgroupPath {
    /// Accept an absolute path without `.` or `..` parts; trailing slashes are dropped.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix('/')?.trim_end_matches('/');
        let bad = |part: &str| part.is_empty() || part == "." || part == ".." || part.contains('\0');
        if !rest.is_empty() && rest.split('/').any(bad) {
            return None;
        }
        Some(Self(format!("/{rest}")))
    }

    pub fn root() -> Self {
        Self("/".into())
    }

    /// `stelia.slice`, which all instances are in.
    pub fn slice() -> Self {
        Self("/stelia.slice".into())
    }

    pub fn child(&self, name: &str) -> Self {
        Self(format!("{}/{name}", self.0.trim_end_matches('/')))
    }

    /// `None` for the root and for what lies directly in it.
    pub fn parent(&self) -> Option<Self> {
        let (parent, _) = self.0.rsplit_once('/')?;
        (!parent.is_empty()).then(|| Self(parent.to_owned()))
    }

    /// Begins with `/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last part of the path; empty for the root.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// Whether this cgroup is `other` or lies below it.
    pub fn is_within(&self, other: &Self) -> bool {
        let below = self.0.strip_prefix(other.0.trim_end_matches('/'));
        below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

impl fmt::Display for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Default for CgroupPath {
    fn default() -> Self {
        Self::root()
    }
}

json_string!(CgroupPath, |text: &str| {
    CgroupPath::parse(text).ok_or_else(|| format!("{text:?} is not a cgroup's path"))
});

/// An operation on a cgroup, or on the kernel's workqueues, that failed: what was done, where, and the kernel's answer.
#[derive(Debug, thiserror::Error)]
#[error("{operation}: {cause}")]
pub struct CgroupError {
    /// The operation with its path and value, as in `write "2-3" to /stelia.slice/cpuset.cpus`.
    pub operation: String,
    #[source]
    pub cause: io::Error,
}

impl CgroupError {
    /// The cgroup, or the task that was to be moved, is not there (any more).
    pub fn is_gone(&self) -> bool {
        // ENODEV: the directory was removed between open and read or write. ESRCH: the task ended.
        matches!(self.cause.raw_os_error(), Some(code) if code == nix::libc::ENOENT || code == nix::libc::ENODEV || code == nix::libc::ESRCH)
    }
}

/// What is read and written of cgroup v2. The kernel's implementation is [`KernelCgroups`]. An error is the
/// kernel's answer.
pub trait Cgroups: Send + Sync {
    fn exists(&self, cgroup: &CgroupPath) -> bool;
    /// Names of the cgroups directly in this one, sorted.
    fn children(&self, cgroup: &CgroupPath) -> Result<Vec<String>, CgroupError>;
    /// So many of them at most, whichever they are: a container can make any number of cgroups in one that it may write.
    fn some_children(&self, cgroup: &CgroupPath, most: usize) -> Result<Vec<String>, CgroupError> {
        let mut names = self.children(cgroup)?;
        names.truncate(most);
        Ok(names)
    }
    /// A file's text without its last newline.
    fn read(&self, cgroup: &CgroupPath, file: File) -> Result<String, CgroupError>;
    /// Write a value in one `write(2)`.
    fn write(&self, cgroup: &CgroupPath, file: File, value: &str) -> Result<(), CgroupError>;
    /// Make the cgroup. It may exist already.
    fn create(&self, cgroup: &CgroupPath) -> Result<(), CgroupError>;
    /// Remove the cgroup. It may be gone already. EBUSY while it is populated or has children.
    fn remove(&self, cgroup: &CgroupPath) -> Result<(), CgroupError>;
    /// The user who owns the directory: with a user namespace the container's root, if the runtime gave it its cgroup.
    fn owner(&self, cgroup: &CgroupPath) -> Result<u32, CgroupError>;
    /// The extended attributes `user.stelia.*` of the directory, without that prefix.
    fn attributes(&self, cgroup: &CgroupPath) -> Result<BTreeMap<String, String>, CgroupError>;
    /// One of them; `None` where it is not set.
    fn attribute(&self, cgroup: &CgroupPath, name: &str) -> Result<Option<String>, CgroupError> {
        Ok(self.attributes(cgroup)?.remove(name))
    }
    /// Set one extended attribute `user.stelia.<name>`.
    fn set_attribute(&self, cgroup: &CgroupPath, name: &str, value: &str) -> Result<(), CgroupError>;
    /// Remove one. It may be missing.
    fn remove_attribute(&self, cgroup: &CgroupPath, name: &str) -> Result<(), CgroupError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_dots_or_without_a_root_is_none() {
        for text in ["", "a", "/a/../b", "/a//b", "/./a"] {
            assert_eq!(CgroupPath::parse(text), None, "{text}");
        }
        assert_eq!(CgroupPath::parse("/a/b/").unwrap().as_str(), "/a/b");
    }

    #[test]
    fn parents_end_below_the_root() {
        let path = CgroupPath::parse("/a/b").unwrap();
        assert_eq!(path.parent().unwrap().as_str(), "/a");
        assert_eq!(path.parent().unwrap().parent(), None);
    }

    #[test]
    fn within_is_by_whole_names() {
        let slice = CgroupPath::slice();
        assert!(slice.child("x").is_within(&slice) && slice.is_within(&slice));
        assert!(slice.is_within(&CgroupPath::root()) && CgroupPath::root().is_within(&CgroupPath::root()));
        assert!(!CgroupPath::root().is_within(&slice));
        assert!(!CgroupPath::parse("/stelia.slice2").unwrap().is_within(&slice));
    }
}
