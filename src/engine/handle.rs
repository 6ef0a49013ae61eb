//! How entry points and other tasks reach the engine: messages through a channel, answers and views back. Each call adds its own method to the
//! [`Handle`], in its file of `calls`.

use std::sync::{Arc, PoisonError};

use stelia_api::publishing::Publishing;
use stelia_api::quiet::Quiet;
use stelia_api::{Error, ErrorKind};
use stelia_kernel::System;
use stelia_kubelet::{PodName, PodUid};
use stelia_model as model;
use stelia_settings::Settings;
use tokio::sync::{mpsc, oneshot, watch};

use super::calls::{Asker, Call, Reply};
use super::incidents::Incidents;
use super::ledger_calls::LedgerCall;
use super::metrics::Metrics;
use super::state::EngineState;
use super::view_writer::Followers;
use super::visible_to_pods::{Restrict, restricted};

/// What comes through a handle.
pub(super) enum Message {
    Call(Box<dyn Call>),
    /// What a task beside the engine has in the view. Nobody waits for an answer.
    Show(Show),
}

/// Shows what a task beside the engine knows.
pub(super) type Show = Box<dyn FnOnce(&mut EngineState) + Send>;

/// How entry points speak to the engine.
#[derive(Clone)]
pub struct Handle {
    pub(super) messages: mpsc::UnboundedSender<(Asker, Message)>,
    pub(super) view: watch::Receiver<Arc<model::Node>>,
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
    pub fn view(&self) -> Arc<model::Node> {
        let view = self.view.borrow().clone();
        self.restrict(view)
    }

    /// A receiver of every new view. On behalf of a pod it receives none: a pod follows its instance.
    pub(crate) fn watch(&self) -> watch::Receiver<Arc<model::Node>> {
        match self.asker {
            None => self.view.clone(),
            Some(_) => watch::channel(self.view()).1,
        }
    }

    /// A receiver of one instance's changes, restricted to its pod; `None` while the pod has no instance.
    pub(crate) fn follow(&self, pod: &PodUid) -> watch::Receiver<Option<Arc<model::Instance>>> {
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
    pub(crate) fn show_unadopted(&self, unadopted: Vec<model::Unadopted>) {
        self.show(|state| state.view_writer.show_unadopted(unadopted));
    }

    /// Show this of interrupts and the like, and degrade the instances that they disturb.
    pub(crate) fn show_quiet(&self, quiet: Quiet) {
        self.show(|state| state.show_quiet(quiet));
    }

    /// Show whether the cluster's publisher is told how things are.
    pub(crate) fn show_publishing(&self, publishing: Publishing) {
        self.show(|state| state.view_writer.show_publishing(publishing));
    }

    /// Show how many VMs the node has room for; 0: not known.
    pub(crate) fn show_vm_capacity(&self, capacity: u32) {
        self.show(move |state| state.view_writer.show_vm_capacity(capacity));
    }

    /// Show why KVM's events are not heard; `None` when they are again.
    pub(crate) fn show_kvm_problem(&self, problem: Option<String>) {
        self.show(|state| state.view_writer.show_kvm(problem));
    }

    /// For entry points, which must look up the cgroup of a calling process.
    pub(crate) fn system(&self) -> &System {
        &self.system
    }

    /// Entry points count their calls in it.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub(super) fn show(&self, shown: impl FnOnce(&mut EngineState) + Send + 'static) {
        // The daemon may be stopping.
        let _ = self.messages.send((None, Message::Show(Box::new(shown))));
    }

    /// Send a call to the engine, and wait for its answer.
    pub(super) async fn call<T, C: Call>(&self, call: impl FnOnce(Reply<T>) -> C) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        let gone = || ErrorKind::Busy.because("the daemon is stopping");
        self.messages
            .send((self.asker.clone(), Message::Call(Box::new(call(reply)))))
            .map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}
