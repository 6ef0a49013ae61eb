//! What stays in the container's own cgroup while its instance is in stelia.slice: the anchor, which is a running program where the
//! instance was adopted, and what is exec'd into the container.
//!
//! Once the partition is made that cgroup's cpuset has no CPU left, and the kernel lets its threads run wherever the parent's may: on
//! every CPU outside of partitions, those included that kubelet gave to other pods exclusively. `cpuset.cpus` of that cgroup is
//! kubelet's, so its threads are kept off those CPUs by their affinity.

use stelia_cpus::CpuSet;

use super::Step;
use crate::Instance;

/// Keep these threads on float's CPUs. While their cpuset has none of float's CPUs nothing is done: the kernel would refuse such an
/// affinity, and the threads are on the container's own CPUs.
///
/// `changes`: float's list is written now, and what the kernel gives the container changes with it.
pub(super) fn confine(instance: &Instance, float: &CpuSet, changes: bool) -> Vec<Step> {
    let within = float.intersection(&instance.origin_effective);
    let differs = |affinity: &CpuSet| !within.is_empty() && (changes || *affinity != within);
    let threads = instance.origin_threads.iter();
    threads
        .filter(|remaining| differs(&remaining.affinity))
        .map(|remaining| Step::Confine(remaining.thread, float.clone()))
        .collect()
}

/// Let them run wherever their cpuset allows, before the instance ends.
pub(super) fn release(instance: &Instance) -> impl Iterator<Item = Step> + '_ {
    let confined = instance.origin_procs.iter().flatten();
    confined
        .filter(|_| !instance.is_in_place())
        .map(|pid| Step::ResetProcess(*pid))
}
