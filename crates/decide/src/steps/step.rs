//! One change to the system: what applies it, what waits for it, what it records.

use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::{CgroupPath, File, Limits};
use stelia_kubelet::PodUid;
use stelia_model::PinnedReason;
use stelia_model::record::{Phase, Record, VcpuThread};
use stelia_settings::Partition;

use crate::home::Above;

/// One change to the system. Each is idempotent. A new one is planned here, worded in `words.rs`, and applied in `src/engine/apply.rs`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Create a cgroup.
    Create(CgroupPath),
    /// Write a file of a cgroup.
    Write(CgroupPath, File, String),
    /// Move a process to a cgroup.
    MoveProcess(i32, CgroupPath),
    /// Move one thread within its domain.
    MoveThread(i32, CgroupPath),
    /// Let every thread of a process run wherever its cpuset allows.
    ResetProcess(i32),
    /// Let a thread run wherever its cpuset allows.
    ResetThread(i32),
    /// Let a thread run on one CPU only.
    Pin(i32, u32),
    /// Let a thread that stays in the origin run on these CPUs only, as far as its cpuset has them.
    Confine(i32, CpuSet),
    /// Remove a cgroup that is empty.
    Remove(CgroupPath),
    /// Record that the instance (its scope is given) has reached a phase.
    Enter(CgroupPath, Phase),
    /// Record the CPUs kubelet gives the instance now.
    Entitle {
        /// The instance's scope.
        scope: CgroupPath,
        /// The container's entry.
        entry: CpuSet,
        /// The part of it that no other container of the pod uses.
        own: CpuSet,
    },
    /// Record which of the pod's own CPUs its containers share; the scope is the instance's.
    Share(CgroupPath, CpuSet),
    /// Record the CPU of each vCPU thread, and the kind of partition that follows.
    Place(CgroupPath, Vec<VcpuThread>, Partition),
    /// Record that the instance is to have no partition and why: the kernel refuses it, or something forbids it by now.
    RecordPinned(CgroupPath, PinnedReason),
    /// Record the kind of partition that the kernel refused to a pinned instance and is asked for again. It stays pinned
    /// until the kernel has made the partition.
    Retry(CgroupPath, Partition),
    /// Set limits on a unit, through systemd.
    Limit(String, Box<Limits>),
    /// Set the weight of stelia.slice, through systemd.
    Weigh(u64),
    /// Set how much memory of stelia.slice is protected, bytes, through systemd.
    Protect {
        /// `memory.min`.
        min: u64,
        /// `memory.low`.
        low: u64,
    },
    /// Restrict a unit outside stelia.slice, through systemd, after recording its former CPUs.
    Restrict {
        /// The unit's name.
        unit: String,
        /// The CPUs it keeps.
        cpus: CpuSet,
        /// Its `cpuset.cpus` before, where that is not recorded yet.
        save: Option<CpuSet>,
    },
    /// Remove an empty scope that systemd did not remove, from the cgroup tree first and then from systemd: with its cgroup gone
    /// there is nothing that stopping the unit could kill.
    Forget(CgroupPath),
    /// Remove the record of a unit outside stelia.slice that is gone.
    Unrecord(String),
    /// Give a unit outside stelia.slice its former CPUs back.
    Restore(String, CpuSet),
    /// Have exactly these CPUs of instances in place in the `cpuset.cpus.exclusive` of a cgroup that is not steliad's; what
    /// others added to it stays.
    SetOurs(CgroupPath, CpuSet),
    /// Have these CPUs, too, in the `cpuset.cpus.exclusive` of a cgroup above the instance, for its partition. In a cgroup that is not
    /// steliad's they are recorded as for `SetOurs`.
    Extend(CgroupPath, CpuSet),
    /// Remove the record of the container with this whole cgroup from its pod's: the instance in place is none any more, or its
    /// container is gone.
    Unregister(CgroupPath),
    /// Keep the kernel's unbound workers off these CPUs, and give them back all others that are withheld from them.
    KeepWorkersOff(CpuSet),
}

