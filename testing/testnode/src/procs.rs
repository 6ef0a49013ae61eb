//! Threads, PID namespaces, affinity and pidfds (`kernel/fork.c`, `kernel/pid_namespace.c`, `kernel/sched/syscalls.c`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::{CgroupPath, File};
use stelia_kernel::proc::{ProcError, Procs, TaskId, Thread};

use super::counts::Call;
use super::tree::up;
use super::{Model, State};

#[derive(Debug, Clone)]
pub(super) struct Task {
    /// The thread that leads its process; its id is the process's.
    pub process: i32,
    pub start: u64,
    pub name: String,
    /// Its process's program and arguments.
    pub command: Vec<String>,
    /// Its id in each PID namespace, outermost first.
    pub numbers: Vec<i32>,
    /// The namespaces below the host's, outermost first.
    pub namespaces: Vec<usize>,
    pub cgroup: CgroupPath,
    /// The affinity that `sched_setaffinity` requested.
    pub mask: CpuSet,
}

/// What a descriptor stands for that was opened of a process.
#[derive(Debug)]
pub(super) struct Pidfd {
    task: TaskId,
    /// Closed when the process ends, which makes the descriptor readable.
    alive: Option<OwnedFd>,
}

fn failed(operation: String) -> impl FnOnce(Errno) -> ProcError {
    move |cause| ProcError {
        operation,
        cause: cause.into(),
    }
}

impl State {
    pub fn threads_of(&self, process: i32) -> Vec<i32> {
        self.processes.get(&process).into_iter().flatten().copied().collect()
    }

    /// The CPUs on which a thread may run now: its affinity within the cpuset, or the whole cpuset if the two are disjoint
    /// (`cpuset_cpus_allowed`).
    pub fn runs_on(&self, task: &Task) -> CpuSet {
        let cpuset = self.effective(&task.cgroup);
        let both = task.mask.intersection(&cpuset);
        if both.is_empty() { cpuset } else { both }
    }

    /// `pids_can_fork`: EAGAIN at a `pids.max` here or above. Moves are not refused.
    fn check_pids(&self, cgroup: &CgroupPath) -> Result<(), Errno> {
        for level in std::iter::successors(Some(cgroup.clone()), up) {
            let group = self.group(&level)?;
            let max = group.stored.get(&File::PidsMax).and_then(|max| max.parse().ok());
            if max.is_some_and(|max: usize| group.within >= max) {
                return Err(Errno::EAGAIN);
            }
        }
        Ok(())
    }

    /// `copy_process`: a child of thread `creator` is a thread of its process, a new process, or one that begins a PID
    /// namespace. It inherits cgroup and affinity.
    pub fn fork(&mut self, creator: i32, name: &str, kind: ForkKind) -> Result<i32, Errno> {
        let creator = self.tasks.get(&creator).ok_or(Errno::ESRCH)?.clone();
        self.check_pids(&creator.cgroup)?;
        let id = self.next_id;
        self.next_id += 1;
        self.clock += 1;
        let mut namespaces = creator.namespaces.clone();
        if kind == ForkKind::Namespace {
            namespaces.push(self.namespaces.len());
            self.namespaces.push((id, 1));
        }
        let mut numbers = vec![id];
        for index in &namespaces {
            let namespace = self.namespaces.get_mut(*index).ok_or(Errno::ESRCH)?;
            numbers.push(namespace.1);
            namespace.1 += 1;
        }
        let task = Task {
            process: if kind == ForkKind::Thread { creator.process } else { id },
            start: self.clock,
            name: name.to_owned(),
            numbers,
            namespaces,
            ..creator
        };
        self.add_task(id, task);
        Ok(id)
    }

    /// Ends a thread; with a process's leader its process; with the first process of a PID namespace that whole
    /// namespace (`zap_pid_ns_processes`).
    pub fn end(&mut self, id: i32) -> Result<(), Errno> {
        let task = self.tasks.get(&id).ok_or(Errno::ESRCH)?;
        if task.process != id {
            self.remove_task(id);
            return Ok(());
        }
        let mut own = task.namespaces.iter().copied();
        let own_namespace = own.find(|index| self.namespaces.get(*index).is_some_and(|(first, _)| *first == id));
        let mut ended = self.threads_of(id);
        if let Some(namespace) = own_namespace {
            let inside = self
                .tasks
                .iter()
                .filter(|(_, task)| task.namespaces.contains(&namespace));
            ended.extend(inside.map(|(id, _)| *id));
        }
        for id in ended {
            self.remove_task(id);
        }
        for pidfd in self.pidfds.values_mut() {
            pidfd.alive.take_if(|_| !self.tasks.contains_key(&pidfd.task.id));
        }
        Ok(())
    }

