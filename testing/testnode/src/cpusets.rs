//! cpusets: what is written, and what takes effect (`kernel/cgroup/cpuset.c`; the functions are named).

use std::collections::BTreeSet;

use nix::errno::Errno;
use stelia_cpus::{CpuSet, ParseError};
use stelia_kernel::cgroup::CgroupPath;

use super::tree::up;
use super::{Kernel, State};

/// The cpuset of one cgroup.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Cpuset {
    /// `cpuset.cpus`
    pub cpus: CpuSet,
    /// `cpuset.cpus.exclusive`
    pub exclusive: CpuSet,
    /// `cpuset.cpus.partition`
    pub partition: Partition,
    /// `cpuset.mems`
    pub mems: CpuSet,
    /// The CPUs of a valid partition. Those of other cgroups are computed from the lists: [`State::granted`].
    pub held: CpuSet,
}

/// The claims of all children of a cgroup, collected, so that a write to one of hundreds does not ask each of the
/// others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Claims {
    /// The union of their exclusive lists, which are disjoint: a write that would make two overlap is refused.
    pub exclusive: CpuSet,
    /// The names of those that also have `cpuset.cpus`, or are a partition, valid or not.
    pub others: BTreeSet<String>,
}

/// `cpuset.cpus.partition`
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Partition {
    #[default]
    Member,
    Valid {
        isolated: bool,
        /// Takes its CPUs from the root, not from a parent that is a partition.
        remote: bool,
    },
    Invalid {
        isolated: bool,
        reason: Option<&'static str>,
    },
}

impl Partition {
    pub fn is_valid(self) -> bool {
        matches!(self, Self::Valid { .. })
    }

    pub fn invalid(self, reason: Option<&'static str>) -> Self {
        match self {
            Self::Valid { isolated, .. } | Self::Invalid { isolated, .. } => Self::Invalid { isolated, reason },
            Self::Member => Self::Member,
        }
    }

    pub fn text(self) -> String {
        let name = |isolated| if isolated { "isolated" } else { "root" };
        match self {
            Self::Member => "member".into(),
            Self::Valid { isolated, .. } => name(isolated).into(),
            Self::Invalid { isolated, reason: None } => format!("{} invalid", name(isolated)),
            Self::Invalid {
                isolated,
                reason: Some(reason),
            } => format!("{} invalid ({reason})", name(isolated)),
        }
    }
}

impl Cpuset {
    /// Whether siblings have to be compared with it one by one.
    fn is_special(&self) -> bool {
        !self.cpus.is_empty() || self.partition != Partition::Member
    }

    /// The CPUs that it would have as a partition, before the parent is considered.
    pub fn wanted(&self) -> &CpuSet {
        if self.exclusive.is_empty() {
            &self.cpus
        } else {
            &self.exclusive
        }
    }
}

impl State {
    pub fn cpuset(&self, path: &CgroupPath) -> Result<&Cpuset, Errno> {
        Ok(&self.group(path)?.cpuset)
    }

    /// Changes a cgroup's values, and updates the collected claims.
    pub fn set_cpuset(&mut self, path: &CgroupPath, new: Cpuset) -> Result<(), Errno> {
        let group = self.group_mut(path)?;
        let old = std::mem::replace(&mut group.cpuset, new.clone());
        self.partitions.replace(path, &old, &new);
        let Some(parent) = up(path) else { return Ok(()) };
        let claims = &mut self.group_mut(&parent)?.claims;
        if old.exclusive != new.exclusive {
            claims.exclusive = claims.exclusive.difference(&old.exclusive).union(&new.exclusive);
        }
        match (old.is_special(), new.is_special()) {
            (false, true) => drop(claims.others.insert(path.name().to_owned())),
            (true, false) => drop(claims.others.remove(path.name())),
            _ => {}
        }
        Ok(())
    }

    /// Parses a CPU list; a CPU beyond the machine's last is ERANGE.
    fn parse_cpus(&self, text: &str) -> Result<CpuSet, Errno> {
        let cpus: CpuSet = text.parse().map_err(|cause| match cause {
            ParseError::TooHigh { .. } => Errno::ERANGE,
            _ => Errno::EINVAL,
        })?;
        let last = self.cpus.iter().last();
        if cpus.iter().last() > last {
            Err(Errno::ERANGE)
        } else {
            Ok(cpus)
        }
    }

    /// The siblings that have `cpuset.cpus`, or are a partition, valid or not.
    pub fn special_siblings(&self, path: &CgroupPath) -> Vec<CgroupPath> {
        let Some(parent) = up(path) else { return Vec::new() };
        let names = self.groups.get(&parent).map(|group| &group.claims.others);
        let others = names.into_iter().flatten().filter(|name| *name != path.name());
        others.map(|name| parent.child(name)).collect()
    }

    /// The CPUs that a cgroup claims when siblings are compared with it.
    fn claim(&self, path: &CgroupPath) -> Result<CpuSet, Errno> {
        let cpuset = self.cpuset(path)?;
        let held = cpuset.exclusive.is_empty() && !cpuset.held.is_empty();
        Ok(if held { &cpuset.held } else { cpuset.wanted() }.clone())
    }

    /// Whether siblings permit these values: EINVAL where exclusive CPUs would overlap (`validate_change`).
    pub fn siblings_allow(&self, path: &CgroupPath, trial: &Cpuset, as_partition: bool) -> Result<(), Errno> {
        let Some(parent) = up(path) else { return Ok(()) };
        let ours = !trial.exclusive.is_empty();
        let lists = &self.group(&parent)?.claims.exclusive;
        let theirs = lists.difference(&self.cpuset(path)?.exclusive);
        if (ours || as_partition) && !trial.wanted().is_disjoint(&theirs) {
            return Err(Errno::EINVAL);
        }
        for sibling in self.special_siblings(path) {
            if self.clashes(trial, &sibling, as_partition)? {
                return Err(Errno::EINVAL);
            }
        }
        // The other siblings have an exclusive list or nothing: they exclude only a `cpuset.cpus` within such a list.
        if !ours && !as_partition && !trial.cpus.is_empty() && trial.cpus.is_subset(&theirs) {
            for sibling in self.children(&parent).iter().filter(|other| *other != path) {
                if self.clashes(trial, sibling, as_partition)? {
                    return Err(Errno::EINVAL);
                }
            }
        }
        Ok(())
    }

