//! Where the memory and the devices of an instance are.

use stelia_kernel::locality::{MemoryPlace, size};
use stelia_model::Instance;

use super::cpu::Fact;
use super::pod::Facts;
use crate::shared::daemon::Description;

const MEMORY: &str = "memory.numa_stat";
const DEVICES: &str = "kubelet's device file";
const PCI: &str = "/sys/bus/pci/devices";

pub(super) fn near(description: &Description, pod: &str, instance: &Instance) -> Vec<Fact> {
    let mut facts = Facts::default();
    if !instance.mems.is_empty() {
        facts.say(
            format!("memory may be on the NUMA nodes {}", instance.mems),
            "cpuset.mems",
        );
    }
    let Some(locality) = description.locality.instances.get(pod) else {
        return facts.0;
    };
    for (node, memory) in &locality.memory {
        let own = match (locality.nodes.is_empty(), locality.place(*node)) {
            (true, _) => "".to_owned(),
            (false, MemoryPlace::Near) => ", its CPUs' own".to_owned(),
            (false, MemoryPlace::Attached) => match locality.memory_only.get(node) {
                Some(only) => format!(", {}", only.words()),
                None => String::new(),
            },
            (false, MemoryPlace::Remote) => ", remote from its CPUs".to_owned(),
        };
        facts.say(format!("{} on NUMA node {node}{own}", size(memory.counted())), MEMORY);
    }
    let place = |node: Option<u32>| match node {
        Some(node) => match locality.place(node) {
            MemoryPlace::Near => format!("on NUMA node {node}, its CPUs' own"),
            MemoryPlace::Attached => format!("on NUMA node {node}, which has no CPUs and belongs to it"),
            MemoryPlace::Remote => format!("on NUMA node {node}, remote from its CPUs"),
        },
        None => "on an unknown NUMA node".to_owned(),
    };
    for device in &locality.devices {
        facts.say(
            format!("{} {} {}", device.count, device.name, place(device.node)),
            DEVICES,
        );
    }
    for device in &locality.pci {
        facts.say(
            format!("{} ({}) {}", device.name(), device.details(), place(device.node)),
            PCI,
        );
    }
    if let Some(why) = &description.locality.devices_unknown {
        facts.say(format!("kubelet's devices are not known: {why}"), DEVICES);
    }
    facts.0
}
