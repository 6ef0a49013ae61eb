//! Totals over all instances, kept up to date by subtracting an instance as it was and adding it as it is: hundreds of
//! instances are not summed again because one changed.

use stelia_cpus::CpuSet;
use stelia_koordinator::allocator::Qos;
use stelia_model::record::Phase;
use stelia_settings::Partition;

use super::home::Above;
use super::steps::{ThreadPlacement, current_placement, growing_list};
use super::{Derived, Instance, Snapshot};

/// The kernel's and systemd's default weight.
pub(super) const DEFAULT_WEIGHT: u64 = 100;

/// How many instances have each CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Tally {
    /// Without zeros at the end, so that equal tallies compare equal.
    counts: Vec<u32>,
    cpus: CpuSet,
}

impl Tally {
    fn add(&mut self, cpus: &CpuSet) {
        for cpu in cpus.iter() {
            let place = cpu as usize;
            if self.counts.len() <= place {
                self.counts.resize(place + 1, 0);
            }
            self.counts[place] += 1;
            self.cpus.insert(cpu);
        }
    }

    fn subtract(&mut self, cpus: &CpuSet) {
        let mut gone = CpuSet::new();
        for cpu in cpus.iter() {
            if let Some(count) = self.counts.get_mut(cpu as usize) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    gone.insert(cpu);
                }
            }
        }
        if !gone.is_empty() {
            self.cpus = self.cpus.difference(&gone);
            let used = self.counts.iter().rposition(|count| *count > 0);
            self.counts.truncate(used.map_or(0, |last| last + 1));
        }
    }
}

/// Which CPUs of each instance are added up. [`Totals::cpus`] is the union over all instances: `cpus(Total::HeldInSlice)` are the CPUs that some
/// scope has in its exclusive list.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Total {
    /// Every instance's exclusive CPUs: those it is to have, and those its vCPUs have not left yet.
    Owned,
    /// The same without those of LSR instances, on which BE may run.
    OwnedButLsr,
    /// Recorded exclusive CPUs of every class but LSR.
    Recorded,
    RecordedLsr,
    /// The partitions, in force or about to be made, of instances in stelia.slice.
    PartitionsInSlice,
    /// The same of instances in place.
    PartitionsInPlace,
    /// The partitions of kind `root`, which do not keep the kernel's unbound workers off: the workers' mask must be without these CPUs.
    RootPartitions,
    /// `cpuset.cpus.exclusive` of the scopes.
    HeldInSlice,
    /// `cpuset.cpus.exclusive` of the containers of instances in place.
    HeldInPlace,
    /// The exclusive CPUs of pinned instances, which no partition protects.
    Pinned,
    /// The CPUs that the cgroups of an instance have, its vCPUs' and those of exclusive lists: [`Instance::listed`].
    Listed,
    /// The exclusive CPUs of instances whose vCPU threads must float: those that are no other pod's are kept for them.
    Evicted,
}

const SETS: usize = Total::Evicted as usize + 1;

/// What one instance adds to the totals.
#[derive(Debug, Default, PartialEq, Eq)]
struct Contribution {
    cpus: [CpuSet; SETS],
    weight: u64,
    /// `memory.min` and `memory.low`.
    protected: (u64, u64),
    huge_pages: bool,
}

