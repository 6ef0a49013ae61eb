//! CPU partitions: when one comes into force, whose CPUs it takes, and what ends it (`kernel/cgroup/cpuset.c`).
//!
//! A local partition whose reason to be invalid went away stays invalid here until it is written again, which on the
//! kernel is so for remote ones only. The daemon makes remote ones.

use nix::errno::Errno;

use super::cpusets::{Cpuset, Partition};
use super::tree::up;
use super::{Kernel, State};
use crate::cgroup::CgroupPath;
use crate::cpuset::CpuSet;

const BAD_LIST: &str = "Invalid cpu list in cpuset.cpus.exclusive";
const PARENT_INVALID: &str = "Parent is an invalid partition root";
const PARENT_NO_PARTITION: &str = "Parent is not a partition root";
const NOT_EXCLUSIVE: &str = "Cpu list in cpuset.cpus not exclusive";
const NO_CPUS_LEFT: &str = "Parent unable to distribute cpu downstream";
const OFFLINE: &str = "No cpu available due to hotplug";
const EMPTY: &str = "cpuset.cpus and cpuset.cpus.exclusive are empty";

impl State {
    fn is_partition(&self, path: &CgroupPath) -> bool {
        let valid = |path| self.cpuset(path).is_ok_and(|cpuset| cpuset.partition.is_valid());
        *path == CgroupPath::root() || valid(path)
    }

    /// CPUs of partitions that take theirs from this one.
    pub fn taken(&self, from: &CgroupPath) -> CpuSet {
        let root = CgroupPath::root();
        let takes = |path: &CgroupPath, cpuset: &Cpuset| match cpuset.partition {
            Partition::Valid { remote: true, .. } => *from == root,
            Partition::Valid { remote: false, .. } => up(path).as_ref() == Some(from),
            _ => false,
        };
        let takers = self.groups.iter().filter(|(path, group)| takes(path, &group.cpuset));
        takers.flat_map(|(_, group)| group.cpuset.granted.iter()).collect()
    }

    /// `cpuset.cpus.isolated` of the root.
    pub fn isolated(&self) -> CpuSet {
        let isolated = |cpuset: &Cpuset| matches!(cpuset.partition, Partition::Valid { isolated: true, .. });
        let groups = self.groups.values().filter(|group| isolated(&group.cpuset));
        groups.flat_map(|group| group.cpuset.granted.iter()).collect()
    }

    fn granted_above(&self, path: &CgroupPath) -> CpuSet {
        match up(path) {
            None => self.cpus.clone(),
            Some(parent) if parent == CgroupPath::root() => self.cpus.clone(),
            Some(parent) => self
                .cpuset(&parent)
                .map(|cpuset| cpuset.granted.clone())
                .unwrap_or_default(),
        }
    }

    /// `cpuset.cpus.exclusive.effective` everywhere, and the end of partitions that lost CPUs by it.
    pub fn grant(&mut self, written: Option<&CgroupPath>) {
        let paths: Vec<CgroupPath> = self.groups.keys().cloned().collect();
        for path in paths {
            let above = self.granted_above(&path);
            let Some(parent) = up(&path) else { continue };
            let parent_is_partition = self.is_partition(&parent);
            let parent_is_invalid = self
                .cpuset(&parent)
                .is_ok_and(|cpuset| matches!(cpuset.partition, Partition::Invalid { .. }));
            let Ok(group) = self.group_mut(&path) else { continue };
            let cpuset = &mut group.cpuset;
            match cpuset.partition {
                Partition::Valid { remote: false, .. } if !parent_is_partition => {
                    let reason = if parent_is_invalid {
                        PARENT_INVALID
                    } else {
                        PARENT_NO_PARTITION
                    };
                    cpuset.partition = cpuset.partition.invalid(Some(reason));
                }
                // A write above it makes the kernel say so of an invalid one too, whatever the reason was before.
                Partition::Invalid { .. }
                    if !parent_is_partition && written.is_some_and(|above| path != *above && path.is_within(above)) =>
                {
                    cpuset.partition = cpuset.partition.invalid(Some(PARENT_NO_PARTITION));
                }
                // A remote partition keeps what it has when the lists above it only grow.
                Partition::Valid { .. } if written != Some(&path) && !cpuset.granted.is_subset(&above) => {
                    cpuset.partition = cpuset.partition.invalid(Some(BAD_LIST));
                }
                _ => {}
            }
            let keeps = written != Some(&path) && matches!(cpuset.partition, Partition::Valid { remote: true, .. });
            if !keeps {
                cpuset.granted = if !cpuset.exclusive.is_empty() || cpuset.partition.is_valid() {
                    cpuset.wanted().intersection(&above)
                } else {
                    CpuSet::new()
                };
            }
        }
    }

