//! The threads of an instance as the kernel has them: their cgroup, allowed CPUs and CPU time.
//!
//! Everything is read once and nothing is locked: a process or thread that ends meanwhile is left out.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::str::FromStr;

use serde::Serialize;

use stelia_kernel::cgroup::CgroupPath;
use stelia_model::Instance;
use stelia_model::record::Tree;
use stelia_settings::Isolation;

use super::Roots;
use crate::shared::daemon::Failure;

/// utime and stime in `/proc/<pid>/stat` are counted in USER_HZ, which is 100 on every architecture systemd's users run
/// (`include/asm-generic/param.h`); one tick is this many microseconds.
const TICK_USEC: u64 = 10_000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Process {
    /// Process id on the host.
    pub pid: u32,
    /// Process id in the container's own PID namespace, where it has one.
    pub container_pid: Option<u32>,
    pub name: String,
    pub threads: Vec<Thread>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Thread {
    /// Thread id on the host.
    pub tid: u32,
    /// Set by the process itself, so it may contain anything.
    pub name: String,
    /// `float`, `vcpu` or `origin`; the cgroup's path if it is in none of the three.
    pub cgroup: String,
    /// The CPUs it may run on, as a CPU list: its affinity within its cpuset.
    pub allowed_cpus: String,
    /// User and system time, in microseconds, to the tick.
    pub cpu_time_us: u64,
}

/// The processes of an instance, those of its scope first, then those left in the container's own cgroup (the anchor, and
/// shells that were exec'd in). Both cgroups are given relative to the cgroup root. Without root, what may not be read is an
/// error, not an absence.
pub(crate) fn processes(
    roots: &Roots,
    control_group: &str,
    origin: &str,
    isolation: Isolation,
) -> Result<Vec<Process>, Failure> {
    let places = CgroupNames {
        scope: trim(control_group),
        origin: trim(origin),
        isolation,
    };
    let tree = members(roots, places.scope)?;
    let left = if places.origin.is_empty() {
        BTreeSet::new()
    } else {
        pids(&roots.cgroup.join(places.origin).join("cgroup.procs"))?
    };
    let mut processes = Vec::new();
    for pid in tree.iter().chain(left.difference(&tree)) {
        processes.extend(process(roots, *pid, &places)?);
    }
    Ok(processes)
}

pub(crate) fn members(roots: &Roots, control_group: &str) -> Result<BTreeSet<u32>, Failure> {
    // `cgroup.procs` of a threaded domain's root lists all processes whose threads are in its float and vcpu.
    let domain = tree(control_group, Isolation::Vcpus).map(|tree| tree.inner().as_str().to_owned());
    pids(
        &roots
            .cgroup
            .join(trim(&domain.unwrap_or_default()))
            .join("cgroup.procs"),
    )
}

/// The cgroups of an instance; `None` where this is no cgroup's path.
pub(crate) fn tree(control_group: &str, isolation: Isolation) -> Option<Tree> {
    let scope = CgroupPath::parse(&format!("/{}", trim(control_group)))?;
    Some(Tree::at(scope, isolation))
}

/// The cgroup of everything except the vCPU threads; `None` where the container's own cgroup is the partition.
pub(crate) fn float(instance: &Instance) -> Option<CgroupPath> {
    let tree = tree(instance.scope.as_str(), instance.isolation).filter(Tree::has_float)?;
    Some(tree.float().clone())
}

/// The paths of an instance's cgroups, without a leading slash.
struct CgroupNames<'a> {
    scope: &'a str,
    origin: &'a str,
    isolation: Isolation,
}

impl CgroupNames<'_> {
    /// What a cgroup of `/proc/<pid>/cgroup` is called in the output.
    fn name(&self, cgroup: &str) -> String {
        let path = trim(cgroup);
        // A container whose own cgroup is the partition has no others.
        let tree = tree(self.scope, self.isolation).filter(Tree::has_float);
        let own = tree
            .iter()
            .flat_map(|tree| [(tree.float(), "float"), (tree.vcpu(), "vcpu")]);
        if let Some((_, name)) = own.into_iter().find(|(cgroup, _)| trim(cgroup.as_str()) == path) {
            return name.to_owned();
        }
        match below(path, self.origin) {
            Some("") => "origin".to_owned(),
            Some(inner) => format!("origin/{inner}"),
            None => cgroup.to_owned(),
        }
    }
}

/// `path` relative to `base`, when it is `base` or below it.
fn below<'a>(path: &'a str, base: &str) -> Option<&'a str> {
    if base.is_empty() {
        return None;
    }
    let rest = path.strip_prefix(base)?;
    if rest.is_empty() {
        Some(rest)
    } else {
        rest.strip_prefix('/')
    }
}

fn trim(cgroup: &str) -> &str {
    cgroup.trim_matches('/')
}

