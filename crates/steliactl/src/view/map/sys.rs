//! The kernel's files on memory and caches. A file that is missing or not understood is nothing known.

use std::fs;
use std::path::Path;

use serde::Serialize;
use stelia_cpus::{CpuSet, Topology};
use stelia_kernel::locality::size;

/// An L3 cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Cache {
    /// The CPUs that share it.
    pub cpus: CpuSet,
    #[serde(rename = "size_bytes")]
    bytes: Option<u64>,
}

impl Cache {
    /// "L3 32.0 MiB".
    pub(super) fn title(&self) -> String {
        self.bytes
            .map_or("L3".to_owned(), |bytes| format!("L3 {}", size(bytes)))
    }
}

/// A NUMA node's memory in bytes: `Node 0 MemTotal:  263736528 kB`.
pub(super) fn memory(sys: &Path, node: u32) -> Option<u64> {
    let text = fs::read_to_string(sys.join(format!("devices/system/node/node{node}/meminfo"))).ok()?;
    let total = text.lines().find_map(|line| line.split_once("MemTotal:"))?.1;
    let kib: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The L3 caches, by first CPU.
pub(super) fn caches(sys: &Path, topology: &Topology) -> Vec<Cache> {
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
        let bytes = read("size").and_then(|size| bytes(size.trim()));
        is_third.then_some(Cache { cpus, bytes })
    })
}

/// The kernel prints the size in KiB: `32768K`.
fn bytes(size: &str) -> Option<u64> {
    size.strip_suffix('K')?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use stelia_cpus::Cpu;

    use super::*;
    use crate::tests::fixtures::write;

    fn topology(cpus: u32) -> Topology {
        let cpu = |cpu| {
            (
                cpu,
                Cpu {
                    package: 0,
                    core: cpu,
                    node: cpu / 4,
                },
            )
        };
        Topology {
            cpus: (0..cpus).map(cpu).collect(),
        }
    }

    #[test]
    fn a_cache_is_found_by_its_level_and_shared_by_whom_the_kernel_says() {
        let sys = tempfile::tempdir().unwrap();
        for cpu in 0..8 {
            let own = format!("devices/system/cpu/cpu{cpu}/cache");
            write(sys.path(), &format!("{own}/index3/level"), "2\n");
            write(sys.path(), &format!("{own}/index3/shared_cpu_list"), "0-7\n");
            write(sys.path(), &format!("{own}/index4/level"), "3\n");
            let shared = if cpu % 4 < 2 { "0-1,4-5\n" } else { "2-3,6-7\n" };
            write(sys.path(), &format!("{own}/index4/shared_cpu_list"), shared);
            write(sys.path(), &format!("{own}/index4/size"), "32768K\n");
        }
        let found = caches(sys.path(), &topology(9));
        let lists: Vec<String> = found.iter().map(|cache| cache.cpus.to_string()).collect();
        assert_eq!(lists, ["0-1,4-5", "2-3,6-7"]);
        assert_eq!(found[0].title(), "L3 32.0 MiB");
    }

    #[test]
    fn what_is_not_there_or_not_understood_is_not_known() {
        let root = tempfile::tempdir().unwrap();
        let known = || (memory(root.path(), 0), caches(root.path(), &topology(1)));
        assert_eq!(known(), (None, vec![]));
        let cache = "devices/system/cpu/cpu0/cache/index3";
        write(root.path(), &format!("{cache}/level"), "3\n");
        write(root.path(), &format!("{cache}/shared_cpu_list"), "zero\n");
        let meminfo = "devices/system/node/node0/meminfo";
        write(root.path(), meminfo, "Node 0 MemTotal: much\n");
        assert_eq!(known(), (None, vec![]));
        assert_eq!([bytes("1M"), bytes("K"), bytes("99999999999999999999K")], [None; 3]);
        write(
            root.path(),
            meminfo,
            "\nNode 0 MemTotal:       263736528 kB\nNode 0 MemFree:        1 kB\n",
        );
        assert_eq!(known().0, Some(263_736_528 * 1024));
    }
}
