//! Why an instance's promise is not whole, in words; nothing on the good day.

use super::entitlement::Entitlement;
use super::steps::too_much_memory;
use super::{Facts, Instance, Phase, Snapshot};
use crate::cpuset::CpuSet;

/// The reasons, in the order of what an operator should look at first.
pub(super) fn degraded(
    snapshot: &Snapshot,
    facts: &Facts,
    instance: &Instance,
    entitlement: &Entitlement,
    float: Option<&CpuSet>,
) -> Vec<String> {
    let mut reasons = Vec::new();
    let record = &instance.record;
    match (&snapshot.kubelet, float) {
        (Err(reason), _) => reasons.push(format!(
            "kubelet's state cannot be used, float keeps its CPUs: {reason}"
        )),
        (Ok(_), None) => reasons.push("the shared pool is empty, float keeps its CPUs".to_owned()),
        (Ok(_), Some(float)) => reasons.extend(astray(snapshot, instance, float)),
    }
    match entitlement {
        // With the origin gone too nothing is on its way any more.
        Entitlement::Gone if snapshot.unsettled.contains(&record.pod) && instance.origin_procs.is_some() => {}
        Entitlement::Gone => reasons.push(format!(
            "kubelet has no entry for container {} any more; the VM keeps the CPUs {}",
            record.container, record.exclusive
        )),
        Entitlement::Lost { cpus, to } => reasons.push(format!(
            "kubelet gave the CPUs {cpus} to pod {to}: the vCPUs run on shared CPUs"
        )),
        _ => {}
    }
    if instance.origin_procs.is_none() {
        reasons.push(format!("the container's own cgroup {} is gone", record.origin));
    } else {
        if !instance.anchor_lives {
            reasons.push(format!("the anchor (process {}) ended", record.anchor.id));
        }
        if record.allocation.is_none() && instance.origin_cpus != record.entry {
            reasons.push(format!(
                "{} has cpuset.cpus {:?}, kubelet's entry was {}",
                record.origin,
                instance.origin_cpus.to_string(),
                record.entry
            ));
        }
    }
    if let Some((limit, held)) = too_much_memory(instance) {
        let now = instance.scope_limits.memory_max;
        let now = now.map_or("none".to_owned(), |bytes| format!("{bytes} bytes"));
        reasons.push(format!(
            "the container's memory limit is {limit} bytes now, and {held} bytes are held: the limit stays as it was ({now}) until the \
             new one fits"
        ));
    }
    if record.phase.has_vcpus() {
        vcpus(facts, instance, &mut reasons);
    }
    let unwatched = instance.unwatched.as_ref().or(snapshot.unwatched.as_ref());
    reasons.extend(unwatched.cloned());
    reasons
}

/// An instance that has a NUMA node's shared pool, of which nothing is left.
fn astray(snapshot: &Snapshot, instance: &Instance, float: &CpuSet) -> Option<String> {
    let node = instance.record.allocation.as_ref()?.numa_node?;
    let on_node = |cpu: u32| snapshot.topology.cpus.get(&cpu).is_some_and(|cpu| cpu.node == node);
    let strays = float.iter().any(|cpu| !on_node(cpu));
    strays.then(|| format!("nothing is left of the shared pool of NUMA node {node}: it runs on the whole shared pool"))
}

fn vcpus(facts: &Facts, instance: &Instance, reasons: &mut Vec<String>) {
    let record = &instance.record;
    for (thread, now) in record.vcpus.iter().zip(&instance.vcpus) {
        if now.is_none() {
            reasons.push(format!("the thread {} of {} ended", thread.task.id, thread.what()));
        }
    }
    let offline = record.exclusive.difference(facts.online());
    if !offline.is_empty() {
        reasons.push(format!("CPUs {offline} are offline"));
    }
    if !record.vcpus.is_empty() && record.vcpus.iter().all(|thread| thread.cpu.is_none()) {
        reasons.push(format!(
            "{} vCPUs share the CPUs {}: none has one of its own",
            record.vcpus.len(),
            record.exclusive
        ));
    }
    if record.phase == Phase::Isolated {
        let partition = instance.vcpu().map_or("absent", |vcpu| &vcpu.partition);
        if partition != record.partition.name() {
            reasons.push(format!(
                "the partition reads {partition:?} instead of {:?}",
                record.partition.name()
            ));
        }
    }
}
