//! Steps in words: for `steliactl reconcile --dry-run`, errors and subjects.

use std::fmt;

use super::Step;

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create(cgroup) => write!(f, "make cgroup {}", cgroup.as_str()),
            Self::Write(cgroup, file, value) => {
                write!(f, "write {value:?} to {} of {}", file.name(), cgroup.as_str())
            }
            Self::MoveProcess(pid, cgroup) => write!(f, "move process {pid} to {}", cgroup.as_str()),
            Self::MoveThread(tid, cgroup) => write!(f, "move thread {tid} to {}", cgroup.as_str()),
            Self::ResetProcess(pid) => write!(f, "let every thread of process {pid} run wherever its cpuset allows"),
            Self::ResetThread(tid) => write!(f, "let thread {tid} run wherever its cpuset allows"),
            Self::Pin(tid, cpu) => write!(f, "pin thread {tid} to CPU {cpu}"),
            Self::Confine(tid, cpus) => write!(f, "let thread {tid} run on CPUs {cpus} only"),
            Self::Remove(cgroup) => write!(f, "remove cgroup {}", cgroup.as_str()),
            Self::Enter(scope, phase) => write!(f, "record that {} is {}", scope.as_str(), phase.state().name()),
            Self::Entitle { scope, entry, own } => write!(
                f,
                "record that kubelet gives {} CPUs {entry}, of which {own} are its alone",
                scope.as_str()
            ),
            Self::Share(scope, pool) => write!(
                f,
                "record that the containers of {}'s pod share the CPUs {pool}",
                scope.as_str()
            ),
            Self::Place(scope, vcpus, partition) => {
                write!(
                    f,
                    "record the places of {} vCPUs of {}, partition {}",
                    vcpus.len(),
                    scope.as_str(),
                    partition.name()
                )
            }
            Self::Contain(scope, _) => write!(f, "record that {} gets no partition", scope.as_str()),
            Self::Retry(scope, partition) => {
                let (scope, kind) = (scope.as_str(), partition.name());
                write!(
                    f,
                    "record that the kernel is asked again for a partition of {scope}, {kind}"
                )
            }
            Self::Limit(unit, _) => write!(f, "set limits of {unit}"),
            Self::Claim(cgroup, cpus) if cpus.is_empty() => {
                write!(f, "take back every exclusive CPU that was added to {}", cgroup.as_str())
            }
            Self::Claim(cgroup, cpus) => {
                write!(
                    f,
                    "have the CPUs {cpus} among the exclusive ones of {}",
                    cgroup.as_str()
                )
            }
            Self::Unregister(cgroup) => write!(f, "remove the record of {}", cgroup.as_str()),
            Self::Weigh(weight) => write!(f, "set CPUWeight={weight} of stelia.slice"),
            Self::KeepWorkersOff(cpus) => {
                write!(f, "keep the kernel's unbound workers off CPUs {:?}", cpus.to_string())
            }
            Self::Protect { min, low } => write!(f, "set MemoryMin={min} and MemoryLow={low} of stelia.slice"),
            Self::Restrict { unit, cpus, .. } => write!(f, "set AllowedCPUs={cpus} of {unit}"),
            Self::Forget(scope) => write!(f, "remove the empty scope {}", scope.as_str()),
            Self::Unrecord(unit) => write!(f, "forget what {unit} had, which is gone"),
            Self::Restore(unit, cpus) => write!(f, "give {unit} its CPUs back: {cpus}"),
        }
    }
}
