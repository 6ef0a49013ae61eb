//! The tasks of a whole container: those of its cgroup and of the cgroups below, which come and go.
//!
//! They are summed, so that the sums of two samples differ by what the tasks ran in between. What was read of a task that ended stays in
//! the sum; how often it ran after that is not known. What a task ran before it came from another cgroup is not in the sum.
//!
//! A task may begin and end between two samples unseen. Its time is in the cgroup's `usage_usec`, so there was none if that rose as much as
//! the times of the tasks that were read. Both rise with the same update of the kernel (update_curr in kernel/sched/fair.c), but they
//! cannot be read at once, so they are only compared where neither rose while they were read.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use rustix::io::Errno;
use stelia_kernel::cgroup::value;
use stelia_kernel::counters::task::{self, Task};
use stelia_kernel::proc::{field, is_gone, start_time, thread_group};

use super::super::files::{Files, RootedFiles};
use super::super::{START_TIME_UNIT_US, TaskId};
use super::SampleError;

/// Limits of the tasks and of the cgroups of a container that are read. They limit how long its sample takes.
pub const MAX_TASKS: usize = 1_000;
pub const MAX_CGROUPS: usize = 250;

/// After so many files and folders of a container were read, there is no further attempt.
pub(super) const MAX_TASK_FILES: usize = 4_000;

const CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// How far the cgroup's time and the sum of its tasks' times may be apart although no other task ran, in nanoseconds: the former is in
/// microseconds. Beginning and ending takes a task longer.
const MAX_TIME_DIFFERENCE_NS: u64 = 2_000;

/// Why the tasks were not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotRead {
    /// The cgroup does not exist any more.
    Gone,
    TooMany,
}

type Read<T> = Result<Result<T, NotRead>, SampleError>;

/// The container's tasks before its CPUs are read.
pub(super) struct TasksBefore {
    usage_us: u64,
    tasks: BTreeMap<i32, Task>,
    cgroups: usize,
}

/// What one attempt read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContainerAttempt {
    /// Before and after.
    pub(super) own: (Task, Task),
    /// As [`Counters::own_incomplete`](super::super::Counters::own_incomplete).
    pub(super) is_incomplete: bool,
    /// Whether none of its tasks ran while they were read, so that unseen tasks show.
    pub(super) is_still: bool,
    pub(super) files: usize,
    /// For the next sample.
    pub(super) state: ContainerState,
}

