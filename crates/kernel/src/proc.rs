//! Processes and threads: identity, PID namespaces, affinity. [`Procs`] is implemented by the kernel and by the test
//! node's model.

pub mod stat;

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::{fs, io};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use stelia_cpus::{CpuSet, MAX_CPUS, files};

use crate::affinity;
use crate::async_fd;
use crate::cgroup::CgroupPath;
use crate::cgroup::names::text_of;
use crate::vmm_processes;
use stat::guest_time;
pub use stat::start_time;

/// A process or thread, told apart from a later one with the same number by its start time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct TaskId {
    /// Process id, or thread id, on the host.
    pub id: i32,
    /// Start time in clock ticks since boot (`/proc/<id>/task/<id>/stat`, field 22).
    pub start: u64,
}

/// A thread of a process, as its PID namespaces number it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    pub task: TaskId,
    /// `NSpid`: the thread's number in each PID namespace, outermost first.
    pub numbers: Vec<i32>,
}

/// An operation on a process that failed.
#[derive(Debug, thiserror::Error)]
#[error("{operation}: {cause}")]
pub struct ProcError {
    /// The operation with its subject.
    pub operation: String,
    #[source]
    pub cause: io::Error,
}

impl ProcError {
    /// The process or thread ended.
    pub fn is_gone(&self) -> bool {
        is_gone(&self.cause)
    }
}

/// Whether the process or thread ended: ESRCH of calls and open files, ENOENT of its files.
pub fn is_gone(cause: &io::Error) -> bool {
    cause.kind() == io::ErrorKind::NotFound || cause.raw_os_error() == Some(nix::libc::ESRCH)
}

/// What is read of and done to processes and threads. A call fails where the process or thread has ended
/// ([`ProcError::is_gone`]), or where `/proc` lacks what is looked for.
pub trait Procs: Send + Sync {
    fn identify(&self, id: i32) -> Result<TaskId, ProcError>;
    /// The cgroup v2 a process or thread is in.
    fn cgroup(&self, id: i32) -> Result<CgroupPath, ProcError>;
    /// The process a thread belongs to (`Tgid`).
    fn process(&self, tid: i32) -> Result<i32, ProcError>;
    /// A process's number in each PID namespace, outermost first.
    fn numbers(&self, id: i32) -> Result<Vec<i32>, ProcError>;
    /// The threads of a process.
    fn threads(&self, pid: i32) -> Result<Vec<Thread>, ProcError>;
    /// The ids of a process's threads, without reading more of each.
    fn thread_ids(&self, pid: i32) -> Result<Vec<i32>, ProcError>;
    /// A thread's name (`comm`); empty when it ended.
    fn name(&self, id: i32) -> String;
    /// A process's program and arguments, as far as they are in the first `most` bytes; none of a kernel thread or a process that
    /// is about to end. A process can write there what it likes.
    fn command(&self, pid: i32, most: usize) -> Result<Vec<String>, ProcError>;
    /// The CPUs a thread may run on.
    fn affinity(&self, tid: i32) -> Result<CpuSet, ProcError>;
    /// [`Self::process`] and [`Self::affinity`], where both can be had in one read.
    fn process_and_affinity(&self, tid: i32) -> Result<(i32, CpuSet), ProcError> {
        Ok((self.process(tid)?, self.affinity(tid)?))
    }
    /// Whether a vCPU thread has run its guest. One too short for the kernel's clock to see counts as none.
    fn has_run_guest(&self, tid: i32) -> Result<bool, ProcError>;
    /// Pin a thread (`Some`) or let it run wherever its cpuset allows (`None`). EINVAL for a CPU outside its cpuset.
    fn set_affinity(&self, tid: i32, cpu: Option<u32>) -> Result<(), ProcError>;
    /// Let a thread run on these CPUs, as far as its cpuset has them. EINVAL where it has none of them.
    fn allow_cpus(&self, tid: i32, cpus: &CpuSet) -> Result<(), ProcError>;
    /// The process a pidfd stands for, numbered as on the host.
    fn pid_of_pidfd(&self, pidfd: BorrowedFd<'_>) -> Result<i32, ProcError>;
    /// A pidfd of a process. It is readable once all threads of the process have ended.
    fn open_pidfd(&self, pid: i32) -> Result<OwnedFd, ProcError>;
}

/// `/proc` and the scheduler's calls.
#[derive(Debug, Clone)]
pub struct KernelProcs {
    root: PathBuf,
}

impl KernelProcs {
    /// Work on the process table mounted at `root` (`/proc`). Does no I/O.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn read(&self, path: &str) -> Result<String, ProcError> {
        // A process chooses its own name, in any bytes: one that is not UTF-8 must not make it unreadable.
        Ok(String::from_utf8_lossy(&self.bytes(path)?).into_owned())
    }

