//! The memory of a guest of Cloud Hypervisor. Firecracker changes none.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;

use super::dialect::{Dialect, Request};
use super::{ApiVmm, Memory};
use crate::error::Error;
use crate::memory::{BALLOON_STEP, GuestMemory, LEAST_BALLOONED};

impl Dialect {
    /// Requests so much memory for the guest; `None` if the VMM cannot change it.
    pub(super) fn resize_memory(self, to: MemoryTarget) -> Option<Request> {
        let body = match to {
            MemoryTarget::Plugged(bytes) => format!(r#"{{"desired_ram": {bytes}}}"#),
            MemoryTarget::Ballooned(bytes) => format!(r#"{{"desired_balloon": {bytes}}}"#),
        };
        match self {
            Dialect::CloudHypervisor => Some(Request {
                body: Cow::Owned(body),
                ..Request::put("vm.resize", "/api/v1/vm.resize")
            }),
            Dialect::Firecracker => None,
        }
    }

    /// The guest's memory, of the answer to [`Dialect::configuration`]; `None` if the VMM cannot change it.
    pub(super) fn memory(self, answer: &[u8]) -> Result<Option<(GuestMemory, MemoryDevice)>, serde_json::Error> {
        match self {
            Dialect::CloudHypervisor => serde_json::from_slice::<MemoryInfo>(answer).map(|info| info.memory()),
            Dialect::Firecracker => Ok(None),
        }
    }
}

impl ApiVmm {
    pub(super) async fn guest_memory(&self) -> Result<Memory, Error> {
        let found = self.memory_and_device().await?;
        Ok(found.map_or_else(
            || Memory::Fixed(self.no_memory_device()),
            |(memory, _)| Memory::Is(memory),
        ))
    }

    /// Returns why the VMM refuses.
    pub(super) async fn request_memory(&self, to: u64) -> Result<Option<String>, Error> {
        let target = self.memory_and_device().await?.map(|(_, device)| device.target(to));
        let Some(request) = target.and_then(|target| self.dialect.resize_memory(target)) else {
            return Ok(Some(self.no_memory_device()));
        };
        match self.ask(&request).await {
            Ok(_) => Ok(None),
            Err(error @ Error::ApiRefused { .. }) => Ok(Some(error.to_string())),
            Err(error) => Err(error),
        }
    }

    async fn memory_and_device(&self) -> Result<Option<(GuestMemory, MemoryDevice)>, Error> {
        let request = self.dialect.configuration();
        let answer = self.ask(&request).await?;
        let memory = self.dialect.memory(&answer);
        memory.map_err(|error| self.failed(request.name, format!("unexpected answer: {error}")))
    }

    /// What the VMM would need to change the guest's memory.
    fn no_memory_device(&self) -> String {
        let name = self.dialect.name();
        match self.dialect {
            Dialect::CloudHypervisor => {
                format!("{name} has neither hotplug_size of --memory nor --balloon, or its memory is in zones")
            }
            Dialect::Firecracker => format!("{name} changes no guest's memory"),
        }
    }
}

/// What changes a guest's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemoryDevice {
    /// `hotplug_size` of `--memory`.
    Hotplug,
    /// `--balloon`, and the memory that it takes from.
    Balloon { whole: u64 },
}

impl MemoryDevice {
    /// The request for a guest that is to have so much memory.
    pub(super) fn target(self, to: u64) -> MemoryTarget {
        match self {
            MemoryDevice::Hotplug => MemoryTarget::Plugged(to),
            MemoryDevice::Balloon { whole } => MemoryTarget::Ballooned(whole.saturating_sub(to)),
        }
    }
}

/// In bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemoryTarget {
    /// The guest's memory.
    Plugged(u64),
    /// The balloon's size.
    Ballooned(u64),
}

/// In such pieces Cloud Hypervisor plugs and unplugs memory.
const VIRTIO_MEM_BLOCK: u64 = 2 << 20;
const ACPI_PIECE: u64 = 128 << 20;

#[derive(Debug, Deserialize)]
struct MemoryInfo {
    config: MemoryVmConfig,
    /// With what virtio-mem has plugged, and without what the balloon has taken.
    memory_actual_size: u64,
}

#[derive(Debug, Deserialize)]
struct MemoryVmConfig {
    memory: MemoryConfig,
    #[serde(default)]
    balloon: Option<BalloonConfig>,
}

