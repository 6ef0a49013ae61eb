//! `org.freedesktop.DBus.ObjectManager` on the system bus. The answer contains every instance, and every user of the host may ask for it. The daemon
//! therefore serialises it once between two changes of the objects, and sends the same bytes to all callers.
//!
//! Unlike zbus's own answer, it has no entry for a path without an interface of ours.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use tokio::sync::Mutex;
use zbus::export::async_trait::async_trait;
use zbus::fdo::{self, ManagedObjects};
use zbus::message::{Body, Flags, Header};
use zbus::names::{InterfaceName, MemberName};
use zbus::object_server::{DispatchResult, Interface, SignalEmitter};
use zbus::{BoxDBusError, Connection, Message, ObjectServer, OwnedVariant, Type as _, Variant};

use stelia_api::Error;

use super::caller::EntryPoint;
use super::exported_objects::Exporter;

const METHOD: &str = "GetManagedObjects";

pub(super) struct ObjectTree {
    exporter: Arc<Exporter>,
    entry_point: EntryPoint,
    /// The last answer. The first caller who finds it outdated makes a new one while the others wait.
    last: Mutex<Option<Answer>>,
}

struct Answer {
    /// [`Exporter::revision`] before the objects were read.
    revision: u64,
    body: Body,
}

impl ObjectTree {
    pub(super) fn new(exporter: Arc<Exporter>, entry_point: EntryPoint) -> Self {
        Self {
            exporter,
            entry_point,
            last: Mutex::default(),
        }
    }

    /// The body of the answer: a [`ManagedObjects`].
    async fn body(&self) -> Result<Body, Error> {
        let mut last = self.last.lock().await;
        let revision = self.exporter.revision();
        if let Some(answer) = last.as_ref().filter(|answer| answer.revision == revision) {
            return Ok(answer.body.clone());
        }
        // The outdated answer is not kept beside the next one.
        *last = None;
        let objects = self.exporter.objects().await.map_err(zbus::Error::from)?;
        // zbus serialises a value only as the body of a message. This message is never sent.
        let message = Message::signal("/", Self::name(), METHOD).build(&objects)?;
        let body = message.body();
        *last = Some(Answer {
            revision,
            body: body.clone(),
        });
        Ok(body)
    }

    async fn answer(&self, connection: &Connection, call: &Message) -> Result<(), Error> {
        let header = call.header();
        if header.primary().flags().contains(Flags::NO_REPLY_EXPECTED) {
            return Ok(());
        }
        let _under_way = self.entry_point.begin(&header)?;
        let body = self.body().await?;
        let reply = Message::method_return(&header).endian(zbus::wire::NATIVE_ENDIAN);
        // SAFETY: zbus serialised these bytes from a `ManagedObjects`, in this byte order. The value contains no descriptor.
        #[allow(unsafe_code)]
        let reply = unsafe { reply.build_raw_body(body.data(), ManagedObjects::SIGNATURE.clone(), Vec::new()) }?;
        Ok(connection.send(&reply).await?)
    }
}

