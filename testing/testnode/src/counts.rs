//! Counts the daemons' calls through the traits, records them as text, and measures the CPU time that the model takes for
//! them.

use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;
use std::time::Duration;

use nix::errno::Errno;
use rustix::time::{ClockId, clock_gettime};
use stelia_kernel::cgroup::CgroupPath;

use super::{Model, State};

/// Numbers of calls through the traits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Cgroup files, lists, attributes and existence read, and all queries of the process table.
    pub reads: u64,
    /// Cgroup files and attributes written, cgroups made and removed, affinities set. Moves are counted separately.
    pub writes: u64,
    /// Writes to `cgroup.procs` and `cgroup.threads`.
    pub moves: u64,
    /// Calls to systemd, including those that change nothing.
    pub systemd: u64,
}

impl Counts {
    /// The number of calls since `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            reads: self.reads - before.reads,
            writes: self.writes - before.writes,
            moves: self.moves - before.moves,
            systemd: self.systemd - before.systemd,
        }
    }
}

/// A task that a daemon moved or whose affinity it set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touched {
    pub id: i32,
    /// The cgroup it was in.
    pub from: CgroupPath,
    /// The cgroup to which it was to be moved; `None`: its affinity was set.
    pub to: Option<CgroupPath>,
}

/// How a call is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Read,
    Write,
    Move,
    Systemd,
    /// The start of a holder, which accesses none of the kernel's files and is not counted.
    Holder,
}

/// The record of the calls.
#[derive(Debug, Default)]
pub(super) struct CallLog {
    counts: Counts,
    /// The calls as text, while they are recorded.
    calls: Option<Vec<String>>,
    /// CPU time of the model, while it is measured.
    model_time: Option<Duration>,
    /// The tasks that daemons touched since they were last taken, while they are recorded.
    touched: Option<Vec<Touched>>,
}

impl CallLog {
    fn record(&mut self, call: Call, what: impl FnOnce() -> String) {
        match call {
            Call::Read => self.counts.reads += 1,
            Call::Write => self.counts.writes += 1,
            Call::Move => self.counts.moves += 1,
            Call::Systemd => self.counts.systemd += 1,
            Call::Holder => {}
        }
        if let Some(calls) = &mut self.calls {
            calls.push(what());
        }
    }
}

fn now() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// The locked node during a call.
pub(super) struct CallGuard<'a> {
    state: MutexGuard<'a, State>,
    started: Option<Duration>,
}

impl Deref for CallGuard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for CallGuard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        if let (Some(started), Some(model_time)) = (self.started, &mut self.state.call_log.model_time) {
            *model_time += now().saturating_sub(started);
        }
    }
}

