//! What follows from where an instance lives. Each home is one file, and `threads.rs` is what two of them share. Plans ask the home;
//! `admission/home.rs` chooses it.

mod container;
mod in_place;
mod scope;
mod threads;

pub(crate) use scope::remove_abandoned;
pub(crate) use threads::{float_cpus, float_must_leave, remove_below, set_float};

use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::CgroupPath;
use stelia_model::PinnedReason;
use stelia_model::record::{Home, Phase, Record};
use stelia_settings::Partition;

use crate::steps::{Inputs, Step, ThreadPlacement};
use crate::{Derived, Instance, Snapshot, ThreadedCgroup};

/// The cgroup of all instances of a home whose `cpuset.cpus.exclusive` must have the CPUs of the partitions below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Above {
    /// stelia.slice.
    Slice,
    /// The cgroup that all pods are in, which is not steliad's: others may have added CPUs.
    Kubepods,
}

impl Above {
    /// The other one. The kernel gives an exclusive CPU to one of two siblings only.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Slice => Self::Kubepods,
            Self::Kubepods => Self::Slice,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Slice => "stelia.slice",
            Self::Kubepods => "the cgroup of all pods",
        }
    }

    /// Whether a partition below it can have these CPUs.
    pub(crate) fn has(self, snapshot: &Snapshot, cpus: &CpuSet) -> bool {
        match self {
            Self::Slice => self.list(snapshot).is_some_and(|list| cpus.is_subset(list)),
            Self::Kubepods => snapshot.kubepods.as_ref().is_some_and(|level| level.has(cpus)),
        }
    }

    /// Its path, where it exists.
    pub(crate) fn path(self, snapshot: &Snapshot) -> Option<CgroupPath> {
        match self {
            Self::Slice => Some(CgroupPath::slice()),
            Self::Kubepods => Some(snapshot.kubepods.as_ref()?.path.clone()),
        }
    }

    /// Its exclusive list, as far as the kernel has one.
    pub(crate) fn list(self, snapshot: &Snapshot) -> Option<&CpuSet> {
        match self {
            Self::Slice => snapshot.slice.exclusive.as_ref(),
            Self::Kubepods => snapshot.kubepods.as_ref()?.exclusive.as_ref(),
        }
    }
}

/// How far a registration is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registration {
    /// Its caller is to be answered once the instance is made.
    Running,
    Done,
    /// The instance leaves, or its vCPUs are being attached.
    Neither,
}

/// The CPU lists of an instance's cgroups, as far as they are in force.
#[derive(Debug, Default)]
pub(crate) struct ListsInForce {
    /// `cpuset.cpus.exclusive` of `instance/`.
    pub(crate) inner: CpuSet,
    /// The same of `vcpu/`.
    pub(crate) exclusive: CpuSet,
    /// `cpuset.cpus` of `vcpu/`.
    pub(crate) cpus: CpuSet,
}

/// What follows from where an instance lives.
pub(crate) trait HomeBehaviour {
    /// The cgroup above it.
    fn above(&self) -> Above;

    /// Whether root alone can write its record. Else the record is believed only as far as the kernel or kubelet confirm it.
    fn protects_record(&self) -> bool {
        false
    }

    /// Whether a VM with more vCPUs than its container has CPUs now may keep the former CPUs until vCPUs are unplugged.
    fn waits_for_unplugging(&self) -> bool {
        false
    }

    /// Whether its own CPUs stand idle, because its vCPUs are not attached yet: nobody else may use them, and no partition has them.
    fn has_idle_cpus(&self, _: &Instance) -> bool {
        false
    }

    /// The CPUs of its float where `spare` are the container's own CPUs that are no vCPU's, and `pool` are shared CPUs, if any could be
    /// chosen. While the container has CPUs of its own left, the kernel lets nothing below it use others.
    fn with_spare(&self, _pool: Option<&CpuSet>, spare: &CpuSet) -> Option<CpuSet> {
        Some(spare.clone())
    }

    /// The kind of partition that it must have, whatever the settings say.
    fn only_kind(&self) -> Option<Partition> {
        None
    }

    /// What is recorded where it gets no partition.
    fn without_partition(&self, instance: &Instance, why: PinnedReason) -> Step {
        Step::RecordPinned(instance.scope().clone(), why)
    }

    /// Whether its vCPU threads stay where others pin them, and are neither placed nor pinned.
    fn leaves_pins(&self, _: &Record) -> bool {
        false
    }

    /// Whether its cgroups still have CPUs that were its while kubelet's file could be used.
    fn holds_cpus(&self, _: &Record, vcpu: &ThreadedCgroup) -> bool {
        !vcpu.threads.is_empty()
    }

    /// How far its registration is.
    fn registration(&self, record: &Record) -> Registration {
        match record.phase {
            Phase::Registered => Registration::Running,
            Phase::Leaving => Registration::Neither,
            _ => Registration::Done,
        }
    }

    /// The phase that a first attach which failed goes back to.
    fn detached_phase(&self, _former: Phase) -> Phase {
        Phase::Floating
    }

    /// The phase after `registered` and `floating`, when no other step remains for it; `None` while something else must come first.
    fn next_phase(&self, instance: &Instance) -> Option<Phase> {
        let float = instance.float()?;
        let is_next =
            instance.record.phase == Phase::Registered && !float.cpus.is_empty() && instance.strays.is_empty();
        is_next.then_some(Phase::Floating)
    }

    /// The lists of `vcpu/` and `instance/` as far as they are in force.
    fn lists_in_force(&self, instance: &Instance) -> ListsInForce {
        let vcpu = instance.vcpu();
        ListsInForce {
            inner: instance
                .inner
                .as_ref()
                .map(|inner| inner.exclusive.clone())
                .unwrap_or_default(),
            exclusive: vcpu.map(|vcpu| vcpu.exclusive.clone()).unwrap_or_default(),
            cpus: vcpu.map(|vcpu| vcpu.cpus.clone()).unwrap_or_default(),
        }
    }

    /// Its cgroups, float's CPUs, and what belongs in float.
    fn make(
        &self,
        inputs: &Inputs<'_>,
        instance: &Instance,
        placement: ThreadPlacement,
        float: Option<&CpuSet>,
    ) -> Vec<Step>;

    /// The partition, and in it the vCPU threads.
    fn hold(&self, facts: &Derived, instance: &Instance) -> Vec<Step> {
        threads::hold(facts, instance)
    }

    /// Everything back to the container's own cgroup as it was.
    fn leave(&self, instance: &Instance) -> Vec<Step>;
}

/// What follows from this home.
pub(crate) fn behaviour(home: Home) -> &'static dyn HomeBehaviour {
    match home {
        Home::Scope => &scope::Scope,
        Home::InPlace => &in_place::InPlace,
        Home::Container => &container::Container,
    }
}

impl Instance {
    /// What follows from where it lives.
    pub(crate) fn behaviour(&self) -> &'static dyn HomeBehaviour {
        behaviour(self.record.home)
    }

    /// The cgroup above it.
    pub fn above(&self) -> Above {
        self.behaviour().above()
    }

    /// How far its registration is.
    pub fn registration(&self) -> Registration {
        self.behaviour().registration(&self.record)
    }

    /// The phase that a first attach which failed goes back to.
    pub fn detached_phase(&self, former: Phase) -> Phase {
        self.behaviour().detached_phase(former)
    }
}
