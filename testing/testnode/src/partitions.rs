//! CPU partitions: when one becomes valid, where its CPUs come from, and what makes it invalid
//! (`kernel/cgroup/cpuset.c`; the functions are named).
//!
//! A local partition stays invalid here until it is written again, even if the reason no longer holds; the kernel does
//! that for remote ones only. The daemon makes remote ones.

use std::collections::{BTreeSet, HashMap};

use nix::errno::Errno;
use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::CgroupPath;

use super::cpusets::{Cpuset, Partition};
use super::tree::up;
use super::{Kernel, State};

/// The kernel's texts (`perr_strings`).
const BAD_LIST: &str = "Invalid cpu list in cpuset.cpus.exclusive";
const PARENT_INVALID: &str = "Parent is an invalid partition root";
const PARENT_NO_PARTITION: &str = "Parent is not a partition root";
const NOT_EXCLUSIVE: &str = "Cpu list in cpuset.cpus not exclusive";
const NO_CPUS_LEFT: &str = "Parent unable to distribute cpu downstream";
const OFFLINE: &str = "No cpu available due to hotplug";
const EMPTY: &str = "cpuset.cpus and cpuset.cpus.exclusive are empty";

/// A cgroup as it was before its CPU lists were written.
#[derive(Debug)]
pub(super) struct BeforeWrite {
    /// Its `cpuset.cpus.exclusive.effective`.
    granted: CpuSet,
    /// For a partition: the effective CPUs of the cgroup that it takes its CPUs from, and that cgroup.
    source: Option<(CpuSet, CgroupPath)>,
}

/// How many of several sets each CPU is in, and the union of the sets.
#[derive(Debug, Default)]
struct Tally {
    counts: HashMap<u32, usize>,
    set: CpuSet,
}

impl Tally {
    fn add(&mut self, cpus: &CpuSet) {
        for cpu in cpus.iter() {
            *self.counts.entry(cpu).or_default() += 1;
        }
        self.set.union_with(cpus);
    }

    fn remove(&mut self, cpus: &CpuSet) {
        let mut gone = CpuSet::new();
        for cpu in cpus.iter() {
            if let Some(count) = self.counts.get_mut(&cpu) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&cpu);
                    gone.insert(cpu);
                }
            }
        }
        self.set = self.set.difference(&gone);
    }
}

/// All partitions by kind, and the union of the CPUs of remote ones.
#[derive(Debug, Default)]
pub(super) struct Partitions {
    /// Valid ones that take their CPUs from the root.
    remote: BTreeSet<CgroupPath>,
    /// Local and invalid ones.
    others: BTreeSet<CgroupPath>,
    taken: Tally,
    isolated: Tally,
}

impl Partitions {
    /// Updates the lists after a cgroup's values have changed.
    pub fn replace(&mut self, path: &CgroupPath, old: &Cpuset, new: &Cpuset) {
        if old.partition == new.partition && old.held == new.held {
            return;
        }
        match old.partition {
            Partition::Member => {}
            Partition::Valid { remote: true, isolated } => {
                self.remote.remove(path);
                self.taken.remove(&old.held);
                if isolated {
                    self.isolated.remove(&old.held);
                }
            }
            _ => drop(self.others.remove(path)),
        }
        match new.partition {
            Partition::Member => {}
            Partition::Valid { remote: true, isolated } => {
                self.remote.insert(path.clone());
                self.taken.add(&new.held);
                if isolated {
                    self.isolated.add(&new.held);
                }
            }
            _ => drop(self.others.insert(path.clone())),
        }
    }
}

impl State {
    fn is_partition(&self, path: &CgroupPath) -> bool {
        let valid = |path| self.cpuset(path).is_ok_and(|cpuset| cpuset.partition.is_valid());
        *path == CgroupPath::root() || valid(path)
    }

    /// CPUs of partitions that take theirs from this cgroup.
    pub fn taken(&self, from: &CgroupPath) -> CpuSet {
        let mut taken = if *from == CgroupPath::root() {
            self.partitions.taken.set.clone()
        } else {
            CpuSet::new()
        };
        let special = self.groups.get(from).map(|group| &group.claims.others);
        for name in special.into_iter().flatten() {
            if let Ok(cpuset) = self.cpuset(&from.child(name))
                && matches!(cpuset.partition, Partition::Valid { remote: false, .. })
            {
                taken.union_with(&cpuset.held);
            }
        }
        taken
    }

    /// `cpuset.cpus.isolated` of the root.
    pub fn isolated(&self) -> CpuSet {
        let mut isolated = self.partitions.isolated.set.clone();
        for path in &self.partitions.others {
            if let Ok(cpuset) = self.cpuset(path)
                && matches!(cpuset.partition, Partition::Valid { isolated: true, .. })
            {
                isolated.union_with(&cpuset.held);
            }
        }
        isolated
    }

