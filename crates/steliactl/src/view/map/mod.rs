//! `map`: the node drawn, from sockets down to CPUs, each CPU marked by its owner and the owner's state.
//!
//! `gather` puts together what the daemon describes and what sysfs has on memory and caches; drawing is apart from it: [`text`] for a
//! terminal, [`picture`] for SVG, both with the signs of [`marks`].

mod marks;
mod picture;
mod sys;
#[cfg(test)]
mod tests;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use stelia_api::Reason;
use stelia_cpus::CpuSet;
use stelia_kernel::locality::{Device, Locality, MemoryPlace};
use stelia_kubelet::PodUid;
use stelia_model::Instance;

use self::marks::Pool;
use self::sys::Cache;
use crate::shared::daemon::{self, Description, Failure, Owner, is_reported, owner};
use crate::shared::kernel::locality;
use crate::shared::kernel::{Roots, host_name};
use crate::shared::located::clock;
use crate::shared::output::{self, Render, TextStyle, counted};

/// What is drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Map {
    /// The node's host name; empty where it cannot be read.
    host: String,
    /// When it was gathered, microseconds since the epoch.
    time_us: u64,
    /// The NUMA nodes with CPUs, with their memory in bytes where sysfs has it.
    nodes: BTreeMap<u32, Option<u64>>,
    caches: Vec<Cache>,
    /// By socket, NUMA node, L3 cache and first CPU.
    cores: Vec<Core>,
    /// By first CPU.
    pods: Vec<Pod>,
    /// CPUs of VMs that device interrupts reach, as the daemon reports.
    interrupted: CpuSet,
    /// They have no place on the map: the kernel does not say where they are.
    offline: CpuSet,
    /// Why kubelet's devices are not known.
    devices_unknown: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Core {
    socket: u32,
    node: u32,
    /// Its L3 cache in [`Map::caches`].
    cache: Option<usize>,
    /// Core, within the socket.
    core: u32,
    cpus: Vec<Cpu>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Cpu {
    number: u32,
    whose: CpuOwner,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CpuOwner {
    /// No pod's that is drawn.
    Pool(&'static Pool),
    /// A pod's, by its place in [`Map::pods`].
    Pod(usize),
}

/// A VM's pod, or another one with CPUs of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pod {
    pod: daemon::Pod,
    /// `None`: the pod has no VM.
    instance: Option<Arc<Instance>>,
    cpus: CpuSet,
    devices: Vec<Device>,
    /// NUMA nodes from which devices are remote.
    remote: BTreeSet<u32>,
}

impl Pod {
    /// Whether a device of the pod is on another NUMA node than its CPUs.
    fn is_remote(&self, device: &Device) -> bool {
        device.node.is_some_and(|node| self.remote.contains(&node))
    }

    /// The reasons of degradation.
    fn degraded(&self) -> Vec<String> {
        let reasons = self.instance.iter().flat_map(|instance| &instance.degraded);
        reasons.map(Reason::to_string).collect()
    }

    fn state(&self) -> String {
        let Some(instance) = &self.instance else {
            return "no VM".to_owned();
        };
        let degraded = if instance.degraded.is_empty() { "" } else { "degraded" };
        let words = [instance.state.name(), instance.class(), degraded];
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        words.join(", ")
    }
}

/// Cores of one NUMA node in one socket.
struct CoreGroup<'a> {
    socket: u32,
    node: u32,
    cores: &'a [Core],
    /// Whether it is the NUMA node's first: the others are in other sockets.
    is_first: bool,
}

impl<'a> CoreGroup<'a> {
    /// By their L3 cache.
    fn by_cache(&self) -> impl Iterator<Item = &'a [Core]> + use<'a> {
        self.cores.chunk_by(|a, b| a.cache == b.cache)
    }
}

impl Map {
    fn places(&self) -> impl Iterator<Item = CoreGroup<'_>> {
        let mut seen = BTreeSet::new();
        let places = self.cores.chunk_by(|a, b| (a.socket, a.node) == (b.socket, b.node));
        places.filter_map(move |cores| {
            let Core { socket, node, .. } = *cores.first()?;
            Some(CoreGroup {
                socket,
                node,
                cores,
                is_first: seen.insert(node),
            })
        })
    }

    fn cpus(&self) -> impl Iterator<Item = &Cpu> {
        self.cores.iter().flat_map(|core| &core.cpus)
    }

    fn cache(&self, cores: &[Core]) -> Option<&Cache> {
        self.caches.get(cores.first()?.cache?)
    }

    /// The devices of pods on this NUMA node; `None`: those on a node that has no CPUs. Devices on no NUMA node, such as
    /// `/dev/kvm`, have no place on a map.
    fn devices(&self, node: Option<u32>) -> impl Iterator<Item = (usize, &Device)> {
        let all = (0..).zip(&self.pods);
        let all = all.flat_map(|(n, pod)| pod.devices.iter().map(move |device| (n, device)));
        all.filter(move |(_, device)| {
            let with_cpus = device.node.filter(|node| self.nodes.contains_key(node));
            device.node.is_some() && with_cpus == node
        })
    }

    /// "2026-10-31 12:34:56 UTC, 512 CPUs, 2 offline (8-9), 2 sockets, 8 NUMA nodes".
    fn extent(&self) -> String {
        let sockets: BTreeSet<u32> = self.cores.iter().map(|core| core.socket).collect();
        let count = |count: usize, what| counted(count as u64, what);
        let offline = match self.offline.len() {
            0 => String::new(),
            count => format!(", {count} offline ({})", self.offline),
        };
        format!(
            "{} UTC, {}{offline}, {}, {}",
            clock(Some(self.time_us)),
            count(self.cpus().count() + self.offline.len(), "CPU"),
            count(sockets.len(), "socket"),
            count(self.nodes.len(), "NUMA node")
        )
    }

    /// Writes the picture to a file; `-` is standard output, for which it is returned.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write_svg(&self, path: &Path) -> Result<String, Failure> {
        let picture = picture::svg(self).map_err(|cause| Failure::Other(format!("draw the map: {cause}")))?;
        if path == Path::new("-") {
            return Ok(picture);
        }
        match fs::write(path, picture) {
            Ok(()) => Ok(String::new()),
            Err(cause) => Err(Failure::Other(format!("write {}: {cause}", path.display()))),
        }
    }

    /// The pod, its mark on the map, and the state of its VM; null where there is none. `more` is added.
    fn identity(&self, n: Option<usize>, more: Value) -> Value {
        let pod = n.and_then(|n| Some((n, self.pods.get(n)?)));
        let named = pod.map(|(_, pod)| &pod.pod);
        let instance = pod.and_then(|(_, pod)| pod.instance.as_ref());
        let mut object = json!({
            "mark": pod.map(|(n, _)| marks::mark(n)),
            "pod_uid": named.map(|pod| &pod.pod_uid),
            "pod_namespace": named.map(|pod| &pod.pod_namespace),
            "pod_name": named.map(|pod| &pod.pod_name),
            "container": instance.map(|instance| &instance.container),
            "state": instance.map(|instance| &instance.state),
        });
        if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
            object.extend(more);
        }
        object
    }
}

