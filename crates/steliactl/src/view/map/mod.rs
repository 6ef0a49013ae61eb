//! `map`: the node drawn, from sockets down to CPUs, each CPU marked by its owner and the owner's state.
//!
//! `gather` puts together what the daemon describes and what sysfs has on memory and caches, and chooses what stands for each CPU and pod
//! ([`signs`]). [`text`] and [`picture`] only arrange that.

mod picture;
mod signs;
#[cfg(test)]
mod tests;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde::Serialize;
use stelia_api::Reason;
use stelia_cpus::{CpuSet, Topology};
use stelia_kernel::locality::size;
use stelia_koordinator::report::numa;
use stelia_kubelet::PodUid;

use self::signs::Sign;
use crate::shared::daemon::{self, Condition, Failure, Owner, Selected, former_vms, owner};
use crate::shared::kernel::{Roots, host_name};
use crate::shared::located::clock;
use crate::shared::output::{self, Meaning, Render, TextStyle, counted};

/// What is drawn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Map {
    /// The node's host name; empty where it cannot be read.
    host: String,
    /// When it was gathered, microseconds since the epoch.
    time_us: u64,
    /// What is wrong on the node.
    problems: Vec<Reason>,
    /// Of the NUMA nodes with CPUs, where sysfs has it.
    memory_bytes: BTreeMap<u32, Option<u64>>,
    /// By socket, NUMA node and L3 cache, each in the order of its first CPU.
    cores: Vec<Core>,
    /// By first CPU.
    pods: Vec<Pod>,
    /// They have no place on the map: the kernel does not say where they are.
    offline: CpuSet,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Core {
    socket: u32,
    node: u32,
    /// Its number within the socket.
    core: u32,
    l3: Option<Cache>,
    cpus: Vec<Cpu>,
}

/// An L3 cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Cache {
    /// The CPUs that share it.
    cpus: CpuSet,
    size_bytes: Option<u64>,
}

impl Cache {
    /// "L3 32.0 MiB".
    fn title(&self) -> String {
        let size = self.size_bytes.map(|bytes| format!(" {}", size(bytes)));
        "L3".to_owned() + &size.unwrap_or_default()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Cpu {
    cpu: u32,
    #[serde(flatten)]
    mark: Mark,
}

/// What marks a CPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Mark {
    /// Its pod's letters with the sign of the state, or the sign of those without a pod.
    #[serde(rename = "mark")]
    text: String,
    /// The owner and its state, in words.
    owner: String,
    #[serde(skip)]
    sign: Sign,
    /// The classes of its box on the picture.
    #[serde(skip)]
    class: String,
    #[serde(skip)]
    meaning: Meaning,
}

/// A VM's pod, or another one with CPUs of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Pod {
    #[serde(flatten)]
    pod: daemon::Pod,
    cpus: CpuSet,
    /// In words.
    state: String,
    /// That of its CPUs.
    #[serde(flatten)]
    mark: Mark,
}

impl Map {
    /// "2026-10-31 12:34:56 UTC, 512 CPUs, 2 offline (8-9), 2 sockets, 8 NUMA nodes".
    fn extent(&self) -> String {
        let sockets: BTreeSet<u32> = self.cores.iter().map(|core| core.socket).collect();
        let cpus = self.cores.iter().map(|core| core.cpus.len()).sum::<usize>() + self.offline.len();
        let count = |count: usize, what| counted(count as u64, what);
        let offline = match self.offline.len() {
            0 => String::new(),
            count => format!(", {count} offline ({})", self.offline),
        };
        format!(
            "{} UTC, {}{offline}, {}, {}",
            clock(self.time_us),
            count(cpus, "CPU"),
            count(sockets.len(), "socket"),
            count(self.memory_bytes.len(), "NUMA node")
        )
    }

