//! The loop: calls, events, timers, the watchdog.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stelia_kubelet::PodUid;
use stelia_node::System;
use stelia_node::cgroup::CgroupPath;
use stelia_node::systemd::SystemdError;
use stelia_settings::Settings;
use tokio::runtime;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::calls::Calls;
use super::dirty::Dirty;
use super::handle::{Command, Followers, Handle};
use super::inbox::{Asker, Inbox};
use super::instance_log::InstanceLog;
use super::pass::Passes;
use super::picture::Picture;
use super::rebind::Jobs;
use super::recent_looks::RecentLooks;
use super::retries::Retries;
use super::systemd_calls::SystemdCalls;
use super::timer::Timer;
use super::view_writer::ViewWriter;
use super::watch::Watcher;
use super::{Counters, Metrics, Trigger};
use crate::decide::Instance;
use crate::decide::drift::Finding;
use crate::decide::quiet::Firing;

/// How long the start waits for systemd before any turn.
const STARTUP_SYSTEMD_TIMEOUT: Duration = Duration::from_secs(10);

/// How long calls of a pod are held back at most while other pods' VMs start.
const MAX_HOLD_BACK: Duration = Duration::from_secs(1);

/// Owns the state and changes the system; doors reach it through a [`Handle`] only.
pub struct Engine {
    pub(super) system: System,
    pub(super) settings: Settings,
    commands: mpsc::UnboundedReceiver<(Asker, Command)>,
    pub(super) inbox: Inbox,
    pub(super) calls: Calls,
    pub(super) watcher: Watcher,
    pub(super) picture: Picture,
    pub(super) dirty: Dirty,
    pub(super) retries: Retries,
    /// How often the engine looked at each pod's instance recently.
    pub(super) recent_looks: RecentLooks,
    /// Since when a call has been held back.
    held_back: Option<Instant>,
    pub(super) systemd_calls: SystemdCalls,
    /// Drift that is not repaired yet, with the instance as it was before.
    pub(super) drift: BTreeMap<Option<PodUid>, (Option<Instance>, Vec<Finding>)>,
    pub(super) passes: Passes,
    pub(super) metrics: Arc<Metrics>,
    pub(super) view_writer: ViewWriter,
    pub(super) instance_log: InstanceLog,
    pub(super) jobs: Jobs,
    /// Which interrupts fire on VMs' CPUs.
    pub(super) firing: Firing,
    /// The settings, for the tasks beside the engine that follow them.
    pub(super) shown_settings: watch::Sender<Arc<Settings>>,
    /// Notified when an audit of everything begins, for the tasks that work once for each audit.
    pub(super) audits: watch::Sender<()>,
    next_audit: Instant,
    timer: Timer,
}

impl Engine {
    /// Make the engine and the handle to it, in the runtime it is to run in.
    ///
    /// # Errors
    /// The kernel gives no inotify instance or no timer.
    pub fn new(system: System, settings: Settings) -> std::io::Result<(Self, Handle)> {
        let (sender, commands) = mpsc::unbounded_channel();
        let (view, receiver) = watch::channel(Arc::default());
        let (shown_settings, followed) = watch::channel(Arc::new(settings.clone()));
        let handle = Handle {
            commands: sender,
            view: receiver,
            followers: Followers::default(),
            system: system.clone(),
            metrics: Arc::default(),
            settings: followed,
            reconciled: watch::Sender::default(),
            audits: watch::Sender::default(),
            ledger: watch::Sender::default(),
            incidents: Arc::default(),
            asker: None,
        };
        let mut engine = Self {
            picture: Picture::new(&system, &settings),
            commands,
            inbox: Inbox::default(),
            calls: Calls::default(),
            watcher: Watcher::start()?,
            dirty: Dirty::default(),
            retries: Retries::default(),
            recent_looks: RecentLooks::default(),
            held_back: None,
            systemd_calls: SystemdCalls::of(runtime::Handle::current()),
            drift: BTreeMap::new(),
            passes: Passes::default(),
            metrics: handle.metrics.clone(),
            view_writer: ViewWriter {
                view,
                followers: handle.followers.clone(),
                counters: Counters::default(),
            },
            instance_log: InstanceLog::default(),
            jobs: Jobs::default(),
            firing: Firing::default(),
            shown_settings,
            audits: handle.audits.clone(),
            next_audit: Instant::now(),
            timer: Timer::new()?,
            system,
            settings,
        };
        // Nothing is known yet that could have drifted.
        engine.dirty.wrote_shared = true;
        Ok((engine, handle))
    }

    /// Have systemd called in another runtime: where the connection to it is, so that each answer is one wake-up.
    #[must_use]
    pub fn calling_systemd_in(mut self, runtime: runtime::Handle) -> Self {
        self.systemd_calls = SystemdCalls::of(runtime);
        self
    }