impl Model {
    fn enter(&self) -> CallGuard<'_> {
        let state = self.lock();
        let measured = self.daemon.is_some() && state.call_log.model_time.is_some();
        CallGuard {
            started: measured.then(now),
            state,
        }
    }

    /// A call that reads.
    pub(super) fn ask(&self, call: Call, what: impl FnOnce() -> String) -> CallGuard<'_> {
        let mut state = self.enter();
        if self.daemon.is_some() {
            state.call_log.record(call, what);
        }
        state
    }

    /// A call that changes something.
    pub(super) fn change<T>(
        &self,
        call: Call,
        what: impl FnOnce() -> String,
        change: impl FnOnce(&mut State) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let mut state = self.enter();
        if let Some(daemon) = self.daemon {
            if daemon != state.daemon || state.budget == Some(0) {
                state.cut |= daemon == state.daemon;
                return Err(Errno::EIO);
            }
            state.budget = state.budget.map(|rest| rest - 1);
            state.changes += 1;
            state.call_log.record(call, what);
            state.advance_chains();
        }
        let done = change(&mut state);
        state.after_change();
        done
    }

    /// Records that a daemon moves this task or sets its affinity. A task that has ended is not recorded.
    pub(super) fn touch(&self, id: i32, to: Option<&CgroupPath>) {
        let mut state = self.lock();
        let from = state.tasks.get(&id).map(|task| task.cgroup.clone());
        if let (Some(from), Some(touched), Some(_)) = (from, &mut state.call_log.touched, self.daemon) {
            let to = to.cloned();
            touched.push(Touched { id, from, to });
        }
    }

    /// Starts recording which tasks daemons move or pin.
    pub fn record_touched(&self) {
        self.lock().call_log.touched.get_or_insert_default();
    }

    /// The tasks that daemons have moved or pinned since the last call.
    pub fn take_touched(&self) -> Vec<Touched> {
        let mut state = self.lock();
        let touched = state.call_log.touched.as_mut();
        touched.map(std::mem::take).unwrap_or_default()
    }

    /// How many calls daemons have made since the node was made. Changes that a dead or cut off daemon attempts are not
    /// counted.
    pub fn counts(&self) -> Counts {
        self.lock().call_log.counts
    }

    /// Starts recording the calls, from an empty list, or stops and clears it.
    pub fn record_calls(&self, on: bool) {
        self.lock().call_log.calls = on.then(Vec::new);
    }

    /// The calls recorded so far, each as operation and object: `read /a/cgroup.procs`, `write /a/cpuset.cpus 2-3`.
    pub fn calls(&self) -> Vec<String> {
        self.lock().call_log.calls.clone().unwrap_or_default()
    }

    /// Starts measuring, from zero, how much CPU time the model itself takes for calls, or stops. Each call takes
    /// slightly longer while it is on.
    pub fn measure_time(&self, on: bool) {
        self.lock().call_log.model_time = on.then(Duration::default);
    }

    /// The CPU time measured so far.
    pub fn time_spent(&self) -> Duration {
        self.lock().call_log.model_time.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use stelia_kernel::cgroup::{CgroupPath, Cgroups, File};

    use super::super::{Kernel, topology};
    use super::*;

    #[test]
    fn only_calls_through_a_daemons_traits_are_counted_and_recorded() {
        let directory = tempfile::tempdir().unwrap();
        let model = Model::node(&topology(2, 2, 2), directory.path(), Kernel::V6_12).unwrap();
        let pid = model.spawn(1, "task").unwrap();
        let system = model.system();
        let (cgroups, procs) = (system.cgroups, system.procs);
        let before = model.counts();
        model.record_calls(true);
        model.measure_time(true);
        let at = CgroupPath::root().child("x");
        model.exists(&at);
        cgroups.create(&at).unwrap();
        cgroups.write(&at, File::Cpus, "2-3").unwrap();
        cgroups.write(&at, File::Procs, &pid.to_string()).unwrap();
        cgroups.read(&at, File::Procs).unwrap();
        cgroups.set_attribute(&at, "name", "value").unwrap();
        procs.identify(pid).unwrap();
        procs.set_affinity(pid, Some(2)).unwrap();
        assert!(cgroups.write(&at, File::Cpus, "x").is_err());
        let counts = model.counts().since(before);
        let expected = Counts {
            reads: 2,
            writes: 5,
            moves: 1,
            systemd: 0,
        };
        assert_eq!(counts, expected);
        let calls = model.calls();
        let expected = [
            "create /x".to_owned(),
            "write /x/cpuset.cpus 2-3".to_owned(),
            format!("write /x/cgroup.procs {pid}"),
            "read /x/cgroup.procs".to_owned(),
            "set /x/user.stelia.name value".to_owned(),
            format!("identify {pid}"),
            format!("set affinity of {pid} to 2"),
            "write /x/cpuset.cpus x".to_owned(),
        ];
        assert_eq!(calls, expected);
        assert!(model.time_spent() > Duration::ZERO);
        model.record_calls(false);
        cgroups.exists(&at);
        assert!(model.calls().is_empty());
    }
}
