//! What kubelet's device manager knows and decides, without I/O.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use stelia_device_plugin::api::HEALTHY;
use stelia_device_plugin::api::v1beta1::Device;
use thiserror::Error;

use crate::answer::Answer;

/// Why a pod is rejected, in kubelet's words as far as they are known.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// No plugin has registered the resource since the saved state began.
    #[error("cannot allocate unregistered device {0}")]
    Unregistered(String),
    /// The plugin is gone, or says that nothing is healthy.
    #[error("no healthy devices present; cannot allocate unhealthy devices {0}")]
    NoneHealthy(String),
    /// The container has devices, and the plugin calls one of them unhealthy, or lists it no more.
    #[error("previously allocated devices are no longer healthy; cannot allocate unhealthy devices {0}")]
    OwnUnhealthy(String),
    /// Other containers have the rest.
    #[error("requested number of devices unavailable for {resource}. Requested: {requested}, Available: {available}")]
    TooFew {
        resource: String,
        requested: usize,
        available: usize,
    },
    /// kubelet would call the plugin, and holds it for stopped.
    #[error("endpoint {0} has been stopped")]
    Stopped(String),
    /// A container has devices already, and asks for another number.
    #[error("pod {pod} container {container} changed request for resource {resource} from {old} to {new}")]
    Changed {
        pod: String,
        container: String,
        resource: String,
        old: usize,
        new: usize,
    },
}

/// The NUMA nodes of devices, by their IDs, as the plugin's `TopologyInfo` names them.
pub type NumaNodes = BTreeMap<String, BTreeSet<i64>>;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    pub pod: String,
    pub container: String,
    pub resource: String,
    pub devices: BTreeSet<String>,
    /// Those whose plugin names NUMA nodes.
    pub nodes: NumaNodes,
    /// What the plugin answered.
    pub answer: Answer,
}

/// A resource and its plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Resource {
    pub endpoint: String,
    /// Whether no stream of the plugin's devices has ended since it registered. Without one no device is allocated.
    pub connected: bool,
    /// How many lists of devices the plugin that registered last has sent.
    pub lists: u64,
    pub healthy: BTreeSet<String>,
    pub unhealthy: BTreeSet<String>,
    /// The NUMA nodes of the healthy and of the unhealthy ones.
    pub nodes: NumaNodes,
    /// The number of the registration that counts.
    pub registration: u64,
}

/// What outlives a restart of kubelet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    pub resources: BTreeSet<String>,
    pub allocations: Vec<Allocation>,
}

/// A container at the admission of its pod.
#[derive(Debug, Clone, Copy)]
pub struct Container<'a> {
    pub pod: &'a str,
    pub name: &'a str,
}

/// Whether a container needs a call to the plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// It has its devices already.
    Allocated(Answer),
    /// These are to be asked for.
    Devices(BTreeSet<String>),
}

#[derive(Debug, Default, Serialize)]
pub struct Manager {
    /// How many registrations were accepted since the start.
    pub registrations: u64,
    pub resources: BTreeMap<String, Resource>,
    pub allocations: Vec<Allocation>,
}

impl Manager {
    /// As after a start of kubelet: resources without devices until their plugins register.
    pub fn new(saved: Saved) -> Self {
        let names = saved.resources.into_iter();
        Self {
            registrations: 0,
            resources: names.map(|name| (name, Resource::default())).collect(),
            allocations: saved.allocations,
        }
    }

    pub fn saved(&self) -> Saved {
        Saved {
            resources: self.resources.keys().cloned().collect(),
            allocations: self.allocations.clone(),
        }
    }

    /// A plugin registered: the number of its registration. Devices stay as they were until it lists its own.
    pub fn register(&mut self, name: &str, endpoint: &str) -> u64 {
        self.registrations += 1;
        let resource = self.resources.entry(name.to_owned()).or_default();
        endpoint.clone_into(&mut resource.endpoint);
        resource.registration = self.registrations;
        resource.connected = true;
        resource.lists = 0;
        self.registrations
    }