    /// The end of a pipe for reading, in place of a pidfd.
    fn pidfd(&mut self, pid: i32) -> Result<OwnedFd, Errno> {
        let task = self.identity(pid).map_err(|_| Errno::ESRCH)?;
        let errno = |cause: rustix::io::Errno| Errno::from_raw(cause.raw_os_error());
        let (pidfd, alive) = pipe_with(PipeFlags::CLOEXEC).map_err(errno)?;
        let key = key(pidfd.as_fd()).map_err(errno)?;
        let alive = Some(alive);
        self.pidfds.insert(key, Pidfd { task, alive });
        Ok(pidfd)
    }

    fn task(&self, id: i32) -> Result<&Task, Errno> {
        self.tasks.get(&id).ok_or(Errno::ENOENT)
    }

    fn identity(&self, id: i32) -> Result<TaskId, Errno> {
        let start = self.task(id)?.start;
        Ok(TaskId { id, start })
    }
}

/// What a fork creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ForkKind {
    Thread,
    Process,
    Namespace,
}

impl Model {
    /// A process made by thread `creator`: it inherits cgroup, affinity and PID namespace.
    ///
    /// # Errors
    /// ESRCH without that thread, EAGAIN at a `pids.max`.
    pub fn spawn(&self, creator: i32, name: &str) -> io::Result<i32> {
        self.outside(|state| state.fork(creator, name, ForkKind::Process))
    }

    /// A thread made by thread `creator` in its own process.
    pub fn spawn_thread(&self, creator: i32, name: &str) -> io::Result<i32> {
        self.outside(|state| state.fork(creator, name, ForkKind::Thread))
    }

    /// A process that is the first of a new PID namespace.
    pub fn spawn_in_namespace(&self, creator: i32, name: &str) -> io::Result<i32> {
        self.outside(|state| state.fork(creator, name, ForkKind::Namespace))
    }

    /// Ends a thread; with a process's first thread the process, and with a namespace's first process the PID
    /// namespace.
    pub fn end(&self, id: i32) -> io::Result<()> {
        self.outside(|state| state.end(id))
    }

    /// Sets the next task's id, for example to one that was used before.
    pub fn next_id(&self, id: i32) {
        self.lock().next_id = id;
    }

    /// Sets the program and arguments of a process, as execve(2) does.
    ///
    /// # Errors
    /// ESRCH without that process.
    pub fn exec(&self, pid: i32, command: &[&str]) -> io::Result<()> {
        self.outside(|state| {
            let task = state.tasks.get_mut(&pid).ok_or(Errno::ESRCH)?;
            task.command = command.iter().map(|&word| word.to_owned()).collect();
            Ok(())
        })
    }

    /// A descriptor for a process, in place of a pidfd.
    ///
    /// # Errors
    /// ESRCH without that process.
    pub fn pidfd(&self, pid: i32) -> io::Result<OwnedFd> {
        self.outside(|state| state.pidfd(pid))
    }

    /// The affinity that `sched_setaffinity` last requested, whatever the cpuset permits.
    pub fn mask(&self, tid: i32) -> CpuSet {
        self.lock()
            .tasks
            .get(&tid)
            .map(|task| task.mask.clone())
            .unwrap_or_default()
    }

    /// Sets a thread's affinity as another program would.
    ///
    /// # Errors
    /// ESRCH; EINVAL when no CPU of it is in the thread's cpuset.
    pub fn pin(&self, tid: i32, cpus: &CpuSet) -> io::Result<()> {
        self.outside(|state| state.set_mask(tid, cpus))
    }

    /// Every thread with its cgroup and the CPUs it may run on.
    pub fn tasks(&self) -> Vec<(i32, CgroupPath, CpuSet)> {
        let state = self.lock();
        let tasks = state.tasks.iter();
        tasks
            .map(|(id, task)| (*id, task.cgroup.clone(), state.runs_on(task)))
            .collect()
    }
}

