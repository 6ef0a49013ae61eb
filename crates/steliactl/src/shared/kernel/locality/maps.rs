//! `/proc/<pid>/numa_maps`: the NUMA nodes of the pages that a process has mapped, whichever cgroup they are charged
//! to.
//!
//! The kernel walks all page tables of the process for it, which takes seconds for a large guest without huge pages; it
//! is read only on request. Pages that two processes share are counted for both.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;

use serde::Serialize;
use stelia_kernel::cgroup::numa_stat::ByNode;

use crate::shared::daemon::Failure;
use crate::shared::kernel::Roots;
use crate::shared::kernel::threads::Process;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Mapped {
    /// Process id on the host.
    pub pid: i32,
    pub name: String,
    /// Bytes by NUMA node.
    pub nodes: ByNode,
}

/// Reads the maps; a process that ends meanwhile, or has nothing mapped, is left out.
///
/// # Errors
/// A process's maps may not be read.
pub(crate) fn read(roots: &Roots, processes: &[Process]) -> Result<Vec<Mapped>, Failure> {
    const ESRCH: i32 = 3;
    let mut all = Vec::new();
    for process in processes {
        let path = roots.proc.join(process.pid.to_string()).join("numa_maps");
        let text = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(ESRCH) => continue,
            Err(error) => return Err(Failure::Other(format!("read {}: {error}", path.display()))),
        };
        let nodes = sum(&String::from_utf8_lossy(&text));
        if !nodes.is_empty() {
            let (pid, name) = (process.pid, process.name.clone());
            all.push(Mapped { pid, name, nodes });
        }
    }
    Ok(all)
}

/// Bytes by node. Each line is a mapping and ends in its pages by node and the size of a page (proc(5)): `7f… default
/// anon=512 dirty=512 N0=100 N1=412 kernelpagesize_kB=4`.
fn sum(text: &str) -> ByNode {
    let mut nodes: ByNode = BTreeMap::new();
    for line in text.lines() {
        let word = |word: &str, before: &str| -> Option<u64> { word.strip_prefix(before)?.parse().ok() };
        let size = line.split(' ').find_map(|one| word(one, "kernelpagesize_kB="));
        let Some(size) = size else { continue };
        for one in line.split(' ').filter_map(|one| one.strip_prefix('N')) {
            let pages = one
                .split_once('=')
                .and_then(|(node, pages)| Some((node.parse().ok()?, pages.parse().ok()?)));
            let Some((node, pages)): Option<(u32, u64)> = pages else {
                continue;
            };
            let held = nodes.entry(node).or_default();
            *held = held.saturating_add(pages.saturating_mul(size).saturating_mul(1024));
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_count_by_their_own_size() {
        let text = "55d0 default file=/usr/bin/qemu mapped=300 N0=300 kernelpagesize_kB=4\n\
                    7f00 bind:1 anon=3 dirty=3 N0=1 N1=2 kernelpagesize_kB=4\n\
                    7f40 default file=/dev/hugepages/N9=1 huge dirty=5 N1=5 kernelpagesize_kB=2048\n\
                    7fff default\n";
        assert_eq!(sum(text), ByNode::from([(0, 301 * 4096), (1, 2 * 4096 + (10 << 20))]));
        assert!(sum("").is_empty());
    }
}
