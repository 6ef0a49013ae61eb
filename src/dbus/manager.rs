//! `io.stelia.Isolation1.Manager`, for both entry points. The contract is `dbus-interfaces/`.

use std::path::Path;
use std::sync::Arc;

pub(super) use stelia_api::client::OwnedDict as Options;
use stelia_api::client::{InstanceRow, MoveRow};
use stelia_api::{Error, ErrorKind, Reason, ReasonCode};
use stelia_kernel::runtime_folders;
use stelia_kubelet::PodUid;
use stelia_model::Node;
use zbus::message::Header;
use zbus::object_server::{Interface as _, SignalEmitter};
use zbus::{Connection, ObjectPath, OwnedObjectPath, interface};

use super::cached_readings::Readings;
use super::call::Call;
use super::caller::{Caller, EntryPoint};
use super::exported_objects::{Exporter, object_path};
use super::job::{job_path, rows};
use super::node_properties::PROPERTIES;
use super::properties_changed;
use super::reasons::{ReasonRow, reason_rows};
use super::reconcile_report::{preview_dict, report_dict};
use super::{description, evaluate, node_topology, options, registration, requests};
use crate::adoption;
use crate::caller_rights::Operation;
use crate::engine::{Handle, Peer};
use crate::journal;

pub(super) struct Manager {
    pub(super) engine: Handle,
    pub(super) entry_point: EntryPoint,
    pub(super) exporter: Arc<Exporter>,
    pub(super) readings: Readings,
}

impl Manager {
    /// A property of the node. Pods may not read it, because it tells of other pods.
    fn show<T>(&self, of: impl FnOnce(&Node) -> T) -> Result<T, Error> {
        match self.entry_point {
            EntryPoint::Bus(_) => Ok(of(&self.engine.view())),
            EntryPoint::Runner(_) => {
                Err(ErrorKind::NotPermitted.because("the node's properties are for the system bus only"))
            }
        }
    }

    /// Emit PropertiesChanged for every property that differs between two views, and a signal for each problem of the node that is new or over.
    pub(super) async fn changed(&self, emitter: &SignalEmitter<'_>, old: &Node, new: &Node) -> zbus::Result<()> {
        let (before, now) = (old.problems(), new.problems());
        let has = |problems: &[Reason], code| problems.iter().any(|problem| problem.code == code);
        for code in ReasonCode::ALL
            .into_iter()
            .filter(|code| has(&before, *code) && !has(&now, *code))
        {
            Self::node_problem_over(emitter, code.name()).await?;
        }
        for Reason { code, text, fix, .. } in now.iter().filter(|problem| !has(&before, problem.code)) {
            Self::node_problem_found(emitter, code.name(), text, fix).await?;
        }
        properties_changed::emit(emitter, Self::name(), &PROPERTIES, old, new).await
    }

    /// As [`Call::answer`].
    async fn answer<T, F>(
        &self,
        connection: &Connection,
        header: &Header<'_>,
        operation: Operation,
        work: impl FnOnce(Caller) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let call = Call {
            engine: &self.engine,
            entry_point: &self.entry_point,
            connection,
            header,
        };
        call.answer(operation, work).await
    }
}

