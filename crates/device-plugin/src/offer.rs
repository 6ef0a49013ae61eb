//! What is offered to kubelet: how many devices, and whether they are healthy.

use stelia_device_plugin_api::messages::{Device, ListAndWatchResponse};
use stelia_device_plugin_api::{HEALTHY, UNHEALTHY};
use stelia_settings::DevicePluginSettings;

/// The largest number of devices, as of the setting `device-plugin-vms`.
const MAX_DEVICES: u32 = 1024;

/// What is known of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Admission {
    /// Why no VM would be admitted; `None` while one would be.
    pub(crate) problem: Option<String>,
    /// For how many VMs the daemon says that the node has room, as it said last; `None` before it has.
    pub(crate) capacity: Option<u32>,
}

/// What kubelet is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Offer {
    /// How many devices there are, healthy or not.
    pub(crate) devices: u32,
    /// Why none of them may be allocated.
    pub(crate) problem: Option<String>,
}

impl Offer {
    pub(crate) fn new(settings: &DevicePluginSettings, admission: &Admission) -> Self {
        let devices = settings.vms.or(admission.capacity);
        let unknown = devices.is_none().then(|| {
            "steliad has not said for how many VMs the node has room; the setting device-plugin-vms replaces that"
                .to_owned()
        });
        Self {
            devices: devices.unwrap_or(0).min(MAX_DEVICES),
            problem: admission.problem.clone().or(unknown),
        }
    }

    /// All devices, in the order of their numbers.
    pub(crate) fn list(&self) -> ListAndWatchResponse {
        let health = match self.problem {
            None => HEALTHY,
            Some(_) => UNHEALTHY,
        };
        let devices = (0..self.devices).map(|number| Device {
            id: id(number),
            health: health.to_owned(),
            topology: None,
        });
        ListAndWatchResponse {
            devices: devices.collect(),
        }
    }

    /// Whether one of the devices has this ID.
    pub(crate) fn has(&self, given: &str) -> bool {
        let number = given.strip_prefix("vm-").and_then(|number| number.parse().ok());
        number.is_some_and(|number| number < self.devices && id(number) == given)
    }
}

/// The ID of a device. kubelet keeps it in its checkpoint, so it never changes.
fn id(number: u32) -> String {
    format!("vm-{number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(vms: Option<u32>, capacity: Option<u32>, problem: Option<&str>) -> Offer {
        let settings = DevicePluginSettings {
            vms,
            ..DevicePluginSettings::default()
        };
        let problem = problem.map(str::to_owned);
        Offer::new(&settings, &Admission { problem, capacity })
    }

    #[test]
    fn the_setting_or_else_the_nodes_room_is_the_number_of_devices() {
        assert_eq!(offer(Some(3), Some(8), None).devices, 3);
        assert_eq!(
            offer(None, Some(8), None),
            Offer {
                devices: 8,
                problem: None
            }
        );
        assert_eq!(offer(None, Some(4096), None).devices, MAX_DEVICES);
        assert_eq!(offer(None, Some(0), None).list().devices, []);
        let unknown = offer(None, None, None);
        assert_eq!(unknown.devices, 0);
        assert!(unknown.problem.unwrap().contains("device-plugin-vms"));
    }

    #[test]
    fn all_devices_are_healthy_or_none_is() {
        let healthy = offer(Some(2), None, None).list();
        let ids: Vec<&str> = healthy.devices.iter().map(|device| device.id.as_str()).collect();
        assert_eq!(ids, ["vm-0", "vm-1"]);
        assert!(healthy.devices.iter().all(|device| device.health == HEALTHY));
        let unhealthy = offer(Some(2), None, Some("steliad does not run")).list();
        assert!(unhealthy.devices.iter().all(|device| device.health == UNHEALTHY));
        assert_eq!(unhealthy.devices.len(), 2);
    }

    #[test]
    fn only_an_id_that_was_listed_is_one() {
        let offer = offer(Some(11), None, None);
        assert!(offer.list().devices.iter().all(|device| offer.has(&device.id)));
        for wrong in [
            "",
            "vm-",
            "vm-11",
            "vm-01",
            "vm-+1",
            "vm--1",
            "vm-1 ",
            "VM-1",
            "1",
            "vm-99999999999",
        ] {
            assert!(!offer.has(wrong), "{wrong:?}");
        }
    }
}
