//! Checks whether an order may be carried out: it may only change CPUs that are recorded for a live instance.
//!
//! The daemon is not trusted with facts that can be read on the node. Somebody who controls the daemon can use this program only
//! to keep interrupts off CPUs of VMs.

mod facts;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::order::{CacheClass, Latency, Order, OrderedVm, Target};
use stelia_cpus::CpuSet;
use stelia_cpus::text::excerpt::excerpt;
use stelia_kubelet::PodUid;

pub use facts::{OrderFacts, exclusive};

/// Why an order is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderRefusal {
    #[error("{0:?} is not a pod's UID")]
    Pod(String),
    #[error("the shared CPUs {0} are VMs'")]
    SharedAreVms(CpuSet),
    #[error("pod {pod}: {device:?} is not a PCI address")]
    Device { pod: String, device: String },
    #[error("pod {0}: a latency of 0 µs would be no limit")]
    Latency(String),
    #[error("pod {pod}: the order has no cache class {class:?}")]
    NoClass { pod: String, class: String },
    #[error("{0:?} cannot be a cache class's name")]
    ClassName(String),
    #[error("cache class {class}: {value} is not a {what}")]
    ClassValue {
        class: String,
        what: &'static str,
        value: u32,
    },
}

/// Why a request for an attribution is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetRefusal {
    #[error("no CPUs are named")]
    NoCpus,
    #[error("the CPUs {0} are no VM's")]
    NotExclusive(CpuSet),
    #[error("{0} is no thread's number")]
    Thread(i32),
}

/// Checks a request to count what runs on CPUs. It is allowed only on VMs' CPUs, `exclusive`.
pub fn check_target(target: &Target, exclusive: &CpuSet) -> Result<(), TargetRefusal> {
    if target.cpus.is_empty() {
        return Err(TargetRefusal::NoCpus);
    }
    let others = target.cpus.difference(exclusive);
    if !others.is_empty() {
        return Err(TargetRefusal::NotExclusive(others));
    }
    let thread = target.own.iter().find(|thread| **thread <= 0);
    thread.map_or(Ok(()), |thread| Err(TargetRefusal::Thread(*thread)))
}

/// The part of an order that may be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    pub order: Order,
    /// By pod: the VMs that were removed from it, with the reason. An instance may begin or end while the order is on its way, and a
    /// damaged record of one must not stop the order for the others.
    pub left_out: BTreeMap<String, String>,
}

/// The part of this order that may be carried out on a node with these facts.
///
/// # Errors
/// The order has something that no daemon ever orders. Then nothing is carried out.
pub fn check(mut order: Order, facts: &OrderFacts) -> Result<Checked, OrderRefusal> {
    let mut left_out = BTreeMap::new();
    let mut exclusive = CpuSet::new();
    for (pod, vm) in &order.vms {
        if PodUid::parse(pod).is_err() {
            return Err(OrderRefusal::Pod(excerpt(pod)));
        }
        check_vm(pod, vm, &order)?;
        match check_cpus(vm, &exclusive, facts.recorded.get(pod)) {
            Ok(()) => exclusive.union_with(&vm.cpus),
            Err(reason) => drop(left_out.insert(pod.clone(), reason)),
        }
    }
    order.vms.retain(|pod, _| !left_out.contains_key(pod));
    let shared = order.shared.intersection(&exclusive);
    if !shared.is_empty() {
        return Err(OrderRefusal::SharedAreVms(shared));
    }
    // A CPU may have gone offline meanwhile.
    order.shared = order.shared.intersection(&facts.online);
    let mut classes = order.cache_classes.iter();
    classes.try_for_each(|(name, class)| check_class(name, class))?;
    Ok(Checked { order, left_out })
}

/// Checks that the CPUs are those that are recorded for this VM, and not those of another VM, `before`.
fn check_cpus(vm: &OrderedVm, before: &CpuSet, recorded: Option<&Result<CpuSet, String>>) -> Result<(), String> {
    let ordered = &vm.cpus;
    match recorded {
        None => return Err("it has no live instance".into()),
        Some(Err(reason)) => return Err(reason.clone()),
        Some(Ok(recorded)) if recorded != ordered => {
            return Err(format!(
                "the CPUs {ordered} are ordered, {recorded} are recorded as its own"
            ));
        }
        Some(Ok(_)) => {}
    }
    let twice = before.intersection(ordered);
    if twice.is_empty() {
        Ok(())
    } else {
        Err(format!("the CPUs {twice} are another VM's too"))
    }
}

fn check_vm(pod: &str, vm: &OrderedVm, order: &Order) -> Result<(), OrderRefusal> {
    if let Some(device) = vm.own_devices.iter().find(|device| !is_pci_address(device)) {
        return Err(OrderRefusal::Device {
            pod: pod.to_owned(),
            device: excerpt(device),
        });
    }
    if vm.latency == Some(Latency::Microseconds(0)) {
        return Err(OrderRefusal::Latency(pod.to_owned()));
    }
    match &vm.cache_class {
        Some(class) if !order.cache_classes.contains_key(class) => Err(OrderRefusal::NoClass {
            pod: pod.to_owned(),
            class: excerpt(class),
        }),
        _ => Ok(()),
    }
}

/// Whether the text is a PCI address such as `0000:03:00.0`. Behind a volume management device the first part is longer.
fn is_pci_address(text: &str) -> bool {
    let is_hex = |part: &str, lengths: std::ops::RangeInclusive<usize>| {
        let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        lengths.contains(&part.len()) && part.bytes().all(digit)
    };
    let parts: Vec<&str> = text.split([':', '.']).collect();
    let [domain, bus, device, function] = parts[..] else {
        return false;
    };
    text.matches(':').count() == 2
        && is_hex(domain, 4..=8)
        && is_hex(bus, 2..=2)
        && is_hex(device, 2..=2)
        && matches!(function, "0" | "1" | "2" | "3" | "4" | "5" | "6" | "7")
}

/// The name is part of a directory's name in resctrl.
fn check_class(name: &str, class: &CacheClass) -> Result<(), OrderRefusal> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if !(1..=64).contains(&name.len()) || !name.bytes().all(is_allowed) {
        return Err(OrderRefusal::ClassName(excerpt(name)));
    }
    let wrong = |what, value| {
        let class = name.to_owned();
        Err(OrderRefusal::ClassValue { class, what, value })
    };
    match (class.l3_ways, class.memory_bandwidth) {
        (Some(0), _) => wrong("number of ways", 0),
        (_, Some(value)) if !(1..=100).contains(&value) => wrong("percentage", value),
        _ => Ok(()),
    }
}