impl Contribution {
    fn of(snapshot: &Snapshot, facts: &Derived, instance: &Instance) -> Self {
        let record = &instance.record;
        let mut cpus: [CpuSet; SETS] = Default::default();
        let mut set = |total: Total, list: CpuSet| cpus[total as usize] = list;
        if record.qos() == Some(Qos::Lsr) {
            set(Total::RecordedLsr, record.exclusive.clone());
        } else {
            set(Total::OwnedButLsr, instance.owned());
            set(Total::Recorded, record.exclusive.clone());
        }
        set(Total::Owned, instance.owned());
        let above = instance.above();
        let (partitions, held) = match above {
            Above::Slice => (Total::PartitionsInSlice, Total::HeldInSlice),
            Above::Kubepods => (Total::PartitionsInPlace, Total::HeldInPlace),
        };
        set(held, instance.scope_exclusive.clone());
        set(Total::Listed, instance.listed());
        if !instance.populated {
            return Self {
                cpus,
                ..Self::default()
            };
        }
        let placement = current_placement(snapshot, facts, instance);
        if placement == ThreadPlacement::Float && record.phase.has_vcpus() {
            set(Total::Evicted, record.exclusive.clone());
        }
        if placement == ThreadPlacement::Hold {
            // Until the kernel has made the partition that is asked for again, nothing else keeps tasks off.
            if !record.has_partition() || record.phase == Phase::Pinned {
                set(Total::Pinned, record.exclusive.clone());
            }
            if record.has_partition() {
                set(partitions, growing_list(instance));
            }
            if record.partition == Partition::Root {
                set(Total::RootPartitions, growing_list(instance));
            }
        }
        // In place nothing of the pod's is carried to stelia.slice.
        if above == Above::Kubepods {
            return Self {
                cpus,
                ..Self::default()
            };
        }
        let origin = instance.origin_limits.as_ref();
        let weight = origin.and_then(|limits| limits.cpu_weight);
        let limits = origin.unwrap_or(&instance.scope_limits);
        Self {
            cpus,
            weight: weight.or(instance.scope_limits.cpu_weight).unwrap_or(DEFAULT_WEIGHT),
            protected: (limits.memory_min, limits.memory_low),
            huge_pages: origin.is_some_and(|limits| {
                let mut all = limits.hugetlb.values().chain(limits.hugetlb_reserved.values());
                all.any(Option::is_some)
            }),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    cpus: [Tally; SETS],
    weight: u64,
    /// `u128`, as several instances may say `max`, which is `u64::MAX`.
    protected: (u128, u128),
    huge_pages: usize,
}

impl Totals {
    pub(super) fn of(snapshot: &Snapshot, facts: &Derived) -> Self {
        let mut totals = Self::default();
        for instance in snapshot.instances.values() {
            totals.add(&Contribution::of(snapshot, facts, instance));
        }
        totals
    }

    /// Follow one instance that changed, came or went.
    pub(super) fn follow_instance(
        &mut self,
        snapshot: &Snapshot,
        facts: &Derived,
        before: Option<&Instance>,
        now: Option<&Instance>,
    ) {
        let share = |instance: Option<&Instance>| instance.map(|one| Contribution::of(snapshot, facts, one));
        let (before, now) = (share(before), share(now));
        if before == now {
            return;
        }
        before.iter().for_each(|share| self.subtract(share));
        now.iter().for_each(|share| self.add(share));
    }

    fn add(&mut self, share: &Contribution) {
        for (tally, cpus) in self.cpus.iter_mut().zip(&share.cpus) {
            tally.add(cpus);
        }
        self.weight += share.weight;
        self.protected.0 += u128::from(share.protected.0);
        self.protected.1 += u128::from(share.protected.1);
        self.huge_pages += usize::from(share.huge_pages);
    }

    fn subtract(&mut self, share: &Contribution) {
        for (tally, cpus) in self.cpus.iter_mut().zip(&share.cpus) {
            tally.subtract(cpus);
        }
        self.weight -= share.weight;
        self.protected.0 -= u128::from(share.protected.0);
        self.protected.1 -= u128::from(share.protected.1);
        self.huge_pages -= usize::from(share.huge_pages);
    }

    /// The union over all instances.
    pub(crate) fn cpus(&self, total: Total) -> &CpuSet {
        &self.cpus[total as usize].cpus
    }

    /// Whether more than one instance has any of these CPUs.
    pub(super) fn is_contested(&self, cpus: &CpuSet) -> bool {
        let counts = &self.cpus[Total::Owned as usize].counts;
        cpus.iter()
            .any(|cpu| counts.get(cpu as usize).is_some_and(|count| *count > 1))
    }

    /// Whether other instances are to have any of the CPUs that the cgroups of this one have.
    pub(super) fn is_awaited(&self, instance: &Instance) -> bool {
        let wanted = |cpu: u32| {
            let count = |total: Total| self.cpus[total as usize].counts.get(cpu as usize).copied().unwrap_or(0);
            count(Total::Recorded) + count(Total::RecordedLsr) > u32::from(instance.record.exclusive.contains(cpu))
        };
        instance.listed().iter().any(wanted)
    }

    pub(crate) fn owned(&self) -> &CpuSet {
        self.cpus(Total::Owned)
    }

    /// The CPUs that a float of this class must not include: every instance's, except that BE may run on LSR's.
    pub(crate) fn closed_to(&self, qos: Option<Qos>) -> &CpuSet {
        match qos {
            Some(Qos::Be) => self.cpus(Total::OwnedButLsr),
            _ => self.cpus(Total::Owned),
        }
    }

    /// CPUs that are kept for instances which must float, and that no instance runs on or is about to run on.
    pub(super) fn kept_idle(&self) -> CpuSet {
        let in_use = [
            Total::Listed,
            Total::PartitionsInSlice,
            Total::PartitionsInPlace,
            Total::Pinned,
        ];
        in_use.iter().fold(self.cpus(Total::Evicted).clone(), |idle, total| {
            idle.difference(self.cpus(*total))
        })
    }

    /// The sum of `cpu.weight`; 0 without a live instance.
    pub(super) fn weight(&self) -> u64 {
        self.weight
    }

    /// The sums of `memory.min` and `memory.low`, bytes. In the slice no more is protected than is set on it.
    pub(super) fn protected_memory(&self) -> (u64, u64) {
        let capped = |sum: u128| u64::try_from(sum).unwrap_or(u64::MAX);
        (capped(self.protected.0), capped(self.protected.1))
    }

    /// Whether any instance has a limit of huge pages.
    pub(super) fn limits_huge_pages(&self) -> bool {
        self.huge_pages > 0
    }
}
