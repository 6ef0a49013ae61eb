//! The engine's task: commands, triggers, passes, the watchdog.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::apply::{self, Outcome};
use super::lifecycle::{AttachRequest, Placed};
use super::watch::Watcher;
use super::{RegisterRequest, System, View, observe};
use crate::cgroup::{CgroupPath, File};
use crate::config::Settings;
use crate::kubelet::{CpuManagerState, PodUid};
use crate::plan::admission::{Kind, Refusal};
use crate::plan::placement::Policy;
use crate::plan::{self, Snapshot};

/// A pass is observe, plan, apply, and observe again; one that does not end within this many rounds is reported.
const ROUNDS: u32 = 8;

/// What a pass did, in all its rounds.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Report {
    /// The pass's number since the daemon started.
    pub pass: u32,
    /// Steps taken.
    pub steps: u32,
    /// Writes to cgroup files.
    pub writes: u32,
    /// Cgroup moves.
    pub moves: u32,
    /// Steps that repaired something no call asked for.
    pub repaired: u32,
    /// What could not be done or is not whole.
    pub degraded: Vec<String>,
}

pub(super) enum Command {
    Register(RegisterRequest, oneshot::Sender<Result<(PodUid, CgroupPath), Refusal>>),
    Attach(AttachRequest, oneshot::Sender<Result<Vec<Placed>, Refusal>>),
    Deregister(PodUid, oneshot::Sender<Result<(), Refusal>>),
    Reconcile(oneshot::Sender<Report>),
    Reload(Box<Settings>, oneshot::Sender<()>),
}

/// How doors speak to the engine.
#[derive(Clone)]
pub struct Handle {
    commands: mpsc::Sender<Command>,
    view: watch::Receiver<Arc<View>>,
    system: System,
}

impl Handle {
    /// The engine's latest view.
    pub fn view(&self) -> Arc<View> {
        self.view.borrow().clone()
    }

    /// A receiver that is told of each new view.
    pub fn watch(&self) -> watch::Receiver<Arc<View>> {
        self.view.clone()
    }

    /// The seams, for doors that must look up who a process is.
    pub fn system(&self) -> &System {
        &self.system
    }

    async fn call<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, Refusal> {
        let (reply, answer) = oneshot::channel();
        let gone = || Kind::Busy.because("the daemon is stopping");
        self.commands.send(command(reply)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())
    }

    /// Register a container; one attempt, no waiting.
    ///
    /// # Errors
    /// The [`Refusal`]; nothing has changed then.
    pub async fn register(&self, request: RegisterRequest) -> Result<(PodUid, CgroupPath), Refusal> {
        self.call(|reply| Command::Register(request, reply)).await?
    }

    /// Attach vCPU threads; answers after the isolation was read back.
    ///
    /// # Errors
    /// The [`Refusal`]; what was attached before is as it was.
    pub async fn attach(&self, request: AttachRequest) -> Result<Vec<Placed>, Refusal> {
        self.call(|reply| Command::Attach(request, reply)).await?
    }

    /// Give everything back; answers when the scope is gone.
    ///
    /// # Errors
    /// The [`Refusal`].
    pub async fn deregister(&self, pod: PodUid) -> Result<(), Refusal> {
        self.call(|reply| Command::Deregister(pod, reply)).await?
    }

    /// One pass now.
    ///
    /// # Errors
    /// The daemon is stopping.
    pub async fn reconcile(&self) -> Result<Report, Refusal> {
        self.call(Command::Reconcile).await
    }

    /// Use new settings.
    ///
    /// # Errors
    /// The daemon is stopping.
    pub async fn reload(&self, settings: Settings) -> Result<(), Refusal> {
        self.call(|reply| Command::Reload(Box::new(settings), reply)).await
    }
}

/// The state's one owner.
pub struct Engine {
    pub(super) system: System,
    pub(super) settings: Settings,
    commands: mpsc::Receiver<Command>,
    view: watch::Sender<Arc<View>>,
    watcher: Watcher,
    wake: mpsc::Receiver<()>,
    wake_sender: mpsc::Sender<()>,
    passes: u32,
    /// The kubelet problem last logged, so that each is said once.
    last_problem: Option<String>,
}

impl Engine {
    /// Make the engine and the handle to it.
    ///
    /// # Errors
    /// inotify is not to be had.
    pub fn new(system: System, settings: Settings) -> std::io::Result<(Self, Handle)> {
        let (sender, commands) = mpsc::channel(64);
        // One pending wake-up says as much as many.
        let (wake_sender, wake) = mpsc::channel(1);
        let (view, receiver) = watch::channel(Arc::default());
        let watcher = Watcher::start(settings.kubelet_root.clone(), wake_sender.clone())?;
        let handle = Handle {
            commands: sender,
            view: receiver,
            system: system.clone(),
        };
        Ok((
            Self {
                system,
                settings,
                commands,
                view,
                watcher,
                wake,
                wake_sender,
                passes: 0,
                last_problem: None,
            },
            handle,
        ))
    }

    /// Run until cancelled. `alive` is called at each turn and at least every `heartbeat`: it feeds the watchdog.
    pub async fn run(mut self, cancel: CancellationToken, heartbeat: Duration, alive: impl Fn()) {
        let mut audit = tokio::time::interval(self.settings.audit_interval);
        audit.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut heart = tokio::time::interval(heartbeat);
        loop {
            alive();
            tokio::select! {
                () = cancel.cancelled() => return,
                command = self.commands.recv() => match command {
                    Some(command) => self.command(command).await,
                    None => return,
                },
                Some(()) = self.wake.recv() => { self.pass("event").await; }
                // The first tick comes at once: it is the pass at start-up, which adopts what is there.
                _ = audit.tick() => { self.pass("audit").await; }
                _ = heart.tick() => {}
            }
        }
    }

