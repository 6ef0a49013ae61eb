//! What the cluster's publisher is told: a file of the node, its VMs and what happened to them (`crates/publication/` has its format).
//!
//! A task in the doors' runtime follows the engine's view and its audits. The file is replaced when its bytes differ; what blocks is done on
//! another thread, one thing at a time. Switched off nothing is read, kept or timed.
//!
//! | file | its job |
//! |---|---|
//! | `node` | the node's object, whether VMs can be admitted |
//! | `pods`, `events` | how each VM is, in its pod's own terms; what became of that as events. Pure |
//! | `folder` | the file, and the lock that says that it is true |
//! | `told` | the journal's messages |

mod events;
mod folder;
mod node;
mod pods;
mod told;

use std::sync::Arc;
use std::time::{Duration, Instant};

use stelia_api::publishing::Publishing;
use stelia_node_report::profile::Profile;
use stelia_publication::{Pod, Publication, VERSION};
use stelia_settings::{Publish, Settings};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::engine::{Handle, View, now_us};
use events::{Happened, Log};
use node::Host;
use told::Told;

pub(crate) use folder::{Directory, Folder};

/// After a look the next one for a change is this much later, at the earliest: many VMs that start are one change.
const REST: Duration = Duration::from_millis(100);
/// The same for what happened to pods and no view shows: a pod may have calls refused as often as it likes.
const INCIDENTS_REST: Duration = Duration::from_secs(2);

