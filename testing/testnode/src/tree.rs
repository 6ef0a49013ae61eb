//! cgroups: types, moves, controllers, and where processes may be (`kernel/cgroup/cgroup.c`; the functions are named).

use std::collections::{BTreeMap, BTreeSet};

use nix::errno::Errno;
use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::{CgroupPath, File};

use super::State;
use super::cpusets::{Claims, Cpuset};

/// The controllers in the order in which the kernel prints them, and whether threaded cgroups can have them.
pub(super) const CONTROLLERS: [(&str, bool); 6] = [
    ("cpuset", true),
    ("cpu", true),
    ("io", false),
    ("memory", false),
    ("hugetlb", false),
    ("pids", true),
];

#[derive(Debug, Clone, Default)]
pub(super) struct Group {
    /// `threaded` was written to its `cgroup.type`.
    pub threaded: bool,
    /// `cgroup.subtree_control`: indexes into [`CONTROLLERS`].
    pub control: BTreeSet<usize>,
    /// `cgroup.freeze`
    pub freeze: bool,
    pub attributes: BTreeMap<String, String>,
    /// The user who owns the directory.
    pub owner: u32,
    pub cpuset: Cpuset,
    /// `memory.*`, `pids.max`, `cpu.*`, `io.*`, `hugetlb.*` as they are read, where they are not the default; only
    /// `pids.max` is enforced.
    pub stored: BTreeMap<File, String>,
    /// `memory.current`, all of it anonymous.
    pub memory: u64,
    /// The names of the cgroups in it.
    pub children: BTreeSet<String>,
    /// How many of them are threaded.
    pub threaded_children: usize,
    pub tasks: BTreeSet<i32>,
    /// How many threads are in it and in those below.
    pub within: usize,
    pub claims: Claims,
    /// Its effective CPUs when they were last compared, on kernels on which a change of them resets its tasks' affinity.
    pub last_effective: CpuSet,
}

/// The parent; `None` for the root.
pub(super) fn up(path: &CgroupPath) -> Option<CgroupPath> {
    (*path != CgroupPath::root()).then(|| path.parent().unwrap_or_else(CgroupPath::root))
}

impl State {
    pub fn group(&self, path: &CgroupPath) -> Result<&Group, Errno> {
        self.groups.get(path).ok_or(Errno::ENOENT)
    }

    pub fn group_mut(&mut self, path: &CgroupPath) -> Result<&mut Group, Errno> {
        self.groups.get_mut(path).ok_or(Errno::ENOENT)
    }

    pub fn children(&self, path: &CgroupPath) -> Vec<CgroupPath> {
        let names = self.groups.get(path).map(|group| &group.children);
        names.into_iter().flatten().map(|name| path.child(name)).collect()
    }

    pub fn create(&mut self, path: &CgroupPath) -> Result<(), Errno> {
        if self.groups.contains_key(path) {
            return Ok(());
        }
        let above = up(path).ok_or(Errno::EEXIST)?;
        // `cgroup_check_hierarchy_limits`
        let closed = |level: &CgroupPath| {
            let most = self
                .groups
                .get(level)
                .and_then(|group| group.stored.get(&File::MaxDescendants));
            most.is_some_and(|most| most == "0")
        };
        if std::iter::successors(Some(above.clone()), up).any(|level| closed(&level)) {
            return Err(Errno::EAGAIN);
        }
        let parent = self.group_mut(&above)?;
        parent.children.insert(path.name().to_owned());
        self.groups.insert(path.clone(), Group::default());
        self.may_be_empty(path);
        self.events_change(path);
        self.follow_cpusets();
        Ok(())
    }

    /// rmdir: EBUSY while it has tasks or cgroups in it (`cgroup_destroy_locked`).
    pub fn remove(&mut self, path: &CgroupPath) -> Result<(), Errno> {
        if !self.groups.contains_key(path) {
            return Ok(());
        }
        let parent = up(path).ok_or(Errno::EBUSY)?;
        if self.populated(path) || !self.group(path)?.children.is_empty() {
            return Err(Errno::EBUSY);
        }
        // Its CPUs return to others.
        self.set_cpuset(path, Cpuset::default())?;
        let removed = self.groups.remove(path);
        let parent = self.group_mut(&parent)?;
        parent.children.remove(path.name());
        parent.threaded_children -= usize::from(removed.is_some_and(|group| group.threaded));
        self.events_change(path);
        self.follow_cpusets();
        Ok(())
    }

    fn is_threaded(&self, path: &CgroupPath) -> bool {
        self.groups.get(path).is_some_and(|group| group.threaded)
    }

