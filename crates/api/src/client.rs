//! Proxies for callers of the daemon (`stelia-runner`, `steliactl`, tests). The contract is `dbus-interfaces/`.

use std::collections::HashMap;

use zbus::{Fd, ObjectPath, OwnedObjectPath, OwnedVariant, Variant, proxy};

/// Options and reports of the contract: `a{sv}`.
pub type Dict<'a> = HashMap<&'a str, Variant<'a>>;
/// An answered `a{sv}`.
pub type OwnedDict = HashMap<String, OwnedVariant>;
/// One row of `ListInstances`: pod uid, container, object path, state, exclusive CPUs.
pub type InstanceRow = (String, String, OwnedObjectPath, String, String);
/// A move of a rebind job: pod uid, CPUs before, CPUs since, what it gains.
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
    /// Move the caller's container to the shared CPUs; answers the instance's object path and its scope's cgroup path.
    fn register_instance(
        &self,
        pod_uid: &str,
        cpuset: &str,
        options: Dict<'_>,
    ) -> zbus::Result<(OwnedObjectPath, String)>;
    /// Give everything back.
    fn deregister(&self, pod_uid: &str, options: Dict<'_>) -> zbus::Result<()>;
    /// Every instance the caller may see.
    fn list_instances(&self) -> zbus::Result<Vec<InstanceRow>>;
    /// The object path of a pod's instance.
    fn get_instance(&self, pod_uid: &str) -> zbus::Result<OwnedObjectPath>;
    /// The instance a host process belongs to.
    #[zbus(name = "GetInstanceByPID")]
    fn get_instance_by_pid(&self, pid: u32) -> zbus::Result<OwnedObjectPath>;
    /// One pass now.
    fn reconcile(&self, options: Dict<'_>) -> zbus::Result<OwnedDict>;
    /// Move instances to better CPUs; answers the job's path (`/` for a dry run) and the moves planned.
    fn rebind(&self, scope: &str, deadline: u32, options: Dict<'_>) -> zbus::Result<(OwnedObjectPath, Vec<MoveRow>)>;
    /// The daemon's view as JSON.
    fn describe(&self) -> zbus::Result<String>;
    /// The node's NodeResourceTopology object as JSON.
    fn node_topology(&self, options: Dict<'_>) -> zbus::Result<String>;
    /// What the allocator would answer to requests, each alone.
    fn evaluate_placement(&self, requests: Vec<Dict<'_>>, options: Dict<'_>) -> zbus::Result<Vec<OwnedDict>>;
    /// Read the configuration again.
    fn reload(&self) -> zbus::Result<()>;
    /// Things found changed by somebody else since the daemon started.
    #[zbus(property)]
    fn drift_found(&self) -> zbus::Result<u64>;
    /// Those put right in the same pass.
    #[zbus(property)]
    fn drift_repaired(&self) -> zbus::Result<u64>;
    /// Why kubelet's state cannot be used; empty when it can.
    #[zbus(property)]
    fn kubelet_problem(&self) -> zbus::Result<String>;
    /// The CPUs that are nobody's alone.
    #[zbus(property, name = "SharedCPUs")]
    fn shared_cpus(&self) -> zbus::Result<String>;
    /// An instance was registered.
    #[zbus(signal)]
    fn instance_new(&self, pod_uid: &str, instance: ObjectPath<'_>) -> zbus::Result<()>;
    /// An instance left or died.
    #[zbus(signal)]
    fn instance_removed(&self, pod_uid: &str, instance: ObjectPath<'_>) -> zbus::Result<()>;
}

/// `io.stelia.Isolation1.Job`.
#[proxy(interface = "io.stelia.Isolation1.Job", default_service = "io.stelia.Isolation1")]
pub trait Job {
    /// Pending, Succeed, Failed or Unknown.
    #[zbus(property)]
    fn phase(&self) -> zbus::Result<String>;
    /// Why it is in its phase.
    #[zbus(property)]
    fn reason(&self) -> zbus::Result<String>;
    /// Every move made.
    #[zbus(property)]
    fn moves(&self) -> zbus::Result<Vec<MoveRow>>;
}

/// `io.stelia.Isolation1.Instance`.
#[proxy(
    interface = "io.stelia.Isolation1.Instance",
    default_service = "io.stelia.Isolation1"
)]
pub trait Instance {
    /// Move, pin, isolate and verify the vCPU threads; answers (vCPU, host thread id, CPU).
    fn attach_vcpus(
        &self,
        qemu_pidfd: Fd<'_>,
        vcpus: Vec<VcpuArg<'_>>,
        options: Dict<'_>,
    ) -> zbus::Result<Vec<(u32, u32, u32)>>;
    /// Check every promise now.
    fn audit(&self, options: Dict<'_>) -> zbus::Result<OwnedDict>;
    /// Give everything back.
    fn deregister(&self, options: Dict<'_>) -> zbus::Result<()>;
    /// The pod's UID.
    #[zbus(property(emits_changed_signal = "const"), name = "PodUID")]
    fn pod_uid(&self) -> zbus::Result<String>;
    /// The container's name in kubelet's state.
    #[zbus(property(emits_changed_signal = "const"))]
    fn container(&self) -> zbus::Result<String>;
    /// registered, floating, isolated, contained or leaving.
    #[zbus(property)]
    fn state(&self) -> zbus::Result<String>;
    /// Reasons why the promise is not whole.
    #[zbus(property)]
    fn degraded(&self) -> zbus::Result<Vec<String>>;
    /// The CPUs kubelet gave the container.
    #[zbus(property, name = "ExclusiveCPUs")]
    fn exclusive_cpus(&self) -> zbus::Result<String>;
    /// The shared CPUs of everything else.
    #[zbus(property, name = "FloatCPUs")]
    fn float_cpus(&self) -> zbus::Result<String>;
    /// The pod's own cpuset.mems.
    #[zbus(property)]
    fn memory_nodes(&self) -> zbus::Result<String>;
    /// cpuset.cpus.partition of vcpu/.
    #[zbus(property)]
    fn partition(&self) -> zbus::Result<String>;
    /// The placement policy in force.
    #[zbus(property)]
    fn placement(&self) -> zbus::Result<String>;
    /// The scope's unit name.
    #[zbus(property(emits_changed_signal = "const"))]
    fn unit(&self) -> zbus::Result<String>;
    /// The scope's cgroup path.
    #[zbus(property(emits_changed_signal = "const"))]
    fn control_group(&self) -> zbus::Result<String>;
    /// The container's own cgroup path.
    #[zbus(property(emits_changed_signal = "const"))]
    fn origin_control_group(&self) -> zbus::Result<String>;
    /// Microseconds since the epoch.
    #[zbus(property(emits_changed_signal = "const"))]
    fn registered_timestamp(&self) -> zbus::Result<u64>;
    /// Microseconds since the epoch; 0 before isolation.
    #[zbus(property)]
    fn isolated_timestamp(&self) -> zbus::Result<u64>;
}