fn process(roots: &Roots, pid: u32, places: &CgroupNames<'_>) -> Result<Option<Process>, Failure> {
    let directory = roots.proc.join(pid.to_string());
    let Some(name) = read(&directory.join("comm"))? else {
        return Ok(None);
    };
    let Some(status) = read(&directory.join("status"))? else {
        return Ok(None);
    };
    let task = directory.join("task");
    let entries = match fs::read_dir(&task) {
        Ok(entries) => entries,
        Err(error) if gone(&error) => return Ok(None),
        Err(error) => return Err(failed(&task, &error)),
    };
    let tids: BTreeSet<u32> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    let mut threads = Vec::new();
    for tid in tids {
        threads.extend(thread(&task.join(tid.to_string()), tid, places)?);
    }
    // NSpid: one id per namespace, the host's first, the innermost last.
    let ids: Vec<u32> = field(&status, "NSpid")
        .unwrap_or("")
        .split_whitespace()
        .filter_map(|id| id.parse().ok())
        .collect();
    let container_pid = if ids.len() > 1 { ids.last().copied() } else { None };
    Ok(Some(Process {
        pid,
        container_pid,
        name: name.trim_end_matches('\n').to_owned(),
        threads,
    }))
}

fn thread(directory: &Path, tid: u32, places: &CgroupNames<'_>) -> Result<Option<Thread>, Failure> {
    let mut texts = Vec::with_capacity(4);
    for file in ["comm", "status", "stat", "cgroup"] {
        let Some(text) = read(&directory.join(file))? else {
            return Ok(None);
        };
        texts.push(text);
    }
    let [name, status, stat, cgroup] = texts.as_slice() else {
        return Ok(None);
    };
    let unified = cgroup.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("");
    Ok(Some(Thread {
        tid,
        name: name.trim_end_matches('\n').to_owned(),
        cgroup: places.name(unified),
        allowed_cpus: field(status, "Cpus_allowed_list").unwrap_or("").to_owned(),
        cpu_time_us: ticks(stat).unwrap_or(0) * TICK_USEC,
    }))
}

/// A field of a `stat` line, by its number in proc(5). The second, the name, may contain blanks and parentheses: the third begins after
/// the last closing one.
pub(crate) fn stat_field<T: FromStr>(stat: &str, number: usize) -> Option<T> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(number - 3)?.parse().ok()
}

/// utime + stime of a `stat` line, in ticks.
pub(crate) fn ticks(stat: &str) -> Option<u64> {
    Some(stat_field::<u64>(stat, 14)?.saturating_add(stat_field(stat, 15)?))
}

/// The value of a line `Name:\tvalue`, as in a status file, or `name : value`, as in `sched`.
pub(crate) fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'))
        .map(str::trim)
}

/// The ids in a cgroup.procs; empty when the cgroup is gone.
fn pids(path: &Path) -> Result<BTreeSet<u32>, Failure> {
    Ok(read(path)?
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect())
}

/// The text of a file; `None` when its process or cgroup has ended. Names may be in any encoding.
fn read(path: &Path) -> Result<Option<String>, Failure> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if gone(&error) => Ok(None),
        Err(error) => Err(failed(path, &error)),
    }
}

/// ENOENT before the open, ESRCH (of /proc) or ENODEV (of a cgroup) after it.
fn gone(error: &io::Error) -> bool {
    const ESRCH: i32 = 3;
    const ENODEV: i32 = 19;
    error.kind() == ErrorKind::NotFound || matches!(error.raw_os_error(), Some(ESRCH | ENODEV))
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::Other(format!("read {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_have_names() {
        let places = CgroupNames {
            scope: "stelia.slice/a.scope",
            origin: "kubepods.slice/c.scope",
            isolation: Isolation::Vcpus,
        };
        assert_eq!(places.name("/stelia.slice/a.scope/instance/float"), "float");
        assert_eq!(places.name("/stelia.slice/a.scope/instance/vcpu"), "vcpu");
        assert_eq!(places.name("/kubepods.slice/c.scope"), "origin");
        assert_eq!(places.name("/kubepods.slice/c.scope/inner"), "origin/inner");
        assert_eq!(places.name("/kubepods.slice/c.scope2"), "/kubepods.slice/c.scope2");
        assert_eq!(
            places.name("/stelia.slice/a.scope/instance"),
            "/stelia.slice/a.scope/instance"
        );
    }

    #[test]
    fn without_an_origin_nothing_is_in_it() {
        let nowhere = CgroupNames {
            scope: "s",
            origin: "",
            isolation: Isolation::Vcpus,
        };
        assert_eq!(nowhere.name("/x"), "/x");
    }

    #[test]
    fn a_container_that_is_a_partition_has_no_cgroups_of_steliads() {
        let places = CgroupNames {
            scope: "kubepods.slice/c.scope",
            origin: "kubepods.slice/c.scope",
            isolation: Isolation::Container,
        };
        assert_eq!(places.name("/kubepods.slice/c.scope"), "origin");
        assert_eq!(
            places.name("/kubepods.slice/c.scope/housekeeping"),
            "origin/housekeeping"
        );
    }
}