    /// The cgroup whose resource domain this one belongs to: the nearest that is not threaded (`dom_cgrp`).
    pub fn domain(&self, path: &CgroupPath) -> CgroupPath {
        let mut levels = std::iter::successors(Some(path.clone()), up);
        levels
            .find(|level| !self.is_threaded(level))
            .unwrap_or_else(CgroupPath::root)
    }

    pub fn has_tasks(&self, path: &CgroupPath) -> bool {
        self.groups.get(path).is_some_and(|group| !group.tasks.is_empty())
    }

    pub fn populated(&self, path: &CgroupPath) -> bool {
        self.groups.get(path).is_some_and(|group| group.within > 0)
    }

    fn enables(&self, path: &CgroupPath, threaded: bool) -> bool {
        let of_kind = |index: &usize| CONTROLLERS[*index].1 == threaded;
        self.groups
            .get(path)
            .is_some_and(|group| group.control.iter().any(of_kind))
    }

    /// `cgroup_can_be_thread_root`: no populated domain below it, and no controller that threads cannot have.
    fn can_be_thread_root(&self, path: &CgroupPath) -> bool {
        if *path == CgroupPath::root() {
            return true;
        }
        let domain_child = |child: &CgroupPath| !self.is_threaded(child) && self.populated(child);
        !self.is_threaded(path) && !self.children(path).iter().any(domain_child) && !self.enables(path, false)
    }

    /// `cgroup_is_thread_root`: threaded cgroups below it, or tasks beside threaded controllers.
    fn is_thread_root(&self, path: &CgroupPath) -> bool {
        let threaded_child = || self.groups.get(path).is_some_and(|group| group.threaded_children > 0);
        !self.is_threaded(path) && (threaded_child() || self.has_tasks(path) && self.enables(path, true))
    }

    /// `cgroup_is_valid_domain`: processes may be in it, since no ancestor but the hierarchy's root hosts threaded cgroups.
    fn is_valid_domain(&self, path: &CgroupPath) -> bool {
        let root = CgroupPath::root();
        let mut above = std::iter::successors(up(path), up);
        !self.is_threaded(path)
            && !above.any(|level| level != root && self.is_thread_root(&level) || self.is_threaded(&level))
    }

