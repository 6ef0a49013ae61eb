//! NUMA nodes without CPUs in `/sys/devices/system/node` (Documentation/ABI/stable/sysfs-devices-node, admin-guide/mm/numaperf.rst).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use stelia_cpus::{CpuSet, NodeSet};

use crate::locality::memory_only::nearest;
use crate::locality::{MemoryKind, MemoryOnlyNode};

/// All of a host; on most there is none, and two files are read. `root` is `/`.
pub(in crate::locality) fn nodes(root: &Path) -> BTreeMap<u32, MemoryOnlyNode> {
    let folder = root.join("sys/devices/system/node");
    let (with_memory, with_cpus) = (list(&folder.join("has_memory")), list(&folder.join("has_cpu")));
    // A node whose CPUs are all offline is not in `has_cpu`, and keeps its links to them.
    let has_offline_cpus = |node: u32| {
        let links = fs::read_dir(folder.join(format!("node{node}")));
        let mut names = links.into_iter().flatten().flatten().map(|link| link.file_name());
        names.any(|name| {
            let number = name.to_str().and_then(|name| name.strip_prefix("cpu"));
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        })
    };
    let only: Vec<u32> = with_memory
        .iter()
        .filter(|node| !with_cpus.contains(*node) && !has_offline_cpus(*node))
        .collect();
    if only.is_empty() || with_cpus.is_empty() {
        return BTreeMap::new();
    }
    let online = list(&folder.join("online"));
    let of_gpus = of_gpus(root);
    let computing = list(&folder.join("has_generic_initiator"));
    let files = dax_nodes(root);
    let found = only.into_iter().map(|node| {
        let gpu = of_gpus.get(&node);
        let kind = match (gpu, files.get(&node)) {
            (Some(_), _) => MemoryKind::Device,
            (None, _) if computing.contains(node) => MemoryKind::Device,
            (None, Some(kind)) => *kind,
            (None, None) => MemoryKind::Other,
        };
        let at = folder.join(format!("node{node}"));
        let own = gpu.and_then(|address| gpu_node(root, address));
        let nearest = match own.filter(|node| with_cpus.contains(*node)) {
            Some(own) => NodeSet::from([own]),
            None => nearest(&initiators(&at, &with_cpus), &distances(&at, &online, &with_cpus)),
        };
        let memory_only = MemoryOnlyNode {
            kind,
            device: gpu.cloned(),
            nearest,
        };
        (node, memory_only)
    });
    found.collect()
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

fn list(file: &Path) -> CpuSet {
    read(file).trim().parse().unwrap_or_default()
}

/// The nodes with CPUs that perform best with this one: class 1 has CPUs alone, class 0 devices too.
fn initiators(node: &Path, with_cpus: &CpuSet) -> NodeSet {
    let class = |class: &str| -> NodeSet {
        let names = fs::read_dir(node.join(class).join("initiators"));
        let names = names.into_iter().flatten().flatten();
        let numbers = names.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok());
        numbers.filter(|node| with_cpus.contains(*node)).collect()
    };
    match class("access1") {
        none if none.is_empty() => class("access0"),
        found => found,
    }
}

/// How far the nodes with CPUs are: `distance` has a number for each online node.
fn distances(node: &Path, online: &CpuSet, with_cpus: &CpuSet) -> BTreeMap<u32, u32> {
    let text = read(&node.join("distance"));
    let numbers = text.split_whitespace().filter_map(|number| number.parse().ok());
    let all = online.iter().zip(numbers);
    all.filter(|(node, _)| with_cpus.contains(*node)).collect()
}

/// The GPUs whose memory NVIDIA's driver gave to the kernel, by NUMA node.
fn of_gpus(root: &Path) -> BTreeMap<u32, String> {
    let gpus = fs::read_dir(root.join("proc/driver/nvidia/gpus"));
    let found = gpus.into_iter().flatten().flatten().filter_map(|entry| {
        let text = read(&entry.path().join("numa_status"));
        let node = text.lines().find_map(|line| line.strip_prefix("Node:"))?;
        Some((node.trim().parse().ok()?, entry.file_name().to_str()?.to_owned()))
    });
    found.collect()
}

/// The NUMA node of a GPU's CPUs.
fn gpu_node(root: &Path, address: &str) -> Option<u32> {
    let file = root.join("sys/bus/pci/devices").join(address).join("numa_node");
    read(&file).trim().parse().ok()
}

/// What the nodes are made of that the kernel took from a DAX device: the device's path has the bus that it came from.
fn dax_nodes(root: &Path) -> BTreeMap<u32, MemoryKind> {
    let devices = fs::read_dir(root.join("sys/bus/dax/devices"));
    let found = devices.into_iter().flatten().flatten().filter_map(|entry| {
        let node = read(&entry.path().join("target_node")).trim().parse().ok()?;
        let path = fs::canonicalize(entry.path()).ok()?;
        let has = |part: &str| path.iter().any(|name| name.to_string_lossy().starts_with(part));
        // A persistent region of a CXL device is below both.
        let kind = match (has("ndbus"), has("ACPI0017")) {
            (true, _) => MemoryKind::Persistent,
            (false, true) => MemoryKind::Cxl,
            (false, false) => MemoryKind::Other,
        };
        Some((node, kind))
    });
    found.collect()
}
