//! `kubelet_internal_checkpoint`: kubelet's record of devices, as kubelet since 1.20 writes it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::Context;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use stelia_kubelet::checksum::fnv1a;
use stelia_kubelet::devices::DEVICE_MANAGER_STATE;

use crate::manager::{Allocation, Manager};

/// Where kubelet keeps devices whose plugin does not say their NUMA node.
const NO_NODE: i64 = -1;

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct File {
    data: Data,
    checksum: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    /// `null` rather than an empty list, as kubelet has it.
    pod_device_entries: Option<Vec<Entry>>,
    registered_devices: BTreeMap<String, Vec<String>>,
}

#[derive(Serialize)]
struct Entry {
    #[serde(rename = "PodUID")]
    pod: String,
    #[serde(rename = "ContainerName")]
    container: String,
    #[serde(rename = "ResourceName")]
    resource: String,
    /// By NUMA node, or [`NO_NODE`].
    #[serde(rename = "DeviceIDs")]
    devices: BTreeMap<i64, Vec<String>>,
    #[serde(rename = "AllocResp")]
    answer: String,
    #[serde(skip)]
    bytes: Vec<u8>,
}

/// A device of several NUMA nodes is in each of their lists.
fn by_node(allocation: &Allocation) -> BTreeMap<i64, Vec<String>> {
    let mut by_node: BTreeMap<i64, Vec<String>> = BTreeMap::new();
    for id in &allocation.devices {
        let nodes = allocation.nodes.get(id).cloned();
        for node in nodes.unwrap_or_else(|| BTreeSet::from([NO_NODE])) {
            by_node.entry(node).or_default().push(id.clone());
        }
    }
    by_node
}

/// The file's text.
fn text(manager: &Manager) -> anyhow::Result<String> {
    let entries: Vec<Entry> = manager
        .allocations
        .iter()
        .map(|one| Entry {
            pod: one.pod.clone(),
            container: one.container.clone(),
            resource: one.resource.clone(),
            devices: by_node(one),
            answer: STANDARD.encode(&one.answer.bytes),
            bytes: one.answer.bytes.clone(),
        })
        .collect();
    let registered = manager.resources.iter();
    let data = Data {
        pod_device_entries: (!entries.is_empty()).then_some(entries),
        registered_devices: registered
            .map(|(name, resource)| (name.clone(), resource.healthy.iter().cloned().collect()))
            .collect(),
    };
    let checksum = fnv1a(&hashed(&data));
    serde_json::to_string(&File { data, checksum }).context("write JSON")
}

/// What Go's printer makes of the data, which is what the checksum is of.
fn hashed(data: &Data) -> String {
    let entry = |entry: &Entry| {
        let devices = entry.devices.iter().map(|(node, ids)| format!("{node}:{}", list(ids)));
        format!(
            "{{PodUID:(string){} ContainerName:(string){} ResourceName:(string){} \
             DeviceIDs:(checkpoint.DevicesPerNUMA)map{} AllocResp:([]uint8){}}}",
            entry.pod,
            entry.container,
            entry.resource,
            list(devices),
            list(&entry.bytes)
        )
    };
    let entries = match &data.pod_device_entries {
        Some(entries) => list(entries.iter().map(entry)),
        None => "<nil>".to_owned(),
    };
    let registered = data
        .registered_devices
        .iter()
        .map(|(name, ids)| format!("{name}:{}", list(ids)));
    format!(
        "(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){entries} \
         RegisteredDevices:(map[string][]string)map{}}}",
        list(registered)
    )
}

fn list<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let texts: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    format!("[{}]", texts.join(" "))
}

/// Replaces the file in the folder of plugins' sockets.
pub fn write(manager: &Manager, folder: &Path) -> anyhow::Result<()> {
    let (path, temporary) = (folder.join(DEVICE_MANAGER_STATE), folder.join(".checkpoint"));
    fs::write(&temporary, text(manager)?).with_context(|| format!("write {}", temporary.display()))?;
    fs::rename(&temporary, &path).with_context(|| format!("rename {} to {}", temporary.display(), path.display()))
}

#[cfg(test)]
mod tests {
    use stelia_device_plugin::api::HEALTHY;
    use stelia_device_plugin::api::v1beta1::{Device, NumaNode, TopologyInfo};
    use stelia_kubelet::DeviceManagerState;

    use super::*;
    use crate::answer::Answer;

    #[test]
    fn the_daemons_reader_takes_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let read = || DeviceManagerState::parse(&fs::read(folder.path().join(DEVICE_MANAGER_STATE)).unwrap()).unwrap();
        let mut manager = Manager::default();
        write(&manager, folder.path()).unwrap();
        assert_eq!(read(), DeviceManagerState::default());

        let registration = manager.register("stelia.io/vm", "vm.sock");
        let on = |nodes: &[i64]| TopologyInfo {
            nodes: nodes.iter().map(|id| NumaNode { id: *id }).collect(),
        };
        let devices = [
            ("vm-0", None),
            ("vm-1", None),
            ("vm-2", Some(on(&[1]))),
            ("vm-3", Some(on(&[0, 1]))),
        ];
        let devices = devices.map(|(id, topology)| Device {
            id: id.to_owned(),
            health: HEALTHY.to_owned(),
            topology,
        });
        manager.list("stelia.io/vm", registration, devices.to_vec());
        let given = ["vm-1", "vm-2", "vm-3"].map(str::to_owned);
        let nodes = manager.nodes("stelia.io/vm", &given.clone().into());
        manager.allocate(Allocation {
            pod: "3ceda12c-3ee9-40fa-9f42-61428fe654a6".to_owned(),
            container: "instance".to_owned(),
            resource: "stelia.io/vm".to_owned(),
            devices: given.into(),
            nodes,
            answer: Answer {
                bytes: vec![0x0a, 0x00, 0xff],
                ..Answer::default()
            },
        });
        write(&manager, folder.path()).unwrap();
        let state = read();
        assert_eq!(state.registered["stelia.io/vm"].len(), 4);
        let of = |node| {
            state.entries[0].devices[&node]
                .iter()
                .map(String::as_str)
                .collect::<Vec<_>>()
        };
        assert_eq!(of(None), ["vm-1"]);
        assert_eq!((of(Some(0)), of(Some(1))), (vec!["vm-3"], vec!["vm-2", "vm-3"]));
    }
}