    fn bytes(&self, path: &str) -> Result<Vec<u8>, ProcError> {
        let path = self.root.join(path);
        files::read(&path).map_err(|cause| failed(format!("read {}", path.display()), cause))
    }

    /// `/proc/<id>/task/<id>/stat`. For `/proc/<id>/stat` the kernel sums over all threads of the process, so that reading it for each
    /// of them takes quadratic time.
    ///
    /// # Errors
    /// The thread has ended, or its file may not be read.
    pub fn read_thread_stat(&self, id: i32) -> Result<String, ProcError> {
        self.read(&format!("{id}/task/{id}/stat"))
    }

    /// What `find` finds in the status of a process or thread; `what` names it.
    fn status<T>(&self, id: i32, what: &str, find: impl FnOnce(&str) -> Option<T>) -> Result<T, ProcError> {
        let status = self.read(&format!("{id}/status"))?;
        find(&status).ok_or_else(|| bad(format!("read {what} of {id}"), "no such line"))
    }
}

/// What returns once all threads of a pidfd's process have ended. Belongs to the runtime it is called in.
pub fn ended(pidfd: OwnedFd) -> io::Result<impl Future<Output = io::Result<()>> + Send + 'static> {
    let pidfd = async_fd::register(pidfd)?;
    Ok(async move { pidfd.readable().await.map(drop) })
}

/// The process a pidfd stands for, numbered as on the host.
///
/// # Errors
/// The descriptor is not a pidfd, or the process ended.
pub fn pid_of_pidfd(pidfd: BorrowedFd<'_>) -> Result<i32, ProcError> {
    let path = format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd());
    let text = fs::read_to_string(&path).map_err(|cause| failed(format!("read {path}"), cause))?;
    let number = text
        .lines()
        .find_map(|line| line.strip_prefix("Pid:"))
        .map(|value| value.trim().parse::<i32>());
    let cause = match number {
        Some(Ok(pid)) if pid > 0 => return Ok(pid),
        // -1: reaped. 0: in a PID namespace that we cannot see into.
        Some(Ok(_)) => nix::errno::Errno::ESRCH.into(),
        _ => io::Error::new(io::ErrorKind::InvalidInput, "the descriptor is not a pidfd"),
    };
    Err(failed("look up a pidfd's process".into(), cause))
}

fn bad(operation: String, text: &str) -> ProcError {
    failed(operation, io::Error::new(io::ErrorKind::InvalidData, text))
}

fn failed(operation: String, cause: io::Error) -> ProcError {
    ProcError { operation, cause }
}

/// The value of a line `Name:\tvalue` of `/proc/<pid>/status`, or `name : value` of `sched`.
pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'))
        .map(str::trim)
}

/// `NSpid` of `/proc/<pid>/status`: the number in each PID namespace, outermost first.
pub fn ns_numbers(status: &str) -> Option<Vec<i32>> {
    let numbers = field(status, "NSpid")?.split_whitespace();
    numbers.map(|number| number.parse().ok()).collect()
}

/// The CPUs that a thread may run on: `Cpus_allowed_list` of `/proc/<tid>/status`.
pub fn allowed(status: &str) -> Option<CpuSet> {
    field(status, "Cpus_allowed_list")?.parse().ok()
}

/// The process of a thread: `Tgid` of `/proc/<tid>/status`.
pub fn thread_group(status: &str) -> Option<i32> {
    field(status, "Tgid")?.parse().ok()
}

/// The path in cgroup v2, from the text of `/proc/<pid>/cgroup`.
pub fn unified_cgroup(text: &str) -> Option<CgroupPath> {
    CgroupPath::parse(text.lines().find_map(|line| line.strip_prefix("0::"))?)
}

impl Procs for KernelProcs {
    fn identify(&self, id: i32) -> Result<TaskId, ProcError> {
        let stat = self.read_thread_stat(id)?;
        let start = start_time(&stat).ok_or_else(|| bad(format!("read start time of {id}"), "unexpected form"))?;
        Ok(TaskId { id, start })
    }

    fn cgroup(&self, id: i32) -> Result<CgroupPath, ProcError> {
        // For a thread that is not its process's first, /proc/<tid>/cgroup is the process's: ask by task.
        let text = text_of(OsStr::from_bytes(&self.bytes(&format!("{id}/task/{id}/cgroup"))?));
        unified_cgroup(&text).ok_or_else(|| bad(format!("read cgroup of {id}"), "no cgroup v2 path"))
    }

    fn process(&self, tid: i32) -> Result<i32, ProcError> {
        self.status(tid, "Tgid", thread_group)
    }

