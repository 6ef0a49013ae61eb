//! The files below `/sys/devices/system/cpu` and `node`, and which CPUs they make one core.
//!
//! The kernel's `core_id` names a core only together with more than the socket: on an Opteron 6000, a SG2042, and multi-die
//! Xeons before Linux 6.9 it repeats in each die. So the host's cores are those of the kernel's own lists of siblings, and
//! kubelet's those that cadvisor counts; where `core_id` does not tell the cores of a socket apart, they are numbered instead.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use super::{Cpu, Topology, list};
use crate::CpuSet;

/// Whose cores are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cores {
    /// The kernel's.
    Kernel,
    /// Those that cadvisor counts, from which kubelet takes them.
    Cadvisor,
}

/// A CPU as its files describe it.
struct Described {
    cpu: u32,
    /// -1 where the architecture has no sockets.
    package: i64,
    /// -1 where the architecture has no cores.
    core_id: i64,
    node: i64,
    core: Core,
}

/// By what the CPUs of one core are recognized, within a socket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Core {
    /// The lowest CPU of the kernel's list of siblings.
    Lowest(u32),
    /// NUMA node, die, or book and drawer of s390, and `core_id`.
    Ids(i64, [i64; 3], i64),
}

pub(super) fn read(sys: &Path, cores: Cores) -> io::Result<Topology> {
    let cpus = sys.join("devices/system/cpu");
    let online = list(&cpus.join("online"))?;
    let nodes = nodes(&sys.join("devices/system/node"))?;
    let describe = |cpu: u32| {
        let folder = cpus.join(format!("cpu{cpu}/topology"));
        let package = id(&folder.join("physical_package_id"))?;
        let core_id = id(&folder.join("core_id"))?;
        let node = match (&nodes, cores) {
            (Some(nodes), _) => nodes.get(&cpu).map_or(0, |node| i64::from(*node)),
            // A kernel without NUMA has no node directories: everything is node 0, and in kubelet every socket is a node.
            (None, Cores::Kernel) => 0,
            (None, Cores::Cadvisor) => package,
        };
        let part = |name: &str| id(&folder.join(name)).unwrap_or(0);
        let core = match cores {
            Cores::Cadvisor => Core::Ids(node, [0, part("book_id"), part("drawer_id")], core_id),
            Cores::Kernel => siblings(&folder, cpu, &online).unwrap_or_else(|| match core_id {
                0.. => Core::Ids(node, ["die_id", "book_id", "drawer_id"].map(part), core_id),
                // Nothing is known of siblings.
                _ => Core::Lowest(cpu),
            }),
        };
        Some(Described {
            cpu,
            package,
            core_id,
            node,
            core,
        })
    };
    let described: Vec<Described> = online.iter().filter_map(describe).collect();
    Ok(numbered(&described))
}

/// The NUMA node of each CPU; `None` where the kernel has no NUMA.
fn nodes(folder: &Path) -> io::Result<Option<BTreeMap<u32, u32>>> {
    let (mut found, mut nodes) = (false, BTreeMap::new());
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let node = name
            .to_str()
            .and_then(|name| name.strip_prefix("node")?.parse::<u32>().ok());
        if let Some(node) = node {
            found = true;
            nodes.extend(list(&entry.path().join("cpulist"))?.iter().map(|cpu| (cpu, node)));
        }
    }
    Ok(found.then_some(nodes))
}

/// The CPU's core by its list of siblings: `core_cpus_list`, before Linux 5.3 `thread_siblings_list`. `None` where the
/// kernel has neither, or one that does not name the CPU itself.
fn siblings(folder: &Path, cpu: u32, online: &CpuSet) -> Option<Core> {
    let read = |name: &str| list(&folder.join(name)).ok();
    let siblings = read("core_cpus_list").or_else(|| read("thread_siblings_list"))?;
    let lowest = siblings.intersection(online).iter().next()?;
    siblings.contains(cpu).then_some(Core::Lowest(lowest))
}

/// The CPUs with ids that are not negative; cores are identified by socket and id.
fn numbered(described: &[Described]) -> Topology {
    // -1 becomes 0, and should other ids occur beside it, they follow in their order.
    let least = |id: fn(&Described) -> i64| described.iter().map(id).min().unwrap_or(0).min(0);
    let (no_package, no_node) = (least(|cpu| cpu.package), least(|cpu| cpu.node));
    let from = |id: i64, least: i64| u32::try_from(id - least).unwrap_or(u32::MAX);
    let mut cores: BTreeMap<i64, BTreeMap<&Core, Vec<&Described>>> = BTreeMap::new();
    for cpu in described {
        let own = cores.entry(cpu.package).or_default();
        own.entry(&cpu.core).or_default().push(cpu);
    }
    let mut cpus = BTreeMap::new();
    for own in cores.into_values() {
        let mut own: Vec<Vec<&Described>> = own.into_values().collect();
        own.sort_by_key(|core| core.first().map(|cpu| cpu.cpu));
        let ids = ids_of(&own);
        for (rank, core) in (0u32..).zip(&own) {
            let number = ids.as_ref().and_then(|ids| ids.get(rank as usize).copied());
            for cpu in core {
                let described = Cpu {
                    package: from(cpu.package, no_package),
                    core: number.unwrap_or(rank),
                    node: from(cpu.node, no_node),
                };
                cpus.insert(cpu.cpu, described);
            }
        }
    }
    Topology { cpus }
}

/// The `core_id` of each of a socket's cores; `None` where these do not tell the cores apart.
fn ids_of(cores: &[Vec<&Described>]) -> Option<Vec<u32>> {
    let mut ids = Vec::new();
    for core in cores {
        let id = core.first()?.core_id;
        let same = core.iter().all(|cpu| cpu.core_id == id);
        ids.push(same.then(|| u32::try_from(id).ok())??);
    }
    let distinct: BTreeSet<&u32> = ids.iter().collect();
    (distinct.len() == ids.len()).then_some(ids)
}

/// A number in a file; -1 is the kernel's word for "none".
fn id(path: &Path) -> Option<i64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}
