//! Steps in words: for `steliactl reconcile --dry-run`, errors and subjects.

use std::fmt;

use super::Step;

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create(cgroup) => write!(f, "make cgroup {cgroup}"),
            Self::Write(cgroup, file, value) => write!(f, "write {value:?} to {} of {cgroup}", file.name()),
            Self::MoveProcess(pid, cgroup) => write!(f, "move process {pid} to {cgroup}"),
            Self::MoveThread(tid, cgroup) => write!(f, "move thread {tid} to {cgroup}"),
            Self::ResetProcess(pid) => write!(f, "let every thread of process {pid} run wherever its cpuset allows"),
            Self::ResetThread(tid) => write!(f, "let thread {tid} run wherever its cpuset allows"),
            Self::Pin(tid, cpu) => write!(f, "pin thread {tid} to CPU {cpu}"),
            Self::Confine(tid, cpus) => write!(f, "let thread {tid} run on CPUs {cpus} only"),
            Self::Remove(cgroup) => write!(f, "remove cgroup {cgroup}"),
            Self::Enter(scope, phase) => write!(f, "record that {scope} is {}", phase.name()),
            Self::Entitle { scope, entry, own } => {
                write!(f, "record the CPUs {entry} of {scope}; no other container uses {own}")
            }
            Self::Share(scope, pool) => write!(f, "record that the containers of {scope}'s pod share the CPUs {pool}"),
            Self::Place(scope, vcpus, partition) => {
                let (count, kind) = (vcpus.len(), partition.name());
                write!(f, "record the places of {count} vCPUs of {scope}, partition {kind}")
            }
            Self::RecordPinned(scope, _) => write!(f, "record that {scope} gets no partition"),
            Self::Retry(scope, partition) => {
                let kind = partition.name();
                write!(
                    f,
                    "record that the kernel is asked again for a partition of {scope}, {kind}"
                )
            }
            Self::Limit(unit, _) => write!(f, "set limits of {unit}"),
            Self::SetOurs(cgroup, cpus) if cpus.is_empty() => {
                write!(f, "take back every exclusive CPU that was added to {cgroup}")
            }
            Self::SetOurs(cgroup, cpus) => {
                write!(f, "set steliad's part of cpuset.cpus.exclusive of {cgroup} to {cpus}")
            }
            Self::Extend(cgroup, cpus) => write!(f, "add {cpus} to cpuset.cpus.exclusive of {cgroup}"),
            Self::Unregister(cgroup) => write!(f, "remove the record of {cgroup}"),
            Self::Weigh(weight) => write!(f, "set CPUWeight={weight} of stelia.slice"),
            Self::KeepWorkersOff(cpus) => {
                write!(f, "keep the kernel's unbound workers off CPUs {:?}", cpus.to_string())
            }
            Self::Protect { min, low } => write!(f, "set MemoryMin={min} and MemoryLow={low} of stelia.slice"),
            Self::Restrict { unit, cpus, .. } => write!(f, "set AllowedCPUs={cpus} of {unit}"),
            Self::Forget(scope) => write!(f, "remove the empty scope {scope}"),
            Self::Unrecord(unit) => write!(f, "remove the record of {unit}, which no longer exists"),
            Self::Restore(unit, cpus) => write!(f, "give {unit} its CPUs back: {cpus}"),
        }
    }
}