    fn numbers(&self, id: i32) -> Result<Vec<i32>, ProcError> {
        self.status(id, "NSpid", ns_numbers)
    }

    fn thread_ids(&self, pid: i32) -> Result<Vec<i32>, ProcError> {
        let directory = self.root.join(format!("{pid}/task"));
        let failed = |cause| failed(format!("list {}", directory.display()), cause);
        let mut ids = Vec::new();
        for entry in fs::read_dir(&directory).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            ids.extend(name.to_str().and_then(|name| name.parse::<i32>().ok()));
        }
        Ok(ids)
    }

    fn threads(&self, pid: i32) -> Result<Vec<Thread>, ProcError> {
        let mut threads = Vec::new();
        for tid in self.thread_ids(pid)? {
            let thread = self.identify(tid).and_then(|task| {
                Ok(Thread {
                    task,
                    numbers: self.numbers(tid)?,
                })
            });
            match thread {
                Ok(thread) => threads.push(thread),
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        threads.sort_by_key(|thread| thread.task);
        Ok(threads)
    }

    fn name(&self, id: i32) -> String {
        self.read(&format!("{id}/comm"))
            .map(|name| name.trim_end().to_owned())
            .unwrap_or_default()
    }

    fn command(&self, pid: i32, most: usize) -> Result<Vec<String>, ProcError> {
        let path = self.root.join(format!("{pid}/cmdline"));
        vmm_processes::command(&path, most).map_err(|cause| failed(format!("read {}", path.display()), cause))
    }

    fn affinity(&self, tid: i32) -> Result<CpuSet, ProcError> {
        self.status(tid, "Cpus_allowed_list", allowed)
    }

    fn process_and_affinity(&self, tid: i32) -> Result<(i32, CpuSet), ProcError> {
        self.status(tid, "Tgid and Cpus_allowed_list", |status| {
            Some((thread_group(status)?, allowed(status)?))
        })
    }

    fn has_run_guest(&self, tid: i32) -> Result<bool, ProcError> {
        let stat = self.read_thread_stat(tid)?;
        let ticks = guest_time(&stat).ok_or_else(|| bad(format!("read guest time of {tid}"), "unexpected form"))?;
        Ok(ticks > 0)
    }

    fn set_affinity(&self, tid: i32, cpu: Option<u32>) -> Result<(), ProcError> {
        let cpus = match cpu {
            Some(cpu) => std::iter::once(cpu).collect(),
            None => CpuSet::below(MAX_CPUS),
        };
        let what = cpu.map_or("every CPU of its cpuset".to_owned(), |cpu| format!("CPU {cpu}"));
        affinity::set(tid, &cpus).map_err(|cause| failed(format!("set affinity of thread {tid} to {what}"), cause))
    }

    fn allow_cpus(&self, tid: i32, cpus: &CpuSet) -> Result<(), ProcError> {
        affinity::set(tid, cpus).map_err(|cause| failed(format!("set affinity of thread {tid} to CPUs {cpus}"), cause))
    }

    fn pid_of_pidfd(&self, pidfd: BorrowedFd<'_>) -> Result<i32, ProcError> {
        pid_of_pidfd(pidfd)
    }

    fn open_pidfd(&self, pid: i32) -> Result<OwnedFd, ProcError> {
        let failed = |cause: Errno| failed(format!("open a pidfd of {pid}"), cause.into());
        let process = Pid::from_raw(pid).ok_or_else(|| failed(Errno::INVAL))?;
        pidfd_open(process, PidfdFlags::empty()).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_process_with_a_name_in_no_encoding_is_seen_like_any_other() {
        let dir = tempfile::tempdir().unwrap();
        for place in ["7", "7/task/7"] {
            let place = dir.path().join(place);
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join("comm"), b"CPU \xff\n").unwrap();
            let status = b"Name:\tCPU \xff\nTgid:\t7\nNSpid:\t7\t3\nCpus_allowed_list:\t2\n";
            fs::write(place.join("status"), status).unwrap();
            fs::write(place.join("cgroup"), b"0::/a\n").unwrap();
            let fields: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
            let stat = [b"7 (CPU \xff) S ", fields.join(" ").as_bytes()].concat();
            fs::write(place.join("stat"), stat).unwrap();
        }
        let procs = KernelProcs::new(dir.path());
        let task = TaskId { id: 7, start: 22 };
        assert_eq!(procs.identify(7).unwrap(), task);
        assert_eq!(procs.process(7).unwrap(), 7);
        assert_eq!(procs.process_and_affinity(7).unwrap(), (7, "2".parse().unwrap()));
        assert!(procs.has_run_guest(7).unwrap());
        let numbers = vec![7, 3];
        assert_eq!(procs.numbers(7).unwrap(), numbers);
        assert_eq!(procs.threads(7).unwrap(), [Thread { task, numbers }]);
        assert_eq!(procs.name(7), "CPU \u{fffd}");
    }

    #[test]
    fn the_times_of_a_thread_are_not_those_of_its_process() {
        let dir = tempfile::tempdir().unwrap();
        for (place, start, guest) in [("7", 22, 43), ("7/task/7", 23, 0)] {
            let place = dir.path().join(place);
            fs::create_dir_all(&place).unwrap();
            let fields: Vec<String> = (4..=52)
                .map(|field| match field {
                    22 => start,
                    43 => guest,
                    other => other,
                })
                .map(|value: u32| value.to_string())
                .collect();
            fs::write(place.join("stat"), format!("7 (CPU 0/KVM) S {}", fields.join(" "))).unwrap();
        }
        let procs = KernelProcs::new(dir.path());
        assert_eq!(procs.identify(7).unwrap(), TaskId { id: 7, start: 23 });
        assert!(!procs.has_run_guest(7).unwrap());
    }

    #[test]
    fn a_thread_is_pinned_to_a_cpu_and_let_go_of() {
        let pinned = std::thread::spawn(|| {
            let (procs, me) = (KernelProcs::new("/proc"), nix::unistd::gettid().as_raw());
            let all = procs.affinity(me).unwrap();
            let last = all.iter().last().unwrap();
            procs.set_affinity(me, Some(last)).unwrap();
            let pinned = procs.process_and_affinity(me).unwrap();
            assert_eq!(pinned, (std::process::id() as i32, std::iter::once(last).collect()));
            procs.set_affinity(me, None).unwrap();
            assert!(all.is_subset(&procs.affinity(me).unwrap()));
            let two: CpuSet = all.iter().take(2).collect();
            procs.allow_cpus(me, &two).unwrap();
            assert_eq!(procs.affinity(me).unwrap(), two);
            // No machine has it.
            assert!(procs.set_affinity(me, Some(MAX_CPUS - 1)).is_err());
        });
        pinned.join().unwrap();
    }

    #[test]
    fn a_thread_may_run_on_cpus_beyond_the_thousandth() {
        let status = "Cpus_allowed:\tff\nCpus_allowed_list:\t0-1,4000-4095\n";
        assert_eq!(allowed(status), Some("0-1,4000-4095".parse().unwrap()));
        assert_eq!(allowed("Name:\tx\n"), None);
        let cpus: CpuSet = "64,4095".parse().unwrap();
        assert_eq!(
            (cpus.words().len(), cpus.words()[1], cpus.words()[63]),
            (64, 1, 1 << 63)
        );
    }

    #[test]
    fn a_value_is_that_of_the_whole_name() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t9\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(field(status, "nonvoluntary_ctxt_switches"), Some("3"));
        assert_eq!(
            field("se.nr_migrations      :     12\n", "se.nr_migrations"),
            Some("12")
        );
        assert_eq!(field(status, "voluntary"), None);
    }

    #[test]
    fn the_innermost_number_comes_last() {
        assert_eq!(ns_numbers("Name:\tx\nNSpid:\t3794656\t30\n"), Some(vec![3_794_656, 30]));
        assert_eq!(ns_numbers("Name:\tx\n"), None);
    }

    #[tokio::test]
    async fn a_process_has_ended_when_its_pidfd_says_so_and_then_there_is_none_to_open() {
        let procs = KernelProcs::new("/proc");
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let end = tokio::spawn(ended(procs.open_pidfd(pid).unwrap()).unwrap());
        tokio::task::yield_now().await;
        assert!(!end.is_finished());
        child.kill().unwrap();
        end.await.unwrap().unwrap();
        child.wait().unwrap();
        let error = procs.open_pidfd(pid).unwrap_err();
        assert!(error.is_gone(), "{error}");
        assert!(!procs.open_pidfd(0).unwrap_err().is_gone());
    }

    #[test]
    fn a_pidfd_gives_its_process_and_another_descriptor_is_refused() {
        let me = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
        assert_eq!(pid_of_pidfd(me.as_fd()).unwrap(), std::process::id() as i32);
        let file = fs::File::open("/dev/null").unwrap();
        assert!(
            pid_of_pidfd(file.as_fd())
                .unwrap_err()
                .to_string()
                .contains("not a pidfd")
        );
    }

    #[test]
    fn this_process_has_an_identity_and_this_thread() {
        let procs = KernelProcs::new("/proc");
        let pid = std::process::id() as i32;
        let me = procs.identify(pid).unwrap();
        assert!(procs.threads(pid).unwrap().iter().any(|thread| thread.task == me));
    }
}
