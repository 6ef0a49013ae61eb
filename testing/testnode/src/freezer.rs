//! Frozen cgroups (`kernel/cgroup/freezer.c`), and tasks that fork for ever until they are frozen.

use std::io;
use std::num::IntErrorKind;

use nix::errno::Errno;
use stelia_kernel::cgroup::CgroupPath;

use super::procs::ForkKind;
use super::tree::up;
use super::{Model, State};

/// A handle of a fork chain, by which its current task can be queried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chain(usize);

/// The state of a fork chain.
#[derive(Debug, Clone)]
pub(super) struct Link {
    /// The current task; `None` when it ended other than by its own fork.
    task: Option<i32>,
    kind: ForkKind,
    every: u32,
    /// How many more changes by the daemon until the task forks.
    remaining: u32,
}

impl State {
    /// Whether tasks in this cgroup are frozen, by its own file or by that of a cgroup above.
    fn freezes(&self, cgroup: &CgroupPath) -> bool {
        let mut levels = std::iter::successors(Some(cgroup.clone()), up);
        levels.any(|level| self.groups.get(&level).is_some_and(|group| group.freeze))
    }

    /// `cgroup_update_frozen`: every task in it and below has stopped.
    fn is_frozen(&self, cgroup: &CgroupPath) -> bool {
        let mut running = self.population.unfreezable.iter().filter_map(|id| self.tasks.get(id));
        self.freezes(cgroup) && !running.any(|task| task.cgroup.is_within(cgroup))
    }

    /// `cgroup.events`
    pub fn events(&self, cgroup: &CgroupPath) -> String {
        let (populated, frozen) = (self.populated(cgroup), self.is_frozen(cgroup));
        format!("populated {}\nfrozen {}", u8::from(populated), u8::from(frozen))
    }

    /// `cgroup.freeze` written (`cgroup_freeze_write`): 0 or 1, another number is ERANGE.
    pub fn write_freeze(&mut self, cgroup: &CgroupPath, text: &str) -> Result<(), Errno> {
        let freeze = match text.parse::<i32>() {
            Ok(0) => false,
            Ok(1) => true,
            Ok(_) => return Err(Errno::ERANGE),
            Err(cause) => match cause.kind() {
                IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => return Err(Errno::ERANGE),
                _ => return Err(Errno::EINVAL),
            },
        };
        self.group_mut(cgroup)?.freeze = freeze;
        self.events_change(cgroup);
        if CgroupPath::slice().is_within(cgroup) {
            self.all_events_change();
        }
        Ok(())
    }

    /// Called before a change by the daemon: the chains whose turn it is fork first.
    pub fn advance_chains(&mut self) {
        for index in 0..self.chains.len() {
            let Link {
                task: Some(id),
                kind,
                remaining,
                every,
            } = self.chains[index]
            else {
                continue;
            };
            let Some(task) = self.tasks.get(&id) else {
                self.chains[index].task = None;
                continue;
            };
            if self.freezes(&task.cgroup) && !self.population.unfreezable.contains(&id) {
                continue;
            }
            if remaining > 1 {
                self.chains[index].remaining = remaining - 1;
                continue;
            }
            self.chains[index].remaining = every;
            let name = task.name.clone();
            // At a pids limit the task remains and tries again.
            if let Ok(child) = self.fork(id, &name, kind) {
                self.chains[index].task = Some(child);
                // The task exists: it has just forked.
                let _ = self.end(id);
            }
        }
    }

    fn start_chain(&mut self, id: i32, every: u32, kind: ForkKind) -> Result<Chain, Errno> {
        let task = self.tasks.get(&id).ok_or(Errno::ESRCH)?;
        let whole = kind == ForkKind::Process;
        let first_of_namespace = self.namespaces.iter().any(|(first, _)| *first == id);
        if every == 0 || whole != (task.process == id) || first_of_namespace {
            return Err(Errno::EINVAL);
        }
        self.chains.push(Link {
            task: Some(id),
            kind,
            every,
            remaining: every,
        });
        Ok(Chain(self.chains.len() - 1))
    }

    fn set_unfreezable(&mut self, id: i32, unfreezable: bool) -> Result<(), Errno> {
        let cgroup = self.tasks.get(&id).ok_or(Errno::ESRCH)?.cgroup.clone();
        if unfreezable {
            self.population.unfreezable.insert(id);
        } else {
            self.population.unfreezable.remove(&id);
        }
        self.events_change(&cgroup);
        Ok(())
    }
}

