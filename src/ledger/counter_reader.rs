//! What the kernel says of VMs' CPUs, behind a trait.

use std::collections::{BTreeMap, BTreeSet};

use stelia_cpus::located::Located;
use stelia_kernel::cgroup::CgroupPath;
use stelia_kubelet::PodUid;
use stelia_ledger::sample::{CounterSample, Seat};
use stelia_model as model;

/// Reads the kernel's counters.
pub(crate) trait CounterReader: Send {
    /// # Errors
    /// What cannot be read, and why.
    fn read(&mut self, seats: &BTreeSet<Seat>) -> Result<CounterSample, String>;

    /// The realtime clock and `CLOCK_BOOTTIME`, microseconds.
    fn clocks(&self) -> (u64, u64);

    /// PCI addresses of the VFIO devices of a container.
    fn devices(&self, origin: &CgroupPath) -> BTreeSet<String>;

    /// Where the parts of these VMs are. One that has ended is left out. `recorded`: the last record of each VM, by its pod's UID.
    fn located(
        &mut self,
        view: &model::Node,
        pods: &BTreeSet<PodUid>,
        recorded: &BTreeMap<String, Vec<Located>>,
    ) -> BTreeMap<PodUid, Vec<Located>>;
}
