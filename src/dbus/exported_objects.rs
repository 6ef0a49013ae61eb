//! Keeping one connection's objects, signals and property changes in step with the engine's view.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use stelia_api::{Error, ErrorKind, MANAGER_PATH, instance_path};
use stelia_kubelet::PodUid;
use stelia_model as model;
use tokio::sync::Mutex;
use zbus::fdo::{self, ManagedObjects};
use zbus::object_server::{Interface, SignalEmitter};
use zbus::{Connection, OwnedObjectPath};

use super::caller::EntryPoint;
use super::instance::Instance;
use super::job::{Job, job_path};
use super::manager::Manager;
use super::{instance, job, properties_changed};
use crate::engine::Handle;

pub(super) fn object_path(pod: &PodUid) -> Result<OwnedObjectPath, Error> {
    instance_path(pod)
        .try_into()
        .map_err(ErrorKind::Failed.context(format_args!("object path of pod {pod}")))
}

/// An instance as its object shows it.
pub(super) type Shown = Arc<model::Instance>;

/// The objects of one connection. On the runner socket that is at most the peer's own instance.
pub(super) struct Exporter {
    engine: Handle,
    entry_point: EntryPoint,
    /// The pod whose instance is shown; `None`: all are.
    only: Option<PodUid>,
    /// The connection's objects hold this exporter: without [`Self::detach`] neither would ever be freed.
    connection: RwLock<Option<Connection>>,
    shown: Mutex<BTreeMap<PodUid, Arc<RwLock<Shown>>>>,
    jobs: Mutex<BTreeMap<u32, Arc<RwLock<model::Job>>>>,
    /// How many times an object was added, changed or removed.
    revision: AtomicU64,
}

impl Exporter {
    pub(super) fn new(engine: Handle, entry_point: EntryPoint, only: Option<PodUid>) -> Arc<Self> {
        Arc::new(Self {
            engine,
            entry_point,
            only,
            connection: RwLock::default(),
            shown: Mutex::default(),
            jobs: Mutex::default(),
            revision: AtomicU64::new(0),
        })
    }

    pub(super) fn attach(&self, connection: &Connection) {
        *self.connection.write().unwrap_or_else(PoisonError::into_inner) = Some(connection.clone());
    }