impl Serialize for Map {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let cpu = |cpu: &Cpu| {
            let (pod, owner) = match cpu.whose {
                CpuOwner::Pool(pool) => (None, pool.name),
                CpuOwner::Pod(n) if self.pods.get(n).is_some_and(|pod| pod.instance.is_some()) => (Some(n), "instance"),
                CpuOwner::Pod(n) => (Some(n), "pod"),
            };
            let interrupted = self.interrupted.contains(cpu.number);
            self.identity(
                pod,
                json!({ "cpu": cpu.number, "owner": owner, "interrupted": interrupted }),
            )
        };
        let core = |core: &Core| {
            json!({
                "socket": core.socket, "node": core.node, "core": core.core,
                "l3": core.cache.and_then(|cache| self.caches.get(cache)).map(|cache| &cache.cpus),
                "cpus": core.cpus.iter().map(cpu).collect::<Vec<_>>(),
            })
        };
        let pod = |(n, pod): (usize, &Pod)| {
            let device = |device: &Device| json!({ "name": device.name, "node": device.node, "count": device.count, "remote": pod.is_remote(device) });
            let class = pod.instance.as_ref().map(|instance| instance.class());
            let more = json!({
                "cpus": pod.cpus,
                "class": class.filter(|class| !class.is_empty()),
                "degraded": pod.degraded(),
                "devices": pod.devices.iter().map(device).collect::<Vec<_>>(),
            });
            self.identity(Some(n), more)
        };
        let node = |(node, bytes): (&u32, &Option<u64>)| json!({ "node": node, "memory_bytes": bytes });
        let cache = |cache: &Cache| json!({ "level": 3, "cpus": cache.cpus, "size_bytes": cache.bytes });
        json!({
            "host": self.host,
            "time_us": self.time_us,
            "nodes": self.nodes.iter().map(node).collect::<Vec<_>>(),
            "caches": self.caches.iter().map(cache).collect::<Vec<_>>(),
            "cores": self.cores.iter().map(core).collect::<Vec<_>>(),
            "pods": self.pods.iter().enumerate().map(pod).collect::<Vec<_>>(),
            "devices_unknown": self.devices_unknown,
        })
        .serialize(serializer)
    }
}

impl Render for Map {
    fn text(&self, style: TextStyle) -> String {
        text::draw(self, style)
    }
}

