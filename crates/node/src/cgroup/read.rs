//! Files of a cgroup, read as values.

use stelia_cpus::CpuSet;

use super::{CgroupError, CgroupPath, Cgroups, File};

/// Whether any process is in the cgroup or below; false for a cgroup that is gone.
pub fn populated(cgroups: &dyn Cgroups, cgroup: &CgroupPath) -> Result<bool, CgroupError> {
    let events = optional(cgroups.read(cgroup, File::Events))?;
    Ok(events.is_some_and(|text| is_populated(&text)))
}

/// Whether the text of `cgroup.events` says that a process is in the cgroup or below.
pub fn is_populated(events: &str) -> bool {
    events.lines().any(|line| line == "populated 1")
}

/// `None` for a file that is absent because its controller is not enabled, or the kernel does not have it.
pub fn optional<T>(result: Result<T, CgroupError>) -> Result<Option<T>, CgroupError> {
    match result {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

/// A CPU list of a cgroup; empty where the file is absent or empty.
///
/// # Errors
/// It cannot be read.
pub fn set(cgroups: &dyn Cgroups, cgroup: &CgroupPath, file: File) -> Result<CpuSet, CgroupError> {
    Ok(optional(cgroups.read(cgroup, file))?
        .map(|text| cpus(&text))
        .unwrap_or_default())
}

/// A CPU list as the kernel prints it. What does not parse, which this program did not write, becomes the empty set.
pub fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap_or_default()
}

/// Process or thread ids, one a line; 0 (a task outside our PID namespace) is left out.
pub fn numbers(text: &str) -> Vec<i32> {
    text.lines()
        .filter_map(|line| line.parse().ok())
        .filter(|number| *number > 0)
        .collect()
}