    pub(super) fn detach(&self) {
        *self.connection.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Follow the engine until it or the connection is gone.
    pub(super) async fn follow(&self) {
        if let Err(error) = self.follow_node().await {
            tracing::debug!("objects of a connection: {error}");
        }
    }

    async fn follow_node(&self) -> Result<(), Error> {
        let mut views = self.engine.watch();
        let mut told = views.borrow_and_update().clone();
        loop {
            let view = views.borrow_and_update().clone();
            self.entry_point.set_instances(view.instances.len());
            let old = std::mem::replace(&mut told, view.clone());
            self.tell(&old, &view).await?;
            self.sync(&view).await?;
            if views.changed().await.is_err() {
                return Ok(());
            }
        }
    }

    /// The instance of `pod` as it was last shown on the connection.
    pub(super) async fn shown_instance(&self, pod: &PodUid) -> Option<Shown> {
        let shown = self.shown.lock().await;
        let cell = shown.get(pod)?;
        Some(cell.read().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// A number that every change of [`Self::objects`] increases.
    pub(super) fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }

    fn next_revision(&self) {
        self.revision.fetch_add(1, Ordering::Release);
    }

    /// The instances and jobs with all of their properties, by path.
    pub(super) async fn objects(&self) -> fdo::Result<ManagedObjects> {
        let mut objects = ManagedObjects::new();
        let Some(connection) = &self.connection() else {
            return Ok(objects);
        };
        let shown = self.shown.lock().await;
        for (pod, cell) in &*shown {
            let instance = self.instance_object(pod, cell);
            insert_object(&mut objects, connection, instance_path(pod), instance).await?;
        }
        let jobs = self.jobs.lock().await;
        for (id, cell) in &*jobs {
            insert_object(&mut objects, connection, job_path(*id), Job { shown: cell.clone() }).await?;
        }
        Ok(objects)
    }

    fn instance_object(&self, pod: &PodUid, cell: &Arc<RwLock<Shown>>) -> Instance {
        Instance {
            engine: self.engine.clone(),
            entry_point: self.entry_point.clone(),
            pod: pod.clone(),
            shown: cell.clone(),
        }
    }

    fn connection(&self) -> Option<Connection> {
        self.connection.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Emit changes of the node's properties, which are not for pods.
    async fn tell(&self, old: &model::Node, new: &model::Node) -> Result<(), Error> {
        let (Some(connection), EntryPoint::Bus(_)) = (&self.connection(), &self.entry_point) else {
            return Ok(());
        };
        let manager = connection.object_server().interface::<_, Manager>(MANAGER_PATH).await?;
        Ok(manager.get().await.changed(manager.signal_emitter(), old, new).await?)
    }

    /// Make the objects match the view, and emit the signals of what changed.
    pub(super) async fn sync(&self, view: &model::Node) -> Result<(), Error> {
        let Some(connection) = &self.connection() else {
            return Ok(());
        };
        if let Some(pod) = &self.only {
            return self.sync_own(pod, view.instances.get(pod)).await;
        }
        let mut shown = self.shown.lock().await;
        let is_gone = |pod: &&PodUid| !view.instances.contains_key(*pod);
        let gone: Vec<PodUid> = shown.keys().filter(is_gone).cloned().collect();
        for pod in &gone {
            self.remove(connection, &mut shown, pod).await?;
        }
        for (pod, new) in &view.instances {
            self.show(connection, &mut shown, pod, new).await?;
        }
        drop(shown);
        self.sync_jobs(connection, view).await
    }

    /// Make the object of this pod's instance match `new`; `None` removes it.
    pub(super) async fn sync_own(&self, pod: &PodUid, new: Option<&Shown>) -> Result<(), Error> {
        let Some(connection) = &self.connection() else {
            return Ok(());
        };
        let mut shown = self.shown.lock().await;
        match new {
            Some(new) => self.show(connection, &mut shown, pod, new).await,
            None => self.remove(connection, &mut shown, pod).await,
        }
    }

    async fn show(
        &self,
        connection: &Connection,
        shown: &mut BTreeMap<PodUid, Arc<RwLock<Shown>>>,
        pod: &PodUid,
        new: &Shown,
    ) -> Result<(), Error> {
        let server = connection.object_server();
        let path = instance_path(pod);
        if let Some(cell) = shown.get(pod) {
            let old = {
                let mut cell = cell.write().unwrap_or_else(PoisonError::into_inner);
                if Arc::ptr_eq(&cell, new) {
                    return Ok(());
                }
                std::mem::replace(&mut *cell, new.clone())
            };
            if old != *new {
                self.next_revision();
                let emitter = SignalEmitter::new(connection, path)?;
                properties_changed::emit(&emitter, Instance::name(), &instance::PROPERTIES, &*old, &**new).await?;
            }
            return Ok(());
        }
        let cell = Arc::new(RwLock::new(new.clone()));
        // Before the signal: whoever has heard of the object gets no answer without it.
        self.next_revision();
        server.at(path.as_str(), self.instance_object(pod, &cell)).await?;
        shown.insert(pod.clone(), cell);
        let manager = SignalEmitter::new(connection, MANAGER_PATH)?;
        Ok(Manager::instance_new(&manager, pod.as_str(), object_path(pod)?.into()).await?)
    }

    /// Remove the object of an instance that is gone.
    async fn remove(
        &self,
        connection: &Connection,
        shown: &mut BTreeMap<PodUid, Arc<RwLock<Shown>>>,
        pod: &PodUid,
    ) -> Result<(), Error> {
        if shown.remove(pod).is_none() {
            return Ok(());
        }
        self.next_revision();
        connection
            .object_server()
            .remove::<Instance, _>(instance_path(pod))
            .await?;
        let manager = SignalEmitter::new(connection, MANAGER_PATH)?;
        Ok(Manager::instance_removed(&manager, pod.as_str(), object_path(pod)?.into()).await?)
    }

    async fn sync_jobs(&self, connection: &Connection, view: &model::Node) -> Result<(), Error> {
        let server = connection.object_server();
        let mut shown = self.jobs.lock().await;
        let kept = |id: &u32| view.jobs.iter().any(|job| job.id == *id);
        let gone: Vec<u32> = shown.keys().filter(|id| !kept(id)).copied().collect();
        for id in gone {
            shown.remove(&id);
            self.next_revision();
            server.remove::<Job, _>(job_path(id)).await?;
        }
        for new in &view.jobs {
            let path = job_path(new.id);
            if let Some(cell) = shown.get(&new.id) {
                let old = {
                    let mut cell = cell.write().unwrap_or_else(PoisonError::into_inner);
                    std::mem::replace(&mut *cell, new.clone())
                };
                if old != *new {
                    self.next_revision();
                    let emitter = SignalEmitter::new(connection, path)?;
                    properties_changed::emit(&emitter, Job::name(), &job::PROPERTIES, &old, new).await?;
                }
            } else {
                let cell = Arc::new(RwLock::new(new.clone()));
                self.next_revision();
                server.at(path.as_str(), Job { shown: cell.clone() }).await?;
                shown.insert(new.id, cell);
            }
        }
        Ok(())
    }
}

async fn insert_object<T: Interface>(
    objects: &mut ManagedObjects,
    connection: &Connection,
    path: String,
    object: T,
) -> fdo::Result<()> {
    let path = OwnedObjectPath::try_from(path).map_err(|cause| fdo::Error::Failed(cause.to_string()))?;
    let emitter = SignalEmitter::new(connection, path.clone())?;
    let properties = object
        .get_all(connection.object_server(), connection, None, &emitter)
        .await?;
    objects.insert(path, [(T::name().into(), properties)].into());
    Ok(())
}