/// A container's tasks in the last sample.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ContainerState {
    /// `CLOCK_BOOTTIME` before they were read.
    up_us: u64,
    tasks: BTreeMap<TaskId, PreviousTask>,
    /// What was last read of the tasks that ended, summed.
    ended: Task,
    /// The cgroup's time, microseconds, and the sum of its tasks', nanoseconds, when none ran while they were last read. `None` if a task
    /// ended or came from elsewhere since.
    still: Option<(u64, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PreviousTask {
    last: Task,
    /// The part of its counters that is not in the sum.
    outside: Task,
}

/// Reads the tasks before the CPUs.
pub(super) fn read_before(files: &dyn Files, cgroup: &str, buffer: &mut Vec<u8>) -> Read<TasksBefore> {
    let usage_us = match usage_us(files, cgroup, buffer)? {
        Ok(usage_us) => usage_us,
        Err(not_read) => return Ok(Err(not_read)),
    };
    let listed = match list(files, cgroup, buffer)? {
        Ok(listed) => listed,
        Err(not_read) => return Ok(Err(not_read)),
    };
    let mut tasks = BTreeMap::new();
    for id in listed.ids {
        if let Some(task) = counters(files, id, buffer)? {
            tasks.insert(id, task);
        }
    }
    let cgroups = listed.cgroups;
    Ok(Ok(TasksBefore {
        usage_us,
        tasks,
        cgroups,
    }))
}

/// Reads the tasks again after the CPUs, and compares both with the last sample's. `up_us`: the time before the first reading.
pub(super) fn read_after(
    files: &dyn Files,
    (cgroup, up_us): (&str, u64),
    before: &TasksBefore,
    known: Option<&ContainerState>,
    buffer: &mut Vec<u8>,
) -> Read<ContainerAttempt> {
    let listed = match list(files, cgroup, buffer)? {
        Ok(listed) => listed,
        Err(not_read) => return Ok(Err(not_read)),
    };
    let mut tasks = BTreeMap::new();
    for id in &listed.ids {
        let Some(last) = counters(files, *id, buffer)? else {
            continue;
        };
        // Read after the counters: a known task that still exists is the one whose counters were read, before too.
        if let Some(start) = start_of(files, *id, buffer)? {
            tasks.insert(TaskId { id: *id, start }, last);
        }
    }
    let began = match known {
        Some(known) => began_in_container(files, known, &tasks, buffer)?,
        None => BTreeSet::new(),
    };
    let usage_after_us = match usage_us(files, cgroup, buffer)? {
        Ok(usage_us) => usage_us,
        Err(not_read) => return Ok(Err(not_read)),
    };
    let usage_us = (before.usage_us, usage_after_us);
    Ok(Ok(attempt(known, before, &tasks, &began, (usage_us, up_us))))
}

/// Sums the tasks. `began`: the tasks that began in the container since the last sample.
fn attempt(
    known: Option<&ContainerState>,
    before: &TasksBefore,
    now: &BTreeMap<TaskId, Task>,
    began: &BTreeSet<TaskId>,
    (usage_us, up_us): ((u64, u64), u64),
) -> ContainerAttempt {
    let none = BTreeMap::new();
    let known_tasks = known.map_or(&none, |known| &known.tasks);
    let mut ended = known.map(|known| known.ended).unwrap_or_default();
    let mut has_unknown = false;
    for (_, task) in known_tasks.iter().filter(|(thread, _)| !now.contains_key(thread)) {
        ended = combined(ended, difference(task.last, task.outside), u64::saturating_add);
        has_unknown = true;
    }
    let ids: BTreeSet<i32> = now.keys().map(|thread| thread.id).collect();
    has_unknown |= before.tasks.keys().any(|id| !ids.contains(id));
    let known_ids: BTreeSet<i32> = known_tasks.keys().map(|thread| thread.id).collect();
    let (mut first_sum, mut last_sum) = (ended, ended);
    let mut tasks = BTreeMap::new();
    for (thread, last) in now {
        let read = before.tasks.get(&thread.id).copied();
        let (first, outside) = match known_tasks.get(thread) {
            Some(known) => (read.unwrap_or(known.last), known.outside),
            None => {
                // A task that has the number of one that ended may have been created after the first reading.
                let read = read.filter(|_| !known_ids.contains(&thread.id)).unwrap_or_default();
                let first = combined(read, *last, u64::min);
                let is_counted = known.is_none() || began.contains(thread);
                has_unknown |= !is_counted;
                (first, if is_counted { Task::default() } else { first })
            }
        };
        first_sum = combined(first_sum, difference(first, outside), u64::saturating_add);
        last_sum = combined(last_sum, difference(*last, outside), u64::saturating_add);
        tasks.insert(*thread, PreviousTask { last: *last, outside });
    }
    let is_still = usage_us.0 == usage_us.1 && first_sum.run_ns == last_sum.run_ns;
    let now_still = (usage_us.1, last_sum.run_ns);
    let was_still = known.and_then(|known| known.still);
    let none_unseen = was_still.is_some_and(|was_still| is_still && rose_alike(was_still, now_still));
    ContainerAttempt {
        own: (first_sum, last_sum),
        is_incomplete: known.is_some() && (has_unknown || !none_unseen),
        is_still,
        // The list of each cgroup's tasks and its folder, twice.
        files: 2 * now.len() + before.tasks.len() + 4 * before.cgroups,
        state: ContainerState {
            up_us,
            tasks,
            ended,
            still: if is_still {
                Some(now_still)
            } else {
                was_still.filter(|_| !has_unknown)
            },
        },
    }
}

/// Whether the cgroup's time, in microseconds, and the tasks', in nanoseconds, rose alike.
fn rose_alike(from: (u64, u64), to: (u64, u64)) -> bool {
    let usage_ns = to.0.checked_sub(from.0).and_then(|us| us.checked_mul(1_000));
    let tasks_ns = to.1.checked_sub(from.1);
    usage_ns
        .zip(tasks_ns)
        .is_some_and(|(usage_ns, tasks_ns)| usage_ns.abs_diff(tasks_ns) <= MAX_TIME_DIFFERENCE_NS)
}

pub(super) fn combined(one: Task, other: Task, by: fn(u64, u64) -> u64) -> Task {
    Task {
        run_ns: by(one.run_ns, other.run_ns),
        delay_ns: by(one.delay_ns, other.delay_ns),
        switches: by(one.switches, other.switches),
    }
}

fn difference(all: Task, part: Task) -> Task {
    combined(all, part, u64::saturating_sub)
}

/// The numbers of the tasks in a cgroup and in those below it, and how many cgroups these are.
struct Listed {
    ids: BTreeSet<i32>,
    cgroups: usize,
}

fn list(files: &dyn Files, cgroup: &str, buffer: &mut Vec<u8>) -> Read<Listed> {
    let root = format!("{CGROUP_ROOT}{cgroup}");
    let (mut ids, mut cgroups) = (BTreeSet::new(), vec![root.clone()]);
    let mut next = 0;
    while let Some(path) = cgroups.get(next).cloned() {
        next += 1;
        let list = format!("{path}/cgroup.threads");
        let folders = match files.read(&list, buffer) {
            Ok(()) => files.folders(&path, MAX_CGROUPS),
            Err(error) => Err(error),
        };
        let folders = match folders {
            Ok(folders) => folders,
            // The container removed it meanwhile. Its tasks are elsewhere, or ended.
            Err(error) if is_removed(&error) && path != root => continue,
            Err(error) if is_removed(&error) => return Ok(Err(NotRead::Gone)),
            // A name that is not text, or a path that is too long, as only a container's own cgroups have.
            Err(error) if is_strange(&error) => return Ok(Err(NotRead::TooMany)),
            Err(error) => return Err(SampleError::read(&list)(error)),
        };
        let numbers = buffer
            .split(u8::is_ascii_whitespace)
            .filter_map(|word| str::from_utf8(word).ok()?.parse().ok());
        ids.extend(numbers.filter(|id: &i32| *id > 0));
        cgroups.extend(folders.iter().map(|name| format!("{path}/{name}")));
        if ids.len() > MAX_TASKS || cgroups.len() > MAX_CGROUPS {
            return Ok(Err(NotRead::TooMany));
        }
    }
    let cgroups = cgroups.len();
    Ok(Ok(Listed { ids, cgroups }))
}

/// The tasks that are in a container's cgroup and in those below it now; `None` if they cannot be read, or are too many. A container that is
/// gone has none. `root` is as in [`Reader::new`](super::Reader::new).
pub fn tasks_of_container(root: &Path, cgroup: &str) -> Option<BTreeSet<i32>> {
    let files = RootedFiles::new(root.to_string_lossy().trim_end_matches('/'));
    match list(&files, cgroup, &mut Vec::new()).ok()? {
        Ok(listed) => Some(listed.ids),
        Err(NotRead::Gone) => Some(BTreeSet::new()),
        Err(NotRead::TooMany) => None,
    }
}

/// A file of a removed cgroup that is open answers ENODEV.
fn is_removed(error: &io::Error) -> bool {
    is_gone(error) || error.raw_os_error() == Some(Errno::NODEV.raw_os_error())
}

fn is_strange(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData || error.raw_os_error() == Some(Errno::NAMETOOLONG.raw_os_error())
}

/// How long the tasks of the cgroup and of those below ran, also those that ended.
fn usage_us(files: &dyn Files, cgroup: &str, buffer: &mut Vec<u8>) -> Read<u64> {
    let path = format!("{CGROUP_ROOT}{cgroup}/cpu.stat");
    match files.read(&path, buffer) {
        Ok(()) => {}
        Err(error) if is_removed(&error) => return Ok(Err(NotRead::Gone)),
        Err(error) => return Err(SampleError::read(&path)(error)),
    }
    value(&String::from_utf8_lossy(buffer), "usage_usec")
        .map(Ok)
        .ok_or_else(|| SampleError::read(&path)(io::ErrorKind::InvalidData.into()))
}

/// A file of a task, which does not stay open: a container may have many tasks. False: the task has ended.
fn read_of_task(files: &dyn Files, path: &str, buffer: &mut Vec<u8>) -> Result<bool, SampleError> {
    match files.read(path, buffer) {
        Ok(()) => Ok(true),
        Err(error) if is_gone(&error) => Ok(false),
        Err(error) => Err(SampleError::read(path)(error)),
    }
}

fn counters(files: &dyn Files, id: i32, buffer: &mut Vec<u8>) -> Result<Option<Task>, SampleError> {
    let path = format!("/proc/{id}/schedstat");
    if !read_of_task(files, &path, buffer)? {
        return Ok(None);
    }
    task::parse(buffer).map(Some).map_err(SampleError::form(&path))
}

fn start_of(files: &dyn Files, id: i32, buffer: &mut Vec<u8>) -> Result<Option<u64>, SampleError> {
    let path = format!("/proc/{id}/task/{id}/stat");
    let there = read_of_task(files, &path, buffer)?;
    Ok(there.then(|| start_time(&String::from_utf8_lossy(buffer))).flatten())
}

/// The new tasks that the container's own created since the last sample: threads and children of tasks that were there, and theirs in turn.
/// All of their runs are the container's. A task that was moved into the container has another parent, as one that `kubectl exec` starts.
fn began_in_container(
    files: &dyn Files,
    known: &ContainerState,
    tasks: &BTreeMap<TaskId, Task>,
    buffer: &mut Vec<u8>,
) -> Result<BTreeSet<TaskId>, SampleError> {
    let (there, new): (Vec<&TaskId>, Vec<&TaskId>) = tasks.keys().partition(|thread| known.tasks.contains_key(thread));
    let mut own: BTreeSet<i32> = there.iter().map(|thread| thread.id).collect();
    let mut waiting = Vec::new();
    for thread in new {
        let ends_us = thread.start.saturating_add(1).saturating_mul(START_TIME_UNIT_US);
        if ends_us > known.up_us {
            waiting.push((*thread, origins_of(files, thread.id, buffer)?));
        }
    }
    let mut began = BTreeSet::new();
    loop {
        let count = waiting.len();
        waiting.retain(|(thread, origins)| {
            let is_own = origins.iter().any(|origin| own.contains(origin));
            if is_own {
                own.insert(thread.id);
                began.insert(*thread);
            }
            !is_own
        });
        if waiting.len() == count {
            return Ok(began);
        }
    }
}

/// The process of a thread that does not lead it, and the process's parent.
fn origins_of(files: &dyn Files, id: i32, buffer: &mut Vec<u8>) -> Result<Vec<i32>, SampleError> {
    if !read_of_task(files, &format!("/proc/{id}/status"), buffer)? {
        return Ok(Vec::new());
    }
    let status = String::from_utf8_lossy(buffer);
    let parent = field(&status, "PPid").and_then(|parent| parent.parse().ok());
    let origins = [thread_group(&status), parent].into_iter().flatten();
    Ok(origins.filter(|origin| *origin != id && *origin > 0).collect())
}
