//! The NUMA nodes below `/sys/devices/system/node`: memory, huge pages, distances.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use stelia_cpus::CpuSet;
use stelia_cpus::text::excerpt::excerpt;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelNumaNode {
    /// The distance to each online node by id, itself included.
    pub distances: BTreeMap<u32, u32>,
    /// `None` where the kernel does not report it.
    pub memory: Option<NumaMemory>,
    /// Its huge pages by size in bytes.
    pub huge_pages: BTreeMap<u64, Pages>,
}

impl KernelNumaNode {
    /// The memory of its huge pages, in bytes.
    pub(crate) fn page_bytes(&self) -> u64 {
        let pages = self.huge_pages.iter();
        pages.fold(0, |sum: u64, (size, pages)| {
            sum.saturating_add(size.saturating_mul(pages.total))
        })
    }
}

/// A node's memory, bytes. What is free does not count here: kubelet does not look at it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NumaMemory {
    /// All of it, that in huge pages included.
    pub total: u64,
    /// What kubelet's Memory Manager gives to no container (`reservedMemory`); see [`crate::report::memory_and_devices`].
    pub reserved: u64,
    /// What it gave to containers.
    pub assigned: u64,
}

/// A node's huge pages of one size, in pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pages {
    pub total: u64,
    /// Those that kubelet's Memory Manager gives to no container; see [`crate::report::memory_and_devices`].
    pub reserved: u64,
    /// Those that nobody uses; where kubelet's Memory Manager assigns them, those that it may still assign.
    pub free: u64,
}

/// Reads the online nodes below `sys` (`/sys`); empty where the kernel has no NUMA.
///
/// # Errors
/// A file exists and cannot be read or parsed; the error names it. A node that goes offline meanwhile is left out.
pub fn read(sys: &Path) -> io::Result<BTreeMap<u32, KernelNumaNode>> {
    let folder = sys.join("devices/system/node");
    let Some(online) = text(&folder.join("online"))? else {
        return Ok(BTreeMap::new());
    };
    let online: CpuSet = online.parse().map_err(|cause| wrong(&folder.join("online"), &cause))?;
    let mut nodes = BTreeMap::new();
    for id in online.iter() {
        let folder = folder.join(format!("node{id}"));
        if folder.is_dir() {
            nodes.insert(id, node(&folder, &online)?);
        }
    }
    Ok(nodes)
}

fn node(folder: &Path, online: &CpuSet) -> io::Result<KernelNumaNode> {
    let parsed = |name: &str| -> io::Result<Option<(String, std::path::PathBuf)>> {
        let path = folder.join(name);
        Ok(text(&path)?.map(|text| (text, path)))
    };
    let distances = match parsed("distance")? {
        Some((text, path)) => distances(&text, online).map_err(|cause| wrong(&path, &cause))?,
        None => BTreeMap::new(),
    };
    let memory = match parsed("meminfo")? {
        Some((text, path)) => Some(memory(&text).ok_or_else(|| wrong(&path, &"no MemTotal"))?),
        None => None,
    };
    Ok(KernelNumaNode {
        distances,
        memory,
        huge_pages: huge_pages(&folder.join("hugepages"))?,
    })
}

/// The kernel writes one number for each online node, in the order of their ids.
fn distances(text: &str, online: &CpuSet) -> Result<BTreeMap<u32, u32>, String> {
    let numbers: Result<Vec<u32>, _> = text.split_whitespace().map(str::parse).collect();
    let numbers = numbers.map_err(|_| format!("{:?} is not a list of distances", excerpt(text.trim())))?;
    if numbers.len() == online.len() {
        Ok(online.iter().zip(numbers).collect())
    } else {
        Err(format!(
            "it has {} distances for the online NUMA nodes {online}, and the kernel writes one for each",
            numbers.len()
        ))
    }
}

/// The line `Node 0 MemTotal:       16384 kB`, which kubelet takes too.
fn memory(text: &str) -> Option<NumaMemory> {
    let total = text.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(2);
        (words.next()? == "MemTotal:").then(|| words.next()?.parse::<u64>().ok())?
    })?;
    Some(NumaMemory {
        total: total.checked_mul(1024)?,
        ..NumaMemory::default()
    })
}