    /// The plugin of this registration sent its devices. As kubelet, whether or not the plugin has registered once more since.
    pub fn list(&mut self, name: &str, registration: u64, devices: Vec<Device>) {
        let Some(resource) = self.resources.get_mut(name) else {
            return;
        };
        resource.lists += u64::from(resource.registration == registration);
        resource.nodes = devices.iter().filter_map(numa_nodes).collect();
        let (healthy, unhealthy): (Vec<Device>, Vec<Device>) =
            devices.into_iter().partition(|device| device.health == HEALTHY);
        let ids = |devices: Vec<Device>| devices.into_iter().map(|device| device.id).collect();
        resource.healthy = ids(healthy);
        resource.unhealthy = ids(unhealthy);
    }

    /// A stream of the resource's plugin ended: its devices stay, and none can be allocated until a plugin registers. As kubelet, which does not
    /// ask whose stream it was: a plugin that registers once more must have ended its older stream before.
    pub fn disconnect(&mut self, name: &str) {
        if let Some(resource) = self.resources.get_mut(name) {
            resource.connected = false;
            resource.unhealthy.append(&mut resource.healthy);
        }
    }

    /// Which devices a container would get. As kubelet 1.36: a container that has devices and does not run, as after a reboot of the node,
    /// is admitted only once the plugin has registered, and while its devices are healthy.
    pub fn choose(&self, container: Container<'_>, resource: &str, count: usize) -> Result<Choice, Refusal> {
        let of_container =
            |one: &&Allocation| one.pod == container.pod && one.container == container.name && one.resource == resource;
        let own = self.allocations.iter().find(of_container);
        if let Some(old) = own.map(|own| own.devices.len()).filter(|old| *old != count) {
            return Err(Refusal::Changed {
                pod: container.pod.to_owned(),
                container: container.name.to_owned(),
                resource: resource.to_owned(),
                old,
                new: count,
            });
        }
        let answer = own.map(|own| own.answer.clone());
        let Some(registered) = self.resources.get(resource) else {
            return Err(Refusal::Unregistered(resource.to_owned()));
        };
        if registered.healthy.is_empty() {
            return Err(Refusal::NoneHealthy(resource.to_owned()));
        }
        if own.is_some_and(|own| !own.devices.is_subset(&registered.healthy)) {
            return Err(Refusal::OwnUnhealthy(resource.to_owned()));
        }
        if let Some(answer) = answer {
            return Ok(Choice::Allocated(answer));
        }
        let allocations = self.allocations.iter().filter(|one| one.resource == resource);
        let taken: BTreeSet<&String> = allocations.flat_map(|one| &one.devices).collect();
        let mut free = registered.healthy.iter().filter(|id| !taken.contains(id));
        let chosen: BTreeSet<String> = free.by_ref().take(count).cloned().collect();
        if chosen.len() < count {
            return Err(Refusal::TooFew {
                resource: resource.to_owned(),
                requested: count,
                available: chosen.len(),
            });
        }
        if registered.connected {
            Ok(Choice::Devices(chosen))
        } else {
            Err(Refusal::Stopped(registered.endpoint.clone()))
        }
    }

    /// The NUMA nodes of these devices, as far as the plugin names them.
    pub fn nodes(&self, resource: &str, devices: &BTreeSet<String>) -> NumaNodes {
        let known = self.resources.get(resource).into_iter().flat_map(|one| &one.nodes);
        let of_these = known.filter(|(id, _)| devices.contains(*id));
        of_these.map(|(id, nodes)| (id.clone(), nodes.clone())).collect()
    }

    /// The plugin has answered for a container.
    pub fn allocate(&mut self, allocation: Allocation) {
        self.allocations.push(allocation);
    }

    pub fn free(&mut self, pod: &str) {
        self.allocations.retain(|one| one.pod != pod);
    }
}

