//! `map`: the node drawn, from sockets down to CPUs, each CPU marked by its owner and the owner's state.
//!
//! `gather` puts together what the daemon describes and what sysfs has on memory and caches; drawing is apart from it:
//! [`text`] for a terminal, [`layout`] for [boxes](boxes::Shape), which [`svg`] writes.

mod boxes;
mod json;
mod layout;
mod marks;
mod svg;
mod sys;
#[cfg(test)]
mod tests;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use stelia_api::Reason;
use stelia_cpus::CpuSet;
use stelia_kernel::locality::{Device, Locality, MemoryPlace};
use stelia_kubelet::PodUid;
use stelia_model::Instance;

use crate::shared::daemon::{self, Description, Failure, Owner, is_reported, owner};
use crate::shared::kernel::locality;
use crate::shared::kernel::{Roots, host_name};
use crate::shared::output::{self, Render, TextStyle};

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

/// An L3 cache.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cache {
    /// The CPUs that share it.
    cpus: CpuSet,
    bytes: Option<u64>,
    /// Whether these are CPUs of more than one NUMA node, as with Intel's sub-NUMA clusters.
    spans: bool,
}

impl Cache {
    /// "L3 32.0 MiB".
    fn title(&self) -> String {
        let bytes = self
            .bytes
            .map(|bytes| format!(" {}", stelia_kernel::locality::size(bytes)));
        let spans = if self.spans { " of several NUMA nodes" } else { "" };
        format!("L3{}{spans}", bytes.unwrap_or_default())
    }
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CpuOwner {
    Shared,
    Reserved,
    /// kubelet assigned it to a container that its file no longer lists.
    Kubelet,
    Unknown,
    /// A pod's that is not selected.
    Other,
    /// A pod's, by its place in [`Map::pods`].
    Pod(usize),
}

/// A pod with an instance or with CPUs of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pod {
    pod: daemon::Pod,
    /// `None`: the pod has no instance.
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
            return "no instance".to_owned();
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

impl Map {
    fn places(&self) -> Vec<CoreGroup<'_>> {
        let mut seen = BTreeSet::new();
        let places = self.cores.chunk_by(|a, b| (a.socket, a.node) == (b.socket, b.node));
        let places = places.filter_map(|cores| {
            let first = cores.first()?;
            let (socket, node, is_first) = (first.socket, first.node, seen.insert(first.node));
            Some(CoreGroup {
                socket,
                node,
                cores,
                is_first,
            })
        });
        places.collect()
    }

    fn cpus(&self) -> impl Iterator<Item = &Cpu> {
        self.cores.iter().flat_map(|core| &core.cpus)
    }

    /// The devices of pods on this NUMA node; `None`: those on a node that has no CPUs. Devices on no NUMA node, such as
    /// `/dev/kvm`, have no place on a map.
    fn devices(&self, node: Option<u32>) -> impl Iterator<Item = (usize, &Device)> {
        let all = self.pods.iter().enumerate();
        let all = all.flat_map(|(n, pod)| pod.devices.iter().map(move |device| (n, device)));
        all.filter(move |(_, device)| {
            let with_cpus = device.node.filter(|node| self.nodes.contains_key(node));
            device.node.is_some() && with_cpus == node
        })
    }

    /// "512 CPUs, 2 offline (8-9), 2 sockets, 8 NUMA nodes".
    fn extent(&self) -> String {
        let sockets: BTreeSet<u32> = self.cores.iter().map(|core| core.socket).collect();
        let cpus = self.cpus().count() + self.offline.len();
        let parts = [
            (cpus, "CPU"),
            (sockets.len(), "socket"),
            (self.nodes.len(), "NUMA node"),
        ];
        let parts = parts.map(|(count, what)| format!("{count} {what}{}", if count == 1 { "" } else { "s" }));
        let [cpus, sockets, nodes] = parts;
        let offline = match self.offline.len() {
            0 => String::new(),
            count => format!(", {count} offline ({})", self.offline),
        };
        format!("{cpus}{offline}, {sockets}, {nodes}")
    }

    /// When it was gathered, to the second.
    fn time(&self) -> String {
        let time = output::time(self.time_us);
        let whole = time.split('.').next().unwrap_or_default();
        format!("{} UTC", whole.replace('T', " "))
    }

