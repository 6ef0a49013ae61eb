//! A VM: whether it is isolated and why not, its CPUs, threads, memory and devices, and what slows it down.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use stelia_api::{ReasonCode, State, ThreadRole};
use stelia_cpus::located::Part;
use stelia_cpus::{CpuSet, Topology};
use stelia_kernel::locality::{Locality, certificate, nodes, size};
use stelia_koordinator::allocator::Allocation;
use stelia_model::{FloatReason, Instance};
use stelia_settings::Isolation;

use super::slow::{Reading, share, slowdowns};
use super::{ASSIGNMENT, Answer, CGROUPS, MEASURED, RECORD, SETTINGS, STELIAD};
use crate::shared::daemon::{Description, Failure, Pod, age, no_instance};
use crate::shared::located;
use crate::shared::output::counted;

/// Devices that are named; `show` has all of them.
const MAX_DEVICES: usize = 4;

/// The facts at `now`, with what two readings say.
///
/// # Errors
/// The pod is no VM.
pub(super) fn answer(
    description: &Description,
    pod: &str,
    now: u64,
    readings: (&Reading, &Reading),
) -> Result<Answer, Failure> {
    let node = &description.node;
    let (uid, instance) = node.instances.get_key_value(pod).ok_or_else(|| no_instance(pod))?;
    let name = Pod::of(uid, instance);
    let is = match instance.state {
        State::Isolated if instance.degraded.is_empty() => "is isolated",
        State::Isolated => "is isolated, but DEGRADED",
        State::Pinned => "is pinned, not isolated",
        _ => "is NOT isolated",
    };
    let guest = guest_nodes(instance);
    let spread = guest.values().any(|cpus| nodes(&node.topology, cpus).len() > 1);
    let slow = slowdowns(description, pod, instance, spread, readings);
    let busy = share(readings.0, readings.1, &instance.float, |time| time.busy);
    let more = json!({
        "container": instance.container, "state": instance.state, "isolation": instance.isolation,
        "degraded": instance.degraded, "not_isolated": instance.not_isolated,
        "exclusive_cpus": instance.exclusive, "float_cpus": instance.float, "float_reason": instance.float_reason,
        "cpu_source": node.cpu_source, "allocation": instance.allocation, "registered_us": instance.registered_us,
        "isolated_us": Some(instance.isolated_us).filter(|us| *us > 0), "slow": slow,
        "guest_nodes": guest.iter().map(|(guest, cpus)| guest_json(*guest, cpus, &node.topology)).collect::<Vec<_>>(),
    });
    let mut answer = Answer {
        title: format!("{name} {is}"),
        details: name.members(),
        ..Answer::default()
    };
    answer.details.extend(more.as_object().cloned().unwrap_or_default());
    state(&mut answer, instance, now);
    cpus(&mut answer, description, pod, instance);
    float(&mut answer, instance, busy);
    for (guest, cpus) in guest.iter().filter_map(|(guest, cpus)| Some(((*guest)?, cpus))) {
        let host = nodes(&node.topology, cpus).to_string();
        answer.say(
            "Guest",
            format!("NUMA node {guest} has vCPUs on CPUs {cpus} (NUMA {host})"),
            RECORD,
        );
    }
    if let Some(locality) = description.locality.instances.get(pod) {
        parts(&mut answer, locality);
    }
    if slow.is_empty() {
        answer.say("Measured", "nothing slows it down", MEASURED);
    }
    for one in &slow {
        answer.say("Slow", &one.text, MEASURED);
        answer.fix(&one.fix, MEASURED);
    }
    answer.node_problems(description);
    Ok(answer)
}

fn state(answer: &mut Answer, instance: &Instance, now: u64) {
    for reason in &instance.degraded {
        answer.reason("Problem", reason);
    }
    match &instance.not_isolated {
        Some(reason) if reason.code == ReasonCode::NoVcpus => {
            let waits = age(instance.registered_us, now);
            answer.say("Because", format!("{} (for {waits})", reason.text), STELIAD);
            answer.fix(&reason.fix, STELIAD);
        }
        Some(reason) => answer.reason("Because", reason),
        None => {}
    }
    let isolated = if instance.state == State::Isolated {
        instance.isolated_us
    } else {
        0
    };
    let events = [("isolated", isolated), ("registered", instance.registered_us)];
    let known = events.into_iter().filter(|(_, us)| *us > 0);
    let ages: Vec<String> = known.map(|(what, us)| format!("{what} {} ago", age(us, now))).collect();
    if !ages.is_empty() {
        answer.say("Since", ages.join(", "), RECORD);
    }
}