#[derive(Debug, Deserialize)]
struct MemoryConfig {
    size: u64,
    #[serde(default)]
    hotplug_method: String,
    #[serde(default)]
    hotplug_size: Option<u64>,
    #[serde(default)]
    hotplugged_size: Option<u64>,
    #[serde(default)]
    zones: Option<Vec<Value>>,
}

#[derive(Debug, Deserialize)]
struct BalloonConfig {
    size: u64,
}

impl MemoryInfo {
    fn memory(&self) -> Option<(GuestMemory, MemoryDevice)> {
        let memory = &self.config.memory;
        // With zones each has its own memory, which vm.resize does not change.
        let has_zones = memory.zones.as_ref().is_some_and(|zones| !zones.is_empty());
        let plugged = memory.size.saturating_add(memory.hotplugged_size.unwrap_or(0));
        if let Some(more) = memory.hotplug_size.filter(|more| *more > 0 && !has_zones) {
            // By ACPI memory is plugged and never unplugged, and becomes part of `size`: that there is no more, the VMM says.
            let (least, step) = match memory.hotplug_method.as_str() {
                "VirtioMem" => (memory.size, VIRTIO_MEM_BLOCK),
                _ => (plugged, ACPI_PIECE),
            };
            let ballooned = self.config.balloon.as_ref().map_or(0, |balloon| balloon.size);
            let memory = GuestMemory {
                now: self.memory_actual_size.saturating_add(ballooned),
                requested: plugged,
                least,
                most: memory.size.saturating_add(more),
                step,
            };
            return Some((memory, MemoryDevice::Hotplug));
        }
        let balloon = self.config.balloon.as_ref().filter(|_| !has_zones)?;
        let memory = GuestMemory {
            now: self.memory_actual_size,
            requested: plugged.saturating_sub(balloon.size),
            least: LEAST_BALLOONED.min(plugged),
            most: plugged,
            step: BALLOON_STEP,
        };
        Some((memory, MemoryDevice::Balloon { whole: plugged }))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use Dialect::{CloudHypervisor, Firecracker};

    fn memory(memory: &str, rest: &str) -> Option<(GuestMemory, MemoryDevice)> {
        let info = format!(
            r#"{{"config":{{"cpus":{{"boot_vcpus":1}},"memory":{memory}{rest}}},"state":"Running","memory_actual_size":768}}"#
        );
        CloudHypervisor.memory(info.as_bytes()).unwrap()
    }

    #[rstest]
    #[case("VirtioMem", 1 << 30, 2 << 20)]
    #[case("Acpi", (1 << 30) + (256 << 20), 128 << 20)]
    fn cloud_hypervisor_unplugs_memory_only_by_virtio_mem(#[case] method: &str, #[case] least: u64, #[case] step: u64) {
        let given = format!(
            r#"{{"size":1073741824,"hotplug_method":"{method}","hotplug_size":2147483648,"hotplugged_size":268435456,"zones":null}}"#
        );
        let (memory, device) = memory(&given, r#","balloon":{"size":0}"#).unwrap();
        let now = (1 << 30) + (256 << 20);
        let expected = GuestMemory {
            now: 768,
            requested: now,
            least,
            most: 3 << 30,
            step,
        };
        assert_eq!((memory, device), (expected, MemoryDevice::Hotplug));
        let request = CloudHypervisor.resize_memory(device.target(now)).unwrap();
        assert_eq!(
            (request.path, &*request.body),
            ("/api/v1/vm.resize", r#"{"desired_ram": 1342177280}"#)
        );
    }

    #[test]
    fn cloud_hypervisors_balloon_takes_from_what_the_guest_was_started_with() {
        let (memory, device) = memory(
            r#"{"size":536870912,"hotplug_method":"Acpi"}"#,
            r#","balloon":{"size":134217728,"deflate_on_oom":true}"#,
        )
        .unwrap();
        assert_eq!((memory.now, memory.requested, memory.most), (768, 384 << 20, 512 << 20));
        let request = CloudHypervisor.resize_memory(device.target(256 << 20)).unwrap();
        assert_eq!(&*request.body, r#"{"desired_balloon": 268435456}"#);
    }

    #[test]
    fn a_vm_without_a_device_keeps_its_memory() {
        assert_eq!(memory(r#"{"size":1}"#, ""), None);
        assert_eq!(
            memory(
                r#"{"size":1,"hotplug_size":9,"zones":[{"id":"a"}]}"#,
                r#","balloon":{"size":0}"#
            ),
            None
        );
        assert_eq!(Firecracker.memory(b"{}").unwrap(), None);
        assert_eq!(Firecracker.resize_memory(MemoryTarget::Plugged(1)), None);
    }
}