/// Implemented by hand: the code that `#[interface]` generates serialises the answer for each caller.
#[async_trait]
impl Interface for ObjectTree {
    fn name() -> InterfaceName<'static> {
        fdo::ObjectManager::name()
    }

    async fn get(
        &self,
        _: &str,
        _: &ObjectServer,
        _: &Connection,
        _: Option<&Header<'_>>,
        _: &SignalEmitter<'_>,
    ) -> Option<Result<OwnedVariant, BoxDBusError>> {
        None
    }

    async fn get_all(
        &self,
        _: &ObjectServer,
        _: &Connection,
        _: Option<&Header<'_>>,
        _: &SignalEmitter<'_>,
    ) -> fdo::Result<HashMap<String, OwnedVariant>> {
        Ok(HashMap::new())
    }

    fn set<'call>(
        &'call self,
        _: &'call str,
        _: &'call Variant<'_>,
        _: &'call ObjectServer,
        _: &'call Connection,
        _: Option<&'call Header<'_>>,
        _: &'call SignalEmitter<'_>,
    ) -> DispatchResult<'call> {
        // Not the default, which waits for every answer under way and keeps the tree locked meanwhile.
        DispatchResult::NotFound
    }

    async fn set_mut(
        &mut self,
        _: &str,
        _: &Variant<'_>,
        _: &ObjectServer,
        _: &Connection,
        _: Option<&Header<'_>>,
        _: &SignalEmitter<'_>,
    ) -> Option<Result<(), BoxDBusError>> {
        None
    }

    fn call<'call>(
        &'call self,
        _: &'call ObjectServer,
        connection: &'call Connection,
        call: &'call Message,
        name: MemberName<'call>,
    ) -> DispatchResult<'call> {
        if name.as_str() != METHOD {
            return DispatchResult::NotFound;
        }
        DispatchResult::Async(Box::pin(async move {
            let answered = self.answer(connection, call).await;
            answered.map_err(|error| Box::new(error) as BoxDBusError)
        }))
    }

    fn call_mut<'call>(
        &'call mut self,
        _: &'call ObjectServer,
        _: &'call Connection,
        _: &'call Message,
        _: MemberName<'call>,
    ) -> DispatchResult<'call> {
        DispatchResult::NotFound
    }

    fn introspect_to_writer(&self, writer: &mut dyn Write, level: usize) {
        fdo::ObjectManager.introspect_to_writer(writer, level);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use stelia_api::{BUS_NAME, MANAGER_PATH, instance_path};
    use stelia_kubelet::PodUid;
    use stelia_model as model;
    use zbus::fdo::{ObjectManagerProxy, PropertiesProxy};

    use super::super::contract_tests::handle;
    use super::super::job::job_path;
    use super::super::test_bus::PrivateBus;
    use super::*;

    fn pod(number: u32) -> PodUid {
        PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap()
    }

    fn view(pods: u32, float: &str, jobs: &[(u32, &str)]) -> model::Node {
        let instance = |number| {
            let instance = model::Instance {
                float: float.parse().unwrap(),
                ..crate::engine::registered(pod(number))
            };
            (pod(number), Arc::new(instance))
        };
        let job = |(id, reason): &(u32, &str)| {
            let job = serde_json::json!({"id": id, "scope": "node", "phase": "Succeed", "reason": reason, "began_us": 5,
                "ended_us": 6, "moves": []});
            serde_json::from_value(job).unwrap()
        };
        model::Node {
            instances: (0..pods).map(instance).collect(),
            jobs: jobs.iter().map(job).collect(),
            ..model::Node::default()
        }
    }

    #[tokio::test]
    async fn the_answer_has_what_each_object_answers_and_is_made_once_for_each_change() {
        let (root, bus) = (tempfile::tempdir().unwrap(), PrivateBus::start());
        let (daemon, client) = (bus.connect().await, bus.connect().await);
        let entry_point = EntryPoint::Bus(Default::default());
        let exporter = Exporter::new(handle(root.path()), entry_point.clone(), None);
        exporter.attach(&daemon);
        let server = daemon.object_server();
        server
            .at(MANAGER_PATH, ObjectTree::new(exporter.clone(), entry_point.clone()))
            .await
            .unwrap();
        let unserved = ObjectTree::new(exporter.clone(), entry_point);
        daemon.request_name(BUS_NAME).await.unwrap();
        let manager = ObjectManagerProxy::new(&client, BUS_NAME, MANAGER_PATH).await.unwrap();
        assert!(manager.get_managed_objects().await.unwrap().is_empty());

        let mut bodies: Vec<Body> = Vec::new();
        // In each one thing differs from the one before.
        let views = [
            view(2, "0-1", &[]),
            view(2, "0-1", &[(1, "began")]),
            view(2, "0-1", &[(1, "done")]),
            view(2, "0-1,4", &[(1, "done")]),
            view(1, "0-1,4", &[(1, "done")]),
            view(1, "0-1,4", &[]),
            view(0, "", &[]),
        ];
        for view in views {
            exporter.sync(&view).await.unwrap();
            let objects = manager.get_managed_objects().await.unwrap();
            let jobs = view.jobs.iter().map(|job| job_path(job.id));
            let paths: BTreeSet<String> = view.instances.keys().map(instance_path).chain(jobs).collect();
            assert_eq!(objects.keys().map(ToString::to_string).collect::<BTreeSet<_>>(), paths);
            for (path, interfaces) in objects {
                let properties = PropertiesProxy::new(&client, BUS_NAME, path).await.unwrap();
                assert_eq!(interfaces.len(), 1);
                for (interface, told) in interfaces {
                    assert_eq!(told, properties.get_all(interface.into()).await.unwrap());
                    assert!(told.len() > 5);
                }
            }
            let made = unserved.body().await.unwrap();
            let again = unserved.body().await.unwrap();
            assert!(std::ptr::eq(made.data().as_ptr(), again.data().as_ptr()));
            assert!(bodies.iter().all(|body| body.data()[..] != made.data()[..]));
            bodies.push(made);
            // A view without a difference changes nothing.
            exporter.sync(&view).await.unwrap();
            assert!(std::ptr::eq(
                unserved.body().await.unwrap().data().as_ptr(),
                again.data().as_ptr()
            ));
        }
        exporter.detach();
    }

    /// Waiting to change the tree, `Set` would keep every later call waiting.
    #[tokio::test]
    async fn nothing_can_be_set() {
        let (root, bus) = (tempfile::tempdir().unwrap(), PrivateBus::start());
        let daemon = bus.connect().await;
        let entry_point = EntryPoint::Bus(Default::default());
        let exporter = Exporter::new(handle(root.path()), entry_point.clone(), None);
        let tree = ObjectTree::new(exporter, entry_point);
        let emitter = SignalEmitter::new(&daemon, MANAGER_PATH).unwrap();
        let set = tree.set("x", &Variant::U8(1), daemon.object_server(), &daemon, None, &emitter);
        assert!(matches!(set, DispatchResult::NotFound));
    }
}
