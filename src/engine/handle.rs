//! How doors call the engine: commands through a channel, answers and views back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use stelia_api::ledger::LedgerSummary;
use stelia_api::publishing::Publishing;
use stelia_api::quiet::Quiet;
use stelia_api::{Error, ErrorKind};
use stelia_kubelet::{PodName, PodUid};
use stelia_node::System;
use stelia_node::cgroup::CgroupPath;
use stelia_settings::Settings;
use tokio::sync::{mpsc, oneshot, watch};

use super::attach::{AttachRequest, Placed};
use super::inbox::Asker;
use super::incidents::Incidents;
use super::ledger::LedgerCall;
use super::rebind::{RebindAnswer, RebindRequest};
use super::restrict::{Restrict, restricted};
use super::{InstanceView, Metrics, Preview, RegisterRequest, Report, Unadopted, View};

/// Where an answer goes.
pub(super) type Reply<T> = oneshot::Sender<Result<T, Error>>;

pub(super) enum Command {
    Register(Box<RegisterRequest>, Reply<(PodUid, CgroupPath)>),
    Attach(Box<AttachRequest>, Reply<Vec<Placed>>),
    Deregister(PodUid, Vec<Reply<()>>),
    Audit(PodUid, Vec<Reply<Report>>),
    Reconcile(Vec<Reply<Report>>),
    Preview(Reply<Preview>),
    Reload(Box<Settings>, Reply<()>),
    Rebind(RebindRequest, Reply<RebindAnswer>),
    /// What is known of VMs that are not adopted; nobody waits for an answer.
    ShowUnadopted(Vec<Unadopted>),
    /// What is done about interrupts and the like; nobody waits for an answer.
    ShowQuiet(Box<Quiet>),
    /// What is known of the ledger; nobody waits for an answer.
    ShowLedger(Box<LedgerSummary>),
    /// Whether the cluster's publisher is told how things are; nobody waits for an answer.
    ShowPublishing(Publishing),
}

impl Command {
    /// Let a call for the same thing share this one's answer. A call for anything else is returned.
    pub(super) fn join(&mut self, other: Self) -> Option<Self> {
        match (self, other) {
            (Self::Deregister(pod, replies), Self::Deregister(same, more)) if *pod == same => replies.extend(more),
            (Self::Audit(pod, replies), Self::Audit(same, more)) if *pod == same => replies.extend(more),
            (Self::Reconcile(replies), Self::Reconcile(more)) => replies.extend(more),
            (_, other) => return Some(other),
        }
        None
    }

    /// Whether all callers have left.
    pub(super) fn is_given_up(&self) -> bool {
        fn all<T>(replies: &[Reply<T>]) -> bool {
            replies.iter().all(oneshot::Sender::is_closed)
        }
        match self {
            Self::Register(_, reply) => reply.is_closed(),
            Self::Attach(_, reply) => reply.is_closed(),
            Self::Deregister(_, replies) => all(replies),
            Self::Audit(_, replies) => all(replies),
            Self::Reconcile(replies) => all(replies),
            Self::Preview(reply) => reply.is_closed(),
            // New settings are used although the caller left.
            Self::Reload(..)
            | Self::ShowUnadopted(_)
            | Self::ShowQuiet(_)
            | Self::ShowLedger(_)
            | Self::ShowPublishing(_) => false,
            Self::Rebind(_, reply) => reply.is_closed(),
        }
    }
}

/// Subscribers to single instances.
pub(super) type Followers = Arc<Mutex<BTreeMap<PodUid, watch::Sender<Option<Arc<InstanceView>>>>>>;

/// How doors speak to the engine.
#[derive(Clone)]
pub struct Handle {
    pub(super) commands: mpsc::UnboundedSender<(Asker, Command)>,
    pub(super) view: watch::Receiver<Arc<View>>,
    pub(super) followers: Followers,
    pub(super) system: System,
    pub(super) metrics: Arc<Metrics>,
    pub(super) settings: watch::Receiver<Arc<Settings>>,
    /// An administrator asked for an audit of everything.
    pub(super) reconciled: watch::Sender<()>,
    /// An audit of everything begins.
    pub(super) audits: watch::Sender<()>,
    /// Who keeps the ledger.
    pub(super) ledger: watch::Sender<Option<mpsc::UnboundedSender<LedgerCall>>>,
    /// What happens to pods and no view shows.
    pub(super) incidents: Arc<Incidents>,
    /// The pod whose calls come through this handle; `None` for an administrator's.
    pub(super) asker: Asker,
}

impl Handle {
    /// A handle for the calls of one pod: they wait for each other only, and its views are restricted to that pod. A
    /// refusal is returned whole, for the journal: pass it through `restrict` before it is sent.
    #[must_use]
    pub fn on_behalf_of(&self, pod: &PodUid) -> Self {
        Self {
            asker: Some(pod.clone()),
            ..self.clone()
        }
    }

    /// The part of a value that the caller of this handle may see.
    pub(crate) fn restrict<T: Restrict>(&self, value: T) -> T {
        restricted(value, self.asker.as_ref())
    }

