//! Proxies for callers of the daemon (`stelia-runner`, `steliactl`, tests), with the members that these use.
//! `dbus-interfaces/` says what each does.
#![allow(missing_docs)]

use std::collections::HashMap;

use zbus::{Fd, ObjectPath, OwnedObjectPath, OwnedVariant, Variant, proxy};

/// Options and reports of the contract: `a{sv}`.
pub type Dict<'a> = HashMap<&'a str, Variant<'a>>;
/// An answered `a{sv}`.
pub type OwnedDict = HashMap<String, OwnedVariant>;
/// One row of `ListInstances`: pod uid, container, object path, state, exclusive CPUs.
pub type InstanceRow = (String, String, OwnedObjectPath, String, String);
/// A move of a rebind job: pod uid, CPUs before, CPUs after, why it is an improvement.
pub type MoveRow = (String, String, String, String);
/// One vCPU for `AttachVcpus`: index, thread id in the container's PID namespace, QMP properties.
pub type VcpuArg<'a> = (u32, i32, Dict<'a>);

/// `io.stelia.Isolation1.Manager`.
#[proxy(
    interface = "io.stelia.Isolation1.Manager",
    default_service = "io.stelia.Isolation1",
    default_path = "/io/stelia/Isolation1"
)]
pub trait Manager {
    fn register_instance(
        &self,
        pod_uid: &str,
        cpuset: &str,
        options: Dict<'_>,
    ) -> zbus::Result<(OwnedObjectPath, String)>;
    fn deregister(&self, pod_uid: &str, options: Dict<'_>) -> zbus::Result<()>;
    fn list_instances(&self) -> zbus::Result<Vec<InstanceRow>>;
    fn get_instance(&self, pod_uid: &str) -> zbus::Result<OwnedObjectPath>;
    fn reconcile(&self, options: Dict<'_>) -> zbus::Result<OwnedDict>;
    fn rebind(&self, scope: &str, deadline: u32, options: Dict<'_>) -> zbus::Result<(OwnedObjectPath, Vec<MoveRow>)>;
    fn resize(&self, pod_uid: &str, cpus: u32, options: Dict<'_>) -> zbus::Result<(String, bool)>;
    fn describe(&self) -> zbus::Result<String>;
    fn node_topology(&self, options: Dict<'_>) -> zbus::Result<String>;
    fn evaluate_placement(&self, requests: Vec<Dict<'_>>, options: Dict<'_>) -> zbus::Result<Vec<OwnedDict>>;
    fn preview_adoption(&self, config: &str, options: Dict<'_>) -> zbus::Result<String>;
    fn reload(&self) -> zbus::Result<()>;
    fn ledger(&self, pod_uid: &str, since: u64, until: u64, options: Dict<'_>) -> zbus::Result<String>;
    fn verify_ledger(&self, options: Dict<'_>) -> zbus::Result<String>;
    #[zbus(property)]
    fn admission_problem(&self) -> zbus::Result<String>;
    #[zbus(property)]
    fn ledger_key(&self) -> zbus::Result<String>;
    #[zbus(property)]
    fn vm_capacity(&self) -> zbus::Result<u32>;
    #[zbus(signal)]
    fn instance_new(&self, pod_uid: &str, instance: ObjectPath<'_>) -> zbus::Result<()>;
    #[zbus(signal)]
    fn instance_removed(&self, pod_uid: &str, instance: ObjectPath<'_>) -> zbus::Result<()>;
}

/// `io.stelia.Isolation1.Instance`.
#[proxy(
    interface = "io.stelia.Isolation1.Instance",
    default_service = "io.stelia.Isolation1"
)]
pub trait Instance {
    fn attach_vcpus(
        &self,
        qemu_pidfd: Fd<'_>,
        vcpus: Vec<VcpuArg<'_>>,
        options: Dict<'_>,
    ) -> zbus::Result<Vec<(u32, u32, u32)>>;
    fn audit(&self, options: Dict<'_>) -> zbus::Result<OwnedDict>;
    fn ledger(&self, since: u64, until: u64, options: Dict<'_>) -> zbus::Result<String>;
    fn attribute(&self, options: Dict<'_>) -> zbus::Result<String>;
    fn deregister(&self, options: Dict<'_>) -> zbus::Result<()>;
    #[zbus(property)]
    fn state(&self) -> zbus::Result<String>;
    /// (code, text, fix)
    #[zbus(property)]
    fn degraded(&self) -> zbus::Result<Vec<(String, String, String)>>;
    #[zbus(property, name = "ExclusiveCPUs")]
    fn exclusive_cpus(&self) -> zbus::Result<String>;
}
