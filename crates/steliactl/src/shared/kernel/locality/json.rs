//! The locality of a VM as JSON.

use serde_json::{Value, json};
use stelia_kernel::locality::{Locality, PartRow, PciDevice, certificate, list, pairs};

use super::VmLocality;

impl VmLocality {
    pub(crate) fn json(&self) -> Value {
        let locality = &self.locality;
        let (away, attached) = (locality.away(), locality.attached());
        let nodes = locality.memory.iter().map(|(node, memory)| {
            json!({ "node": node, "own": locality.is_own(*node), "place": locality.place(*node).name(),
                    "anon_bytes": memory.anon, "file_bytes": memory.file,
                    "shmem_bytes": memory.shmem, "huge_pages_bytes": memory.huge })
        });
        let memory_only = locality.memory_only.iter().map(|(node, one)| {
            json!({ "node": node, "kind": one.kind, "device": one.device, "nearest": list(&one.nearest) })
        });
        let rows = certificate(locality);
        let pairs = pairs(&locality.pci);
        let pairs = pairs
            .iter()
            .map(|pair| json!({ "gpu": pair.gpu.address, "nic": pair.nic.address, "distance": pair.distance }));
        json!({
            "cpu_nodes": list(&locality.nodes),
            "away_bytes": away.map(|away| away.bytes),
            "counted_bytes": away.map(|away| away.of),
            "away_ratio": away.map(|away| away.ratio()),
            "attached_bytes": attached.map(|attached| attached.bytes),
            "attached_ratio": attached.map(|attached| attached.ratio()),
            "too_much_away": locality.memory_problem().is_some(),
            "nodes": nodes.collect::<Vec<_>>(),
            "memory_only": memory_only.collect::<Vec<_>>(),
            "devices": devices(locality),
            "devices_unknown": self.devices_unknown,
            "certificate": rows.iter().map(|row| self.row(row)).collect::<Vec<_>>(),
            "interrupts": locality.interrupts,
            "pairs": pairs.collect::<Vec<_>>(),
            "mapped": self.mapped,
        })
    }

    fn row(&self, row: &PartRow) -> Value {
        let located = row.shown(&self.locality, &self.recorded);
        let since_us = (located.since_us > 0).then_some(located.since_us);
        let share = |percent: u8| (!located.nodes.is_empty()).then_some(percent);
        let device = self.locality.pci.iter().find(|device| device.name() == row.name);
        json!({
            "part": row.part, "name": row.name, "amount": row.amount, "nodes": row.by_node,
            "near_percent": share(located.near_percent), "attached_percent": share(located.attached_percent), "since_us": since_us,
            "device": device.map(pci),
        })
    }
}

fn pci(device: &PciDevice) -> Value {
    json!({
        "address": device.address, "kind": device.kind(), "vendor": format!("{:04x}", device.vendor),
        "device": format!("{:04x}", device.device), "part_of": device.part_of, "mediated": device.mediated,
        "resource": device.resource,
    })
}

/// kubelet's, then those of VFIO.
fn devices(locality: &Locality) -> Vec<Value> {
    let one = |name: &str, node: Option<u32>, count: u32| {
        let own = node.map(|node| locality.is_own(node));
        json!({ "name": name, "node": node, "own": own, "count": count })
    };
    let of_kubelet = locality.devices.iter();
    let of_kubelet = of_kubelet.map(|device| one(&device.name, device.node, device.count));
    let of_vfio = locality.pci.iter();
    let of_vfio = of_vfio.map(|device| one(&format!("VFIO {}", device.address), device.node, 1));
    of_kubelet.chain(of_vfio).collect()
}
