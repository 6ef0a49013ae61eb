//! Cloud Hypervisor and Firecracker, by their HTTP API on a UNIX socket.
//!
//! Neither starts paused: its guest runs as soon as it is booted. The runner pauses it as soon as the VMM accepts that, attaches
//! the vCPU threads, which are known by their names, and resumes it. Until it is paused its vCPUs run on shared CPUs, not
//! pinned, which is measured and reported ([`Window`]).

mod dialect;
mod http;
mod memory;
mod poll_interval;

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

pub(crate) use dialect::Dialect;

use super::{
    Change, Hold, Memory, PowerDown, Quit, Release, ResizeStart, SHUT_DOWN, Threads, Vmm, cannot_resize, is_in_guest,
    run_time, thread_names,
};
use crate::error::Error;
use crate::qmp::Vcpu;
use crate::state::{Window, micros};
use dialect::{Request, Shape};
use http::HttpFailure;
use poll_interval::QuerySchedule;

/// A VMM answers at once, unless it boots: that allocates the guest's memory.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// No event reports a new thread, so the names are read this often. A reboot of Cloud Hypervisor's guest makes all threads
/// anew.
const THREAD_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long a plugged vCPU's thread may take to have its name.
const THREAD_NAME_TIMEOUT: Duration = Duration::from_secs(1);
/// After this many refusals to pause a running guest the VMM counts as unable to pause.
const MAX_PAUSE_REFUSALS: u32 = 20;

/// The run state before the guest's first boot.
const PRELAUNCH: &str = "prelaunch";

#[derive(Debug)]
pub(crate) struct ApiVmm {
    dialect: Dialect,
    socket: PathBuf,
    proc: PathBuf,
    pid: i32,
    answer_limit: Duration,
    /// The guest did not run at that time.
    since: Instant,
    /// The guest was paused by this program, or was found paused before it ran.
    held: bool,
    /// A request to pause was sent and its answer lost: a pause that is found may be that one.
    lost: bool,
    refusals: u32,
    /// A VM was seen: if there is none, or none that is booted, then it was shut down.
    booted: bool,
    /// Since when the VMM answers that its VM is not booted, and when it was asked last.
    unbooted: Option<(Instant, Instant)>,
    /// As read last, to notice a change.
    vcpus: Vec<Vcpu>,
    state: String,
    schedule: QuerySchedule,
}

impl ApiVmm {
    /// For a process that was started just now.
    pub(crate) fn new(dialect: Dialect, socket: &Path, proc: &Path, pid: i32) -> ApiVmm {
        ApiVmm {
            dialect,
            socket: socket.to_owned(),
            proc: proc.to_owned(),
            pid,
            answer_limit: ANSWER_TIMEOUT,
            since: Instant::now(),
            held: false,
            lost: false,
            refusals: 0,
            booted: false,
            unbooted: None,
            vcpus: Vec::new(),
            state: String::new(),
            schedule: QuerySchedule::new(dialect.max_query_interval()),
        }
    }

    /// The answer's body.
    async fn ask(&self, request: &Request) -> Result<Vec<u8>, Error> {
        let sent = http::request(&self.socket, request.method.clone(), request.path, &request.body);
        let text = match timeout(self.answer_limit, sent).await {
            Ok(Ok(answer)) if answer.status.is_success() => return Ok(answer.body),
            Ok(Ok(answer)) => {
                let status = answer.status.as_u16();
                return Err(Error::ApiRefused {
                    vmm: self.dialect.name(),
                    request: request.name,
                    socket: self.socket.clone(),
                    status,
                    text: dialect::refusal(status, &answer.body),
                });
            }
            Ok(Err(HttpFailure::Connect(text))) => return Err(self.failed("connect", text)),
            Ok(Err(HttpFailure::Exchange(text))) => text,
            Err(_) => format!("no answer within {} s", self.answer_limit.as_secs()),
        };
        Err(self.failed(request.name, text))
    }

    fn failed(&self, request: &'static str, text: String) -> Error {
        Error::Api {
            vmm: self.dialect.name(),
            request,
            socket: self.socket.clone(),
            text,
        }
    }

    /// The run state. A VM that is not booted, and was, has been shut down: both VMMs call that what it was before its boot.
    async fn state(&mut self) -> Result<String, Error> {
        let asked = Instant::now();
        let request = self.dialect.state();
        let state = match self.ask(&request).await {
            Ok(answer) => self
                .dialect
                .run_state(&answer)
                .map_err(|error| self.failed(request.name, format!("unexpected answer: {error}")))?,
            Err(Error::ApiRefused { status, .. }) if self.dialect.has_no_vm(status) => PRELAUNCH.into(),
            Err(error) => return Err(error),
        };
        if state != PRELAUNCH && state != SHUT_DOWN {
            self.booted = true;
            self.unbooted = None;
            return Ok(state);
        }
        // Whatever is booted next has not run, and is not paused.
        (self.held, self.lost, self.refusals) = (false, false, 0);
        self.since = asked;
        let since = self.unbooted.map_or(asked, |(since, _)| since);
        self.unbooted = Some((since, asked));
        Ok(if self.booted { SHUT_DOWN.into() } else { state })
    }

