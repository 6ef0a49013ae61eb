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
/// shells that were exec'd in). Without root, what may not be read is an error, not an absence.
pub(crate) fn processes(roots: &Roots, instance: &Instance) -> Result<Vec<Process>, Failure> {
    // `cgroup.procs` of a threaded domain's root lists all processes whose threads are in its float and vcpu.
    let inside = pids(roots, Tree::at(instance.scope.clone(), Isolation::Vcpus).inner())?;
    let left = pids(roots, &instance.origin)?;
    let procs = KernelProcs::new(&roots.proc);
    let mut processes = Vec::new();
    for pid in inside.iter().chain(left.difference(&inside)) {
        match process(&procs, *pid, instance) {
            Err(error) if error.is_gone() => {}
            process => processes.push(process.map_err(|error| Failure::Other(error.to_string()))?),
        }
    }
    Ok(processes)
}

/// The ids of a cgroup's processes; none where the cgroup is gone, or not known.
fn pids(roots: &Roots, cgroup: &CgroupPath) -> Result<BTreeSet<i32>, Failure> {
    if *cgroup == CgroupPath::root() {
        return Ok(BTreeSet::new());
    }
    let text = optional(KernelCgroups::new(&roots.cgroup).read(cgroup, File::Procs));
    let text = text.map_err(|error| Failure::Other(error.to_string()))?;
    Ok(numbers(&text.unwrap_or_default()).into_iter().collect())
}

/// The cgroup of everything except the vCPU threads; `None` where the container's own cgroup is the partition.
pub(crate) fn float(instance: &Instance) -> Option<CgroupPath> {
    let tree = Tree::at(instance.scope.clone(), instance.isolation);
    tree.has_float().then(|| tree.float().clone())
}

/// What a cgroup of an instance is called in the output.
fn cgroup_name(instance: &Instance, cgroup: &CgroupPath) -> String {
    let tree = Tree::at(instance.scope.clone(), instance.isolation);
    let origin = &instance.origin;
    match cgroup {
        // A container whose own cgroup is the partition has neither.
        float if tree.has_float() && float == tree.float() => "float".to_owned(),
        vcpu if tree.has_float() && vcpu == tree.vcpu() => "vcpu".to_owned(),
        inner if *origin != CgroupPath::root() && inner.is_within(origin) => {
            inner.as_str().replacen(origin.as_str(), "origin", 1)
        }
        other => other.to_string(),
    }
}

fn process(procs: &KernelProcs, pid: i32, instance: &Instance) -> Result<Process, ProcError> {
    let numbers = procs.numbers(pid)?;
    let mut tids = procs.thread_ids(pid)?;
    tids.sort_unstable();
    let mut threads = Vec::new();
    for tid in tids {
        match thread(procs, tid, instance) {
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

fn thread(procs: &KernelProcs, tid: i32, instance: &Instance) -> Result<Thread, ProcError> {
    Ok(Thread {
        tid,
        name: procs.name(tid),
        cgroup: cgroup_name(instance, &procs.cgroup(tid)?),
        allowed_cpus: procs.affinity(tid)?.to_string(),
        cpu_time_us: stat::cpu_ticks(&procs.read_thread_stat(tid)?).unwrap_or(0) * TICK_USEC,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_have_names() {
        let of = |scope: &str, origin: &str, isolation, path: &str| {
            let parsed = |path: &str| CgroupPath::parse(path).unwrap();
            let instance = Instance {
                scope: parsed(scope),
                origin: parsed(origin),
                isolation,
                ..Instance::default()
            };
            cgroup_name(&instance, &parsed(path))
        };
        let (scope, origin) = ("/stelia.slice/a.scope", "/kubepods.slice/c.scope");
        for (path, name) in [
            ("/stelia.slice/a.scope/instance/float", "float"),
            ("/stelia.slice/a.scope/instance/vcpu", "vcpu"),
            ("/kubepods.slice/c.scope", "origin"),
            ("/kubepods.slice/c.scope/inner", "origin/inner"),
            ("/kubepods.slice/c.scope2", "/kubepods.slice/c.scope2"),
            ("/stelia.slice/a.scope/instance", "/stelia.slice/a.scope/instance"),
        ] {
            assert_eq!(of(scope, origin, Isolation::Vcpus, path), name);
        }
        assert_eq!(of(scope, "/", Isolation::Vcpus, "/x"), "/x");
        // A container that is a partition has no cgroups of steliad's.
        let below = format!("{origin}/housekeeping");
        assert_eq!(of(origin, origin, Isolation::Container, &below), "origin/housekeeping");
    }
}
