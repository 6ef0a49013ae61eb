//! The task that follows the engine and writes the file.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stelia_api::publication::{Publication, PublishedPod, VERSION};
use stelia_api::publishing::Publishing;
use stelia_kernel::clock::{now_us, since_boot};
use stelia_koordinator::report::profile::Profile;
use stelia_model as model;
use stelia_settings::{Publish, Settings};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::event_log::{EventLog, from_incident};
use super::folder::Folder;
use super::node::{self, Host};
use super::{pod_messages, status};
use crate::engine::Handle;
use crate::kubelet_config::KubeletConfigReader;
use crate::lasting_problem::LastingProblem;
use crate::wait_until::wait_until;

/// The shortest time between two updates because of changes: many VMs that start together are one change.
const MIN_UPDATE_INTERVAL: Duration = Duration::from_millis(100);
/// The shortest time between two updates because of incidents: a pod may have calls refused as often as it likes.
const MIN_INCIDENTS_INTERVAL: Duration = Duration::from_secs(2);

/// Publish until cancelled.
pub(crate) async fn run(
    engine: Handle,
    kubelet: Arc<KubeletConfigReader>,
    folder: Arc<dyn Folder>,
    cancel: CancellationToken,
) {
    let mut settings = engine.settings();
    loop {
        let publish = settings.borrow_and_update().publish;
        let Some(profile) = profile(publish) else {
            engine.incidents().keep(false);
            if let Err(problem) = folder.remove() {
                status::failed(&mut LastingProblem::default(), &problem);
            }
            if engine.view().publishing.profile.is_some() {
                engine.show_publishing(Publishing::default());
            }
            tokio::select! {
                () = cancel.cancelled() => return,
                changed = settings.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
            }
        };
        engine.incidents().keep(true);
        let task = Task::begin(engine.clone(), kubelet.clone(), folder.clone(), profile).await;
        if !task.follow(&cancel).await {
            return;
        }
    }
}

/// The profile of the node's object; `None` where nothing is published.
fn profile(publish: Publish) -> Option<Profile> {
    match publish {
        Publish::Off => None,
        Publish::Nrt => Some(Profile::Nrt),
        Publish::Koordinator => Some(Profile::Koordinator),
        Publish::Stelia => Some(Profile::Stelia),
    }
}

/// Do this work on a thread that may block. `None` where it panicked, which the journal has.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

struct Task {
    engine: Handle,
    kubelet: Arc<KubeletConfigReader>,
    folder: Arc<dyn Folder>,
    profile: Profile,
    settings: watch::Receiver<Arc<Settings>>,
    views: watch::Receiver<Arc<model::Node>>,
    audits: watch::Receiver<()>,
    /// The view from which the file was last made.
    published: Arc<model::Node>,
    host: Option<Host>,
    pods: Vec<PublishedPod>,
    log: EventLog,
    /// The file's bytes, as far as is known.
    written: Option<Vec<u8>>,
    written_us: u64,
    problem: LastingProblem,
    /// Whether something changed since the last update.
    changed: bool,
    /// Whether an audit began since then: what no event reports is read again, and the file compared.
    audited: bool,
    /// Whether incidents were noted since then.
    incidents: bool,
    /// When the next update because of a change may be made.
    next_update: Instant,
    /// When the next update because of incidents may be made.
    next_incidents: Instant,
}

impl Task {
    /// Start from what a former daemon of this boot wrote.
    async fn begin(
        engine: Handle,
        kubelet: Arc<KubeletConfigReader>,
        folder: Arc<dyn Folder>,
        profile: Profile,
    ) -> Self {
        let reader = folder.clone();
        let written = blocking(move || reader.read()).await.flatten();
        let former = written.as_deref().and_then(|bytes| Publication::parse(bytes).ok());
        let (pods, events) = former.map(|former| (former.pods, former.events)).unwrap_or_default();
        let views = engine.watch();
        let published = views.borrow().clone();
        Self {
            settings: engine.settings(),
            published,
            views,
            audits: engine.audits(),
            host: None,
            pods,
            log: EventLog::after(events, since_boot_ms()),
            written,
            written_us: 0,
            problem: LastingProblem::default(),
            changed: true,
            audited: true,
            incidents: false,
            next_update: Instant::now(),
            next_incidents: Instant::now(),
            engine,
            kubelet,
            folder,
            profile,
        }
    }

