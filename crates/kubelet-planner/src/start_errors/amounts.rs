//! Reserved amounts: what kubelet takes as such, and that those of NUMA nodes come to those of the node.

use std::collections::{BTreeMap, BTreeSet};

use stelia_cpus::quantity::Quantity;
use stelia_cpus::text::excerpt::{excerpt, name as shown};
use stelia_kubelet::KubeletConfig;

use super::StartProblem;
use crate::node::Machine;

const MEMORY: &str = "memory";
/// What may be reserved for kubelet and for the system.
const RESOURCES: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pid"];
/// Signals that a threshold may name.
const SIGNALS: [&str; 9] = [
    "memory.available",
    "allocatableMemory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "containerfs.available",
    "containerfs.inodesFree",
    "pid.available",
];

/// A threshold.
enum Threshold {
    /// A share of the capacity.
    Share(f32),
    Bytes(u64),
    /// `0%` and `100%` stand for none.
    None,
}

pub(super) fn amounts(config: &KubeletConfig, problems: &mut Vec<StartProblem>) {
    let mut wrong = |key: String, cause: String| problems.push(StartProblem::Amount { key, cause });
    let overridden = !config.reserved_system_cpus.is_empty();
    for (setting, reserved) in [
        ("kubeReserved", &config.kube_reserved),
        ("systemReserved", &config.system_reserved),
    ] {
        for (resource, amount) in reserved {
            let key = format!("{setting}.{}", shown(resource));
            if !RESOURCES.contains(&resource.as_str()) {
                wrong(
                    key,
                    format!("it cannot be reserved; kubelet takes {}", RESOURCES.join(", ")),
                );
            } else if overridden && resource == "cpu" {
                // Replaced by the number of reservedSystemCPUs before it is read.
            } else if let Err(cause) = amount.parse::<Quantity>() {
                wrong(key, cause.to_string());
            }
        }
    }
    for (signal, text) in &config.eviction_hard {
        let key = format!("evictionHard.{}", shown(signal));
        if !SIGNALS.contains(&signal.as_str()) {
            wrong(
                key,
                format!("there is no such signal; kubelet has {}", SIGNALS.join(", ")),
            );
        } else if let Err(cause) = threshold(text) {
            wrong(key, cause);
        }
    }
    let mut seen = BTreeSet::new();
    for reservation in &config.reserved_memory {
        for (kind, amount) in &reservation.limits {
            let key = format!("reservedMemory of NUMA node {}, {}", reservation.numa_node, shown(kind));
            if kind != MEMORY && !kind.starts_with("hugepages-") {
                wrong(
                    key.clone(),
                    "it is neither memory nor huge pages such as hugepages-2Mi".to_owned(),
                );
            }
            match amount.trim().parse::<Quantity>() {
                Err(cause) => wrong(key.clone(), cause.to_string()),
                Ok(amount) if amount.is_zero() => wrong(key.clone(), "it must not be zero".to_owned()),
                Ok(_) => {}
            }
            if !seen.insert((reservation.numa_node, kind)) {
                wrong(key, "it is there twice".to_owned());
            }
        }
    }
}

fn threshold(text: &str) -> Result<Threshold, String> {
    let Some(share) = text.strip_suffix('%') else {
        let amount: Quantity = text
            .parse()
            .map_err(|cause: stelia_cpus::quantity::QuantityError| cause.to_string())?;
        return if amount.is_zero() {
            Err(format!("{:?} is not more than nothing", excerpt(text)))
        } else {
            Ok(Threshold::Bytes(amount.value()))
        };
    };
    if matches!(text, "0%" | "100%") {
        return Ok(Threshold::None);
    }
    let share: f32 = share
        .trim_end_matches('%')
        .parse()
        .map_err(|_| format!("{:?} is not a share", excerpt(text)))?;
    if (0.0..=100.0).contains(&share) {
        Ok(Threshold::Share(share / 100.0))
    } else {
        Err(format!("{:?} is not between 0% and 100%", excerpt(text)))
    }
}

/// The memory that is reserved in all, in bytes: for kubelet, for the system, and as the threshold of eviction. `None`: an amount is none, or a
/// share of a capacity that is not known.
pub fn reserved_bytes(config: &KubeletConfig, machine: Option<&Machine>) -> Option<u64> {
    let amounts = [&config.kube_reserved, &config.system_reserved].into_iter();
    let amounts = amounts.filter_map(|reserved| reserved.get(MEMORY));
    let mut sum = amounts.map(|text| text.parse::<Quantity>().ok());
    let sum = sum.try_fold(Quantity::default(), |sum, amount| Some(sum.plus(amount?)))?;
    let evicted = match config.eviction_hard.get("memory.available").map(|text| threshold(text)) {
        None | Some(Ok(Threshold::None)) => 0,
        Some(Ok(Threshold::Bytes(bytes))) => bytes,
        Some(Ok(Threshold::Share(share))) => {
            let nodes = machine?.numa.values();
            let capacity: u64 = nodes.fold(0, |sum, node| sum.saturating_add(node.memory));
            // As kubelet multiplies.
            (capacity as f64 * f64::from(share)) as u64
        }
        Some(Err(_)) => return None,
    };
    Some(sum.plus(Quantity::units(evicted)).value())
}

/// `reservedMemory`: bytes by NUMA node and kind. What is no amount, or of no node, is left out.
pub fn reserved_memory(config: &KubeletConfig) -> BTreeMap<u32, BTreeMap<String, u64>> {
    let mut all: BTreeMap<u32, BTreeMap<String, u64>> = BTreeMap::new();
    for reservation in &config.reserved_memory {
        let Ok(node) = u32::try_from(reservation.numa_node) else {
            continue;
        };
        for (kind, amount) in &reservation.limits {
            if let Ok(amount) = amount.trim().parse::<Quantity>() {
                all.entry(node).or_default().insert(kind.clone(), amount.value());
            }
        }
    }
    all
}

/// What the static memory policy wants of `reservedMemory`.
pub(super) fn static_memory(config: &KubeletConfig, machine: Option<&Machine>, problems: &mut Vec<StartProblem>) {
    if let Some(machine) = machine {
        let missing = config.reserved_memory.iter().map(|reservation| reservation.numa_node);
        let missing =
            missing.filter(|node| u32::try_from(*node).map_or(true, |node| !machine.numa.contains_key(&node)));
        problems.extend(missing.map(StartProblem::MemoryNode));
    }
    let mut sums: BTreeMap<String, u64> = BTreeMap::from([(MEMORY.to_owned(), 0)]);
    for limits in reserved_memory(config).into_values() {
        for (kind, bytes) in limits {
            let sum = sums.entry(kind).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }
    let needed = reserved_bytes(config, machine);
    for (kind, reserved) in sums {
        let needed = match kind.as_str() {
            MEMORY => needed,
            // Huge pages cannot be reserved for kubelet or the system.
            _ => Some(0),
        };
        if let Some(needed) = needed.filter(|needed| *needed != reserved) {
            problems.push(StartProblem::MemorySum { kind, reserved, needed });
        } else if kind == MEMORY && reserved == 0 {
            problems.push(StartProblem::NoReservedMemory);
        }
    }
}