/// `None` of a device without any, which kubelet holds for one of no node.
fn numa_nodes(device: &Device) -> Option<(String, BTreeSet<i64>)> {
    let nodes = device.topology.iter().flat_map(|topology| &topology.nodes);
    let nodes: BTreeSet<i64> = nodes.map(|node| node.id).collect();
    (!nodes.is_empty()).then(|| (device.id.clone(), nodes))
}

#[cfg(test)]
mod tests {
    use stelia_device_plugin::api::UNHEALTHY;

    use super::*;

    const VM: &str = "stelia.io/vm";

    fn devices(healthy: &[&str], unhealthy: &[&str]) -> Vec<Device> {
        let device = |id: &&str, health: &str| Device {
            id: (*id).to_owned(),
            health: health.to_owned(),
            topology: None,
        };
        let healthy = healthy.iter().map(|id| device(id, HEALTHY));
        healthy
            .chain(unhealthy.iter().map(|id| device(id, UNHEALTHY)))
            .collect()
    }

    fn set(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    fn with_two() -> (Manager, u64) {
        let mut manager = Manager::default();
        let registration = manager.register(VM, "vm.sock");
        manager.list(VM, registration, devices(&["vm-0", "vm-1"], &[]));
        (manager, registration)
    }

    /// It does not run yet.
    fn instance(pod: &str) -> Container<'_> {
        let name = "instance";
        Container { pod, name }
    }

    fn give(manager: &mut Manager, pod: &str) -> Result<BTreeSet<String>, Refusal> {
        let Choice::Devices(devices) = manager.choose(instance(pod), VM, 1)? else {
            panic!("{pod} has devices already");
        };
        manager.allocate(Allocation {
            pod: pod.to_owned(),
            container: "instance".to_owned(),
            resource: VM.to_owned(),
            devices: devices.clone(),
            nodes: NumaNodes::new(),
            answer: Answer::default(),
        });
        Ok(devices)
    }

    #[test]
    fn the_late_end_of_an_older_stream_stops_the_newer_registration() {
        let (mut manager, _) = with_two();
        let new = manager.register(VM, "vm.sock");
        manager.list(VM, new, devices(&["vm-0"], &[]));
        manager.disconnect(VM);
        assert!(!manager.resources[VM].connected);
        assert_eq!(manager.resources[VM].unhealthy, set(&["vm-0"]));
        // A list does not help, and a registration does.
        manager.list(VM, new, devices(&["vm-0"], &[]));
        let stopped = Err(Refusal::Stopped("vm.sock".to_owned()));
        assert_eq!(manager.choose(instance("a"), VM, 1), stopped);
        let newest = manager.register(VM, "vm.sock");
        manager.list(VM, newest, devices(&["vm-0"], &[]));
        assert_eq!(give(&mut manager, "a"), Ok(set(&["vm-0"])));
    }

    #[test]
    fn after_a_reboot_a_pod_is_admitted_once_its_own_device_is_healthy() {
        let (mut manager, _) = with_two();
        give(&mut manager, "a").unwrap();
        let mut manager = Manager::new(manager.saved());
        let here = Ok(Choice::Allocated(Answer::default()));
        assert_eq!(
            manager.choose(instance("a"), VM, 1),
            Err(Refusal::NoneHealthy(VM.to_owned()))
        );
        let registration = manager.register(VM, "vm.sock");
        for (healthy, unhealthy) in [(&["vm-1"], &["vm-0"][..]), (&["vm-1"], &[][..])] {
            manager.list(VM, registration, devices(healthy, unhealthy));
            let refusal = manager.choose(instance("a"), VM, 1).unwrap_err();
            assert_eq!(refusal, Refusal::OwnUnhealthy(VM.to_owned()));
        }
        manager.list(VM, registration, devices(&["vm-0", "vm-1"], &[]));
        assert_eq!(manager.choose(instance("a"), VM, 1), here);
        // Without the state of an earlier kubelet nothing is known of the resource.
        let refusal = Manager::default().choose(instance("a"), VM, 1).unwrap_err();
        assert_eq!(refusal, Refusal::Unregistered(VM.to_owned()));
    }
}
