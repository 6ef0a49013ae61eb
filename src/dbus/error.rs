//! The named errors `io.stelia.Isolation1.Error.*`. `busctl` prints only the text, so every text stands alone.

/// What a call to the daemon fails with.
#[derive(Debug, Clone, PartialEq, zbus::DBusError)]
#[zbus(prefix = "io.stelia.Isolation1.Error", impl_display = true)]
pub enum Error {
    /// A failure of the transport itself.
    #[zbus(error)]
    Transport(zbus::Error),
    /// An argument does not parse or contradicts another.
    InvalidArgument(String),
    /// kubelet knows no such pod, or the pod has no container cgroup.
    NoSuchPod(String),
    /// No such instance, or none that the caller may see.
    NoSuchInstance(String),
    /// The pod has an instance already, of another container.
    InstanceExists(String),
    /// No anchor was handed over, or it is not where it must be.
    NoAnchor(String),
    /// More than one container of the pod fits.
    AmbiguousContainer(String),
    /// kubelet gave the container no exclusive CPUs.
    NotGuaranteed(String),
    /// The CPUs named are not the CPUs kubelet gave.
    CpusetMismatch(String),
    /// The CPUs belong to another instance.
    CpusetConflict(String),
    /// steliad's own allocator has no CPUs, or no pool, that satisfy the request.
    NotAllocated(String),
    /// The container has no PID namespace of its own.
    SharedPidNamespace(String),
    /// A process or thread does not belong to the caller's pod.
    ForeignProcess(String),
    /// kubelet's state file is absent or not understood.
    KubeletStateUnusable(String),
    /// The daemon is at its limit; try again.
    Busy(String),
    /// The caller may not do this.
    NotPermitted(String),
    /// Anything else: operation, path and cause.
    Failed(String),
}