    /// Queries the run state before the guest was paused. `None` if it runs.
    async fn query_hold(&mut self) -> Result<Option<Hold>, Error> {
        self.state = self.state().await?;
        Ok(match self.state.as_str() {
            // It did not run, unless a request to pause was carried out and its answer lost.
            "paused" => {
                self.held = true;
                Some(Hold::Paused(self.lost.then(|| self.since.elapsed())))
            }
            PRELAUNCH | SHUT_DOWN => Some(Hold::NotYet(self.state.clone())),
            _ => None,
        })
    }

    /// Whether the VM is known not to be booted without asking again: it has no vCPU thread, and the VMM answered a moment ago.
    fn is_unbooted(&self) -> bool {
        self.unbooted
            .is_some_and(|(since, asked)| asked.elapsed() < poll_interval::unbooted(asked.duration_since(since)))
    }

    async fn shape(&self) -> Result<Shape, Error> {
        let request = self.dialect.configuration();
        let answer = self.ask(&request).await?;
        let shape = self.dialect.shape(&answer);
        shape.map_err(|error| self.failed(request.name, format!("unexpected answer: {error}")))
    }

    /// Whether there are threads of so many vCPUs. Cloud Hypervisor answers when they have started; their names may be a moment later.
    async fn has_threads(&self, vcpus: u32) -> bool {
        let started = Instant::now();
        loop {
            let found = thread_names::vcpus(&self.proc, self.pid).unwrap_or_default();
            if found.iter().any(|vcpu| vcpu.cpu_index.saturating_add(1) >= vcpus) {
                return true;
            }
            if started.elapsed() > THREAD_NAME_TIMEOUT {
                return false;
            }
            sleep(THREAD_NAME_TIMEOUT / 50).await;
        }
    }

    fn run_time(&self, vcpus: &[Vcpu]) -> Option<Duration> {
        let times = vcpus.iter().map(|vcpu| run_time(&self.proc, self.pid, vcpu.thread_id));
        times.sum::<Option<Duration>>().filter(|_| !vcpus.is_empty())
    }
}

