//! QEMU's devices that change a guest's memory: virtio-mem, else virtio-balloon.

use serde::Deserialize;

use super::commands::{self, MemorySize};
use super::{Qmp, or_none_if_refused};
use crate::error::Error;
use crate::memory::{BALLOON_STEP, GuestMemory, LEAST_BALLOONED};

const VIRTIO_MEM: &str = "virtio-mem";

/// An element of `query-memory-devices`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct MemoryDevice {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) data: VirtioMem,
}

/// The fields of a virtio-mem device; others have some of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct VirtioMem {
    pub(crate) id: Option<String>,
    pub(crate) requested_size: u64,
    pub(crate) size: u64,
    pub(crate) max_size: u64,
    pub(crate) block_size: u64,
}

/// What can be changed by its name.
fn virtio_mem(devices: Vec<MemoryDevice>) -> Vec<VirtioMem> {
    let devices = devices.into_iter().filter(|device| device.kind == VIRTIO_MEM);
    let devices = devices.map(|device| device.data);
    devices
        .filter(|device| device.id.is_some() && device.block_size > 0)
        .collect()
}

/// The guest's memory where there are such devices.
fn plugged(devices: &[VirtioMem], size: MemorySize) -> GuestMemory {
    let sum = |of: fn(&VirtioMem) -> u64| devices.iter().map(of).sum::<u64>();
    let now = size.base_memory.saturating_add(size.plugged_memory.unwrap_or(0));
    let least = now.saturating_sub(sum(|device| device.size));
    GuestMemory {
        now,
        requested: least.saturating_add(sum(|device| device.requested_size)),
        least,
        most: least.saturating_add(sum(|device| device.max_size)),
        step: devices.iter().map(|device| device.block_size).max().unwrap_or(1),
    }
}

/// The devices to change, and their new sizes, for so much memory: the first are filled first, and the last emptied first.
fn shares(devices: &[VirtioMem], least: u64, to: u64) -> Vec<(&str, u64)> {
    let before: u64 = devices.iter().map(|device| device.requested_size).sum();
    let after = to.saturating_sub(least);
    let (mut more, mut less) = (after.saturating_sub(before), before.saturating_sub(after));
    let mut sizes: Vec<u64> = devices.iter().map(|device| device.requested_size).collect();
    for (size, device) in sizes.iter_mut().zip(devices) {
        let part = more.min(device.max_size.saturating_sub(*size));
        *size += part;
        more -= part;
    }
    for size in sizes.iter_mut().rev() {
        let part = less.min(*size);
        *size -= part;
        less -= part;
    }
    let changed = devices
        .iter()
        .zip(sizes)
        .filter(|(device, size)| device.requested_size != *size);
    changed
        .filter_map(|(device, size)| Some((device.id.as_deref()?, size)))
        .collect()
}

impl Qmp {
    /// The guest's memory; `None` if QEMU has no device that changes it. `ballooned`: what a balloon was asked to leave the guest last, which QEMU
    /// does not tell.
    pub(crate) async fn memory(&mut self, ballooned: Option<u64>) -> Result<Option<GuestMemory>, Error> {
        let devices = or_none_if_refused(self.execute(commands::QueryMemoryDevices {}).await)?;
        let devices = virtio_mem(devices.unwrap_or_default());
        if !devices.is_empty() {
            let size = self.execute(commands::QueryMemorySizeSummary {}).await?;
            return Ok(Some(plugged(&devices, size)));
        }
        // Refused where there is no balloon.
        let Some(balloon) = or_none_if_refused(self.execute(commands::QueryBalloon {}).await)? else {
            return Ok(None);
        };
        let size = self.execute(commands::QueryMemorySizeSummary {}).await?;
        let most = size.base_memory.saturating_add(size.plugged_memory.unwrap_or(0));
        Ok(Some(GuestMemory {
            now: balloon.actual,
            requested: ballooned.unwrap_or(balloon.actual),
            least: LEAST_BALLOONED.min(most),
            most,
            step: BALLOON_STEP,
        }))
    }

    /// Requests so much memory for the guest. Returns whether that is for a balloon.
    pub(crate) async fn resize_memory(&mut self, to: u64) -> Result<bool, Error> {
        let devices = or_none_if_refused(self.execute(commands::QueryMemoryDevices {}).await)?;
        let devices = virtio_mem(devices.unwrap_or_default());
        if devices.is_empty() {
            self.execute(commands::Balloon { value: to }).await?;
            return Ok(true);
        }
        let size = self.execute(commands::QueryMemorySizeSummary {}).await?;
        for (id, value) in shares(&devices, plugged(&devices, size).least, to) {
            let path = &format!("/machine/peripheral/{id}");
            let property = "requested-size";
            self.execute(commands::QomSet { path, property, value }).await?;
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn devices(text: &str) -> Vec<VirtioMem> {
        virtio_mem(serde_json::from_str(text).unwrap())
    }

    /// As QEMU 10.0 answers it.
    const TWO: &str = r#"[
        {"type":"dimm","data":{"addr":1,"slot":0,"node":0,"memdev":"/objects/a","id":"d","hotpluggable":true,"hotplugged":false,"size":134217728}},
        {"type":"virtio-mem","data":{"memdev":"/objects/b","block-size":2097152,"memaddr":5368709120,"requested-size":67108864,
            "max-size":268435456,"size":33554432,"node":0,"id":"vm0"}},
        {"type":"virtio-mem","data":{"memdev":"/objects/c","block-size":4194304,"memaddr":6368709120,"requested-size":0,
            "max-size":134217728,"size":0,"node":1,"id":"vm1"}},
        {"type":"virtio-mem","data":{"memdev":"/objects/c","block-size":4194304,"memaddr":6368709120,"requested-size":0,"max-size":9,"size":0,"node":1}},
        {"type":"new-in-qemu-99","data":{"size":7}}]"#;

    #[test]
    fn what_virtio_mem_has_is_on_top_of_what_the_guest_was_started_with() {
        let devices = devices(TWO);
        let size = MemorySize {
            base_memory: 512 * MIB,
            plugged_memory: Some((128 + 32) * MIB),
        };
        let expected = GuestMemory {
            now: 672 * MIB,
            requested: 704 * MIB,
            least: 640 * MIB,
            most: (640 + 384) * MIB,
            step: 4 * MIB,
        };
        assert_eq!(plugged(&devices, size), expected);
    }

    #[test]
    fn the_first_device_is_filled_first_and_the_last_emptied_first() {
        let mut devices = devices(TWO);
        let least = 640 * MIB;
        let at = |devices: &[VirtioMem], mib: u64| {
            let shares = shares(devices, least, least + mib * MIB);
            let text = shares.iter().map(|(id, size)| format!("{id}={}", size / MIB));
            text.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(at(&devices, 64), "");
        assert_eq!(at(&devices, 128), "vm0=128");
        assert_eq!(at(&devices, 300), "vm0=256 vm1=44");
        assert_eq!(at(&devices, 1000), "vm0=256 vm1=128");
        assert_eq!(at(&devices, 0), "vm0=0");
        devices[1].requested_size = 100 * MIB;
        assert_eq!(at(&devices, 100), "vm1=36");
        assert_eq!(at(&devices, 20), "vm0=20 vm1=0");
    }
}
