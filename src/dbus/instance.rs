//! `io.stelia.Isolation1.Instance`, for both entry points. The contract is `dbus-interfaces/`.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::AsFd;
use std::sync::{Arc, PoisonError, RwLock};

use stelia_api::{Error, ErrorKind, NOT_PINNED, ThreadRole};
use stelia_kubelet::PodUid;
use stelia_model as model;
use stelia_model::record::Vcpu;
use zbus::message::Header;
use zbus::object_server::SignalEmitter;
use zbus::{Connection, DBusError as _, Fd, Variant, interface};

use super::call::Call;
use super::caller::{Caller, EntryPoint};
use super::exported_objects::Shown;
use super::manager::Options;
use super::options;
use super::properties_changed::Property;
use super::reasons::{ReasonRow, reason_rows};
use super::reconcile_report::report_dict;
use crate::caller_rights::Operation;
use crate::engine::{AttachRequest, Handle, VcpuRequest, Vmm};
use crate::journal::{self, JournalPod, about};

pub(super) struct Instance {
    pub(super) engine: Handle,
    pub(super) entry_point: EntryPoint,
    pub(super) pod: PodUid,
    /// The view last exported; the exporter replaces it.
    pub(super) shown: Arc<RwLock<Shown>>,
}

impl Instance {
    fn show<T>(&self, of: impl FnOnce(&model::Instance) -> T) -> T {
        // A view is replaced whole: there is no half-written one to fear after a panic elsewhere.
        of(&self.shown.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// As [`Call::answer`], for callers that may see this instance. For others it does not exist.
    async fn answer<T, F>(
        &self,
        connection: &Connection,
        header: &Header<'_>,
        operation: Operation,
        work: impl FnOnce() -> F,
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
        let for_caller = |caller: Caller| async move {
            if caller.sees(&self.pod) {
                return work().await;
            }
            let text = format!("pod {:?} has no instance", self.pod.as_str());
            Err(ErrorKind::NoSuchInstance.because(text))
        };
        call.answer(operation, for_caller).await
    }
}

/// QMP's properties are small integers, of any integer type of D-Bus.
fn integer(value: &Variant<'_>) -> Option<i64> {
    match value {
        Variant::U8(number) => Some(i64::from(*number)),
        Variant::I16(number) => Some(i64::from(*number)),
        Variant::U16(number) => Some(i64::from(*number)),
        Variant::I32(number) => Some(i64::from(*number)),
        Variant::U32(number) => Some(i64::from(*number)),
        Variant::I64(number) => Some(*number),
        Variant::U64(number) => i64::try_from(*number).ok(),
        _ => None,
    }
}

/// AttachVcpus' one option: `iothreads`, `au` or `ai`, thread ids.
fn iothreads(options: &Options) -> Result<Vec<i32>, Error> {
    options::known(options, &["iothreads"])?;
    let wrong = || ErrorKind::InvalidArgument.because("option \"iothreads\" is not an array of thread ids");
    match options.get("iothreads").map(|value| &**value) {
        None => Ok(Vec::new()),
        Some(Variant::Array(list)) => {
            let number = |value: &Variant<'_>| i32::try_from(integer(value)?).ok().filter(|thread| *thread > 0);
            list.iter().map(|value| number(value).ok_or_else(wrong)).collect()
        }
        Some(_) => Err(wrong()),
    }
}

/// The threads with a place of their own, as AttachVcpus answers them.
fn placement(threads: impl IntoIterator<Item = (ThreadRole, i32, Option<u32>)>) -> Vec<(u32, u32, u32)> {
    let row = |(role, thread, cpu): (ThreadRole, i32, Option<u32>)| {
        (u32::from(role), thread.unsigned_abs(), cpu.unwrap_or(NOT_PINNED))
    };
    threads.into_iter().map(row).collect()
}

/// The value of the property VCPUs.
fn vcpus(instance: &model::Instance) -> Vec<(u32, u32, u32)> {
    let threads = instance.vcpus.iter().map(|pinned| pinned.thread);
    placement(threads.map(|thread| (thread.role, thread.task.id, thread.cpu)))
}

/// The value of the property MemoryLimit.
fn memory_limit(instance: &model::Instance) -> u64 {
    instance.memory_limit.unwrap_or(u64::MAX)
}

/// The value of the property PendingResize.
fn pending_resize(instance: &model::Instance) -> (u32, u32, u64) {
    let none = (0, 0, 0);
    instance
        .pending_resize
        .map_or(none, |resize| (resize.from, resize.to, resize.deadline_us))
}

/// The properties that may change, with the values that the getters below return.
pub(super) const PROPERTIES: [Property<model::Instance>; 13] = [
    ("State", |one| one.state.name().into()),
    ("Degraded", |one| reason_rows(&one.degraded).into()),
    ("NotIsolated", |one| reason_rows(one.not_isolated.as_slice()).into()),
    ("ExclusiveCPUs", |one| one.exclusive.to_string().into()),
    ("FloatCPUs", |one| one.float.to_string().into()),
    ("MemoryLimit", |one| memory_limit(one).into()),
    ("MemoryNodes", |one| one.mems.to_string().into()),
    ("Partition", |one| one.partition.as_str().into()),
    ("Placement", |one| one.placement.name().into()),
    ("AdoptedBy", |one| one.adopted_by.as_deref().unwrap_or_default().into()),
    ("IsolatedTimestamp", |one| one.isolated_us.into()),
    ("VCPUs", |one| vcpus(one).into()),
    ("PendingResize", |one| pending_resize(one).into()),
];

#[interface(name = "io.stelia.Isolation1.Instance")]
impl Instance {
    #[zbus(out_args("placement"))]
    async fn attach_vcpus(
        &self,
        qemu_pidfd: Fd<'_>,
        vcpus: Vec<(u32, i32, Options)>,
        options: Options,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<Vec<(u32, u32, u32)>, Error> {
        self.answer(connection, &header, Operation::Attach, || async move {
            let iothreads = iothreads(&options)?;
            let mut requests = Vec::with_capacity(vcpus.len());
            for (index, thread, given) in vcpus {
                let mut props = BTreeMap::new();
                for (name, value) in given {
                    let number = integer(&value).ok_or_else(|| {
                        let shown: String = name.chars().take(64).collect();
                        ErrorKind::InvalidArgument
                            .because(format!("property {shown:?} of vCPU {index} is not an integer"))
                    })?;
                    props.insert(name, number);
                }
                requests.push(VcpuRequest {
                    vcpu: Vcpu { index, props },
                    thread,
                });
            }
            let qemu = qemu_pidfd
                .as_fd()
                .try_clone_to_owned()
                .map_err(ErrorKind::Failed.context("duplicate qemu_pidfd"))?;
            let placed = self
                .engine
                .attach(AttachRequest {
                    pod: self.pod.clone(),
                    vmm: Vmm::Pidfd(qemu),
                    vcpus: requests,
                    iothreads,
                })
                .await;
            let placed = placed.inspect_err(|error| {
                let text = error.to_string();
                let name = self.engine.pod_name(&self.pod);
                let pod = JournalPod::new(self.pod.as_str(), name.as_ref());
                about!(
                    warn,
                    journal::ATTACH_REFUSED,
                    pod,
                    STELIA_ERROR = error.name().as_str(),
                    STELIA_REASON = text,
                    "vCPUs of pod {pod} not attached: {text}"
                );
            })?;
            let threads = placed.into_iter();
            Ok(placement(
                threads.map(|placed| (placed.role, placed.thread, placed.cpu)),
            ))
        })
        .await
    }

    #[zbus(out_args("report"))]
    async fn audit(
        &self,
        options: Options,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<Options, Error> {
        self.answer(connection, &header, Operation::Audit, || async move {
            options::known(&options, &[])?;
            report_dict(self.engine.audit(self.pod.clone()).await?)
        })
        .await
    }

    async fn deregister(
        &self,
        options: Options,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(), Error> {
        self.answer(connection, &header, Operation::Deregister, || async move {
            options::known(&options, &[])?;
            self.engine.deregister(self.pod.clone()).await
        })
        .await
    }

    #[zbus(out_args("account"))]
    async fn ledger(
        &self,
        since_us: u64,
        until_us: u64,
        options: Options,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<String, Error> {
        self.answer(connection, &header, Operation::Account, || async move {
            options::known(&options, &[])?;
            let (since_us, until_us) = options::times(since_us, until_us)?;
            self.engine.account(Some(self.pod.clone()), since_us, until_us).await
        })
        .await
    }

    #[zbus(out_args("attribution"))]
    async fn attribute(
        &self,
        options: Options,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<String, Error> {
        self.answer(connection, &header, Operation::Attribute, || async move {
            options::known(&options, &["seconds"])?;
            let seconds = options::number(&options, "seconds", 1..=600, 10)?;
            self.engine.attribute(self.pod.clone(), seconds).await
        })
        .await
    }

    #[zbus(signal)]
    pub(super) async fn intruded(
        emitter: &SignalEmitter<'_>,
        cpu: u32,
        class: &str,
        details: HashMap<&str, Variant<'_>>,
    ) -> zbus::Result<()>;

    #[zbus(property(emits_changed_signal = "const"), name = "PodUID")]
    fn pod_uid(&self) -> String {
        self.pod.to_string()
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn pod_namespace(&self) -> String {
        self.show(|view| view.namespace().to_owned())
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn pod_name(&self) -> String {
        self.show(|view| view.name().to_owned())
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn container(&self) -> String {
        self.show(|view| view.container.clone())
    }

    #[zbus(property)]
    fn state(&self) -> String {
        self.show(|view| view.state.to_string())
    }

    #[zbus(property)]
    fn degraded(&self) -> Vec<ReasonRow> {
        self.show(|view| reason_rows(&view.degraded))
    }

    #[zbus(property)]
    fn not_isolated(&self) -> Vec<ReasonRow> {
        self.show(|view| reason_rows(view.not_isolated.as_slice()))
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn isolation(&self) -> String {
        self.show(|view| view.isolation.to_string())
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn qos(&self) -> String {
        self.show(|view| view.class().to_owned())
    }

    #[zbus(property, name = "ExclusiveCPUs")]
    fn exclusive_cpus(&self) -> String {
        self.show(|view| view.exclusive.to_string())
    }

    #[zbus(property, name = "FloatCPUs")]
    fn float_cpus(&self) -> String {
        self.show(|view| view.float.to_string())
    }

    #[zbus(property)]
    fn memory_nodes(&self) -> String {
        self.show(|view| view.mems.to_string())
    }

    #[zbus(property)]
    fn partition(&self) -> String {
        self.show(|view| view.partition.clone())
    }

    #[zbus(property)]
    fn adopted_by(&self) -> String {
        self.show(|view| view.adopted_by.clone().unwrap_or_default())
    }

    #[zbus(property)]
    fn placement(&self) -> String {
        self.show(|view| view.placement.to_string())
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn unit(&self) -> String {
        self.show(|view| view.scope.name().to_owned())
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn control_group(&self) -> String {
        self.show(|view| view.scope.to_string())
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn origin_control_group(&self) -> String {
        self.show(|view| view.origin.to_string())
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn registered_timestamp(&self) -> u64 {
        self.show(|view| view.registered_us)
    }

    #[zbus(property)]
    fn isolated_timestamp(&self) -> u64 {
        self.show(|view| view.isolated_us)
    }

    #[zbus(property)]
    fn memory_limit(&self) -> u64 {
        self.show(memory_limit)
    }

    #[zbus(property)]
    fn pending_resize(&self) -> (u32, u32, u64) {
        self.show(pending_resize)
    }

    #[zbus(property, name = "VCPUs")]
    fn vcpus(&self) -> Vec<(u32, u32, u32)> {
        self.show(vcpus)
    }
}
