//! Files of a cgroup, read as values.

use std::io;

use stelia_cpus::{CpuSet, NodeSet};

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
pub fn read_cpus(cgroups: &dyn Cgroups, cgroup: &CgroupPath, file: File) -> Result<CpuSet, CgroupError> {
    Ok(read_optional_cpus(cgroups, cgroup, file)?.unwrap_or_default())
}

/// A CPU list of a cgroup; `None` where the file is absent.
pub fn read_optional_cpus(
    cgroups: &dyn Cgroups,
    cgroup: &CgroupPath,
    file: File,
) -> Result<Option<CpuSet>, CgroupError> {
    let Some(text) = optional(cgroups.read(cgroup, file))? else {
        return Ok(None);
    };
    match text.parse() {
        Ok(cpus) => Ok(Some(cpus)),
        // An empty set would say that nothing is taken or allowed there.
        Err(_) => Err(CgroupError {
            operation: format!("read {cgroup}/{}", file.name()),
            cause: io::Error::new(io::ErrorKind::InvalidData, format!("{text:?} is not a CPU list")),
        }),
    }
}

/// The number of a line `name number`, as in `cpu.stat`.
pub fn value(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// The memory nodes of a cgroup; none where the file is absent, or its text is no list.
pub fn read_mems(cgroups: &dyn Cgroups, cgroup: &CgroupPath) -> Result<NodeSet, CgroupError> {
    let text = optional(cgroups.read(cgroup, File::Mems))?.unwrap_or_default();
    Ok(text.trim().parse().unwrap_or_default())
}

/// A CPU list in an attribute that only this program writes. What does not parse, because something else wrote it, becomes the empty
/// set: nothing is recorded.
pub fn recorded_cpus(text: &str) -> CpuSet {
    text.parse().unwrap_or_default()
}

/// Process or thread ids, one a line; 0 (a task outside our PID namespace) is left out.
pub fn numbers(text: &str) -> Vec<i32> {
    text.lines()
        .filter_map(|line| line.parse().ok())
        .filter(|number| *number > 0)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_that_of_the_whole_name() {
        assert_eq!(value("usage_usec 12\nuser_usec 8\n", "usage_usec"), Some(12));
        assert_eq!(value("user_usec 8\n", "usage_usec"), None);
    }
}
