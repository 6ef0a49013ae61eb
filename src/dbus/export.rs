//! Keeping one connection's objects, signals and property changes in step with the engine's view.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::Mutex;
use zbus::Connection;
use zbus::object_server::SignalEmitter;

use super::caller::Door;
use super::error::Error;
use super::instance::Instance;
use super::job::{Job, job_path};
use super::manager::{Manager, object_path};
use super::{MANAGER_PATH, instance_path};
use crate::engine::{self, Handle, InstanceView, View};
use crate::kubelet::PodUid;

/// The objects of one connection. On the runner socket that is at most the peer's own instance.
pub(super) struct Exporter {
    engine: Handle,
    door: Door,
    /// Whose instance is shown; `None`: everybody's.
    only: Option<PodUid>,
    /// The connection's own objects hold this, so it must be let go or neither is ever freed.
    connection: RwLock<Option<Connection>>,
    shown: Mutex<BTreeMap<PodUid, Arc<RwLock<InstanceView>>>>,
    jobs: Mutex<BTreeMap<u32, Arc<RwLock<engine::Job>>>>,
}

impl Exporter {
    pub(super) fn new(engine: Handle, door: Door, only: Option<PodUid>) -> Arc<Self> {
        Arc::new(Self {
            engine,
            door,
            only,
            connection: RwLock::default(),
            shown: Mutex::default(),
            jobs: Mutex::default(),
        })
    }

    /// Name the connection, once it is built.
    pub(super) fn attach(&self, connection: &Connection) {
        *self.connection.write().unwrap_or_else(PoisonError::into_inner) = Some(connection.clone());
    }

    /// Let go of the connection, once it is closed.
    pub(super) fn detach(&self) {
        *self.connection.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Follow the engine until it or the connection is gone.
    pub(super) async fn follow(&self) {
        let mut views = self.engine.watch();
        let mut told = views.borrow_and_update().clone();
        loop {
            let view = views.borrow_and_update().clone();
            let old = std::mem::replace(&mut told, view.clone());
            if let Err(error) = self.tell(&old, &view).await.and(self.sync(&view).await) {
                tracing::debug!("objects of a connection: {error}");
                return;
            }
            if views.changed().await.is_err() {
                return;
            }
        }
    }

    /// Tell of what changed of the node itself; a pod is not told.
    async fn tell(&self, old: &View, new: &View) -> Result<(), Error> {
        let connection = self.connection.read().unwrap_or_else(PoisonError::into_inner).clone();
        let (Some(connection), Door::Bus) = (&connection, &self.door) else {
            return Ok(());
        };
        let manager = connection.object_server().interface::<_, Manager>(MANAGER_PATH).await?;
        let emitter = manager.signal_emitter().to_owned();
        Ok(manager.get().await.changed(&emitter, old, new).await?)
    }

    /// Make the objects what the view says, and tell of the difference.
    pub(super) async fn sync(&self, view: &View) -> Result<(), Error> {
        let connection = self.connection.read().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(connection) = &connection else {
            return Ok(());
        };
        let server = connection.object_server();
        let manager = SignalEmitter::new(connection, MANAGER_PATH)?;
        let mut shown = self.shown.lock().await;
        let gone: Vec<PodUid> = shown
            .keys()
            .filter(|pod| !view.instances.contains_key(*pod))
            .cloned()
            .collect();
        for pod in gone {
            shown.remove(&pod);
            server.remove::<Instance, _>(instance_path(&pod)).await?;
            Manager::instance_removed(&manager, pod.as_str(), object_path(&pod)?.into()).await?;
        }
        for (pod, new) in &view.instances {
            if self.only.as_ref().is_some_and(|only| only != pod) {
                continue;
            }
            let path = instance_path(pod);
            if let Some(cell) = shown.get(pod) {
                let old = {
                    let mut cell = cell.write().unwrap_or_else(PoisonError::into_inner);
                    std::mem::replace(&mut *cell, new.clone())
                };
                if old != *new {
                    let object = server.interface::<_, Instance>(path.as_str()).await?;
                    let emitter = object.signal_emitter().to_owned();
                    object.get().await.changed(&emitter, &old, new).await?;
                }
            } else {
                let cell = Arc::new(RwLock::new(new.clone()));
                let object = Instance {
                    engine: self.engine.clone(),
                    door: self.door.clone(),
                    pod: pod.clone(),
                    shown: cell.clone(),
                };
                server.at(path.as_str(), object).await?;
                shown.insert(pod.clone(), cell);
                Manager::instance_new(&manager, pod.as_str(), object_path(pod)?.into()).await?;
            }
        }
        drop(shown);
        match self.door {
            Door::Bus => self.sync_jobs(connection, view).await,
            Door::Runner(_) => Ok(()),
        }
    }

    async fn sync_jobs(&self, connection: &Connection, view: &View) -> Result<(), Error> {
        let server = connection.object_server();
        let mut shown = self.jobs.lock().await;
        let kept = |id: &u32| view.jobs.iter().any(|job| job.id == *id);
        let gone: Vec<u32> = shown.keys().filter(|id| !kept(id)).copied().collect();
        for id in gone {
            shown.remove(&id);
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
                    let object = server.interface::<_, Job>(path.as_str()).await?;
                    let emitter = object.signal_emitter().to_owned();
                    object.get().await.changed(&emitter, &old, new).await?;
                }
            } else {
                let cell = Arc::new(RwLock::new(new.clone()));
                server.at(path.as_str(), Job { shown: cell.clone() }).await?;
                shown.insert(new.id, cell);
            }
        }
        Ok(())
    }
}
