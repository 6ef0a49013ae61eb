//! The engine's task: commands, triggers, the watchdog.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::attach::{AttachRequest, Placed};
use super::pass::Preview;
use super::rebind::{self, Jobs, RebindRequest};
use super::tell::Told;
use super::watch::Watcher;
use super::{Counters, LastPass, Metrics, RegisterRequest, Report, System, Trigger, View};
use crate::cgroup::CgroupPath;
use crate::config::Settings;
use crate::kubelet::PodUid;
use crate::plan::admission::{Kind, Refusal};
use crate::plan::{Policies, Snapshot};
use crate::systemd::SystemdError;

pub(super) enum Command {
    Register(RegisterRequest, oneshot::Sender<Result<(PodUid, CgroupPath), Refusal>>),
    Attach(AttachRequest, oneshot::Sender<Result<Vec<Placed>, Refusal>>),
    Deregister(PodUid, oneshot::Sender<Result<(), Refusal>>),
    Reconcile(oneshot::Sender<Report>),
    Preview(oneshot::Sender<Result<Preview, Refusal>>),
    Reload(Box<Settings>, oneshot::Sender<()>),
    Rebind(RebindRequest, oneshot::Sender<Result<rebind::Planned, Refusal>>),
}

/// How doors speak to the engine.
#[derive(Clone)]
pub struct Handle {
    commands: mpsc::Sender<Command>,
    view: watch::Receiver<Arc<View>>,
    system: System,
    metrics: Arc<Metrics>,
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

    /// What is counted; doors count their calls in it.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
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

    /// What a pass would begin with now; nothing is changed.
    ///
    /// # Errors
    /// The system cannot be read, or the daemon is stopping.
    pub async fn preview(&self) -> Result<Preview, Refusal> {
        self.call(Command::Preview).await?
    }

    /// Begin a rebind job, or tell what it would do.
    ///
    /// # Errors
    /// The [`Refusal`]; nothing has begun then.
    pub async fn rebind(&self, request: RebindRequest) -> Result<rebind::Planned, Refusal> {
        self.call(|reply| Command::Rebind(request, reply)).await?
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
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) view: watch::Sender<Arc<View>>,
    pub(super) watcher: Watcher,
    pub(super) wake: mpsc::Receiver<()>,
    pub(super) wake_sender: mpsc::Sender<()>,
    pub(super) passes: u32,
    /// Passes in a row that could not finish.
    pub(super) unfinished: u32,
    /// Until then events wait.
    pub(super) rest_until: Option<Instant>,
    /// What the last pass left behind.
    pub(super) left: Option<Snapshot>,
    pub(super) counters: Counters,
    pub(super) last_pass: Option<LastPass>,
    pub(super) metrics: Arc<Metrics>,
    /// Since when kubelet has no entry for an instance.
    pub(super) gone_since: BTreeMap<PodUid, Instant>,
    /// Since when a scope is there and empty.
    pub(super) empty_since: BTreeMap<CgroupPath, Instant>,
    /// The kubelet problem last logged, so that each is said once.
    pub(super) last_problem: Option<String>,
    /// What was last told of each instance.
    pub(super) told: BTreeMap<PodUid, Told>,
    /// Rebind jobs.
    pub(super) jobs: Jobs,
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
            metrics: Arc::default(),
        };
        let metrics = handle.metrics.clone();
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
                unfinished: 0,
                rest_until: None,
                left: None,
                counters: Counters::default(),
                last_pass: None,
                metrics,
                gone_since: BTreeMap::new(),
                empty_since: BTreeMap::new(),
                last_problem: None,
                told: BTreeMap::new(),
                jobs: Jobs::default(),
            },
            handle,
        ))
    }

    /// Run until cancelled. `alive` is called at each turn and at least every `heartbeat`: it feeds the watchdog.
    pub async fn run(mut self, cancel: CancellationToken, heartbeat: Duration, alive: impl Fn()) {
        self.stop_bare_scopes().await;
        self.recall_job().await;
        let mut audit = tokio::time::interval(self.settings.audit_interval);
        audit.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut heart = tokio::time::interval(heartbeat);
        loop {
            alive();
            let rest = self.rest_until;
            tokio::select! {
                () = cancel.cancelled() => return,
                command = self.commands.recv() => match command {
                    Some(command) => self.command(command).await,
                    None => return,
                },
                Some(()) = self.wake.recv(), if rest.is_none() => { self.pass(Trigger::Event).await; }
                () = tokio::time::sleep_until(rest.unwrap_or_else(Instant::now).into()), if rest.is_some() => {
                    self.rest_until = None;
                }
                // The first tick comes at once: it is the pass at start-up, which adopts what is there.
                _ = audit.tick() => { self.pass(Trigger::Audit).await; }
                _ = heart.tick() => {}
                // Between its moves everything else has its turn.
                () = std::future::ready(()), if self.jobs.is_running() => self.rebind_step().await,
            }
        }
    }

    /// Stop scopes without a cgroup: a daemon that died between removing the one and stopping the other left them. systemd
    /// believes in them for ever, and would make their cgroups anew at its next reload.
    async fn stop_bare_scopes(&self) {
        let stopped = async {
            for (unit, cgroup) in self.system.systemd.scopes(PodUid::SCOPES).await? {
                let ours = CgroupPath::slice().child(&unit);
                // Of the same name but elsewhere: somebody else's.
                if cgroup == ours.as_str() && !self.system.cgroups.exists(&ours) {
                    self.system.systemd.stop_emptied(&unit).await?;
                }
            }
            Ok::<(), SystemdError>(())
        };
        if let Err(error) = stopped.await {
            tracing::warn!("{error}");
        }
    }

    async fn command(&mut self, command: Command) {
        // A caller that went away needs no answer.
        match command {
            Command::Register(request, reply) => drop(reply.send(self.register(request).await)),
            Command::Attach(request, reply) => drop(reply.send(self.attach(request).await)),
            Command::Deregister(pod, reply) => drop(reply.send(self.deregister(&pod).await)),
            Command::Reconcile(reply) => drop(reply.send(self.pass(Trigger::Call).await.1)),
            Command::Rebind(request, reply) => drop(reply.send(self.rebind(request).await)),
            Command::Preview(reply) => drop(reply.send(self.preview().await)),
            Command::Reload(settings, reply) => {
                if settings.kubelet_root != self.settings.kubelet_root {
                    match Watcher::start(settings.kubelet_root.clone(), self.wake_sender.clone()) {
                        Ok(watcher) => self.watcher = watcher,
                        Err(cause) => tracing::warn!("watch {}: {cause}", settings.kubelet_root.display()),
                    }
                }
                self.settings = *settings;
                self.pass(Trigger::Reload).await;
                let _ = reply.send(());
            }
        }
    }

    pub(super) fn policies(&self) -> Policies {
        self.settings.policies.clone()
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
}