    /// The signs of all CPUs, and of these pods.
    fn signs<'a>(&self, pods: impl IntoIterator<Item = &'a Pod>) -> BTreeSet<Sign> {
        let cpus = self.cores.iter().flat_map(|core| &core.cpus).map(|cpu| cpu.mark.sign);
        cpus.chain(pods.into_iter().map(|pod| pod.mark.sign)).collect()
    }

    /// The cores of each NUMA node within a socket.
    fn numa_nodes(&self) -> impl Iterator<Item = &[Core]> {
        self.cores.chunk_by(|a, b| (a.socket, a.node) == (b.socket, b.node))
    }

    /// The picture.
    pub(crate) fn svg(&self) -> Result<String, Failure> {
        picture::svg(self).map_err(|cause| Failure::Other(format!("draw the map: {cause}")))
    }
}

impl Render for Map {
    fn text(&self, style: TextStyle) -> String {
        text::draw(self, style)
    }
}

/// The node as the daemon describes it, with what sysfs has. What cannot be read is left out of the map. Only the selected pods have marks.
pub(crate) fn gather(selected: &Selected, roots: &Roots) -> Map {
    let description = &selected.described;
    let node = &description.node;
    let pods = pods(selected);
    let mark = |cpu: u32| {
        let owner = owner(description, cpu);
        let pod = match &owner {
            Owner::Instance { pod, .. } | Owner::Pod { pod } => pods.iter().find(|one| one.pod.pod_uid == *pod),
            // It may be that of a VM that was released.
            Owner::Unknown => pods.iter().find(|one| one.cpus.contains(cpu)),
            _ => None,
        };
        let sign = signs::sign_of_owner(&owner);
        pod.map_or_else(
            || sign.mark(0, sign.meaning.to_owned(), Meaning::Absent),
            |pod| pod.mark.clone(),
        )
    };
    let caches = caches(&roots.sys, &node.topology);
    let mut cores: Vec<Core> = Vec::new();
    for (number, cpu) in &node.topology.cpus {
        let cpu_of_core = Cpu {
            cpu: *number,
            mark: mark(*number),
        };
        let place = (cpu.package, cpu.node, cpu.core);
        match cores.iter_mut().find(|one| (one.socket, one.node, one.core) == place) {
            Some(core) => core.cpus.push(cpu_of_core),
            None => cores.push(Core {
                socket: cpu.package,
                node: cpu.node,
                core: cpu.core,
                l3: caches.iter().find(|cache| cache.cpus.contains(*number)).cloned(),
                cpus: vec![cpu_of_core],
            }),
        }
    }
    let kernel = numa::read(&roots.sys).unwrap_or_default();
    let memory = |node: u32| Some(kernel.get(&node)?.memory?.total);
    Map {
        host: host_name(&roots.proc),
        time_us: output::now(),
        memory_bytes: cores.iter().map(|core| (core.node, memory(core.node))).collect(),
        cores: by_place(cores),
        pods,
        offline: node.offline.clone(),
        problems: description.problems.clone(),
    }
}

/// Cores in the order of their first CPUs, put together by sockets, NUMA nodes and L3 caches, each of which is where its first CPU is: firmware
/// numbers them as it likes.
fn by_place(mut cores: Vec<Core>) -> Vec<Core> {
    let all = cores.clone();
    let first = |is: &dyn Fn(&Core) -> bool| all.iter().position(is);
    cores.sort_by_cached_key(|one| {
        let is_here = |core: &Core| (core.socket, core.node) == (one.socket, one.node);
        let socket = first(&|core| core.socket == one.socket);
        (
            socket,
            first(&is_here),
            first(&|core| is_here(core) && core.l3 == one.l3),
        )
    });
    cores
}

