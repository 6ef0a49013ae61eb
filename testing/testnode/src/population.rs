//! Which tasks are in which cgroup: counted at every move, so that no operation scans all tasks, cgroups or units.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use stelia_kernel::cgroup::{CgroupPath, File};
use stelia_kubelet::ContainerCgroup;

use super::procs::Task;
use super::tree::up;
use super::{Kernel, State};

/// What has to be recomputed because tasks were added or removed.
#[derive(Debug, Default)]
pub(super) struct Population {
    /// Scopes that may have become empty.
    emptied: BTreeSet<CgroupPath>,
    /// Names of cgroups in stelia.slice whose events may have changed.
    changed: BTreeSet<String>,
    /// Cgroups of containers that are instances in place, whose events may have changed.
    recorded: BTreeSet<CgroupPath>,
    /// The current texts of the files of events.
    mirrored: HashMap<CgroupPath, String>,
    /// Threads in uninterruptible sleep: no freezer stops them.
    pub unfreezable: BTreeSet<i32>,
}

impl State {
    pub fn add_task(&mut self, id: i32, task: Task) {
        self.processes.entry(task.process).or_default().insert(id);
        let cgroup = task.cgroup.clone();
        self.tasks.insert(id, task);
        self.enter(id, &cgroup);
    }

    /// Removes a task; one that has ended already is not an error.
    pub fn remove_task(&mut self, id: i32) {
        let Some(task) = self.tasks.remove(&id) else {
            return;
        };
        self.population.unfreezable.remove(&id);
        if let Some(threads) = self.processes.get_mut(&task.process) {
            threads.remove(&id);
            if threads.is_empty() {
                self.processes.remove(&task.process);
            }
        }
        self.leave(id, &task.cgroup);
    }

    /// Puts a thread into a cgroup without further checks.
    pub fn put(&mut self, id: i32, to: &CgroupPath) {
        let all = (self.kernel == Kernel::V6_1).then(|| self.cpus.clone());
        let Some(task) = self.tasks.get_mut(&id) else { return };
        if task.cgroup == *to {
            return;
        }
        let from = std::mem::replace(&mut task.cgroup, to.clone());
        if let Some(all) = all {
            task.mask = all;
        }
        self.enter(id, to);
        self.leave(id, &from);
    }

    fn enter(&mut self, id: i32, cgroup: &CgroupPath) {
        if let Some(group) = self.groups.get_mut(cgroup) {
            group.tasks.insert(id);
        }
        for level in std::iter::successors(Some(cgroup.clone()), up) {
            if let Some(group) = self.groups.get_mut(&level) {
                group.within += 1;
            }
        }
        self.events_change(cgroup);
    }

    fn leave(&mut self, id: i32, cgroup: &CgroupPath) {
        if let Some(group) = self.groups.get_mut(cgroup) {
            group.tasks.remove(&id);
        }
        for level in std::iter::successors(Some(cgroup.clone()), up) {
            if let Some(group) = self.groups.get_mut(&level) {
                group.within -= 1;
                if group.within == 0 {
                    self.may_be_empty(&level);
                }
            }
        }
        self.events_change(cgroup);
    }

    /// Marks a scope that systemd has to check.
    pub fn may_be_empty(&mut self, scope: &CgroupPath) {
        if scope.as_str().ends_with(".scope") {
            self.population.emptied.insert(scope.clone());
        }
    }

    /// Removes the scopes that have become empty, as systemd does.
    pub fn remove_empty_scopes(&mut self) {
        while let Some(cgroup) = self.population.emptied.pop_first() {
            let known = self.units.get(cgroup.name()).is_some_and(|unit| unit.cgroup == cgroup);
            // systemd is notified by the cgroup's events, which a cgroup that another program has removed does not send.
            if known && self.groups.contains_key(&cgroup) && !self.populated(&cgroup) {
                self.units.remove(cgroup.name());
                self.remove_tree(&cgroup);
            }
        }
    }

    /// Marks `cgroup.events` of this cgroup and those above as possibly changed.
    pub fn events_change(&mut self, cgroup: &CgroupPath) {
        let below = cgroup.as_str().strip_prefix("/stelia.slice/");
        if let Some(name) = below.and_then(|below| below.split('/').next())
            && !self.population.changed.contains(name)
        {
            self.population.changed.insert(name.to_owned());
        }
        if below.is_none() {
            let has_record = |level: &CgroupPath| {
                let pod = up(level).and_then(|pod| self.groups.get(&pod));
                let recorded = pod.filter(|pod| !pod.attributes.is_empty());
                let recorded =
                    recorded.is_some_and(|pod| pod.attributes.contains_key(&format!("{}.schema", level.name())));
                recorded || !self.groups.contains_key(level) && self.population.mirrored.contains_key(level)
            };
            let level = std::iter::successors(Some(cgroup.clone()), up).find(has_record);
            // With crun the processes are one level lower.
            let inner = level.iter().map(|level| level.child(ContainerCgroup::SUBGROUP));
            let inner: Vec<CgroupPath> = inner.collect();
            self.population.recorded.extend(level.into_iter().chain(inner));
        }
    }

    /// Marks `cgroup.events` of every cgroup as possibly changed.
    pub fn all_events_change(&mut self) {
        let scopes = self.groups.get(&CgroupPath::slice()).map(|slice| &slice.children);
        self.population.changed.extend(scopes.into_iter().flatten().cloned());
    }

    /// Writes `cgroup.events` of the scopes in stelia.slice, and of the cgroup `instance` in each, as files, which the
    /// engine watches with inotify. A file whose text has not changed is not written.
    pub fn mirror_events(&mut self) {
        while let Some(name) = self.population.changed.pop_first() {
            let scope = CgroupPath::slice().child(&name);
            let instance = scope.child("instance");
            self.mirror(scope);
            self.mirror(instance);
        }
        while let Some(container) = self.population.recorded.pop_first() {
            self.mirror(container);
        }
    }

    fn mirror(&mut self, cgroup: CgroupPath) {
        let below = cgroup.as_str().trim_start_matches('/');
        let directory = self.directory.join("cgroup").join(below);
        if !self.groups.contains_key(&cgroup) {
            if self.population.mirrored.remove(&cgroup).is_some() {
                let _ = fs::remove_dir_all(directory);
            }
            return;
        }
        let text = self.events(&cgroup) + "\n";
        if self.population.mirrored.get(&cgroup) != Some(&text) {
            // Without the file the engine only misses an event.
            let _ = write(&directory, &text);
            self.population.mirrored.insert(cgroup, text);
        }
    }
}

fn write(directory: &Path, text: &str) -> std::io::Result<()> {
    fs::create_dir_all(directory)?;
    fs::write(directory.join(File::Events.name()), text)
}