    /// Whether this sibling excludes these values (`cpus_excl_conflict`).
    pub fn clashes(&self, trial: &Cpuset, sibling: &CgroupPath, as_partition: bool) -> Result<bool, Errno> {
        let other = self.cpuset(sibling)?;
        let (ours, theirs) = (!trial.exclusive.is_empty(), !other.exclusive.is_empty());
        Ok(if as_partition || other.partition.is_valid() || ours && theirs {
            !trial.wanted().is_disjoint(&self.claim(sibling)?)
        } else if ours || theirs {
            // If only one has a list, the other cgroup must keep at least one CPU when that list takes effect.
            let (list, cpus) = if ours {
                (&trial.exclusive, &other.cpus)
            } else {
                (&other.exclusive, &trial.cpus)
            };
            !cpus.is_empty() && cpus.is_subset(list)
        } else {
            false
        })
    }

    /// `cpuset.cpus` written (`update_cpumask`): ENOSPC for an empty list with tasks in the cgroup. A partition that
    /// conflicts with a sibling does not refuse the write, it becomes invalid.
    pub fn write_cpus(&mut self, path: &CgroupPath, text: &str) -> Result<(), Errno> {
        let cpus = self.parse_cpus(text)?;
        let now = self.cpuset(path)?.clone();
        if cpus == now.cpus {
            return Ok(());
        }
        if cpus.is_empty() && self.populated(path) {
            return Err(Errno::ENOSPC);
        }
        let partition = now.partition;
        let mut trial = Cpuset { cpus, ..now };
        let mut ended = Vec::new();
        let before = self.before_write(path);
        if self.siblings_allow(path, &trial, partition.is_valid()).is_err() {
            // The write succeeds; partitions that it conflicts with become invalid.
            trial.partition = partition.invalid(None);
            for sibling in self.special_siblings(path) {
                let (valid, held) = (self.cpuset(&sibling)?.partition.is_valid(), self.granted(&sibling));
                if valid && !trial.wanted().is_disjoint(&held) {
                    self.end_partition(&sibling, None)?;
                    ended.push((sibling, held));
                }
            }
        }
        self.put_lists(path, trial, &before)?;
        for (sibling, held) in ended {
            self.settle_below(&sibling, &held, None)?;
        }
        self.follow_cpusets();
        Ok(())
    }

    /// `cpuset.cpus.exclusive` written (`update_exclusive_cpumask`): EINVAL where it overlaps a sibling's.
    pub fn write_exclusive(&mut self, path: &CgroupPath, text: &str) -> Result<(), Errno> {
        let exclusive = self.parse_cpus(text)?;
        let now = self.cpuset(path)?.clone();
        if exclusive == now.exclusive {
            return Ok(());
        }
        let trial = Cpuset { exclusive, ..now };
        self.siblings_allow(path, &trial, trial.partition.is_valid())?;
        let before = self.before_write(path);
        self.put_lists(path, trial, &before)?;
        self.follow_cpusets();
        Ok(())
    }

    /// `cpuset.mems` written (`update_nodemask`).
    pub fn write_mems(&mut self, path: &CgroupPath, text: &str) -> Result<(), Errno> {
        let mems: CpuSet = text.parse().map_err(|_| Errno::EINVAL)?;
        if !mems.is_subset(&self.memory_nodes) {
            return Err(Errno::EINVAL);
        }
        if mems.is_empty() && !self.cpuset(path)?.mems.is_empty() && self.populated(path) {
            return Err(Errno::ENOSPC);
        }
        self.group_mut(path)?.cpuset.mems = mems;
        Ok(())
    }

    /// Before 6.2 a thread's own affinity is lost when its cpuset changes (`update_tasks_cpumask` without
    /// `user_cpus_ptr`): resets it in the cgroups that changed.
    pub fn follow_cpusets(&mut self) {
        if self.kernel != Kernel::V6_1 {
            return;
        }
        for path in self.subtree(&CgroupPath::root()) {
            let effective = self.effective(&path);
            let Some(group) = self
                .groups
                .get_mut(&path)
                .filter(|group| group.last_effective != effective)
            else {
                continue;
            };
            group.last_effective = effective;
            for id in &group.tasks {
                if let Some(task) = self.tasks.get_mut(id) {
                    task.mask = self.cpus.clone();
                }
            }
        }
    }

    /// `cpuset.cpus.effective`: the parent's where the cgroup's own CPUs are empty or all offline
    /// (`update_cpumasks_hier`). A partition has its own, less those of partitions below it.
    pub fn effective(&self, path: &CgroupPath) -> CpuSet {
        let Some(group) = self.groups.get(path) else {
            return CpuSet::new();
        };
        let Some(parent) = up(path) else {
            let remaining = self.online.difference(&self.taken(path));
            return if remaining.is_empty() {
                self.online.clone()
            } else {
                remaining
            };
        };
        let cpuset = &group.cpuset;
        if cpuset.partition.is_valid() {
            let own = cpuset.held.intersection(&self.online);
            return own.difference(&self.taken(path));
        }
        let above = self.effective(&parent);
        let both = cpuset.cpus.intersection(&above);
        if both.is_empty() { above } else { both }
    }
}
