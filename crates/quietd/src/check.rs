//! Whether an order is one that may be carried out: it may touch CPUs that are recorded of a live instance, and no others.
//!
//! The daemon is believed nothing that the node itself says. Who can make the daemon say what it likes gets interrupts off the CPUs
//! of VMs, and nothing else, by this program.

mod facts;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use stelia_cpus::CpuSet;
use stelia_kubelet::PodUid;
use stelia_quiet::order::{CacheClass, Latency, Order, Target, Vm};
use stelia_text::excerpt::excerpt;

pub use facts::{Facts, exclusive};

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

/// Whether it may be counted who runs there: on CPUs of VMs only, `exclusive`. What else runs on the node is nobody's business here.
///
/// # Errors
/// [`TargetRefusal`].
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

/// What of an order may be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    pub order: Order,
    /// By pod: the VMs that were taken out of it, with the reason. An instance may begin or end while the order is on its way, and one
    /// whose record is damaged must not keep the others from what is theirs.
    pub left_out: BTreeMap<String, String>,
}

/// What of this order may be carried out on a node of which these are the facts.
///
/// # Errors
/// Something that no daemon orders, whatever happens meanwhile: then nothing is carried out.
pub fn check(mut order: Order, facts: &Facts) -> Result<Checked, OrderRefusal> {
    let mut left_out = BTreeMap::new();
    let mut exclusive = CpuSet::new();
    for (pod, vm) in &order.vms {
        if PodUid::parse(pod).is_err() {
            return Err(OrderRefusal::Pod(excerpt(pod)));
        }
        check_vm(pod, vm, &order)?;
        match is_its_own(vm, &exclusive, facts.recorded.get(pod)) {
            Ok(()) => exclusive.union_with(&vm.cpus),
            Err(reason) => drop(left_out.insert(pod.clone(), reason)),
        }
    }
    order.vms.retain(|pod, _| !left_out.contains_key(pod));
    let shared = order.shared.intersection(&exclusive);
    if !shared.is_empty() {
        return Err(OrderRefusal::SharedAreVms(shared));
    }
    // A CPU may have gone meanwhile.
    order.shared = order.shared.intersection(&facts.online);
    let mut classes = order.cache_classes.iter();
    classes.try_for_each(|(name, class)| check_class(name, class))?;
    Ok(Checked { order, left_out })
}

/// Whether the CPUs are recorded as this VM's, and are not another's, which come `before`.
fn is_its_own(vm: &Vm, before: &CpuSet, recorded: Option<&Result<CpuSet, String>>) -> Result<(), String> {
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
    match twice.is_empty() {
        true => Ok(()),
        false => Err(format!("the CPUs {twice} are another VM's too")),
    }
}

fn check_vm(pod: &str, vm: &Vm, order: &Order) -> Result<(), OrderRefusal> {
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

/// `0000:03:00.0`; behind a volume management device the first part is longer.
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
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if !(1..=64).contains(&name.len()) || !name.bytes().all(plain) {
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