    /// With marks for these pods alone, given by UID; `None`: for all.
    pub(crate) fn only(mut self, uids: Option<&BTreeSet<String>>) -> Self {
        let Some(uids) = uids else {
            return self;
        };
        let selected = |pod: &Pod| uids.contains(&pod.pod.pod_uid);
        let mut count = 0;
        let places: Vec<Option<usize>> = self
            .pods
            .iter()
            .map(|pod| {
                selected(pod).then(|| {
                    count += 1;
                    count - 1
                })
            })
            .collect();
        for cpu in self.cores.iter_mut().flat_map(|core| &mut core.cpus) {
            if let CpuOwner::Pod(at) = cpu.whose {
                let place = places.get(at).copied().flatten();
                cpu.whose = place.map_or(CpuOwner::Other, CpuOwner::Pod);
            }
        }
        self.pods.retain(selected);
        self
    }

    pub(crate) fn svg(&self) -> String {
        svg::file(self)
    }
}

impl Render for Map {
    fn text(&self, style: TextStyle) -> String {
        let paper = text::Paper {
            width: style.width.unwrap_or_else(output::width),
            cut: style.width.is_some(),
            coloured: style.coloured,
            legend: style.legend,
        };
        text::draw(self, &paper)
    }
}

/// Writes a picture to a file; `-` is standard output, for which it is returned.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write(picture: String, path: &Path) -> Result<String, Failure> {
    if path == Path::new("-") {
        return Ok(picture);
    }
    match fs::write(path, picture) {
        Ok(()) => Ok(String::new()),
        Err(cause) => Err(Failure::Other(format!("write {}: {cause}", path.display()))),
    }
}

/// The node as the daemon describes it, with what sysfs has. What cannot be read is left out of the map.
pub(crate) fn gather(description: &Description, roots: &Roots) -> Map {
    let pods = pods(description, roots);
    let topology = &description.node.topology;
    let mut caches = sys::caches(&roots.sys, topology.cpus.keys().copied());
    for cache in &mut caches {
        cache.spans = stelia_kernel::locality::nodes(topology, &cache.cpus).len() > 1;
    }
    let nodes: BTreeSet<u32> = topology.cpus.values().map(|cpu| cpu.node).collect();
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
        interrupted: interrupted(description),
        offline: description.node.offline.clone(),
        devices_unknown: description.locality.devices_unknown.clone(),
    }
}

fn interrupted(description: &Description) -> CpuSet {
    let remaining = description.node.quiet.report.remaining.iter();
    let reported = remaining.filter(|one| is_reported(description, one));
    reported.fold(CpuSet::new(), |all, one| all.union(&one.cpus))
}

fn cores(description: &Description, pods: &[Pod], caches: &[Cache]) -> Vec<Core> {
    let places: BTreeMap<&str, usize> = pods
        .iter()
        .zip(0..)
        .map(|(pod, n)| (pod.pod.pod_uid.as_str(), n))
        .collect();
    let place = |uid: &str| places.get(uid).copied().map_or(CpuOwner::Unknown, CpuOwner::Pod);
    let mut cores: BTreeMap<(u32, u32, u32), Vec<Cpu>> = BTreeMap::new();
    for (number, cpu) in &description.node.topology.cpus {
        let whose = match owner(description, *number) {
            Owner::Shared => CpuOwner::Shared,
            Owner::Reserved => CpuOwner::Reserved,
            Owner::Kubelet => CpuOwner::Kubelet,
            Owner::Unknown => CpuOwner::Unknown,
            Owner::Instance { pod, .. } | Owner::Pod { pod } => place(&pod),
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
    let pci = locality.pci.iter();
    let of_pci = pci.map(|device| Device {
        name: device.name(),
        node: device.node,
        count: 1,
    });
    let is_pci = |resource: &str| locality.pci.iter().any(|one| one.resource.as_deref() == Some(resource));
    let of_kubelet = locality.devices.iter().filter(|device| !is_pci(&device.name)).cloned();
    of_kubelet.chain(of_pci).collect()
}

/// The instances, and other pods to which kubelet gave CPUs, by their first CPUs, so that the marks ascend along the map.
fn pods(description: &Description, roots: &Roots) -> Vec<Pod> {
    let node = &description.node;
    let uids: BTreeSet<&PodUid> = node.instances.keys().chain(node.entries.keys()).collect();
    let pods = uids.into_iter().map(|uid| {
        let found = node.instances.get(uid);
        let containers = node.entries.get(uid).into_iter().flat_map(BTreeMap::values);
        let mut locality = description
            .locality
            .instances
            .get(uid.as_str())
            .cloned()
            .unwrap_or_default();
        if let Some(instance) = found {
            locality::add_vfio_devices(&mut locality, &node.topology, roots, instance.scope.as_str());
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