/// Tell it until cancelled.
pub(crate) async fn run(engine: Handle, folder: Arc<dyn Folder>, cancel: CancellationToken) {
    let mut settings = engine.settings();
    loop {
        let publish = settings.borrow_and_update().publish;
        let Some(profile) = profile(publish) else {
            engine.incidents().keep(false);
            let removed = folder.remove();
            if let Err(problem) = &removed {
                Told::default().failed(problem.clone());
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
        let task = Task::begin(engine.clone(), folder.clone(), profile).await;
        if !task.follow(&cancel).await {
            return;
        }
    }
}

/// As which profile the object is written; `None`: nothing is.
fn profile(publish: Publish) -> Option<Profile> {
    match publish {
        Publish::Off => None,
        Publish::Nrt => Some(Profile::Nrt),
        Publish::Koordinator => Some(Profile::Koordinator),
        Publish::Stelia => Some(Profile::Stelia),
    }
}

async fn until(next: Option<Instant>) {
    match next {
        Some(next) => tokio::time::sleep_until(next.into()).await,
        None => std::future::pending().await,
    }
}

/// On a thread where it may block. `None`: it panicked, which the journal has.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

struct Task {
    engine: Handle,
    folder: Arc<dyn Folder>,
    profile: Profile,
    settings: watch::Receiver<Arc<Settings>>,
    views: watch::Receiver<Arc<View>>,
    audits: watch::Receiver<()>,
    /// The view that the file was last made of.
    seen: Arc<View>,
    host: Option<Host>,
    pods: Vec<Pod>,
    log: Log,
    /// What is in the file, as far as is known.
    written: Option<Vec<u8>>,
    written_us: u64,
    told: Told,
    /// Something changed that the file does not say yet.
    changed: bool,
    /// What no signal reports is to be read again, and the file looked at.
    audited: bool,
    /// Something happened that no view shows.
    incidents: bool,
    /// Until when changes are not looked at, nor incidents.
    rests: Instant,
    incidents_rest: Instant,
}

impl Task {
    /// What an earlier daemon of this boot wrote is gone on with.
    async fn begin(engine: Handle, folder: Arc<dyn Folder>, profile: Profile) -> Self {
        let reader = folder.clone();
        let written = blocking(move || reader.read()).await.flatten();
        let former = written.as_deref().and_then(|bytes| Publication::parse(bytes).ok());
        let (pods, events) = former.map(|former| (former.pods, former.events)).unwrap_or_default();
        let views = engine.watch();
        let seen = views.borrow().clone();
        Self {
            settings: engine.settings(),
            seen,
            views,
            audits: engine.audits(),
            host: None,
            pods,
            log: Log::after(events, since_boot_ms()),
            written,
            written_us: 0,
            told: Told::default(),
            changed: true,
            audited: true,
            incidents: false,
            rests: Instant::now(),
            incidents_rest: Instant::now(),
            engine,
            folder,
            profile,
        }
    }

    /// Whether it was switched off; else the daemon ends.
    async fn follow(mut self, cancel: &CancellationToken) -> bool {
        loop {
            let now = Instant::now();
            if self.next().is_some_and(|next| next <= now) {
                self.turn().await;
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
                    self.changed |= node::differs(&self.seen, &self.views.borrow_and_update());
                }
                Ok(()) = self.audits.changed() => self.audited = true,
                () = self.engine.incidents().noted() => self.incidents = true,
                () = until(next) => {}
            }
        }
    }

    /// When to look next; `None` while there is nothing to look at.
    fn next(&self) -> Option<Instant> {
        let changed = (self.changed || self.audited).then_some(self.rests);
        let incidents = self.incidents.then_some(self.incidents_rest);
        changed.into_iter().chain(incidents).min()
    }

    /// Look, and write what differs.
    async fn turn(&mut self) {
        let view = self.views.borrow_and_update().clone();
        let changed = std::mem::take(&mut self.changed) || node::differs(&self.seen, &view);
        let audited = std::mem::take(&mut self.audited);
        self.seen = view;
        if changed || audited || self.host.is_none() {
            self.read(audited).await;
        }
        let now = now_us();
        let (pods, mut happened) = pods::update(&self.pods, &self.seen.instances, now);
        self.pods = pods;
        self.incidents = false;
        for (pod, incidents) in self.engine.incidents().take() {
            let incidents = incidents.into_iter();
            happened.extend(incidents.map(|incident| Happened::incident(pod.as_str(), incident)));
        }
        happened.into_iter().for_each(|one| self.log.note(one));
        match self.text() {
            Ok(bytes) => self.put(bytes, audited).await,
            Err(problem) => self.cannot_say(problem).await,
        }
        let now = Instant::now();
        self.rests = now + REST;
        self.incidents_rest = now + INCIDENTS_REST;
        self.show();
    }

    async fn read(&mut self, anew: bool) {
        let (system, view, profile) = (self.engine.system().clone(), self.seen.clone(), self.profile);
        let kept = self.host.take().map_or(Ok(None), |host| host.config);
        self.host = blocking(move || {
            let config = if anew {
                node::kubelet_config(system.root(), kept)
            } else {
                kept
            };
            Host::read(&system, &view, config, profile)
        })
        .await;
    }

    /// The file.
    fn text(&self) -> Result<Vec<u8>, String> {
        let host = self
            .host
            .as_ref()
            .ok_or("the host was not read: steliad's journal has why")?;
        let settings = self.settings.borrow();
        let publication = Publication {
            version: VERSION,
            node: host.name.clone()?,
            ready: node::ready(&self.seen, host.known.as_ref().err(), &host.object),
            object: host.object.as_ref().ok().cloned(),
            vm_capacity: node::vm_capacity(
                &self.seen,
                host.known.as_ref().ok().and_then(Option::as_ref),
                &settings.policies.allocator.reserved,
            ),
            pods: self.pods.clone(),
            events: self.log.events().to_vec(),
        };
        serde_json::to_vec(&publication).map_err(|cause| format!("write the file's text: {cause}"))
    }

    /// Write it where it differs from what is there. `look`: at the file, which somebody may have changed.
    async fn put(&mut self, bytes: Vec<u8>, look: bool) {
        let (folder, known) = (self.folder.clone(), self.written.take());
        let done = blocking(move || {
            let is_there = known.as_ref() == Some(&bytes) && (!look || folder.read().as_ref() == Some(&bytes));
            match is_there {
                true => folder.hold().map(|()| false),
                false => folder.write(&bytes).map(|()| true),
            }
            .map(|written| (written, bytes))
        });
        match done.await {
            Some(Ok((written, bytes))) => {
                self.written = Some(bytes);
                self.told.works();
                if written {
                    self.written_us = now_us();
                }
            }
            // Tried again at the next change or audit.
            Some(Err(problem)) => self.told.failed(problem),
            None => {}
        }
    }

    /// What is there must not be taken for how things are.
    async fn cannot_say(&mut self, problem: String) {
        let folder = self.folder.clone();
        self.written = None;
        let removed = blocking(move || folder.remove()).await;
        match removed {
            Some(Err(also)) => self.told.failed(format!("{problem}; {also}")),
            _ => self.told.failed(problem),
        }
    }

    fn show(&self) {
        let publishing = Publishing {
            profile: Some(self.profile.name().to_owned()),
            problem: self.told.problem().cloned(),
            written_us: self.written_us,
        };
        if *self.views.borrow().publishing != publishing {
            self.engine.show_publishing(publishing);
        }
    }
}

/// Milliseconds since boot. Events are less frequent than one each.
fn since_boot_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, nanoseconds) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    seconds.saturating_mul(1000).saturating_add(nanoseconds / 1_000_000)
}
