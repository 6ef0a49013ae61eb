//! cpusets: what is written, and what it comes to (`kernel/cgroup/cpuset.c`).

use nix::errno::Errno;

use super::tree::up;
use super::{Kernel, State};
use crate::cgroup::CgroupPath;
use crate::cpuset::{CpuSet, ParseError};

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
    /// `cpuset.cpus.exclusive.effective`
    pub granted: CpuSet,
    /// `cpuset.cpus.effective`
    pub effective: CpuSet,
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
    /// The CPUs it lays claim to when siblings are compared.
    pub fn claim(&self) -> &CpuSet {
        if !self.exclusive.is_empty() {
            &self.exclusive
        } else if self.granted.is_empty() {
            &self.cpus
        } else {
            &self.granted
        }
    }

    /// The CPUs it would have as a partition, before its parent is asked.
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

    fn cpuset_mut(&mut self, path: &CgroupPath) -> Result<&mut Cpuset, Errno> {
        Ok(&mut self.group_mut(path)?.cpuset)
    }

    /// A CPU list as written; one beyond the machine's last CPU is ERANGE.
    fn parse_cpus(&self, text: &str) -> Result<CpuSet, Errno> {
        let cpus: CpuSet = text.parse().map_err(|cause| match cause {
            ParseError::TooHigh { .. } => Errno::ERANGE,
            _ => Errno::EINVAL,
        })?;
        let last = self.cpus.iter().next_back();
        if cpus.iter().next_back() > last {
            Err(Errno::ERANGE)
        } else {
            Ok(cpus)
        }
    }

    pub fn siblings(&self, path: &CgroupPath) -> Vec<CgroupPath> {
        let mut all = up(path).map(|parent| self.children(&parent)).unwrap_or_default();
        all.retain(|other| other != path);
        all
    }

    /// Whether siblings stand in the way of these values.
    pub fn siblings_allow(&self, path: &CgroupPath, trial: &Cpuset, as_partition: bool) -> Result<(), Errno> {
        for sibling in self.siblings(path) {
            let other = self.cpuset(&sibling)?;
            let (ours, theirs) = (!trial.exclusive.is_empty(), !other.exclusive.is_empty());
            let clash = if as_partition || other.partition.is_valid() || ours && theirs {
                !trial.claim().is_disjoint(other.claim())
            } else if ours || theirs {
                // With one list only, the other cgroup must keep at least one CPU once that list is in force.
                let (list, cpus) = if ours {
                    (&trial.exclusive, &other.cpus)
                } else {
                    (&other.exclusive, &trial.cpus)
                };
                !cpus.is_empty() && cpus.is_subset(list)
            } else {
                false
            };
            if clash {
                return Err(Errno::EINVAL);
            }
        }
        Ok(())
    }

    pub fn write_cpus(&mut self, path: &CgroupPath, text: &str) -> Result<(), Errno> {
        let cpus = self.parse_cpus(text)?;
        let now = self.cpuset(path)?.clone();
        if cpus == now.cpus {
            return Ok(());
        }
        if cpus.is_empty() && self.populated(path) {
            return Err(Errno::ENOSPC);
        }
        let mut trial = Cpuset { cpus, ..now.clone() };
        if trial.exclusive.is_empty() {
            trial.granted = CpuSet::new();
        }
        if self.siblings_allow(path, &trial, now.partition.is_valid()).is_err() {
            // The write goes through; the partitions it meets do not survive it.
            trial.partition = trial.partition.invalid(None);
            for sibling in self.siblings(path) {
                let other = self.cpuset_mut(&sibling)?;
                if other.partition.is_valid() && !trial.claim().is_disjoint(&other.granted) {
                    other.partition = other.partition.invalid(None);
                }
            }
        }
        *self.cpuset_mut(path)? = trial;
        self.check_partition(path, &now)?;
        self.recompute(Some(path));
        Ok(())
    }

    pub fn write_exclusive(&mut self, path: &CgroupPath, text: &str) -> Result<(), Errno> {
        let exclusive = self.parse_cpus(text)?;
        let now = self.cpuset(path)?.clone();
        if exclusive == now.exclusive {
            return Ok(());
        }
        let mut trial = Cpuset {
            exclusive,
            ..now.clone()
        };
        if trial.exclusive.is_empty() {
            trial.granted = CpuSet::new();
        }
        self.siblings_allow(path, &trial, now.partition.is_valid())?;
        *self.cpuset_mut(path)? = trial;
        self.check_partition(path, &now)?;
        self.recompute(Some(path));
        Ok(())
    }

    pub fn write_mems(&mut self, path: &CgroupPath, text: &str) -> Result<(), Errno> {
        let mems: CpuSet = text.parse().map_err(|_| Errno::EINVAL)?;
        if !mems.is_subset(&self.memory_nodes) {
            return Err(Errno::EINVAL);
        }
        if mems.is_empty() && !self.cpuset(path)?.mems.is_empty() && self.populated(path) {
            return Err(Errno::ENOSPC);
        }
        self.cpuset_mut(path)?.mems = mems;
        Ok(())
    }

    /// What follows from the written values, for every cgroup. `written`: the one whose own CPU lists changed.
    pub fn recompute(&mut self, written: Option<&CgroupPath>) {
        self.grant(written);
        let before: Vec<CpuSet> = self
            .groups
            .values()
            .map(|group| group.cpuset.effective.clone())
            .collect();
        let paths: Vec<CgroupPath> = self.groups.keys().cloned().collect();
        // Parents sort before what is in them.
        for path in &paths {
            let effective = self.effective(path);
            if let Some(group) = self.groups.get_mut(path) {
                group.cpuset.effective = effective;
            }
        }
        if self.kernel == Kernel::V6_1 {
            let changed: Vec<&CgroupPath> = paths
                .iter()
                .zip(&before)
                .filter(|(path, before)| {
                    self.groups
                        .get(path)
                        .is_some_and(|group| group.cpuset.effective != **before)
                })
                .map(|(path, _)| path)
                .collect();
            let all = &self.cpus;
            for task in self.tasks.values_mut() {
                if changed.contains(&&task.cgroup) {
                    task.mask = all.clone();
                }
            }
        }
    }

    fn effective(&self, path: &CgroupPath) -> CpuSet {
        let Some(group) = self.groups.get(path) else {
            return CpuSet::new();
        };
        let Some(parent) = up(path) else {
            let left = self.online.difference(&self.taken(path));
            return if left.is_empty() { self.online.clone() } else { left };
        };
        let cpuset = &group.cpuset;
        if cpuset.partition.is_valid() {
            let own = cpuset.granted.intersection(&self.online);
            return own.difference(&self.taken(path));
        }
        let above = self
            .groups
            .get(&parent)
            .map(|parent| parent.cpuset.effective.clone())
            .unwrap_or_default();
        let both = cpuset.cpus.intersection(&above);
        if both.is_empty() { above } else { both }
    }
}
