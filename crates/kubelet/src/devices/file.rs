//! The shapes of the file. A list that is `null` and an empty one are different, because they are hashed differently.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{DeviceEntry, DeviceManagerState, answer};
use crate::checksum::{self, nil_or};
use crate::cpu_manager_state::{CheckpointError, json, pod_uid, unknown};

type Ids = Option<Vec<String>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
struct File {
    data: Data,
    checksum: u32,
    /// Since 1.37; not part of the checksum.
    #[serde(rename = "BootID")]
    _boot: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
struct Data {
    pod_device_entries: Option<Vec<Entry>>,
    registered_devices: Option<BTreeMap<String, Ids>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    #[serde(rename = "PodUID")]
    pod: String,
    #[serde(rename = "ContainerName")]
    container: String,
    #[serde(rename = "ResourceName")]
    resource: String,
    #[serde(rename = "DeviceIDs")]
    devices: Option<BTreeMap<i64, Ids>>,
    #[serde(rename = "AllocResp")]
    answer: Option<String>,
}

pub(super) fn read(bytes: &[u8]) -> Result<DeviceManagerState, CheckpointError> {
    let file: File = json(bytes).map_err(|error| {
        if ids_are_lists(bytes) {
            unknown("DeviceIDs is a list, as kubelet wrote it before 1.20; it has the devices by NUMA node since")
        } else {
            error
        }
    })?;
    checksum::verify(file.checksum, checksum::fnv1a(&hashed(&file.data)?))?;
    let entries = file.data.pod_device_entries.into_iter().flatten();
    let registered = file.data.registered_devices.into_iter().flatten();
    Ok(DeviceManagerState {
        entries: entries.map(entry).collect::<Result<_, _>>()?,
        registered: registered.map(|(resource, ids)| (resource, set(ids))).collect(),
    })
}

/// Whether the devices of a container are a list and not by NUMA node.
fn ids_are_lists(bytes: &[u8]) -> bool {
    let file: serde_json::Value = serde_json::from_slice(bytes).unwrap_or_default();
    let mut entries = file["Data"]["PodDeviceEntries"].as_array().into_iter().flatten();
    entries.any(|entry| entry["DeviceIDs"].is_array())
}

fn entry(entry: Entry) -> Result<DeviceEntry, CheckpointError> {
    let node = |node: i64| match node {
        -1 => Ok(None),
        node => u32::try_from(node)
            .map(Some)
            .map_err(|_| unknown(&format!("{node} is not a NUMA node"))),
    };
    let devices = entry.devices.into_iter().flatten();
    let devices = devices.map(|(id, ids)| Ok((node(id)?, set(ids))));
    Ok(DeviceEntry {
        pod: pod_uid(&entry.pod)?,
        container: entry.container,
        resource: entry.resource,
        devices: devices.collect::<Result<_, _>>()?,
        files: answer::device_files(&decoded(entry.answer.as_ref())?.unwrap_or_default()),
    })
}

fn set(ids: Ids) -> BTreeSet<String> {
    ids.into_iter().flatten().collect()
}

/// The text over which the checksum is computed.
fn hashed(data: &Data) -> Result<String, CheckpointError> {
    let entries = data.pod_device_entries.as_ref();
    let entries = entries.map(|entries| entries.iter().map(entry_text).collect::<Result<Vec<_>, _>>());
    let entries = nil_or(entries.transpose()?.as_ref(), |texts| checksum::list(texts.iter()));
    let registered = data.registered_devices.iter().flatten();
    let registered = checksum::map(registered.map(|(resource, ids)| (resource, ids_text(ids))));
    Ok(format!(
        "(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){entries} \
         RegisteredDevices:(map[string][]string){registered}}}"
    ))
}

fn entry_text(entry: &Entry) -> Result<String, CheckpointError> {
    let answer = decoded(entry.answer.as_ref())?;
    let answer = nil_or(answer.as_ref(), |bytes| checksum::list(bytes.iter()));
    let devices = entry.devices.iter().flatten();
    let devices = checksum::map(devices.map(|(node, ids)| (node, ids_text(ids))));
    Ok(format!(
        "{{PodUID:(string){} ContainerName:(string){} ResourceName:(string){} \
         DeviceIDs:(checkpoint.DevicesPerNUMA){devices} AllocResp:([]uint8){answer}}}",
        entry.pod, entry.container, entry.resource
    ))
}

fn decoded(answer: Option<&String>) -> Result<Option<Vec<u8>>, CheckpointError> {
    let bytes = answer.map(|text| STANDARD.decode(text)).transpose();
    bytes.map_err(|_| unknown("AllocResp is not Base64"))
}

fn ids_text(ids: &Ids) -> String {
    nil_or(ids.as_ref(), |ids| checksum::list(ids.iter()))
}