    /// `cgroup.type` read (`cgroup_type_show`).
    pub fn type_text(&self, path: &CgroupPath) -> &'static str {
        if self.is_threaded(path) {
            "threaded"
        } else if !self.is_valid_domain(path) {
            "domain invalid"
        } else if self.is_thread_root(path) {
            "domain threaded"
        } else {
            "domain"
        }
    }

    /// `threaded` written to `cgroup.type` (`cgroup_enable_threaded`): EOPNOTSUPP with tasks in it or below, with a controller
    /// that threads cannot have, and below a domain that cannot host it.
    pub fn make_threaded(&mut self, path: &CgroupPath) -> Result<(), Errno> {
        if self.is_threaded(path) {
            return Ok(());
        }
        if self.populated(path) || self.enables(path, false) {
            return Err(Errno::EOPNOTSUPP);
        }
        let parent = up(path).ok_or(Errno::ENOENT)?;
        let domain = self.domain(&parent);
        if !self.is_valid_domain(&domain) || !self.can_be_thread_root(&domain) {
            return Err(Errno::EOPNOTSUPP);
        }
        self.group_mut(path)?.threaded = true;
        self.group_mut(&parent)?.threaded_children += 1;
        Ok(())
    }

    /// Whether a controller's files are in the cgroup.
    pub fn has_controller(&self, path: &CgroupPath, controller: usize) -> bool {
        match up(path) {
            None => true,
            Some(parent) => {
                let enabled = self
                    .groups
                    .get(&parent)
                    .is_some_and(|group| group.control.contains(&controller));
                enabled && (CONTROLLERS[controller].1 || !self.is_threaded(path))
            }
        }
    }

    /// `cgroup.subtree_control` written (`cgroup_subtree_control_write`): ENOENT for a controller that the parent does not
    /// give, EBUSY for one that a child still enables.
    pub fn write_control(&mut self, path: &CgroupPath, text: &str) -> Result<(), Errno> {
        let before = self.group(path)?.control.clone();
        let mut control = before.clone();
        let mut enable = Vec::new();
        for word in text.split_whitespace() {
            let (sign, name) = word.split_at_checked(1).ok_or(Errno::EINVAL)?;
            let known = CONTROLLERS.iter().position(|(known, _)| *known == name);
            let controller = known.ok_or(Errno::EINVAL)?;
            match sign {
                "+" if control.contains(&controller) => {}
                "+" if !self.has_controller(path, controller) => return Err(Errno::ENOENT),
                "+" => enable.push(controller),
                "-" => {
                    let below = |child: &CgroupPath| self.groups.get(child).map(|group| &group.control);
                    let held = |child| below(child).is_some_and(|control| control.contains(&controller));
                    if self.children(path).iter().any(held) {
                        return Err(Errno::EBUSY);
                    }
                    control.remove(&controller);
                }
                _ => return Err(Errno::EINVAL),
            }
        }
        self.vet_control(path, &enable)?;
        control.extend(enable);
        if before.is_subset(&control) {
            self.group_mut(path)?.control = control;
            return Ok(());
        }
        self.group_mut(path)?.control = control;
        // A controller that is disabled loses its values.
        for child in self.children(path) {
            if !self.has_controller(&child, 0) {
                let granted = self.granted(&child);
                self.set_cpuset(&child, Cpuset::default())?;
                self.settle_below(&child, &granted, None)?;
            }
            if !self.has_controller(&child, 5) {
                self.group_mut(&child)?.stored.remove(&File::PidsMax);
            }
        }
        self.follow_cpusets();
        Ok(())
    }

    /// `cgroup_vet_subtree_control_enable`: the rule of no internal processes, and its exception for threaded controllers.
    fn vet_control(&self, path: &CgroupPath, enable: &[usize]) -> Result<(), Errno> {
        if enable.is_empty() {
            return Ok(());
        }
        if !self.is_valid_domain(&self.domain(path)) {
            return Err(Errno::EOPNOTSUPP);
        }
        if *path == CgroupPath::root() {
            return Ok(());
        }
        if enable.iter().any(|controller| !CONTROLLERS[*controller].1) {
            if self.is_thread_root(path) || self.is_threaded(path) {
                return Err(Errno::EOPNOTSUPP);
            }
        } else if self.can_be_thread_root(path) || self.is_threaded(path) {
            return Ok(());
        }
        // Children would compete with the tasks.
        if self.has_tasks(path) {
            Err(Errno::EBUSY)
        } else {
            Ok(())
        }
    }

    /// Whether tasks may be moved into the cgroup (`cgroup_migrate_vet_dst`).
    fn vet_destination(&self, path: &CgroupPath) -> Result<(), Errno> {
        self.group(path)?;
        if !self.is_valid_domain(&self.domain(path)) {
            return Err(Errno::EOPNOTSUPP);
        }
        let internal = !self.can_be_thread_root(path) && !self.is_threaded(path);
        if internal && !self.group(path)?.control.is_empty() {
            return Err(Errno::EBUSY);
        }
        Ok(())
    }

    /// `cgroup.procs` written: the whole process of this thread moves.
    pub fn move_process(&mut self, id: i32, to: &CgroupPath) -> Result<(), Errno> {
        let process = self.tasks.get(&id).ok_or(Errno::ESRCH)?.process;
        self.vet_destination(to)?;
        let threads: Vec<i32> = self.threads_of(process);
        for thread in threads {
            self.put(thread, to);
        }
        Ok(())
    }

    /// `cgroup.threads` written: one thread moves within its domain, else EOPNOTSUPP (`cgroup_attach_permissions`).
    pub fn move_thread(&mut self, id: i32, to: &CgroupPath) -> Result<(), Errno> {
        let from = self.tasks.get(&id).ok_or(Errno::ESRCH)?.cgroup.clone();
        self.vet_destination(to)?;
        if self.domain(&from) != self.domain(to) {
            return Err(Errno::EOPNOTSUPP);
        }
        self.put(id, to);
        Ok(())
    }

    /// `cgroup.procs` read: in a threaded domain's root the processes of the whole domain (`CSS_TASK_ITER_THREADED`).
    /// EOPNOTSUPP in a threaded cgroup.
    pub fn processes_in(&self, path: &CgroupPath) -> Result<Vec<i32>, Errno> {
        if self.is_threaded(path) {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut processes = BTreeSet::new();
        let mut groups = vec![path.clone()];
        while let Some(path) = groups.pop() {
            let group = self.group(&path)?;
            let first = |id: &&i32| self.processes.contains_key(*id);
            processes.extend(group.tasks.iter().filter(first).copied());
            if group.threaded_children > 0 {
                groups.extend(self.children(&path).into_iter().filter(|child| self.is_threaded(child)));
            }
        }
        Ok(processes.into_iter().collect())
    }

    pub fn threads_in(&self, path: &CgroupPath) -> Vec<i32> {
        let tasks = self.groups.get(path).map(|group| &group.tasks);
        tasks.into_iter().flatten().copied().collect()
    }

    /// Every cgroup from here downwards, parents first.
    pub fn subtree(&self, path: &CgroupPath) -> Vec<CgroupPath> {
        let mut all: Vec<CgroupPath> = self
            .groups
            .get_key_value(path)
            .map(|(path, _)| path.clone())
            .into_iter()
            .collect();
        let mut next = 0;
        while let Some(path) = all.get(next) {
            let children = self.children(path);
            all.extend(children);
            next += 1;
        }
        all
    }
}