fn key(fd: BorrowedFd<'_>) -> rustix::io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

impl State {
    /// `sched_setaffinity(2)`: EINVAL where no CPU of the mask is in the cpuset.
    fn set_mask(&mut self, tid: i32, cpus: &CpuSet) -> Result<(), Errno> {
        let task = self.tasks.get(&tid).ok_or(Errno::ESRCH)?;
        if cpus.is_disjoint(&self.effective(&task.cgroup)) {
            return Err(Errno::EINVAL);
        }
        if let Some(task) = self.tasks.get_mut(&tid) {
            task.mask = cpus.clone();
        }
        Ok(())
    }
}

impl Model {
    fn query<T>(
        &self,
        what: impl Fn() -> String,
        query: impl FnOnce(&State) -> Result<T, Errno>,
    ) -> Result<T, ProcError> {
        let answer = query(&self.ask(Call::Read, &what));
        answer.map_err(|cause| failed(what())(cause))
    }
}

impl Procs for Model {
    fn identify(&self, id: i32) -> Result<TaskId, ProcError> {
        self.query(|| format!("identify {id}"), |state| state.identity(id))
    }

    fn cgroup(&self, id: i32) -> Result<CgroupPath, ProcError> {
        let what = || format!("read cgroup of {id}");
        self.query(what, |state| Ok(state.task(id)?.cgroup.clone()))
    }

    fn process(&self, tid: i32) -> Result<i32, ProcError> {
        self.query(|| format!("read Tgid of {tid}"), |state| Ok(state.task(tid)?.process))
    }

    fn numbers(&self, id: i32) -> Result<Vec<i32>, ProcError> {
        let what = || format!("read NSpid of {id}");
        self.query(what, |state| Ok(state.task(id)?.numbers.clone()))
    }

    fn thread_ids(&self, pid: i32) -> Result<Vec<i32>, ProcError> {
        let what = || format!("list {pid}/task");
        self.query(what, |state| Ok(state.threads_of(state.task(pid)?.process)))
    }

    fn threads(&self, pid: i32) -> Result<Vec<Thread>, ProcError> {
        self.query(
            || format!("list {pid}/task"),
            |state| {
                let process = state.task(pid)?.process;
                let thread = |id: i32| {
                    Ok(Thread {
                        task: state.identity(id)?,
                        numbers: state.task(id)?.numbers.clone(),
                    })
                };
                state.threads_of(process).into_iter().map(thread).collect()
            },
        )
    }

    /// A guest runs as soon as its vCPU's thread is there.
    fn has_run_guest(&self, tid: i32) -> Result<bool, ProcError> {
        let what = || format!("read guest time of {tid}");
        self.query(what, |state| state.task(tid).map(|_| true))
    }

    fn name(&self, id: i32) -> String {
        let state = self.ask(Call::Read, || format!("read name of {id}"));
        state.tasks.get(&id).map(|task| task.name.clone()).unwrap_or_default()
    }

    fn command(&self, pid: i32, most: usize) -> Result<Vec<String>, ProcError> {
        let fits = |left: &mut usize, argument: &String| {
            *left = left.checked_sub(argument.len() + 1)?;
            Some(argument.clone())
        };
        let what = || format!("read command line of {pid}");
        self.query(what, |state| {
            Ok(state.task(pid)?.command.iter().scan(most, fits).collect())
        })
    }

    fn affinity(&self, tid: i32) -> Result<CpuSet, ProcError> {
        let what = || format!("get affinity of thread {tid}");
        self.query(what, |state| {
            let task = state.tasks.get(&tid).ok_or(Errno::ESRCH)?;
            Ok(state.runs_on(task))
        })
    }

    fn set_affinity(&self, tid: i32, cpu: Option<u32>) -> Result<(), ProcError> {
        let to = || cpu.map_or_else(|| "all".to_owned(), |cpu| cpu.to_string());
        let what = || format!("set affinity of {tid} to {}", to());
        self.touch(tid, None);
        self.change(Call::Write, what, |state| {
            let mask = cpu.map_or_else(|| state.cpus.clone(), |cpu| std::iter::once(cpu).collect());
            state.set_mask(tid, &mask)
        })
        .map_err(|cause| failed(what())(cause))
    }

    fn allow_cpus(&self, tid: i32, cpus: &CpuSet) -> Result<(), ProcError> {
        let what = || format!("set affinity of {tid} to {cpus}");
        self.change(Call::Write, what, |state| state.set_mask(tid, cpus))
            .map_err(|cause| failed(what())(cause))
    }

    fn pid_of_pidfd(&self, pidfd: BorrowedFd<'_>) -> Result<i32, ProcError> {
        let operation = "look up a pidfd's process";
        let key = key(pidfd).map_err(|cause| ProcError {
            operation: operation.into(),
            cause: cause.into(),
        })?;
        let state = self.ask(Call::Read, || operation.to_owned());
        let Some(&Pidfd { task, .. }) = state.pidfds.get(&key) else {
            return Err(ProcError {
                operation: operation.into(),
                cause: io::Error::new(io::ErrorKind::InvalidInput, "the descriptor is not a pidfd"),
            });
        };
        let is_alive = state.identity(task.id) == Ok(task);
        if is_alive {
            Ok(task.id)
        } else {
            Err(failed(operation.into())(Errno::ESRCH))
        }
    }

    fn open_pidfd(&self, pid: i32) -> Result<OwnedFd, ProcError> {
        let what = || format!("open a pidfd of {pid}");
        let opened = self.ask(Call::Read, what).pidfd(pid);
        opened.map_err(|cause| failed(what())(cause))
    }
}
