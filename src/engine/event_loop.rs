//! The loop: calls, events, timers, the watchdog.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stelia_decide::disturbances::FiringInterrupts;
use stelia_kernel::System;
use stelia_kernel::cgroup::CgroupPath;
use stelia_kernel::systemd::SystemdError;
use stelia_kubelet::PodUid;
use stelia_model as model;
use stelia_settings::Settings;
use tokio::runtime;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::calls::{Asker, Call, Calls};
use super::device_record::DeviceRecord;
use super::fair_share::RecentLooks;
use super::handle::{Handle, Message};
use super::inbox::Inbox;
use super::instance_log::InstanceLog;
use super::jobs::Jobs;
use super::out_of_date::Dirty;
use super::pass::Passes;
use super::picture::Picture;
use super::pod_work_limits::PodWorkLimits;
use super::retries::Retries;
use super::state::EngineState;
use super::systemd_calls::SystemdCalls;
use super::timerfd::Timer;
use super::view_writer::{Followers, ViewWriter};
use super::watch::Watcher;

/// How long the start waits for systemd before any turn.
const STARTUP_SYSTEMD_TIMEOUT: Duration = Duration::from_secs(10);

/// How long calls of a pod are held back at most while other pods' VMs start.
const MAX_HOLD_BACK: Duration = Duration::from_secs(1);

/// Owns the state and changes the system; entry points reach it through a [`Handle`] only.
pub struct Engine {
    state: EngineState,
    messages: mpsc::UnboundedReceiver<(Asker, Message)>,
    /// Since when a call has been held back.
    held_back: Option<Instant>,
    timer: Timer,
}

