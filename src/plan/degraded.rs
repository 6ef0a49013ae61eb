//! Why an instance's promise is not whole, in words; nothing on the good day.

use super::entitlement::{Entitlement, entitlement};
use super::{Instance, Phase, Policies, Snapshot};

/// The reasons, in the order of what an operator should look at first.
pub fn degraded(snapshot: &Snapshot, policies: &Policies, instance: &Instance) -> Vec<String> {
    let mut reasons = Vec::new();
    let record = &instance.record;
    match &snapshot.kubelet {
        Err(reason) => reasons.push(format!(
            "kubelet's state cannot be used, float keeps its CPUs: {reason}"
        )),
        Ok(_) if super::float_cpus(snapshot, policies, instance).is_none() => {
            reasons.push("the shared pool is empty, float keeps its CPUs".to_owned());
        }
        Ok(_) => reasons.extend(astray(snapshot, policies, instance)),
    }
    match entitlement(snapshot, instance) {
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
    if record.phase.has_vcpus() {
        vcpus(snapshot, instance, &mut reasons);
    }
    reasons
}

/// An instance that has a NUMA node's shared pool, of which nothing is left.
fn astray(snapshot: &Snapshot, policies: &Policies, instance: &Instance) -> Option<String> {
    let node = instance.record.allocation.as_ref()?.numa_node?;
    let float = super::float_cpus(snapshot, policies, instance)?;
    let on_node = |cpu: u32| snapshot.topology.cpus.get(&cpu).is_some_and(|cpu| cpu.node == node);
    let strays = float.iter().any(|cpu| !on_node(cpu));
    strays.then(|| format!("nothing is left of the shared pool of NUMA node {node}: it runs on the whole shared pool"))
}

fn vcpus(snapshot: &Snapshot, instance: &Instance, reasons: &mut Vec<String>) {
    let record = &instance.record;
    for (thread, now) in record.vcpus.iter().zip(&instance.vcpus) {
        if now.is_none() {
            reasons.push(format!("the thread {} of {} ended", thread.task.id, thread.what()));
        }
    }
    let offline = record.exclusive.difference(&snapshot.topology.online());
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