    /// Run until cancelled. `alive` is called every `heartbeat`, or up to three quarters of that earlier: it feeds the watchdog.
    pub async fn run(mut self, cancel: CancellationToken, heartbeat: Duration, alive: impl Fn()) {
        // This comes before the first plan, or systemd would make the cgroup of such a unit again. The wait is bounded by
        // `STARTUP_SYSTEMD_TIMEOUT`.
        let stopped = tokio::time::timeout(STARTUP_SYSTEMD_TIMEOUT, self.stop_bare_scopes());
        let mut stopped = std::pin::pin!(stopped);
        loop {
            alive();
            tokio::select! {
                result = &mut stopped => {
                    if result.is_err() {
                        tracing::warn!("systemd (PID 1) does not answer: units of scopes that have no cgroup any more are not stopped");
                    }
                    break;
                }
                () = tokio::time::sleep(heartbeat / 2) => {}
                () = cancel.cancelled() => return,
            }
        }
        self.read_recorded_job();
        let mut said = Instant::now();
        loop {
            // Not at every turn: each notification wakes systemd, on which VMs that start depend.
            if said.elapsed() >= heartbeat / 4 {
                said = Instant::now();
                alive();
            }
            self.take_in();
            if cancel.is_cancelled() {
                return;
            }
            if self.advance() {
                // The tasks that carry events and calls run too.
                tokio::task::yield_now().await;
                continue;
            }
            let wake = self.next_wake(said + heartbeat, heartbeat / 8);
            tokio::select! {
                () = cancel.cancelled() => return,
                command = self.commands.recv() => match command {
                    Some((asker, command)) => self.come_in(asker, command),
                    None => return,
                },
                Some(done) = self.systemd_calls.done.recv() => self.done(done),
                () = self.watcher.changed() => {}
                () = self.timer.until(wake) => {}
            }
        }
    }

    /// Take in calls, answers, events and timers that came meanwhile.
    fn take_in(&mut self) {
        while let Ok((asker, command)) = self.commands.try_recv() {
            self.come_in(asker, command);
        }
        while let Ok(done) = self.systemd_calls.done.try_recv() {
            self.done(done);
        }
        for event in self.watcher.take() {
            self.happened(event);
        }
        let now = Instant::now();
        self.picture.apply_delayed(now, &mut self.dirty);
        for pod in self.retries.instances.rested(now) {
            self.dirty.again(pod);
        }
        self.dirty.shared |= !self.retries.shared.rested(now).is_empty();
        if let Some(text) = self.systemd_calls.slow(now) {
            self.view_writer.show_systemd(Some(text));
        } else if self.systemd_calls.is_idle() {
            self.view_writer.show_systemd(None);
        }
        self.calls_in_time(now);
        if now >= self.next_audit {
            self.next_audit = now + self.settings.audit_interval;
            self.audit(Trigger::Audit);
        }
    }

    /// Begin one call and take one turn; whether there was anything to do.
    fn advance(&mut self) -> bool {
        let mut busy = false;
        if let Some(waiting) = self.inbox.next_again() {
            self.try_to_register(waiting);
            busy = true;
        }
        // kubelet's file is read before a call is begun.
        if !self.dirty.kubelet
            && let Some((asker, command)) = self.next_call(Instant::now())
        {
            self.begin(asker, command);
            busy = true;
        }
        if self.is_due() {
            self.turn();
            return true;
        }
        if self.jobs.is_running() {
            return self.rebind_step() || busy;
        }
        busy
    }

    /// The next call to begin. While VMs start, a pod at whose instance the engine looked much more often of late than at theirs is
    /// held back, so that its calls do not come between the steps of a start, but no longer than [`MAX_HOLD_BACK`].
    fn next_call(&mut self, now: Instant) -> Option<(Asker, Command)> {
        let starting = self.calls.starting();
        let is_over = self
            .held_back
            .is_some_and(|since| now.duration_since(since) >= MAX_HOLD_BACK);
        let allowed = self.recent_looks.allowed(starting.iter().copied(), now);
        let (recent, others) = (&self.recent_looks, |pod: &PodUid| {
            starting.iter().any(|one| *one != pod)
        });
        let next = self
            .inbox
            .next(|pod| !is_over && others(pod) && recent.exceeds(allowed, pod, now));
        if next.is_some() || !self.inbox.has_waiting() {
            self.held_back = None;
        } else {
            self.held_back.get_or_insert(now);
        }
        next
    }

    /// When to wake next: the first timer, or the watchdog's time, which a timer may pass by `late`.
    fn next_wake(&self, alive: Instant, late: Duration) -> Instant {
        let timers = [
            self.picture.next(),
            self.retries.instances.next(),
            self.retries.shared.next(),
            self.systemd_calls.next(),
            self.calls.next(),
            self.jobs.next(),
            self.held_back.map(|since| since + MAX_HOLD_BACK),
        ];
        let wake = timers.into_iter().flatten().min().unwrap_or(self.next_audit);
        // One wake-up serves both the watchdog and an audit that follows soon.
        let wake = wake.min(self.next_audit);
        if wake <= alive + late { wake } else { alive }
    }

    pub(super) fn next_audit_in(&mut self, interval: Duration) {
        self.next_audit = Instant::now() + interval;
    }

    /// Stop scopes without a cgroup: a daemon that died between removing the one and stopping the other left them. systemd
    /// keeps them, and would make their cgroups again at its next reload.
    fn stop_bare_scopes(&self) -> impl Future<Output = ()> + use<> {
        let system = self.system.clone();
        async move {
            let stopped = async {
                for (unit, cgroup) in system.systemd.scopes(PodUid::SCOPES).await? {
                    let ours = CgroupPath::slice().child(&unit);
                    // A scope of the same name in another slice is not ours.
                    if cgroup == ours.as_str() && !system.cgroups.exists(&ours) {
                        system.systemd.stop_emptied(&unit).await?;
                    }
                }
                Ok::<(), SystemdError>(())
            };
            if let Err(error) = stopped.await {
                tracing::warn!("{error}");
            }
        }
    }
}
