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

/// The processes of an instance, those of its scope first, then those left in the container's own cgroup (the placeholder process, and
/// shells that were exec'd in). Both cgroups are given relative to the cgroup root. Without root, what may not be read is an
/// error, not an absence.
pub(crate) fn processes(
    roots: &Roots,
    control_group: &str,
    origin: &str,
    isolation: Isolation,
) -> Result<Vec<Process>, Failure> {
    let places = Places {
        tree: tree(control_group, isolation),
        origin: cgroup(origin),
    };
    let inside = members(roots, control_group)?;
    let left = pids(roots, places.origin.as_ref())?;
    let procs = KernelProcs::new(&roots.proc);
    let mut processes = Vec::new();
    for pid in inside.iter().chain(left.difference(&inside)) {
        processes.extend(there(process(&procs, *pid, &places))?);
    }
    Ok(processes)
}

pub(crate) fn members(roots: &Roots, control_group: &str) -> Result<BTreeSet<i32>, Failure> {
    // `cgroup.procs` of a threaded domain's root lists all processes whose threads are in its float and vcpu.
    let domain = tree(control_group, Isolation::Vcpus);
    pids(roots, domain.as_ref().map(Tree::inner))
}

/// The cgroup of this path, with or without a slash at its beginning; `None` where it is none, or the root.
fn cgroup(path: &str) -> Option<CgroupPath> {
    let cgroup = CgroupPath::parse(&format!("/{}", path.trim_matches('/')))?;
    (cgroup != CgroupPath::root()).then_some(cgroup)
}

fn tree(control_group: &str, isolation: Isolation) -> Option<Tree> {
    Some(Tree::at(cgroup(control_group)?, isolation))
}

/// The cgroup of everything except the vCPU threads; `None` where the container's own cgroup is the partition.
pub(crate) fn float(instance: &Instance) -> Option<CgroupPath> {
    let tree = Tree::at(instance.scope.clone(), instance.isolation);
    tree.has_float().then(|| tree.float().clone())
}

/// Where the cgroups of an instance are.
struct Places {
    tree: Option<Tree>,
    origin: Option<CgroupPath>,
}

impl Places {
    /// What a cgroup is called in the output.
    fn name(&self, cgroup: &CgroupPath) -> String {
        // A container whose own cgroup is the partition has no others.
        let tree = self.tree.as_ref().filter(|tree| tree.has_float());
        let origin = self.origin.as_ref().filter(|origin| cgroup.is_within(origin));
        match (tree, origin) {
            (Some(tree), _) if cgroup == tree.float() => "float".to_owned(),
            (Some(tree), _) if cgroup == tree.vcpu() => "vcpu".to_owned(),
            (_, Some(origin)) => cgroup.as_str().replacen(origin.as_str(), "origin", 1),
            _ => cgroup.to_string(),
        }
    }
}

fn process(procs: &KernelProcs, pid: i32, places: &Places) -> Result<Process, ProcError> {
    let numbers = procs.numbers(pid)?;
    let mut tids = procs.thread_ids(pid)?;
    tids.sort_unstable();
    let mut threads = Vec::new();
    for tid in tids {
        match thread(procs, tid, places) {
            Err(error) if error.is_gone() => {}
            thread => threads.push(thread?),
        }
    }
    Ok(Process {
        pid,
        container_pid: numbers.get(1..).and_then(|inner| inner.last().copied()),
        name: procs.name(pid),
        threads,
    })
}

fn thread(procs: &KernelProcs, tid: i32, places: &Places) -> Result<Thread, ProcError> {
    Ok(Thread {
        tid,
        name: procs.name(tid),
        cgroup: places.name(&procs.cgroup(tid)?),
        allowed_cpus: procs.affinity(tid)?.to_string(),
        cpu_time_us: stat::cpu_ticks(&procs.read_thread_stat(tid)?).unwrap_or(0) * TICK_USEC,
    })
}

/// The ids of a cgroup's processes; none where the cgroup is gone.
fn pids(roots: &Roots, cgroup: Option<&CgroupPath>) -> Result<BTreeSet<i32>, Failure> {
    let cgroups = KernelCgroups::new(&roots.cgroup);
    let text = cgroup.map(|cgroup| optional(cgroups.read(cgroup, File::Procs)));
    let text = text.transpose().map_err(|error| Failure::Other(error.to_string()))?;
    Ok(numbers(&text.flatten().unwrap_or_default()).into_iter().collect())
}

/// `None` of a process that has ended.
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
        let of = |scope: &str, origin: &str, isolation, path: &str| {
            let (tree, origin) = (tree(scope, isolation), cgroup(origin));
            Places { tree, origin }.name(&cgroup(path).unwrap())
        };
        for (path, name) in [
            ("/stelia.slice/a.scope/instance/float", "float"),
            ("/stelia.slice/a.scope/instance/vcpu", "vcpu"),
            ("/kubepods.slice/c.scope", "origin"),
            ("/kubepods.slice/c.scope/inner", "origin/inner"),
            ("/kubepods.slice/c.scope2", "/kubepods.slice/c.scope2"),
            ("/stelia.slice/a.scope/instance", "/stelia.slice/a.scope/instance"),
        ] {
            let (scope, origin) = ("stelia.slice/a.scope", "kubepods.slice/c.scope");
            assert_eq!(of(scope, origin, Isolation::Vcpus, path), name);
        }
        assert_eq!(of("s", "", Isolation::Vcpus, "/x"), "/x");
        // A container that is a partition has no cgroups of steliad's.
        let own = "/kubepods.slice/c.scope";
        let below = format!("{own}/housekeeping");
        assert_eq!(of(own, own, Isolation::Container, &below), "origin/housekeeping");
    }
}