    /// `cpuset.cpus.exclusive.effective` (`compute_effective_exclusive_cpumask`).
    pub fn granted(&self, path: &CgroupPath) -> CpuSet {
        match self.cpuset(path) {
            Ok(cpuset) if cpuset.partition.is_valid() => cpuset.held.clone(),
            Ok(cpuset) if !cpuset.exclusive.is_empty() => cpuset.exclusive.intersection(&self.granted_above(path)),
            _ => CpuSet::new(),
        }
    }

    fn granted_above(&self, path: &CgroupPath) -> CpuSet {
        match up(path) {
            Some(parent) if parent != CgroupPath::root() => self.granted(&parent),
            _ => self.cpus.clone(),
        }
    }

    /// Ends a partition with a reason.
    pub fn end_partition(&mut self, path: &CgroupPath, reason: Option<&'static str>) -> Result<(), Errno> {
        let now = self.cpuset(path)?.clone();
        let ended = Cpuset {
            partition: now.partition.invalid(reason),
            held: CpuSet::new(),
            ..now
        };
        self.set_cpuset(path, ended)
    }

    /// A valid partition takes the CPUs that it asks for, as far as they are granted to its parent.
    fn take(&mut self, path: &CgroupPath) -> Result<(), Errno> {
        let now = self.cpuset(path)?.clone();
        if now.partition.is_valid() {
            let held = now.wanted().intersection(&self.granted_above(path));
            self.set_cpuset(path, Cpuset { held, ..now })?;
        }
        Ok(())
    }

    pub fn before_write(&self, path: &CgroupPath) -> BeforeWrite {
        let source = match self.cpuset(path).map(|cpuset| cpuset.partition) {
            Ok(Partition::Valid { remote: true, .. }) => Some(CgroupPath::root()),
            Ok(Partition::Valid { .. }) => up(path),
            _ => None,
        };
        BeforeWrite {
            granted: self.granted(path),
            source: source.map(|source| (self.effective(&source), source)),
        }
    }

    /// Sets the CPU lists, and updates the partitions here and below (`update_cpumask`, `update_exclusive_cpumask`).
    pub fn put_lists(&mut self, path: &CgroupPath, trial: Cpuset, before: &BeforeWrite) -> Result<(), Errno> {
        let (now, held) = (trial.partition, trial.held.clone());
        self.set_cpuset(
            path,
            Cpuset {
                held: if now.is_valid() { held } else { CpuSet::new() },
                ..trial
            },
        )?;
        self.check_partition(path, before)?;
        self.take(path)?;
        self.settle_below(path, &before.granted, Some(path))
    }