impl Step {
    /// The record after a step that is about the record alone, applied at this time (microseconds since the epoch); `None`
    /// for every other step.
    pub fn recorded(&self, record: &Record, now_us: u64) -> Option<Record> {
        let mut next = record.clone();
        match self {
            Self::Enter(_, phase) => {
                if matches!(phase, Phase::Isolated | Phase::Pinned) {
                    next.isolated_us = now_us;
                }
                next.phase = *phase;
                next.refused &= *phase != Phase::Isolated;
            }
            Self::Entitle { entry, own, .. } => {
                next.entry = entry.clone();
                next = next.with_own(own.clone());
                if let Some(allocation) = &mut next.allocation {
                    allocation.cpus = u32::try_from(own.len()).unwrap_or(u32::MAX);
                    allocation.note_resize(&format!(
                        "from {} to {own}, when its vCPUs were unplugged",
                        record.exclusive
                    ));
                }
            }
            Self::Share(_, pool) => next.pod_pool = Some(pool.clone()),
            Self::Place(_, vcpus, partition) => (next.vcpus, next.partition) = (vcpus.clone(), *partition),
            // What forbids the partition may go: it is asked for again then if the kernel had refused it.
            Self::RecordPinned(_, why) => {
                next.partition = Partition::Member;
                next.refused |= *why == PinnedReason::Refused;
            }
            Self::Retry(_, partition) => next.partition = *partition,
            _ => return None,
        }
        Some(next)
    }

    /// Whether it changes what is planned for: until it is applied nothing else is planned.
    pub fn comes_first(&self) -> bool {
        self.is_of_record() && !matches!(self, Self::Enter(..))
    }

    /// Whether it changes the record alone.
    pub fn is_of_record(&self) -> bool {
        matches!(
            self,
            Self::Enter(..)
                | Self::Entitle { .. }
                | Self::Share(..)
                | Self::Place(..)
                | Self::RecordPinned(..)
                | Self::Retry(..)
        )
    }

    /// What a step that all instances share is about. Such steps are retried, and rest, by subject: the same for every
    /// value.
    pub fn subject(&self) -> String {
        match (self.systemd_unit(), self) {
            (Some(unit), _) => unit.to_owned(),
            (None, Self::Write(cgroup, file, _)) => format!("{cgroup}/{}", file.name()),
            (None, Self::SetOurs(cgroup, _)) => format!("{cgroup}/{}", File::CpusExclusive.name()),
            (None, Self::Unrecord(unit)) => unit.clone(),
            (None, Self::KeepWorkersOff(_)) => WORKERS.to_owned(),
            (None, step) => step.to_string(),
        }
    }

    /// Whether an instance waits for a step of this subject. A pinned instance needs the units outside restricted. Without the slice's
    /// controllers there are no limits of huge pages.
    pub fn is_needed(subject: &str, partition: Partition, above: Above) -> bool {
        let is_of_list = subject.ends_with(File::CpusExclusive.name());
        let is_of_unit = !subject.contains(SLICE) && subject != WORKERS && !is_of_list;
        let is_of_controllers = || subject == format!("/{SLICE}/{}", File::SubtreeControl.name());
        !partition.is_partition() && is_of_unit || above == Above::Slice && is_of_controllers()
    }

    /// The unit, where systemd applies the step. The engine does not wait for its answer.
    pub fn systemd_unit(&self) -> Option<&str> {
        match self {
            Self::Limit(unit, _) | Self::Restrict { unit, .. } | Self::Restore(unit, _) => Some(unit),
            Self::Weigh(_) | Self::Protect { .. } => Some(SLICE),
            Self::Forget(scope) => Some(scope.name()),
            _ => None,
        }
    }
}

/// The slice that all instances are in.
const SLICE: &str = "stelia.slice";

/// The subject of [`Step::KeepWorkersOff`]. No instance waits for it; where the mask cannot be written, the node is
/// degraded.
const WORKERS: &str = "the kernel's unbound workers";

/// Whom a step, a failure or a finding concerns.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whom {
    /// The whole node: what all instances share.
    #[default]
    Node,
    /// The instance of this pod.
    Instance(PodUid),
}

impl Whom {
    /// The pod of the instance.
    pub fn pod(&self) -> Option<&PodUid> {
        match self {
            Self::Node => None,
            Self::Instance(pod) => Some(pod),
        }
    }
}

/// A step and whom it is for. When a step fails, the later ones of the same instance are not applied in that turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    pub whom: Whom,
    pub step: Step,
}