/// The node as the daemon describes it, with what sysfs has. What cannot be read is left out of the map. Only the pods with these UIDs have
/// marks; `None`: all.
pub(crate) fn gather(description: &Description, roots: &Roots, selected: Option<&BTreeSet<String>>) -> Map {
    let pods = pods(description, roots, selected);
    let topology = &description.node.topology;
    let caches = sys::caches(&roots.sys, topology);
    let nodes: BTreeSet<u32> = topology.cpus.values().map(|cpu| cpu.node).collect();
    let remaining = description.node.quiet.report.remaining.iter();
    let reported = remaining.filter(|one| is_reported(description, one));
    Map {
        host: host_name(&roots.proc),
        time_us: output::now(),
        nodes: nodes
            .into_iter()
            .map(|node| (node, sys::memory(&roots.sys, node)))
            .collect(),
        cores: cores(description, &pods, &caches),
        caches,
        pods,
        interrupted: reported.fold(CpuSet::new(), |all, one| all.union(&one.cpus)),
        offline: description.node.offline.clone(),
        devices_unknown: description.locality.devices_unknown.clone(),
    }
}

fn cores(description: &Description, pods: &[Pod], caches: &[Cache]) -> Vec<Core> {
    let places = pods.iter().zip(0..).map(|(pod, n)| (pod.pod.pod_uid.as_str(), n));
    let places: BTreeMap<&str, usize> = places.collect();
    let mut cores: BTreeMap<(u32, u32, u32), Vec<Cpu>> = BTreeMap::new();
    for (number, cpu) in &description.node.topology.cpus {
        let whose = match owner(description, *number) {
            Owner::Shared => CpuOwner::Pool(&marks::SHARED),
            Owner::Reserved => CpuOwner::Pool(&marks::RESERVED),
            Owner::Kubelet => CpuOwner::Pool(&marks::KUBELET),
            Owner::Unknown => CpuOwner::Pool(&marks::UNKNOWN),
            Owner::Instance { pod, .. } | Owner::Pod { pod } => match places.get(pod.as_str()) {
                Some(place) => CpuOwner::Pod(*place),
                None => CpuOwner::Pool(&marks::OTHER),
            },
        };
        let core = cores.entry((cpu.package, cpu.node, cpu.core)).or_default();
        core.push(Cpu { number: *number, whose });
    }
    let cores = cores.into_iter().map(|((socket, node, core), cpus)| Core {
        socket,
        node,
        cache: caches
            .iter()
            .position(|cache| cpus.iter().any(|cpu| cache.cpus.contains(cpu.number))),
        core,
        cpus,
    });
    let mut cores: Vec<Core> = cores.collect();
    cores.sort_by_key(|core| {
        let first = core.cpus.first().map(|cpu| cpu.number);
        (core.socket, core.node, core.cache, first)
    });
    cores
}

/// The VFIO devices by their names, and kubelet's devices that are none of these.
fn devices(locality: &Locality) -> Vec<Device> {
    let of_pci = locality.pci.iter().map(|device| Device {
        name: device.name(),
        node: device.node,
        count: 1,
    });
    let is_pci = |resource: &str| locality.pci.iter().any(|one| one.resource.as_deref() == Some(resource));
    let of_kubelet = locality.devices.iter().filter(|device| !is_pci(&device.name)).cloned();
    of_kubelet.chain(of_pci).collect()
}

/// The VMs, and other pods to which kubelet gave CPUs, by their first CPUs, so that the marks ascend along the map.
fn pods(description: &Description, roots: &Roots, selected: Option<&BTreeSet<String>>) -> Vec<Pod> {
    let node = &description.node;
    let uids: BTreeSet<&PodUid> = node.instances.keys().chain(node.entries.keys()).collect();
    let uids = uids
        .into_iter()
        .filter(|uid| selected.is_none_or(|selected| selected.contains(uid.as_str())));
    let pods = uids.map(|uid| {
        let found = node.instances.get(uid);
        let containers = node.entries.get(uid).into_iter().flat_map(BTreeMap::values);
        let mut locality = description
            .locality
            .instances
            .get(uid.as_str())
            .cloned()
            .unwrap_or_default();
        if let Some(instance) = found {
            locality::add_vfio_devices(&mut locality, &node.topology, roots, &instance.scope);
        }
        let devices = devices(&locality);
        let places = devices.iter().filter_map(|device| device.node);
        let is_remote = |node: &u32| !locality.nodes.is_empty() && locality.place(*node) == MemoryPlace::Remote;
        Pod {
            pod: daemon::Pod::new(uid, found.and_then(|found| found.pod_name.as_ref())),
            instance: found.cloned(),
            cpus: match found {
                Some(found) => found.exclusive.clone(),
                None => containers.fold(CpuSet::new(), |all, cpus| all.union(cpus)),
            },
            remote: places.filter(is_remote).collect(),
            devices,
        }
    });
    let mut pods: Vec<Pod> = pods.collect();
    // Those without CPUs come last. Equal ones stay in the order of their UIDs.
    pods.sort_by_key(|pod| pod.cpus.iter().next().unwrap_or(u32::MAX));
    pods
}