/// The VMs, other pods to which kubelet gave CPUs, and VMs that were released, by their first CPUs, so that the letters ascend along the map.
/// Which letters a pod has does not depend on what is selected.
fn pods(selected: &Selected) -> Vec<Pod> {
    let (description, node) = (&selected.described, &selected.described.node);
    let former: Vec<daemon::Pod> = former_vms(description).map(|(pod, _)| pod).collect();
    let known = node.instances.keys().chain(node.entries.keys()).map(PodUid::as_str);
    let uids: BTreeSet<&str> = known.chain(former.iter().map(|pod| pod.pod_uid.as_str())).collect();
    let all = uids.into_iter().map(|uid| {
        let containers = node.entries.get(uid).into_iter().flat_map(BTreeMap::values);
        let assigned = containers.fold(CpuSet::new(), |all, cpus| all.union(cpus));
        let instance = node.instances.get(uid);
        let (pod, cpus, state) = match (instance, former.iter().find(|pod| pod.pod_uid == uid)) {
            (Some(one), _) => {
                let state = format!("{} {}", Condition::of(one), one.class());
                // Of an evicted VM another pod may have some.
                let is_own = |cpu: &u32| matches!(owner(description, *cpu), Owner::Instance { pod, .. } if pod == uid);
                (
                    daemon::Pod::of(&one.pod, one),
                    one.exclusive.iter().filter(is_own).collect(),
                    state,
                )
            }
            (None, Some(pod)) => {
                let mut all = node.former.iter();
                // While kubelet's file cannot be used.
                let last = all.find(|one| assigned.is_empty() && one.pod.as_str() == uid);
                let cpus = last.map_or(assigned, |one| one.cpus.clone());
                (pod.clone(), cpus, "released or ended".to_owned())
            }
            (None, None) => (daemon::Pod::unnamed(uid), assigned, "no VM".to_owned()),
        };
        (instance, pod, cpus, state.trim_end().to_owned())
    });
    let mut all: Vec<_> = all.collect();
    // Those without CPUs come last. Equal ones stay in the order of their UIDs.
    all.sort_by_key(|(.., cpus, _)| cpus.iter().next().unwrap_or(u32::MAX));
    let is_selected = |uid: &str| {
        let is_former = selected.former.iter().any(|(pod, _)| pod.pod_uid == uid);
        selected.selection.is_all() || is_former || selected.vms.iter().any(|vm| vm.pod.as_str() == uid)
    };
    let selected = (0..).zip(all).filter(|(_, (_, pod, ..))| is_selected(&pod.pod_uid));
    let pods = selected.map(|(number, (instance, pod, cpus, state))| {
        let condition = instance.map(|vm| Condition::of(vm));
        let degraded = instance.iter().flat_map(|one| &one.degraded).map(Reason::to_string);
        let words: Vec<String> = std::iter::once(format!("{pod}, {state}")).chain(degraded).collect();
        let meaning = condition.map(Condition::meaning).unwrap_or_default();
        Pod {
            mark: signs::sign_of_pod(condition).mark(number, words.join("; "), meaning),
            pod,
            cpus,
            state,
        }
    });
    pods.collect()
}

/// The L3 caches; those that the kernel does not describe are left out.
fn caches(sys: &Path, topology: &Topology) -> Vec<Cache> {
    let mut caches: Vec<Cache> = Vec::new();
    for cpu in topology.cpus.keys() {
        // The others that share a cache need not be asked.
        if !caches.iter().any(|cache| cache.cpus.contains(*cpu)) {
            caches.extend(cache(&sys.join(format!("devices/system/cpu/cpu{cpu}/cache"))));
        }
    }
    caches
}

/// The L3 cache among the caches of a CPU. Their numbers are not their levels: a level may have two, or be missing.
fn cache(folder: &Path) -> Option<Cache> {
    let mut entries = fs::read_dir(folder).ok()?.flatten();
    entries.find_map(|entry| {
        let read = |file: &str| fs::read_to_string(entry.path().join(file)).ok();
        let is_third = read("level")?.trim() == "3";
        let cpus: CpuSet = read("shared_cpu_list")?.trim().parse().ok()?;
        // The kernel prints KiB: `32768K`.
        let kib = |size: String| size.trim().strip_suffix('K')?.parse::<u64>().ok()?.checked_mul(1024);
        let size_bytes = read("size").and_then(kib);
        is_third.then_some(Cache { cpus, size_bytes })
    })
}