impl Vmm for ApiVmm {
    fn name(&self) -> &'static str {
        self.dialect.name()
    }

    async fn hold(&mut self) -> Result<Hold, Error> {
        if self.held {
            return Ok(Hold::Paused(None));
        }
        let looked = Instant::now();
        let vcpus = thread_names::vcpus(&self.proc, self.pid).unwrap_or_default();
        if vcpus.is_empty() && self.is_unbooted() {
            self.since = looked;
            return Ok(Hold::NotYet(self.state.clone()));
        }
        // Asked to pause first, and for its state only when it refuses: whatever is asked before makes the window longer. A VM
        // that executes nothing has no window: it is not booted, or, where a second pause succeeds like the first, it may be
        // paused already.
        let executes = vcpus
            .iter()
            .any(|vcpu| is_in_guest(&self.proc, self.pid, vcpu.thread_id));
        if (vcpus.is_empty() || (self.dialect.pauses_twice() && !executes))
            && let Some(hold) = self.query_hold().await?
        {
            return Ok(hold);
        }
        let refused = match self.ask(&self.dialect.pause()).await {
            Ok(_) => {
                (self.held, self.booted) = (true, true);
                return Ok(Hold::Paused(Some(self.since.elapsed())));
            }
            Err(error @ Error::ApiRefused { .. }) => error,
            Err(error) => {
                self.lost |= !matches!(error, Error::Api { request: "connect", .. });
                return Err(error);
            }
        };
        if let Some(hold) = self.query_hold().await? {
            return Ok(hold);
        }
        // It may have been booted between the two requests.
        self.refusals += 1;
        if self.refusals < MAX_PAUSE_REFUSALS {
            Ok(Hold::NotYet(self.state.clone()))
        } else {
            Ok(Hold::Runs(refused.to_string()))
        }
    }

    fn window(&self) -> Window {
        let vcpus = thread_names::vcpus(&self.proc, self.pid).unwrap_or_default();
        Window {
            wall_us: micros(self.since.elapsed()),
            run_us: self.run_time(&vcpus).map(micros),
        }
    }

    async fn threads(&mut self) -> Result<Threads, Error> {
        // Read first: a VM without vCPU threads is not queried.
        let read = thread_names::vcpus(&self.proc, self.pid);
        self.vcpus = read.as_ref().map(Clone::clone).unwrap_or_default();
        let mut vcpus = read?;
        let shape = self.shape().await?;
        let named = u32::try_from(vcpus.len()).unwrap_or(u32::MAX);
        if named < shape.vcpus {
            let name = self.dialect.name();
            let text = format!("{name} has {} vCPUs, and {named} threads with their names", shape.vcpus);
            return Err(Error::ThreadNames(text));
        }
        for vcpu in &mut vcpus {
            vcpu.props = shape.props(vcpu.cpu_index);
        }
        Ok(Threads {
            vcpus,
            // `change` reads the names, so `may_grow` is not needed.
            ..Threads::default()
        })
    }

    fn reports_every_change(&self) -> bool {
        true
    }

    async fn change(&mut self) -> Result<Change, Error> {
        loop {
            sleep(THREAD_POLL_INTERVAL).await;
            // None while a reboot makes them anew.
            let now = thread_names::vcpus(&self.proc, self.pid).unwrap_or_default();
            let id = |one: &Vcpu| (one.cpu_index, one.thread_id);
            if now.iter().map(id).ne(self.vcpus.iter().map(id)) {
                return Ok(Change::Threads);
            }
            self.schedule.observe(THREAD_POLL_INTERVAL, self.run_time(&now));
            let running = self.state == "running";
            if self.schedule.is_due(running) {
                let state = self.state().await?;
                let changed = state != self.state;
                self.schedule.queried(running, changed);
                if changed {
                    return Ok(Change::RunState);
                }
            }
        }
    }

    async fn run_state(&mut self) -> Result<String, Error> {
        self.state = self.state().await?;
        Ok(self.state.clone())
    }

    async fn release(&mut self, _how: &Release) -> Result<(), Error> {
        if !self.held {
            return Ok(());
        }
        match self.ask(&self.dialect.resume()).await {
            // The answer to an earlier request was lost, or another program resumed it.
            Err(error @ Error::ApiRefused { .. }) => match self.state().await?.as_str() {
                "running" => Ok(()),
                _ => Err(error),
            },
            done => done.map(drop),
        }
    }

    async fn pause(&mut self) -> Result<(), Error> {
        self.ask(&self.dialect.pause()).await.map(drop)
    }

    async fn resume(&mut self) -> Result<bool, Error> {
        if self.state().await? != "paused" {
            return Ok(false);
        }
        self.ask(&self.dialect.resume()).await.map(|_| true)
    }

    async fn why_not_grow(&mut self) -> Result<Option<String>, Error> {
        if self.dialect.resize(1).is_none() {
            return Ok(Some(cannot_resize(self.dialect.name())));
        }
        let shape = self.shape().await?;
        let (name, vcpus) = (self.dialect.name(), shape.vcpus);
        let text = format!("{name} has all of its {vcpus} vCPUs (max of --cpus)");
        Ok((shape.vcpus >= shape.max).then_some(text))
    }

    async fn resize(&mut self, from: usize, to: usize, _deadline: std::time::Instant) -> Result<ResizeStart, Error> {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let mut target = number(to);
        if to > from {
            target = target.min(self.shape().await?.max);
            // The guest has not given up all that it was asked for before.
            if target <= number(from) {
                let text = format!("{} has no room for more than {from} vCPUs", self.dialect.name());
                return Ok(ResizeStart::Impossible(text));
            }
        }
        let Some(request) = self.dialect.resize(target) else {
            return Ok(ResizeStart::Impossible(cannot_resize(self.dialect.name())));
        };
        match self.ask(&request).await {
            Ok(_) => {}
            // The guest has not given up vCPUs that it was asked for before. That request stands, and Cloud Hypervisor takes no other.
            Err(Error::ApiRefused { status: 429, .. }) if to < from => {}
            Err(error @ Error::ApiRefused { .. }) => return Ok(ResizeStart::Impossible(error.to_string())),
            Err(error) => return Err(error),
        }
        if to > from && !self.has_threads(target).await {
            // Some VMs (TDX) accept the request and have no more vCPUs; their configuration would say otherwise from now on.
            if let Some(undo) = self.dialect.resize(number(from)) {
                self.ask(&undo).await?;
            }
            let text = format!("{} started no thread for more than {from} vCPUs", self.dialect.name());
            return Ok(ResizeStart::Impossible(text));
        }
        let target = usize::try_from(target).unwrap_or(usize::MAX);
        Ok(ResizeStart::Begun(from.abs_diff(target)))
    }

    async fn memory(&mut self) -> Result<Memory, Error> {
        self.guest_memory().await
    }

    async fn resize_memory(&mut self, to: u64) -> Result<Option<String>, Error> {
        self.request_memory(to).await
    }

    async fn power_down(&mut self) -> Result<PowerDown, Error> {
        let state = self.state().await?;
        if state != "running" {
            return Ok(PowerDown::NotRunning);
        }
        match self.ask(&self.dialect.power_button()).await {
            Ok(_) => Ok(PowerDown::Requested),
            // Firecracker has the keys on x86 only.
            Err(error @ Error::ApiRefused { .. }) => Ok(PowerDown::Refused(error.to_string())),
            Err(error) => Err(error),
        }
    }

    async fn quit(&mut self) -> Result<Quit, Error> {
        match self.dialect.quit() {
            Some(request) => self.ask(&request).await.map(|_| Quit::Requested),
            None => Ok(Quit::BySignal),
        }
    }
}

#[cfg(test)]
mod tests;