impl Engine {
    /// Make the engine and the handle to it, in the runtime it is to run in.
    ///
    /// # Errors
    /// There is no runtime.
    pub fn new(system: System, settings: Settings) -> std::io::Result<(Self, Handle)> {
        let runtime = runtime::Handle::try_current().map_err(std::io::Error::other)?;
        let (sender, messages) = mpsc::unbounded_channel();
        let (view, receiver) = watch::channel(Arc::new(model::Node {
            cpu_source: settings.policies.allocator.source,
            ..model::Node::default()
        }));
        let (shown_settings, followed) = watch::channel(Arc::new(settings.clone()));
        let handle = Handle {
            messages: sender,
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
        let mut state = EngineState {
            picture: Picture::new(&system, &settings),
            inbox: Inbox::default(),
            calls: Calls::default(),
            watcher: Watcher::start(),
            dirty: Dirty::default(),
            retries: Retries::default(),
            recent_looks: RecentLooks::default(),
            rates: PodWorkLimits::default(),
            systemd_calls: SystemdCalls::of(runtime),
            drift: BTreeMap::new(),
            passes: Passes::default(),
            metrics: handle.metrics.clone(),
            view_writer: ViewWriter {
                view,
                followers: handle.followers.clone(),
                counters: model::Counters::default(),
            },
            instance_log: InstanceLog::default(),
            jobs: Jobs::default(),
            devices: DeviceRecord::default(),
            firing: FiringInterrupts::default(),
            shown_settings,
            audits: handle.audits.clone(),
            next_audit: Instant::now(),
            has_lost_events: false,
            has_unread_parts: false,
            looked: Instant::now(),
            system,
            settings,
        };
        // Nothing is known yet that could have drifted.
        state.dirty.wrote_shared = true;
        let engine = Self {
            state,
            messages,
            held_back: None,
            timer: Timer::default(),
        };
        Ok((engine, handle))
    }

    /// Have systemd called in another runtime: where the connection to it is, so that each answer is one wake-up.
    #[must_use]
    pub fn calling_systemd_in(mut self, runtime: runtime::Handle) -> Self {
        self.state.systemd_calls = SystemdCalls::of(runtime);
        self
    }

    /// Run until cancelled. `alive` is called every `heartbeat`, or up to three quarters of that earlier: it feeds the watchdog.
    pub async fn run(mut self, cancel: CancellationToken, heartbeat: Duration, alive: impl Fn()) {
        // This comes before the first plan, or systemd would make the cgroup of such a scope again. The wait is bounded by
        // `STARTUP_SYSTEMD_TIMEOUT`.
        let stopped = tokio::time::timeout(STARTUP_SYSTEMD_TIMEOUT, self.stop_scopes_without_cgroup());
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
        self.state.read_recorded_job();
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
                message = self.messages.recv() => match message {
                    Some((asker, message)) => self.take_message(asker, message),
                    None => return,
                },
                Some(done) = self.state.systemd_calls.done.recv() => self.state.done(done),
                () = self.state.watcher.changed() => {}
                () = self.timer.until(wake) => {}
            }
        }
    }

    /// Show what another task knows, or queue a call. A call for the same thing as one that is under way joins that.
    fn take_message(&mut self, asker: Asker, message: Message) {
        match message {
            Message::Show(show) => show(&mut self.state),
            Message::Call(mut call) => {
                if let Some(pod) = &asker {
                    self.state.drop_abandoned_registrations(pod);
                }
                if !call.join_under_way(&mut self.state.calls) {
                    self.state.inbox.push(asker, call);
                }
            }
        }
    }

    /// Receive calls, answers, events and timers that came meanwhile.
    fn take_in(&mut self) {
        while let Ok((asker, message)) = self.messages.try_recv() {
            self.take_message(asker, message);
        }
        while let Ok(done) = self.state.systemd_calls.done.try_recv() {
            self.state.done(done);
        }
        for event in self.state.watcher.take() {
            self.state.happened(event);
        }
        let now = Instant::now();
        self.state.picture.apply_delayed(now, &mut self.state.dirty);
        for pod in self.state.retries.instances.rested(now) {
            self.state.dirty.again(pod);
        }
        self.state.dirty.shared |= !self.state.retries.shared.rested(now).is_empty();
        if let Some(text) = self.state.systemd_calls.slow(now) {
            self.state.view_writer.show_systemd(Some(text));
        } else if self.state.systemd_calls.is_idle() {
            self.state.view_writer.show_systemd(None);
        }
        self.state.calls_in_time(now);
        if now >= self.state.next_audit {
            self.state.next_audit = now + self.state.settings.audit_interval;
            self.state.audit(model::Trigger::Audit);
        } else if now >= self.state.next_look() {
            self.state.mark_everything(model::Trigger::Audit);
        }
    }

    /// Begin one call and run one turn; whether there was anything to do.
    fn advance(&mut self) -> bool {
        let mut busy = false;
        if let Some((asker, call)) = self.state.inbox.next_again() {
            call.begin(&mut self.state, asker);
            busy = true;
        }
        // kubelet's file is read before a call is begun.
        if !self.state.dirty.kubelet
            && let Some((asker, call)) = self.next_call(Instant::now())
        {
            self.state.passes.trigger.get_or_insert(model::Trigger::Call);
            call.begin(&mut self.state, asker);
            busy = true;
        }
        if self.state.is_due() {
            self.state.turn();
            return true;
        }
        if self.state.jobs.is_running() {
            return self.state.rebind_step() || busy;
        }
        busy
    }

    /// The next call to begin. While VMs start, a pod at whose instance the engine looked much more often of late than at theirs is
    /// held back, so that its calls do not come between the steps of a start, but no longer than [`MAX_HOLD_BACK`].
    fn next_call(&mut self, now: Instant) -> Option<(Asker, Box<dyn Call>)> {
        let starting = self.state.calls.starting();
        let is_over = self
            .held_back
            .is_some_and(|since| now.duration_since(since) >= MAX_HOLD_BACK);
        let allowed = self.state.recent_looks.allowed(starting.iter().copied(), now);
        let (recent, others) = (&self.state.recent_looks, |pod: &PodUid| {
            starting.iter().any(|one| *one != pod)
        });
        let next = self
            .state
            .inbox
            .next(|pod| !is_over && others(pod) && recent.exceeds(allowed, pod, now));
        if next.is_some() || !self.state.inbox.has_waiting() {
            self.held_back = None;
        } else {
            self.held_back.get_or_insert(now);
        }
        next
    }

    /// When to wake next: the first timer, or the watchdog's time, which a timer may pass by `late`.
    fn next_wake(&self, alive: Instant, late: Duration) -> Instant {
        let timers = [
            self.state.picture.next(),
            self.state.retries.instances.next(),
            self.state.retries.shared.next(),
            self.state.systemd_calls.next(),
            self.state.calls.next(),
            self.state.jobs.next(),
            self.held_back.map(|since| since + MAX_HOLD_BACK),
        ];
        let look = self.state.next_look();
        let wake = timers.into_iter().flatten().min().unwrap_or(look);
        // One wake-up serves both the watchdog and an audit that follows soon.
        let wake = wake.min(look);
        if wake <= alive + late { wake } else { alive }
    }

    /// Stop scopes without a cgroup: a daemon that died between removing the one and stopping the other left them. systemd
    /// keeps them, and would make their cgroups again at its next reload.
    fn stop_scopes_without_cgroup(&self) -> impl Future<Output = ()> + use<> {
        let system = self.state.system.clone();
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