#[interface(name = "io.stelia.Isolation1.Manager")]
impl Manager {
    #[zbus(out_args("instance", "cgroup_path"))]
    async fn register_instance(
        &self,
        pod_uid: &str,
        cpuset: &str,
        options: Options,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(OwnedObjectPath, String), Error> {
        self.answer(connection, &header, Operation::Register, |caller| async move {
            let (pod, scope) =
                registration::register(&self.engine, &self.entry_point, &caller, pod_uid, cpuset, &options).await?;
            // The object must be there when the caller reads the answer.
            self.exporter.sync(&self.engine.view()).await?;
            Ok((object_path(&pod)?, scope.to_string()))
        })
        .await
    }

    async fn deregister(
        &self,
        pod_uid: &str,
        options: Options,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(), Error> {
        self.answer(connection, &header, Operation::Deregister, |caller| async move {
            options::known(&options, &[])?;
            let pod = requests::named(&self.engine, &caller, pod_uid)?;
            self.engine.deregister(pod).await
        })
        .await
    }

    #[zbus(out_args("instances"))]
    async fn list_instances(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<Vec<InstanceRow>, Error> {
        self.answer(connection, &header, Operation::List, |caller| async move {
            let view = self.engine.view();
            let seen = view.instances.values().filter(|instance| caller.sees(&instance.pod));
            seen.map(|instance| {
                Ok((
                    instance.pod.to_string(),
                    instance.container.clone(),
                    object_path(&instance.pod)?,
                    instance.state.to_string(),
                    instance.exclusive.to_string(),
                ))
            })
            .collect()
        })
        .await
    }

    #[zbus(out_args("instance"))]
    async fn get_instance(
        &self,
        pod_uid: &str,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<OwnedObjectPath, Error> {
        self.answer(connection, &header, Operation::List, |caller| async move {
            object_path(&requests::named(&self.engine, &caller, pod_uid)?)
        })
        .await
    }

    #[zbus(name = "GetInstanceByPID", out_args("instance"))]
    async fn get_instance_by_pid(
        &self,
        pid: u32,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<OwnedObjectPath, Error> {
        self.answer(connection, &header, Operation::List, |caller| async move {
            let none = || ErrorKind::NoSuchInstance.because(format!("process {pid} is in no instance"));
            let pid = i32::try_from(pid).ok().filter(|pid| *pid > 0).ok_or_else(none)?;
            let cgroup = self.engine.system().procs.cgroup(pid).map_err(|_| none())?;
            let view = self.engine.view();
            // The anchor, and what was exec'd into the container, are in the origin.
            let pod = match Peer::of(cgroup) {
                Peer::Instance(pod) => pod,
                Peer::Container(path, container)
                    if view.instances.get(&container.pod).is_some_and(|i| i.origin == path) =>
                {
                    container.pod
                }
                _ => return Err(none()),
            };
            if caller.sees(&pod) && view.instances.contains_key(&pod) {
                object_path(&pod)
            } else {
                Err(none())
            }
        })
        .await
    }

    #[zbus(out_args("report"))]
    async fn reconcile(
        &self,
        options: Options,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<Options, Error> {
        let dry_run = options::flag(&options, "dry-run");
        // A pass may change something, and a dry run never does: that is open to more callers.
        let operation = match &dry_run {
            Ok(true) => Operation::Preview,
            _ => Operation::Reconcile,
        };
        self.answer(connection, &header, operation, |caller| async move {
            options::known(&options, &["dry-run"])?;
            if dry_run? {
                return preview_dict(self.readings.preview(&caller, self.engine.preview()).await?);
            }
            report_dict(self.engine.reconcile().await?)
        })
        .await
    }

    #[zbus(out_args("job", "moves"))]
    async fn rebind(
        &self,
        scope: &str,
        deadline: u32,
        options: Options,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(OwnedObjectPath, Vec<MoveRow>), Error> {
        self.answer(connection, &header, Operation::Rebind, |_| async move {
            let request = requests::rebind(scope, deadline, &options)?;
            let (job, moves) = self.engine.rebind(request).await?;
            // The object must be there when the caller reads the answer.
            self.exporter.sync(&self.engine.view()).await?;
            let path = job.map_or_else(|| "/".to_owned(), job_path).try_into();
            let path = path.map_err(ErrorKind::Failed.context("object path of the job"))?;
            Ok((path, rows(&moves)))
        })
        .await
    }

    #[zbus(out_args("cpuset", "waits"))]
    async fn resize(
        &self,
        pod_uid: &str,
        cpus: u32,
        options: Options,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(String, bool), Error> {
        self.answer(connection, &header, Operation::Resize, |_| async move {
            let request = requests::resize(pod_uid, cpus, &options)?;
            let answer = self.engine.resize(request).await?;
            Ok((answer.cpus.to_string(), answer.waits))
        })
        .await
    }

    #[zbus(out_args("json"))]
    async fn describe(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<String, Error> {
        self.answer(connection, &header, Operation::Describe, |_| async move {
            let engine = self.engine.clone();
            self.readings
                .read(move |recent| description::json(&engine, recent))
                .await
        })
        .await
    }

    #[zbus(out_args("json"))]
    async fn node_topology(
        &self,
        options: Options,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<String, Error> {
        self.answer(connection, &header, Operation::Describe, |_| async move {
            node_topology::json(&self.engine, &self.readings, &options).await
        })
        .await
    }

    #[zbus(out_args("answers"))]
    async fn evaluate_placement(
        &self,
        requests: Vec<Options>,
        options: Options,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<Vec<Options>, Error> {
        self.answer(connection, &header, Operation::Describe, |_| async move {
            evaluate::answers(&self.engine, &self.readings, &requests, &options).await
        })
        .await
    }

    #[zbus(out_args("json"))]
    async fn preview_adoption(
        &self,
        config: &str,
        options: Options,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<String, Error> {
        self.answer(connection, &header, Operation::Reload, |_| async move {
            options::known(&options, &[])?;
            let rules = requests::adoption_rules(config)?;
            let engine = self.engine.clone();
            let preview = self
                .readings
                .read(move |_| Ok(adoption::preview(&engine, &rules)))
                .await?;
            serde_json::to_string(&preview).map_err(ErrorKind::Failed.context("write the preview"))
        })
        .await
    }

    async fn reload(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(), Error> {
        self.answer(connection, &header, Operation::Reload, |_| async move {
            let loaded = stelia_settings::load(Path::new("/"))
                .map_err(ErrorKind::Failed.context("configuration not changed"))?;
            let runtime_state = loaded.settings.runtime_state.clone();
            self.engine.reload(loaded.settings).await?;
            runtime_folders::set_runtime_state_folders(runtime_state);
            journal::warn_of_ignored(&stelia_settings::files(Path::new("/")));
            Ok(())
        })
        .await
    }

    #[zbus(out_args("account"))]
    async fn ledger(
        &self,
        pod_uid: &str,
        since_us: u64,
        until_us: u64,
        options: Options,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<String, Error> {
        self.answer(connection, &header, Operation::Ledger, |_| async move {
            options::known(&options, &[])?;
            let parse = |uid| PodUid::parse(uid).map_err(ErrorKind::InvalidArgument.context("pod_uid"));
            let pod = Some(pod_uid).filter(|uid| !uid.is_empty()).map(parse).transpose()?;
            let (since_us, until_us) = options::times(since_us, until_us)?;
            self.engine.account(pod, since_us, until_us).await
        })
        .await
    }

    #[zbus(out_args("verdict"))]
    async fn verify_ledger(
        &self,
        options: Options,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<String, Error> {
        self.answer(connection, &header, Operation::Ledger, |_| async move {
            options::known(&options, &[])?;
            self.engine.verify_ledger().await
        })
        .await
    }

    #[zbus(property)]
    fn admission_problem(&self) -> Result<String, Error> {
        self.show(Node::admission_text)
    }

    #[zbus(property)]
    fn node_problems(&self) -> Result<Vec<ReasonRow>, Error> {
        self.show(|view| reason_rows(&view.problems()))
    }

    #[zbus(property)]
    fn drift_found(&self) -> Result<u64, Error> {
        self.show(|view| view.counters.drift_found)
    }

    #[zbus(property)]
    fn drift_repaired(&self) -> Result<u64, Error> {
        self.show(|view| view.counters.drift_repaired)
    }

    #[zbus(property)]
    fn ledger_key(&self) -> Result<String, Error> {
        self.show(|view| view.ledger.key.clone())
    }

    #[zbus(property, name = "SharedCPUs")]
    fn shared_cpus(&self) -> Result<String, Error> {
        self.show(|view| view.shared_cpus().to_string())
    }

    /// Pods may read it too: a runner needs it to know what the daemon supports.
    #[zbus(property(emits_changed_signal = "const"))]
    fn version(&self) -> &str {
        env!("CARGO_PKG_VERSION")
    }

    #[zbus(property)]
    fn vm_capacity(&self) -> Result<u32, Error> {
        self.show(|view| view.vm_capacity)
    }

    #[zbus(signal)]
    async fn node_problem_found(emitter: &SignalEmitter<'_>, code: &str, text: &str, fix: &str) -> zbus::Result<()>;

    #[zbus(signal)]
    async fn node_problem_over(emitter: &SignalEmitter<'_>, code: &str) -> zbus::Result<()>;

    #[zbus(signal)]
    pub(super) async fn instance_new(
        emitter: &SignalEmitter<'_>,
        pod_uid: &str,
        instance: ObjectPath<'_>,
    ) -> zbus::Result<()>;

    #[zbus(signal)]
    pub(super) async fn instance_removed(
        emitter: &SignalEmitter<'_>,
        pod_uid: &str,
        instance: ObjectPath<'_>,
    ) -> zbus::Result<()>;

    #[zbus(signal)]
    pub(super) async fn ledger_head(
        emitter: &SignalEmitter<'_>,
        day: &str,
        seq: u64,
        hash: &str,
        key: &str,
        signature: &str,
    ) -> zbus::Result<()>;
}