    async fn command(&mut self, command: Command) {
        // A caller that went away needs no answer.
        match command {
            Command::Register(request, reply) => drop(reply.send(self.register(request).await)),
            Command::Attach(request, reply) => drop(reply.send(self.attach(request).await)),
            Command::Deregister(pod, reply) => drop(reply.send(self.deregister(&pod).await)),
            Command::Reconcile(reply) => drop(reply.send(self.pass("call").await.1)),
            Command::Reload(settings, reply) => {
                if settings.kubelet_root != self.settings.kubelet_root {
                    match Watcher::start(settings.kubelet_root.clone(), self.wake_sender.clone()) {
                        Ok(watcher) => self.watcher = watcher,
                        Err(cause) => tracing::warn!("watch {}: {cause}", settings.kubelet_root.display()),
                    }
                }
                self.settings = *settings;
                self.pass("reload").await;
                let _ = reply.send(());
            }
        }
    }

    pub(super) fn placement(&self) -> Policy {
        self.settings.placement
    }

    /// Run blocking work off the reactor.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&System) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let system = self.system.clone();
        tokio::task::spawn_blocking(move || work(&system))
            .await
            .map_err(|cause| Kind::Failed.because(format!("a worker of the daemon failed: {cause}")))
    }

    /// Observe, and publish what was seen.
    pub(super) async fn observe(&mut self) -> Result<(Snapshot, Result<CpuManagerState, String>), Refusal> {
        let root = self.settings.kubelet_root.clone();
        let (kubelet, snapshot) = self
            .blocking(move |system| {
                let kubelet = observe::kubelet(&root);
                let snapshot = observe::snapshot(system, &kubelet);
                (kubelet, snapshot)
            })
            .await?;
        let snapshot = snapshot.map_err(|error| Kind::Failed.because(error.to_string()))?;
        let problem = kubelet.as_ref().err().cloned();
        if problem != self.last_problem {
            match &problem {
                Some(problem) => tracing::warn!("kubelet's state cannot be used, floats keep their CPUs: {problem}"),
                None => tracing::info!("kubelet's state is usable again"),
            }
            self.last_problem = problem;
        }
        let slice = self.system.cgroup_root.join("stelia.slice");
        let mut paths: Vec<PathBuf> = vec![self.settings.kubelet_root.clone()];
        paths.extend(snapshot.instances.iter().map(|instance| {
            let scope = self
                .system
                .cgroup_root
                .join(instance.scope.as_str().trim_start_matches('/'));
            scope.join(File::Events.name())
        }));
        paths.push(slice);
        self.watcher.keep(&paths);
        let view = View::of(&snapshot, self.placement().name());
        self.view.send_if_modified(|old| {
            let changed = **old != view;
            if changed {
                *old = Arc::new(view);
            }
            changed
        });
        Ok((snapshot, kubelet))
    }

    /// Rounds of observe, plan and apply until nothing is left to do, or nothing more can be done.
    pub(super) async fn pass(&mut self, trigger: &'static str) -> (Option<Snapshot>, Report) {
        self.passes = self.passes.wrapping_add(1);
        let mut report = Report {
            pass: self.passes,
            ..Report::default()
        };
        let mut failures: Vec<String> = Vec::new();
        let mut last = None;
        for round in 0..ROUNDS {
            let snapshot = match self.observe().await {
                Ok((snapshot, _)) => snapshot,
                Err(refusal) => {
                    failures = vec![refusal.text];
                    break;
                }
            };
            let steps = plan::plan(&snapshot);
            let unfinished = steps.len();
            last = Some(snapshot);
            if steps.is_empty() {
                failures.clear();
                break;
            }
            if round + 1 == ROUNDS {
                failures.push(format!("{unfinished} steps are still to take after {ROUNDS} rounds"));
                break;
            }
            let outcome = match self.blocking(move |system| apply::apply(system, &steps)).await {
                Ok(outcome) => outcome,
                Err(refusal) => {
                    failures = vec![refusal.text];
                    break;
                }
            };
            count(&mut report, &outcome);
            let progressed = (outcome.errors.len() as u32) < outcome.steps;
            failures = outcome.errors.into_iter().map(|(_, error)| error).collect();
            if !progressed {
                break;
            }
        }
        for failure in &failures {
            tracing::warn!(trigger, "{failure}");
        }
        if matches!(trigger, "audit" | "event") {
            report.repaired = report.steps;
        }
        if report.steps > 0 {
            tracing::info!(
                trigger,
                "pass {}: {} steps, {} writes, {} moves, {} failures",
                report.pass,
                report.steps,
                report.writes,
                report.moves,
                failures.len()
            );
        }
        if let Some(snapshot) = &last {
            for instance in &snapshot.instances {
                let reasons = plan::degraded(snapshot, instance);
                report.degraded.extend(
                    reasons
                        .into_iter()
                        .map(|reason| format!("{}: {reason}", instance.record.pod)),
                );
            }
        }
        report.degraded.extend(failures);
        (last, report)
    }
}

fn count(report: &mut Report, outcome: &Outcome) {
    report.steps += outcome.steps;
    report.writes += outcome.writes;
    report.moves += outcome.moves;
}