fn cpus(answer: &mut Answer, description: &Description, pod: &str, instance: &Instance) {
    let (node, own, container) = (&description.node, &instance.exclusive, &instance.container);
    let host = nodes(&node.topology, own).to_string();
    let mut text = if own.is_empty() {
        "none of its own".to_owned()
    } else {
        format!("{own} on NUMA {host}, assigned by {}", node.cpu_source.name())
    };
    if matches!(instance.partition.as_str(), "isolated" | "root") {
        text += &format!("; partition type {}", instance.partition);
    }
    if instance.isolation == Isolation::Container {
        text += "; scope: container";
    }
    answer.say("CPUs", text, RECORD);
    if let Some(allocation) = &instance.allocation {
        return allocated(answer, allocation);
    }
    let entry = node.entries.get(pod).and_then(|containers| containers.get(container));
    let assigned = match (entry, node.pod_entries.get(pod)) {
        _ if node.kubelet_problem.is_some() => return,
        (Some(entry), _) if entry == own => return,
        (Some(entry), _) => format!("kubelet assigns {entry} to container {container}"),
        (None, Some(entry)) => format!("kubelet assigns {entry} to the whole pod (pod-level resources)"),
        (None, None) => format!("kubelet has no assignment for container {container}"),
    };
    answer.say("Assigned", assigned, ASSIGNMENT);
}

fn allocated(answer: &mut Answer, allocation: &Allocation) {
    let mut text = format!("class {}", allocation.qos);
    if allocation.cpus > 0 {
        let (count, bind) = (counted(allocation.cpus.into(), "CPU"), allocation.bind);
        let required = if allocation.required { " (required)" } else { "" };
        let (exclusive, kept) = (allocation.exclusive, allocation.exclusivity);
        text += &format!(", {count}; bind {bind}{required}, exclusive {exclusive} ({kept})");
        text += &format!(", strategy {}, alignment {}", allocation.strategy, allocation.alignment);
    }
    if allocation.limit_milli > 0 {
        text += &format!(", CPU limit {}", allocation.limit_milli as f64 / 1000.0);
    }
    answer.say("Asked", text, RECORD);
    if !allocation.explanation.is_empty() {
        answer.say("Chosen", allocation.explanation.join("; "), "steliad's allocator");
    }
}

/// Where everything but the vCPUs runs; all threads where the vCPUs are not on CPUs of their own.
fn float(answer: &mut Answer, instance: &Instance, busy: Option<f64>) {
    let why = match instance.float_reason {
        FloatReason::PodPool => "the pod's own shared CPUs",
        FloatReason::Near => "shared CPUs of its NUMA nodes",
        FloatReason::TooFewNear => "all shared CPUs: its NUMA nodes have fewer than float-min-cpus",
        FloatReason::Pool => "all shared CPUs",
        FloatReason::NodePool => "shared CPUs of the NUMA node chosen for class LS",
        FloatReason::BePool => "shared CPUs of class BE",
        FloatReason::Spare => "the container's CPUs that no vCPU is pinned to",
        FloatReason::UntilAttached => "shared CPUs of its NUMA nodes and its own CPUs, until vCPUs are attached",
        FloatReason::NoFloat => return answer.say("Others", "all its threads run on its own CPUs", SETTINGS),
        FloatReason::Unchanged => "unchanged: no CPUs can be chosen now",
    };
    let busy = busy.map_or(String::new(), |busy| format!("{busy:.0} % busy; "));
    let (label, who) = match instance.state {
        State::Isolated | State::Pinned => ("Others", "its other threads run"),
        _ => ("Now", "all its threads run"),
    };
    answer.say(label, format!("{who} on {} ({busy}{why})", instance.float), CGROUPS);
}

/// Memory and devices by NUMA node, a line each.
fn parts(answer: &mut Answer, locality: &Locality) {
    let (mut memory, mut devices) = (Vec::new(), Vec::new());
    for row in certificate(locality) {
        let at = row.located();
        let place = match located::place(&at) {
            place if place.is_empty() => "NUMA node unknown".to_owned(),
            place => format!("{place} on NUMA {}", located::nodes(&at)),
        };
        match row.part {
            Part::Memory => memory.push(format!("{}, {place}", size(row.amount))),
            Part::HugePages => memory.push(format!("{} huge pages, {place}", size(row.amount))),
            Part::Device => devices.push(format!("{}, {place}", row.name)),
            Part::Cpus | Part::Interrupts => {}
        }
    }
    if devices.len() > MAX_DEVICES {
        devices.truncate(MAX_DEVICES);
        devices.push("more: steliactl show".to_owned());
    }
    for (label, parts) in [("Memory", memory), ("Devices", devices)] {
        if !parts.is_empty() {
            answer.say(label, parts.join("; "), STELIAD);
        }
    }
}

/// The CPUs of the vCPUs by the NUMA node that the guest sees; `None`: it is shown none, so that all vCPUs are alike to it.
fn guest_nodes(instance: &Instance) -> BTreeMap<Option<u32>, CpuSet> {
    let mut found: BTreeMap<Option<u32>, CpuSet> = BTreeMap::new();
    let is_vcpu = |role: ThreadRole| matches!(role, ThreadRole::Vcpu(_));
    for pinned in instance.vcpus.iter().filter(|pinned| is_vcpu(pinned.thread.role)) {
        let cpus = pinned.thread.cpu.map(|cpu| std::iter::once(cpu).collect());
        let node = found.entry(pinned.guest_node).or_default();
        node.union_with(cpus.as_ref().unwrap_or(&instance.exclusive));
    }
    found
}

fn guest_json(guest: Option<u32>, cpus: &CpuSet, topology: &Topology) -> Value {
    json!({ "guest_node": guest, "cpus": cpus, "host_nodes": nodes(topology, cpus).to_string() })
}