    /// The engine's latest view.
    pub fn view(&self) -> Arc<View> {
        let view = self.view.borrow().clone();
        self.restrict(view)
    }

    /// A receiver of every new view. On behalf of a pod it receives none: a pod follows its instance.
    pub(crate) fn watch(&self) -> watch::Receiver<Arc<View>> {
        match self.asker {
            None => self.view.clone(),
            Some(_) => watch::channel(self.view()).1,
        }
    }

    /// A receiver of one instance's changes, restricted to its pod; `None` while the pod has no instance.
    pub(crate) fn follow(&self, pod: &PodUid) -> watch::Receiver<Option<Arc<InstanceView>>> {
        // A panic in another thread leaves no half-made change in a map: each call changes it once.
        let mut followers = self.followers.lock().unwrap_or_else(PoisonError::into_inner);
        let known = || self.view.borrow().instances.get(pod).cloned().visible_to(pod);
        let sender = followers
            .entry(pod.clone())
            .or_insert_with(|| watch::channel(known()).0);
        sender.subscribe()
    }

    /// What a pod with an instance is called. For the journal, whoever asks: pass it to no caller.
    pub(crate) fn pod_name(&self, pod: &PodUid) -> Option<PodName> {
        self.view.borrow().instances.get(pod)?.pod_name.clone()
    }

    /// The settings in force.
    pub(crate) fn settings(&self) -> watch::Receiver<Arc<Settings>> {
        self.settings.clone()
    }

    /// Changes each time that everything was audited because an administrator asked for it.
    pub(crate) fn reconciled(&self) -> watch::Receiver<()> {
        self.reconciled.subscribe()
    }

    /// Changes each time that an audit of everything begins, whatever asked for it. The engine reads the instances meanwhile, some in each
    /// turn.
    pub(crate) fn audits(&self) -> watch::Receiver<()> {
        self.audits.subscribe()
    }

    /// Show these VMs as not adopted, and no others.
    pub(crate) fn show_unadopted(&self, unadopted: Vec<Unadopted>) {
        // The daemon may be stopping.
        let _ = self.commands.send((None, Command::ShowUnadopted(unadopted)));
    }

    /// Show this of interrupts and the like, and degrade the instances that they disturb.
    pub(crate) fn show_quiet(&self, quiet: Quiet) {
        // The daemon may be stopping.
        let _ = self.commands.send((None, Command::ShowQuiet(Box::new(quiet))));
    }

    /// Show whether the cluster's publisher is told how things are.
    pub(crate) fn show_publishing(&self, publishing: Publishing) {
        // The daemon may be stopping.
        let _ = self.commands.send((None, Command::ShowPublishing(publishing)));
    }

    /// For doors, which must look up the cgroup of a calling process.
    pub(crate) fn system(&self) -> &System {
        &self.system
    }

    /// Doors count their calls in it.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    async fn call<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        let gone = || ErrorKind::Busy.because("the daemon is stopping");
        self.commands
            .send((self.asker.clone(), command(reply)))
            .map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    /// Register a container. A refusal whose cause may pass is held back for [`RegisterRequest::timeout`].
    ///
    /// # Errors
    /// The [`Error`]; nothing has changed then.
    pub async fn register(&self, request: RegisterRequest) -> Result<(PodUid, CgroupPath), Error> {
        self.call(|reply| Command::Register(Box::new(request), reply)).await
    }

    /// Attach vCPU threads; answers after the isolation was read back.
    ///
    /// # Errors
    /// The [`Error`]; what was attached before stays attached.
    pub async fn attach(&self, request: AttachRequest) -> Result<Vec<Placed>, Error> {
        self.call(|reply| Command::Attach(Box::new(request), reply)).await
    }

    /// Deregister; answers when the scope is gone, or with `Busy` after 20 s while deregistering goes on.
    pub(crate) async fn deregister(&self, pod: PodUid) -> Result<(), Error> {
        self.call(|reply| Command::Deregister(pod, vec![reply])).await
    }

    /// Audit one instance now.
    pub(crate) async fn audit(&self, pod: PodUid) -> Result<Report, Error> {
        let report = self.call(|reply| Command::Audit(pod, vec![reply])).await?;
        Ok(self.restrict(report))
    }

    /// Audit everything now.
    ///
    /// # Errors
    /// The daemon is stopping.
    pub async fn reconcile(&self) -> Result<Report, Error> {
        let report = self.call(|reply| Command::Reconcile(vec![reply])).await?;
        self.reconciled.send_replace(());
        Ok(self.restrict(report))
    }

    /// What would be done now; nothing is changed.
    pub(crate) async fn preview(&self) -> Result<Preview, Error> {
        self.call(Command::Preview).await
    }

    /// Begin a rebind job, or list the moves it would make.
    ///
    /// # Errors
    /// The [`Error`]; nothing has begun then.
    pub(crate) async fn rebind(&self, request: RebindRequest) -> Result<RebindAnswer, Error> {
        self.call(|reply| Command::Rebind(request, reply)).await
    }

    pub(crate) async fn reload(&self, settings: Settings) -> Result<(), Error> {
        self.call(|reply| Command::Reload(Box::new(settings), reply)).await
    }
}
