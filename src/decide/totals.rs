//! Totals over all instances, kept up to date by subtracting an instance as it was and adding it as it is: hundreds of
//! instances are not summed again because one changed.

use stelia_allocator::Qos;
use stelia_cpus::CpuSet;
use stelia_settings::Partition;

use super::steps::{Course, course_of, growing};
use super::{Facts, Instance, Snapshot};

/// The kernel's and systemd's default weight.
pub(super) const DEFAULT_WEIGHT: u64 = 100;

/// How many instances have each CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tally {
    counts: Vec<u32>,
    cpus: CpuSet,
}

impl Tally {
    pub(super) fn cpus(&self) -> &CpuSet {
        &self.cpus
    }

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
        }
    }
}

/// What one instance adds to the totals.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Contribution {
    owned: CpuSet,
    qos: Option<Qos>,
    exclusive: CpuSet,
    growing: CpuSet,
    root: CpuSet,
    held: CpuSet,
    contained: CpuSet,
    weight: u64,
    /// `memory.min` and `memory.low`.
    protected: (u64, u64),
    huge_pages: bool,
    live: bool,
}

impl Contribution {
    fn of(snapshot: &Snapshot, facts: &Facts, instance: &Instance) -> Self {
        let live = instance.populated;
        let record = &instance.record;
        let holds = live && course_of(snapshot, facts, instance) == Course::Hold;
        let partitioned = record.partition != Partition::Member;
        let weight = || {
            let origin = instance.origin_limits.as_ref();
            let origin = origin.and_then(|limits| limits.cpu_weight);
            origin.or(instance.scope_limits.cpu_weight).unwrap_or(DEFAULT_WEIGHT)
        };
        let limited = || {
            let origin = instance.origin_limits.as_ref();
            origin.is_some_and(|limits| {
                let mut all = limits.hugetlb.values().chain(limits.hugetlb_reserved.values());
                all.any(Option::is_some)
            })
        };
        let protected = || {
            let limits = instance.origin_limits.as_ref().unwrap_or(&instance.scope_limits);
            (limits.memory_min, limits.memory_low)
        };
        let growing = if holds && partitioned {
            growing(instance)
        } else {
            CpuSet::new()
        };
        Self {
            owned: instance.owned(),
            qos: record.qos(),
            exclusive: record.exclusive.clone(),
            root: if record.partition == Partition::Root {
                growing.clone()
            } else {
                CpuSet::new()
            },
            growing,
            held: instance.scope_exclusive.clone(),
            contained: if holds && !partitioned {
                record.exclusive.clone()
            } else {
                CpuSet::new()
            },
            weight: if live { weight() } else { 0 },
            protected: if live { protected() } else { (0, 0) },
            huge_pages: live && limited(),
            live,
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Every instance's exclusive CPUs: those it is to have, and those its vCPUs have not left yet.
    owned: Tally,
    /// The same without those of LSR instances, on which BE may run.
    owned_but_lsr: Tally,
    /// Recorded exclusive CPUs of every class but LSR.
    recorded: Tally,
    recorded_lsr: Tally,
    /// The exclusive lists of instances whose partition is in force or about to be made.
    growing: Tally,
    /// The lists of partitions of kind `root`, which do not keep the kernel's unbound workers off.
    root: Tally,
    /// `cpuset.cpus.exclusive` of the scopes.
    held: Tally,
    /// The exclusive CPUs of contained instances, which no partition protects.
    contained: Tally,
    weight: u64,
    /// `u128`, as several instances may say `max`, which is `u64::MAX`.
    protected: (u128, u128),
    huge_pages: usize,
    live: usize,
}

impl Totals {
    pub(super) fn of(snapshot: &Snapshot, facts: &Facts) -> Self {
        let mut totals = Self::default();
        for instance in snapshot.instances.values() {
            totals.add(&Contribution::of(snapshot, facts, instance));
        }
        totals
    }

    /// Follow one instance that changed, came or went.
    pub(super) fn replace(
        &mut self,
        snapshot: &Snapshot,
        facts: &Facts,
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
        for (tally, cpus) in self.tallies(share) {
            tally.add(cpus);
        }
        self.weight += share.weight;
        self.protected.0 += u128::from(share.protected.0);
        self.protected.1 += u128::from(share.protected.1);
        self.huge_pages += usize::from(share.huge_pages);
        self.live += usize::from(share.live);
    }

    fn subtract(&mut self, share: &Contribution) {
        for (tally, cpus) in self.tallies(share) {
            tally.subtract(cpus);
        }
        self.weight -= share.weight;
        self.protected.0 -= u128::from(share.protected.0);
        self.protected.1 -= u128::from(share.protected.1);
        self.huge_pages -= usize::from(share.huge_pages);
        self.live -= usize::from(share.live);
    }

    fn tallies<'a, 'b>(&'a mut self, share: &'b Contribution) -> Vec<(&'a mut Tally, &'b CpuSet)> {
        let mut tallies = vec![
            (&mut self.owned, &share.owned),
            (&mut self.growing, &share.growing),
            (&mut self.root, &share.root),
            (&mut self.held, &share.held),
            (&mut self.contained, &share.contained),
        ];
        if share.qos == Some(Qos::Lsr) {
            tallies.push((&mut self.recorded_lsr, &share.exclusive));
        } else {
            tallies.push((&mut self.owned_but_lsr, &share.owned));
            tallies.push((&mut self.recorded, &share.exclusive));
        }
        tallies
    }

    pub(crate) fn owned(&self) -> &CpuSet {
        self.owned.cpus()
    }

    /// The CPUs that a float of this class must not include: every instance's, except that BE may run on LSR's.
    pub(crate) fn closed_to(&self, qos: Option<Qos>) -> &CpuSet {
        match qos {
            Some(Qos::Be) => self.owned_but_lsr.cpus(),
            _ => self.owned.cpus(),
        }
    }

    /// Recorded exclusive CPUs: of every class but LSR, and of LSR.
    pub(super) fn recorded(&self) -> (&CpuSet, &CpuSet) {
        (self.recorded.cpus(), self.recorded_lsr.cpus())
    }

    pub(super) fn growing(&self) -> &CpuSet {
        self.growing.cpus()
    }

    /// The CPUs that must be taken out of the mask of the kernel's unbound workers.
    pub(crate) fn closed_to_workers(&self) -> &CpuSet {
        self.root.cpus()
    }

    pub(super) fn held(&self) -> &CpuSet {
        self.held.cpus()
    }

    pub(super) fn contained(&self) -> &CpuSet {
        self.contained.cpus()
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

#[cfg(test)]
impl Totals {
    /// Without counters of zero at the end, so that equal totals compare equal.
    pub(super) fn trimmed(mut self) -> Self {
        let nothing = Contribution::default();
        let lsr = Contribution {
            qos: Some(Qos::Lsr),
            ..Contribution::default()
        };
        for share in [&nothing, &lsr] {
            for (tally, _) in self.tallies(share) {
                let used = tally.counts.iter().rposition(|count| *count > 0);
                tally.counts.truncate(used.map_or(0, |last| last + 1));
            }
        }
        self
    }
}