    /// After the exclusive CPUs of a cgroup changed: ends the partitions below that lost theirs
    /// (`update_cpumasks_hier`, `remote_cpus_update`). `written`: the cgroup's own CPU lists changed.
    pub fn settle_below(
        &mut self,
        at: &CgroupPath,
        before: &CpuSet,
        written: Option<&CgroupPath>,
    ) -> Result<(), Errno> {
        let below = |path: &&CgroupPath| *path != at && path.is_within(at);
        let mut paths: Vec<CgroupPath> = self.partitions.others.iter().filter(below).cloned().collect();
        // A remote partition keeps its CPUs while the lists above it only grow: only a partition with a lost CPU can
        // end.
        let lost = before.difference(&self.granted(at));
        if !lost.is_disjoint(&self.partitions.taken.set) {
            paths.extend(self.partitions.remote.iter().filter(below).cloned());
            // Parents before children.
            paths.sort();
        }
        for path in paths {
            let parent = up(&path).unwrap_or_else(CgroupPath::root);
            let parent_is_partition = self.is_partition(&parent);
            let parent_is_invalid = self
                .cpuset(&parent)
                .is_ok_and(|cpuset| matches!(cpuset.partition, Partition::Invalid { .. }));
            let cpuset = self.cpuset(&path)?;
            match cpuset.partition {
                Partition::Valid { remote: false, .. } if !parent_is_partition => {
                    let reason = if parent_is_invalid {
                        PARENT_INVALID
                    } else {
                        PARENT_NO_PARTITION
                    };
                    self.end_partition(&path, Some(reason))?;
                }
                // A write above makes the kernel give this reason for an invalid partition too, whatever the reason was
                // before.
                Partition::Invalid { .. } if !parent_is_partition && written.is_some() => {
                    self.end_partition(&path, Some(PARENT_NO_PARTITION))?;
                }
                Partition::Valid { remote, .. } => {
                    if !cpuset.held.is_subset(&self.granted_above(&path)) {
                        self.end_partition(&path, Some(BAD_LIST))?;
                    } else if !remote {
                        self.take(&path)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// After a write to the CPU lists of a partition: ends it if it may not have them
    /// (`update_parent_effective_cpumask`, `remote_cpus_update`).
    fn check_partition(&mut self, path: &CgroupPath, before: &BeforeWrite) -> Result<(), Errno> {
        let now = self.cpuset(path)?;
        let (Partition::Valid { remote, .. }, Some((free, source))) = (now.partition, &before.source) else {
            return Ok(());
        };
        let wanted = now.wanted().intersection(&self.granted_above(path));
        let added = wanted.difference(&before.granted);
        let all_of_it = !added.is_empty() && free.is_subset(&added) && (remote || self.has_members(source, Some(path)));
        if wanted.is_empty() || !added.is_disjoint(&self.taken(source)) || all_of_it {
            self.end_partition(path, Some(BAD_LIST))?;
        }
        Ok(())
    }

    /// `partition_is_populated`: whether tasks run on a partition's own CPUs, without those below `except`.
    fn has_members(&self, partition: &CgroupPath, except: Option<&CgroupPath>) -> bool {
        let mut groups = vec![partition.clone()];
        while let Some(path) = groups.pop() {
            if self.has_tasks(&path) {
                return true;
            }
            let counts =
                |child: &CgroupPath| self.populated(child) && Some(child) != except && !self.is_partition(child);
            groups.extend(self.children(&path).into_iter().filter(counts));
        }
        false
    }

    /// `cpuset.cpus.partition` written (`update_prstate`): the write succeeds, and reading says whether the partition is valid.
    pub fn write_partition(&mut self, path: &CgroupPath, text: &str) -> Result<(), Errno> {
        let isolated = match text {
            "member" => None,
            "root" => Some(false),
            "isolated" => Some(true),
            _ => return Err(Errno::EINVAL),
        };
        let now = self.cpuset(path)?.clone();
        let granted = self.granted(path);
        let partition = match (isolated, now.partition) {
            (None, _) => Partition::Member,
            (Some(isolated), Partition::Valid { remote, .. }) => Partition::Valid { isolated, remote },
            (Some(isolated), _) => match self.may_become(path, &now) {
                Ok(remote) => Partition::Valid { isolated, remote },
                Err(reason) => Partition::Invalid {
                    isolated,
                    reason: Some(reason),
                },
            },
        };
        let held = CpuSet::new();
        self.set_cpuset(path, Cpuset { partition, held, ..now })?;
        self.take(path)?;
        self.settle_below(path, &granted, Some(path))?;
        self.follow_cpusets();
        Ok(())
    }

    /// Whether it would be a remote partition (`remote_partition_enable`), or why it would be invalid.
    fn may_become(&self, path: &CgroupPath, cpuset: &Cpuset) -> Result<bool, &'static str> {
        if self.siblings_allow(path, cpuset, true).is_err() {
            return Err(NOT_EXCLUSIVE);
        }
        if cpuset.wanted().is_empty() {
            return Err(EMPTY);
        }
        let wanted = cpuset.wanted().intersection(&self.granted_above(path));
        let parent = up(path).unwrap_or_else(CgroupPath::root);
        if self.is_partition(&parent) {
            if wanted.is_empty() {
                return Err(BAD_LIST);
            }
            if self.effective(&parent).is_subset(&wanted) && self.has_members(&parent, Some(path)) {
                return Err(NO_CPUS_LEFT);
            }
            return Ok(false);
        }
        if self.kernel == Kernel::V6_1 {
            return Err(PARENT_NO_PARTITION);
        }
        let root = CgroupPath::root();
        let taken = !wanted.is_disjoint(&self.taken(&root));
        if wanted.is_disjoint(&self.online) || taken || self.effective(&root).is_subset(&wanted) {
            return Err(BAD_LIST);
        }
        Ok(true)
    }

    /// CPUs go offline or come back (`cpuset_hotplug_update_tasks`).
    pub fn hotplug(&mut self, online: CpuSet) -> Result<(), Errno> {
        self.online = online;
        let partitions = &self.partitions;
        let mut paths: Vec<CgroupPath> = partitions.remote.union(&partitions.others).cloned().collect();
        paths.retain(|path| self.is_partition(path));
        let mut ended = Vec::new();
        for path in paths {
            let held = self.granted(&path);
            if held.is_disjoint(&self.online) && self.has_members(&path, None) {
                self.end_partition(&path, Some(OFFLINE))?;
                ended.push((path, held));
            }
        }
        for (path, held) in ended {
            self.settle_below(&path, &held, None)?;
        }
        self.follow_cpusets();
        Ok(())
    }
}