impl Model {
    /// From now on this process forks a child and ends, the child does the same, and so on: just before every
    /// `every`-th change by a daemon (1: before each), so that a process that was listed has ended when it is to be
    /// moved, and another one is in its place. While it is frozen it does neither.
    ///
    /// # Errors
    /// ESRCH without that process; EINVAL for a thread that is not its process's first, for the first process of a PID
    /// namespace (whose end would end the whole namespace), and for `every` 0.
    pub fn start_fork_chain(&self, pid: i32, every: u32) -> io::Result<Chain> {
        self.outside(|state| state.start_chain(pid, every, ForkKind::Process))
    }

    /// The same with a thread, which makes another thread of its process.
    ///
    /// # Errors
    /// ESRCH without that thread; EINVAL for the first thread of a process, and for `every` 0.
    pub fn start_thread_chain(&self, tid: i32, every: u32) -> io::Result<Chain> {
        self.outside(|state| state.start_chain(tid, every, ForkKind::Thread))
    }

    /// The current task of a chain; `None` when the chain was ended.
    pub fn chain_task(&self, chain: Chain) -> Option<i32> {
        let state = self.lock();
        let id = state.chains.get(chain.0)?.task?;
        state.tasks.contains_key(&id).then_some(id)
    }

    /// Puts a thread into uninterruptible sleep: a cgroup with it never becomes frozen.
    pub fn set_unfreezable(&self, tid: i32) -> io::Result<()> {
        self.outside(|state| state.set_unfreezable(tid, true))
    }

    /// Wakes the thread up; it freezes if its cgroup is to be frozen.
    pub fn set_freezable(&self, tid: i32) -> io::Result<()> {
        self.outside(|state| state.set_unfreezable(tid, false))
    }
}

#[cfg(test)]
mod tests {
    use stelia_kernel::cgroup::{Cgroups, File};

    use super::super::{Kernel, topology};
    use super::*;

    fn node() -> (Model, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let model = Model::node(&topology(2, 2, 2), directory.path(), Kernel::V6_12).unwrap();
        (model, directory)
    }

    fn scope() -> CgroupPath {
        CgroupPath::slice().child("x.scope")
    }

    fn instance(model: &Model) -> CgroupPath {
        let instance = scope().child("instance");
        model.create(&scope()).unwrap();
        model.create(&instance).unwrap();
        instance
    }

    fn events(model: &Model, at: &CgroupPath) -> String {
        model.read(at, File::Events).unwrap()
    }

    #[test]
    fn a_cgroup_is_frozen_when_all_in_it_and_below_is_and_the_watched_files_say_so() {
        let (model, directory) = node();
        let instance = instance(&model);
        let pid = model.spawn(1, "task").unwrap();
        model.write(&instance, File::Procs, &pid.to_string()).unwrap();
        let file = directory
            .path()
            .join("cgroup/stelia.slice/x.scope/instance/cgroup.events");
        let mirrored = || std::fs::read_to_string(&file).unwrap();
        assert_eq!(mirrored(), "populated 1\nfrozen 0\n");
        let written = std::fs::metadata(&file).unwrap().modified().unwrap();
        model.write(&scope(), File::Freeze, "1").unwrap();
        assert_eq!(mirrored(), "populated 1\nfrozen 1\n");
        assert_eq!(events(&model, &scope()), "populated 1\nfrozen 1");
        assert_eq!(model.read(&instance, File::Freeze).unwrap(), "0", "its own");
        model.set_unfreezable(pid).unwrap();
        assert_eq!(events(&model, &scope()), "populated 1\nfrozen 0");
        assert_eq!(mirrored(), "populated 1\nfrozen 0\n");
        model.set_freezable(pid).unwrap();
        assert_eq!(mirrored(), "populated 1\nfrozen 1\n");
        assert_ne!(std::fs::metadata(&file).unwrap().modified().unwrap(), written);
        // A write that does not change the text leaves the file's time alone.
        let written = std::fs::metadata(&file).unwrap().modified().unwrap();
        let child = model.spawn(pid, "child").unwrap();
        model.end(child).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().modified().unwrap(), written);
        model.end(pid).unwrap();
        assert_eq!(mirrored(), "populated 0\nfrozen 1\n");
        model.remove(&instance).unwrap();
        assert!(!file.exists());
    }
}
