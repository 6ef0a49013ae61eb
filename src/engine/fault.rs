//! Why a step failed.

use stelia_cpus::CpuSet;
use stelia_node::cgroup::CgroupError;
use stelia_node::proc::ProcError;
use stelia_node::systemd::SystemdError;
use stelia_node::workqueue::WorkqueueError;

#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Proc(#[from] ProcError),
    #[error(transparent)]
    Systemd(#[from] SystemdError),
    #[error("read the CPU topology: {0}")]
    Topology(#[from] std::io::Error),
    #[error(transparent)]
    Workqueue(#[from] WorkqueueError),
    #[error("the kernel's unbound workers may run on CPUs {0} alone, which are exclusive now")]
    NoCpuForWorkers(CpuSet),
}