/// Folders such as `hugepages-2048kB`.
fn huge_pages(folder: &Path) -> io::Result<BTreeMap<u64, Pages>> {
    let entries = match fs::read_dir(folder) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        read => read.map_err(|cause| at(folder, &cause))?,
    };
    let mut found = BTreeMap::new();
    for entry in entries {
        let path = entry.map_err(|cause| at(folder, &cause))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let size = name.strip_prefix("hugepages-").and_then(|rest| rest.strip_suffix("kB"));
        let Some(size) = size.and_then(|size| size.parse::<u64>().ok()?.checked_mul(1024)) else {
            continue;
        };
        let count = |name: &str| -> io::Result<u64> {
            let path = path.join(name);
            let text = text(&path)?.unwrap_or_default();
            text.trim()
                .parse()
                .map_err(|_| wrong(&path, &format!("{:?} is not a number of pages", excerpt(text.trim()))))
        };
        let (total, free) = (count("nr_hugepages")?, count("free_hugepages")?);
        let reserved = 0;
        found.insert(size, Pages { total, reserved, free });
    }
    Ok(found)
}

/// A file's text; `None` where it does not exist.
fn text(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(at(path, &cause)),
    }
}

fn at(path: &Path, cause: &io::Error) -> io::Error {
    io::Error::new(cause.kind(), format!("read {}: {cause}", path.display()))
}

fn wrong(path: &Path, found: &dyn std::fmt::Display) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("read {}: {found}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "Node 0 MemTotal:       16384 kB\nNode 0 MemFree:         1000 kB\nNode 0 MemUsed: 15384 kB\n\
        Node 0 Active(file):     200 kB\nNode 0 Inactive(file):   100 kB\nNode 0 SReclaimable:      20 kB\n\
        Node 0 HugePages_Total:     8\n";

    #[test]
    fn what_is_wrong_with_a_file_is_told_with_its_name() {
        let sys = tempfile::tempdir().unwrap();
        write(sys.path(), "online", "1\n");
        write(sys.path(), "node1/distance", "21 10\n");
        let error = read(sys.path()).unwrap_err().to_string();
        assert!(error.ends_with("for each"), "{error}");
    }

    fn write(sys: &Path, path: &str, text: &str) {
        let path = sys.join("devices/system/node").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn memory_pages_and_distances_are_read() {
        let sys = tempfile::tempdir().unwrap();
        write(sys.path(), "online", "0,2\n");
        write(sys.path(), "node0/distance", "10 21\n");
        write(sys.path(), "node2/distance", "21 10\n");
        write(sys.path(), "node0/meminfo", MEMINFO);
        write(sys.path(), "node0/hugepages/hugepages-2048kB/nr_hugepages", "8\n");
        write(sys.path(), "node0/hugepages/hugepages-2048kB/free_hugepages", "3\n");
        let nodes = read(sys.path()).unwrap();
        let memory = NumaMemory {
            total: 16384 << 10,
            ..NumaMemory::default()
        };
        let pages = Pages {
            total: 8,
            reserved: 0,
            free: 3,
        };
        let first = KernelNumaNode {
            distances: BTreeMap::from([(0, 10), (2, 21)]),
            memory: Some(memory),
            huge_pages: BTreeMap::from([(2 << 20, pages)]),
        };
        assert_eq!(nodes[&0], first);
        assert_eq!(nodes[&2].distances[&0], 21);
        assert_eq!(nodes[&2].memory, None);
        assert_eq!(nodes.len(), 2);
    }

    #[test]
    fn a_kernel_without_numa_has_no_nodes_and_what_is_not_understood_is_named() {
        let sys = tempfile::tempdir().unwrap();
        assert!(read(sys.path()).unwrap().is_empty());
        write(sys.path(), "online", "0-1\n");
        write(sys.path(), "node0/distance", "10\n");
        let told = read(sys.path()).unwrap_err().to_string();
        assert!(told.contains("node0/distance: it has 1 distances"), "{told}");
        write(sys.path(), "node0/distance", "10 20\n");
        write(sys.path(), "node0/meminfo", "Node 0 MemFree: 1 kB\n");
        let told = read(sys.path()).unwrap_err().to_string();
        assert!(told.contains("node0/meminfo"), "{told}");
        write(sys.path(), "node0/meminfo", MEMINFO);
        write(sys.path(), "node0/hugepages/hugepages-1048576kB/nr_hugepages", "x");
        let told = read(sys.path()).unwrap_err().to_string();
        assert!(told.contains("hugepages-1048576kB/nr_hugepages: \"x\""), "{told}");
    }

    #[test]
    fn this_host_is_understood() {
        let nodes = read(Path::new("/sys")).unwrap();
        assert!(nodes.values().all(|node| node.distances.len() == nodes.len()));
    }
}