    /// Follow the engine. Returns whether publishing was switched off; otherwise the daemon ends.
    async fn follow(mut self, cancel: &CancellationToken) -> bool {
        loop {
            let now = Instant::now();
            if self.next().is_some_and(|next| next <= now) {
                self.update().await;
                continue;
            }
            let next = self.next();
            tokio::select! {
                () = cancel.cancelled() => return false,
                changed = self.settings.changed() => {
                    if changed.is_err() {
                        return false;
                    }
                    match profile(self.settings.borrow_and_update().publish) {
                        None => return true,
                        Some(profile) => self.profile = profile,
                    }
                    self.changed = true;
                }
                changed = self.views.changed() => {
                    if changed.is_err() {
                        return false;
                    }
                    self.changed |= node::differs(&self.published, &self.views.borrow_and_update());
                }
                Ok(()) = self.audits.changed() => self.audited = true,
                () = self.engine.incidents().noted() => self.incidents = true,
                () = wait_until(next) => {}
            }
        }
    }

    /// When the next update is due; `None` while nothing has changed.
    fn next(&self) -> Option<Instant> {
        let changed = (self.changed || self.audited).then_some(self.next_update);
        let incidents = self.incidents.then_some(self.next_incidents);
        changed.into_iter().chain(incidents).min()
    }

    /// Make the file anew, and write it where it differs.
    async fn update(&mut self) {
        let view = self.views.borrow_and_update().clone();
        let changed = std::mem::take(&mut self.changed) || node::differs(&self.published, &view);
        let audited = std::mem::take(&mut self.audited);
        self.published = view;
        if changed || audited || self.host.is_none() {
            self.read(audited).await;
        }
        let now = now_us();
        let (pods, mut new_events) = pod_messages::update(&self.pods, &self.published.instances, now);
        self.pods = pods;
        self.incidents = false;
        for (pod, incidents) in self.engine.incidents().take() {
            let incidents = incidents.into_iter();
            new_events.extend(incidents.map(|incident| from_incident(pod.as_str(), incident)));
        }
        new_events.into_iter().for_each(|event| self.log.note(event));
        match self.text(now) {
            Ok(bytes) => self.put(bytes, audited).await,
            Err(problem) => self.withdraw(problem).await,
        }
        let now = Instant::now();
        self.next_update = now + MIN_UPDATE_INTERVAL;
        self.next_incidents = now + MIN_INCIDENTS_INTERVAL;
        self.show();
    }

    async fn read(&mut self, anew: bool) {
        let (system, view, profile) = (self.engine.system().clone(), self.published.clone(), self.profile);
        let config = match self.host.take() {
            Some(host) if !anew => host.config,
            _ => self.kubelet.read().await,
        };
        self.host = blocking(move || Host::read(&system, &view, config, profile)).await;
    }

    /// The file's bytes.
    fn text(&self, now_us: u64) -> Result<Vec<u8>, String> {
        let host = self
            .host
            .as_ref()
            .ok_or("the host was not read: steliad's journal has why")?;
        let ready = node::ready(&self.published, host.known.as_ref().err(), &host.object);
        let publication = Publication {
            version: VERSION,
            node: host.name.clone()?,
            object: host.object.as_ref().ok().cloned(),
            summary: Some(node::summary(&self.published, &ready, now_us)),
            ready,
            pods: self.pods.clone(),
            events: self.log.events().to_vec(),
        };
        serde_json::to_vec(&publication).map_err(|cause| format!("write the file's text: {cause}"))
    }

    /// Write the file where its bytes differ. `compare`: with the file itself, which another program may have changed.
    async fn put(&mut self, bytes: Vec<u8>, compare: bool) {
        let (folder, written) = (self.folder.clone(), self.written.take());
        let done = blocking(move || {
            let is_there = written.as_ref() == Some(&bytes) && (!compare || folder.read().as_ref() == Some(&bytes));
            if is_there {
                folder.hold().map(|()| false)
            } else {
                folder.write(&bytes).map(|()| true)
            }
            .map(|written| (written, bytes))
        });
        match done.await {
            Some(Ok((written, bytes))) => {
                self.written = Some(bytes);
                status::works(&mut self.problem);
                if written {
                    self.written_us = now_us();
                }
            }
            // It is tried again at the next change or audit.
            Some(Err(problem)) => status::failed(&mut self.problem, &problem),
            None => {}
        }
    }

    /// Remove the file, which is not current and could not be made anew.
    async fn withdraw(&mut self, problem: String) {
        let folder = self.folder.clone();
        self.written = None;
        let removed = blocking(move || folder.remove()).await;
        match removed {
            Some(Err(also)) => status::failed(&mut self.problem, &format!("{problem}; {also}")),
            _ => status::failed(&mut self.problem, &problem),
        }
    }

    fn show(&self) {
        let publishing = Publishing {
            profile: Some(self.profile.name().to_owned()),
            problem: self.problem.text().cloned(),
            written_us: self.written_us,
        };
        if *self.views.borrow().publishing != publishing {
            self.engine.show_publishing(publishing);
        }
    }
}

/// Milliseconds since boot: a floor for the numbers of events, of which there are fewer than one a millisecond.
fn since_boot_ms() -> u64 {
    u64::try_from(since_boot().as_millis()).unwrap_or(u64::MAX)
}
