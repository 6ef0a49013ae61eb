//! The threads of an instance as the kernel has them: their cgroup, allowed CPUs and CPU time.
//!
//! Everything is read once and nothing is locked: a process or thread that ends meanwhile is left out.

use std::collections::BTreeSet;

use serde::Serialize;

use stelia_kernel::cgroup::{CgroupPath, Cgroups, File, KernelCgroups, numbers, optional};
use stelia_kernel::proc::{KernelProcs, ProcError, Procs, stat};
use stelia_model::Instance;
use stelia_model::record::Tree;
use stelia_settings::Isolation;

use super::Roots;
use crate::shared::daemon::Failure;

/// The kernel counts a thread's time in ticks of so many microseconds (USER_HZ).
const TICK_USEC: u64 = 10_000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Process {
    /// Process id on the host.
    pub pid: i32,
    /// Process id in the container's own PID namespace, where it has one.
    pub container_pid: Option<i32>,
    pub name: String,
    pub threads: Vec<Thread>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Thread {
    /// Thread id on the host.
    pub tid: i32,
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
    let origin = cgroup(places.origin).filter(|_| !places.origin.is_empty());
    let left = pids(roots, origin)?;
    let procs = KernelProcs::new(&roots.proc);
    let mut processes = Vec::new();
    for pid in tree.iter().chain(left.difference(&tree)) {
        processes.extend(process(&procs, *pid, &places)?);
    }
    Ok(processes)
}

pub(crate) fn members(roots: &Roots, control_group: &str) -> Result<BTreeSet<i32>, Failure> {
    // `cgroup.procs` of a threaded domain's root lists all processes whose threads are in its float and vcpu.
    let domain = tree(control_group, Isolation::Vcpus).map(|tree| tree.inner().clone());
    pids(roots, domain)
}

/// The cgroups of an instance; `None` where this is no cgroup's path.
pub(crate) fn tree(control_group: &str, isolation: Isolation) -> Option<Tree> {
    Some(Tree::at(cgroup(control_group)?, isolation))
}

fn cgroup(path: &str) -> Option<CgroupPath> {
    CgroupPath::parse(&format!("/{}", trim(path)))
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

fn process(procs: &KernelProcs, pid: i32, places: &CgroupNames<'_>) -> Result<Option<Process>, Failure> {
    let read = || Ok((procs.numbers(pid)?, procs.thread_ids(pid)?));
    let Some((numbers, mut tids)) = there(read())? else {
        return Ok(None);
    };
    tids.sort_unstable();
    let mut threads = Vec::new();
    for tid in tids {
        threads.extend(there(thread(procs, tid, places))?);
    }
    Ok(Some(Process {
        pid,
        container_pid: numbers.get(1..).and_then(|inner| inner.last().copied()),
        name: procs.name(pid),
        threads,
    }))
}

fn thread(procs: &KernelProcs, tid: i32, places: &CgroupNames<'_>) -> Result<Thread, ProcError> {
    Ok(Thread {
        tid,
        name: procs.name(tid),
        cgroup: places.name(procs.cgroup(tid)?.as_str()),
        allowed_cpus: procs.affinity(tid)?.to_string(),
        cpu_time_us: stat::cpu_ticks(&procs.read_thread_stat(tid)?).unwrap_or(0) * TICK_USEC,
    })
}

/// The ids of a cgroup's processes; none where the cgroup is gone.
fn pids(roots: &Roots, cgroup: Option<CgroupPath>) -> Result<BTreeSet<i32>, Failure> {
    let Some(cgroup) = cgroup else {
        return Ok(BTreeSet::new());
    };
    let text = optional(KernelCgroups::new(&roots.cgroup).read(&cgroup, File::Procs));
    let text = text.map_err(|error| Failure::Other(error.to_string()))?;
    Ok(numbers(&text.unwrap_or_default()).into_iter().collect())
}

/// `None` of a process or thread that has ended.
fn there<T>(read: Result<T, ProcError>) -> Result<Option<T>, Failure> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(Failure::Other(error.to_string())),
    }
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
