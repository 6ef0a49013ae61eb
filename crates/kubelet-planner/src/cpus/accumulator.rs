//! CPUs taken group by group, and the orders of the groups.

use super::topology::{CpuGroups, Level, distinct};

/// Which CPUs are free, which are taken, and how many are still needed.
#[derive(Debug)]
pub(super) struct Accumulator<'a> {
    topology: &'a CpuGroups,
    /// CPUs still needed; kubelet counts below zero when it takes a CPU twice.
    pub(super) needed: i64,
    free: Vec<bool>,
    taken: Vec<bool>,
    /// Free CPUs of each group, by level.
    free_in: [Vec<usize>; 4],
}

impl<'a> Accumulator<'a> {
    pub(super) fn new(topology: &'a CpuGroups, available: &[usize], count: usize) -> Self {
        let mut free_in = Level::ALL.map(|level| vec![0; topology.count(level)]);
        let mut free = vec![false; topology.len()];
        for cpu in available {
            free[*cpu] = true;
            for level in Level::ALL {
                free_in[level as usize][topology.group(level, *cpu)] += 1;
            }
        }
        Self {
            topology,
            needed: i64::try_from(count).unwrap_or(i64::MAX),
            taken: vec![false; free.len()],
            free,
            free_in,
        }
    }

    /// The same, not below zero.
    pub(super) fn wanted(&self) -> usize {
        usize::try_from(self.needed).unwrap_or(0)
    }

    pub(super) fn satisfied(&self) -> bool {
        self.needed < 1
    }

    /// Whether a group of this size is not larger than what is still needed.
    pub(super) fn needs(&self, size: usize) -> bool {
        i64::try_from(size).is_ok_and(|size| self.needed >= size)
    }

    /// The CPUs taken, ascending.
    pub(super) fn into_taken(self) -> Vec<usize> {
        (0..self.taken.len()).filter(|cpu| self.taken[*cpu]).collect()
    }

    /// How many CPUs of the group are free.
    pub(super) fn free_in(&self, level: Level, group: usize) -> usize {
        self.free_in[level as usize][group]
    }

    /// The free CPUs of a group, ascending.
    pub(super) fn free_of(&self, level: Level, group: usize) -> Vec<usize> {
        let members = self.topology.members(level, group).iter().copied();
        members.filter(|cpu| self.free[*cpu]).collect()
    }

    /// Takes these CPUs, free or not: kubelet does not check.
    pub(super) fn take(&mut self, cpus: &[usize]) {
        for cpu in cpus {
            self.taken[*cpu] = true;
            if std::mem::take(&mut self.free[*cpu]) {
                for level in Level::ALL {
                    self.free_in[level as usize][self.topology.group(level, *cpu)] -= 1;
                }
            }
        }
        self.needed -= i64::try_from(cpus.len()).unwrap_or(i64::MAX);
    }

    /// Takes every completely free group of a level that is not larger than what is still needed.
    pub(super) fn take_full(&mut self, level: Level) {
        let mut candidates = self.order(level);
        candidates.retain(|group| self.full(level, *group));
        let topology = self.topology;
        for group in candidates {
            let members = topology.members(level, group);
            if self.needs(members.len()) {
                self.take(members);
            }
        }
    }

    /// Whether kubelet takes a group for completely free: cores and sockets by the average size of their kind.
    fn full(&self, level: Level, group: usize) -> bool {
        let size = match level {
            Level::Core | Level::Socket => self.topology.average(level),
            Level::Cache | Level::Node => self.topology.members(level, group).len(),
        };
        self.free_in(level, group) == size
    }

    /// The groups that have free CPUs: outer levels first, within them those with the fewest free CPUs first.
    pub(super) fn order(&self, level: Level) -> Vec<usize> {
        let [outer, inner] = self.outer_first();
        match level {
            Level::Cache => self.nested(Level::Node, Level::Cache),
            Level::Core => self.nested(inner, Level::Core),
            level if level == outer => {
                let free = |group: &usize| self.free_in(level, *group) > 0;
                self.sorted(level, (0..self.topology.count(level)).filter(free).collect())
            }
            level => self.nested(outer, level),
        }
    }

    /// The free CPUs, group after group.
    pub(super) fn free_by(&self, level: Level) -> Vec<usize> {
        let groups = self.order(level).into_iter();
        groups.flat_map(|group| self.free_of(level, group)).collect()
    }

    /// Whether NUMA nodes contain sockets, or the other way round.
    pub(super) fn outer_first(&self) -> [Level; 2] {
        if self.topology.count(Level::Socket) >= self.topology.count(Level::Node) {
            [Level::Node, Level::Socket]
        } else {
            [Level::Socket, Level::Node]
        }
    }

    fn nested(&self, outer: Level, inner: Level) -> Vec<usize> {
        let within = |group: usize| {
            let cpus = self.free_of(outer, group).into_iter();
            self.sorted(inner, distinct(cpus.map(|cpu| self.topology.group(inner, cpu))))
        };
        self.order(outer).into_iter().flat_map(within).collect()
    }

    fn sorted(&self, level: Level, mut groups: Vec<usize>) -> Vec<usize> {
        groups.sort_unstable_by_key(|group| (self.free_in(level, *group), *group));
        groups
    }
}