    /// After a write to the CPU lists of a partition: whether it may have them.
    pub fn check_partition(&mut self, path: &CgroupPath, before: &Cpuset) -> Result<(), Errno> {
        let now = self.cpuset(path)?.clone();
        let Partition::Valid { remote, .. } = now.partition else {
            return Ok(());
        };
        let wanted = now.wanted().intersection(&self.granted_above(path));
        let added = wanted.difference(&before.granted);
        let source = if remote { Some(CgroupPath::root()) } else { up(path) };
        let source = source.unwrap_or_else(CgroupPath::root);
        let free = self.cpuset(&source)?.effective.clone();
        let all_of_it =
            !added.is_empty() && free.is_subset(&added) && (remote || self.has_members(&source, Some(path)));
        if wanted.is_empty() || !added.is_disjoint(&self.taken(&source)) || all_of_it {
            self.group_mut(path)?.cpuset.partition = now.partition.invalid(Some(BAD_LIST));
        }
        Ok(())
    }

    /// Whether tasks depend on a partition's own CPUs, those below `except` left out.
    fn has_members(&self, partition: &CgroupPath, except: Option<&CgroupPath>) -> bool {
        self.tasks.values().any(|task| {
            let mut levels = std::iter::successors(Some(task.cgroup.clone()), up);
            task.cgroup.is_within(partition)
                && !except.is_some_and(|except| task.cgroup.is_within(except))
                && levels.find(|level| self.is_partition(level)).as_ref() == Some(partition)
        })
    }

    /// `cpuset.cpus.partition` written: always taken, the answer is in what it reads afterwards.
    pub fn write_partition(&mut self, path: &CgroupPath, text: &str) -> Result<(), Errno> {
        let isolated = match text {
            "member" => {
                self.group_mut(path)?.cpuset.partition = Partition::Member;
                self.recompute(Some(path));
                return Ok(());
            }
            "root" => false,
            "isolated" => true,
            _ => return Err(Errno::EINVAL),
        };
        let now = self.cpuset(path)?.clone();
        let next = match now.partition {
            Partition::Valid { remote, .. } => Partition::Valid { isolated, remote },
            _ => match self.may_become(path, &now) {
                Ok(remote) => Partition::Valid { isolated, remote },
                Err(reason) => Partition::Invalid {
                    isolated,
                    reason: Some(reason),
                },
            },
        };
        self.group_mut(path)?.cpuset.partition = next;
        self.recompute(Some(path));
        Ok(())
    }

    /// Whether it would be a remote partition, or why it is none.
    fn may_become(&self, path: &CgroupPath, cpuset: &Cpuset) -> Result<bool, &'static str> {
        if self.siblings_allow(path, cpuset, true).is_err() {
            return Err(NOT_EXCLUSIVE);
        }
        if cpuset.wanted().is_empty() {
            return Err(EMPTY);
        }
        let wanted = cpuset.wanted().intersection(&self.granted_above(path));
        let parent = up(path).unwrap_or_else(CgroupPath::root);
        let free = |path: &CgroupPath| {
            self.cpuset(path)
                .map(|cpuset| cpuset.effective.clone())
                .unwrap_or_default()
        };
        if self.is_partition(&parent) {
            if wanted.is_empty() {
                return Err(BAD_LIST);
            }
            if free(&parent).is_subset(&wanted) && self.has_members(&parent, Some(path)) {
                return Err(NO_CPUS_LEFT);
            }
            return Ok(false);
        }
        if self.kernel == Kernel::V6_1 {
            return Err(PARENT_NO_PARTITION);
        }
        let root = CgroupPath::root();
        let taken = !wanted.is_disjoint(&self.taken(&root));
        if wanted.is_disjoint(&self.online) || taken || free(&root).is_subset(&wanted) {
            return Err(BAD_LIST);
        }
        Ok(true)
    }

    /// CPUs go offline or come back.
    pub fn hotplug(&mut self, online: CpuSet) {
        self.online = online;
        let paths: Vec<CgroupPath> = self.groups.keys().cloned().collect();
        for path in paths {
            let Ok(cpuset) = self.cpuset(&path).cloned() else {
                continue;
            };
            let gone = cpuset.granted.is_disjoint(&self.online);
            if cpuset.partition.is_valid() && gone && self.has_members(&path, None) {
                let invalid = cpuset.partition.invalid(Some(OFFLINE));
                if let Ok(group) = self.group_mut(&path) {
                    group.cpuset.partition = invalid;
                }
            }
        }
        self.recompute(None);
    }
}
