//! What the processes of a VM have: mapped pages by NUMA node, and open VFIO devices.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use serde::Serialize;
use stelia_kernel::cgroup::numa_stat::ByNode;
use stelia_kernel::vfio::behind;

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

/// Reads the maps (`/proc/<pid>/numa_maps`): the NUMA nodes of the pages that each process has mapped, whichever cgroup they are charged to. The
/// kernel walks all page tables of the process for it, which takes seconds for a large guest without huge pages. Pages that two processes
/// share are counted for both. A process that ends meanwhile, or has nothing mapped, is left out.
///
/// # Errors
/// A process's maps may not be read.
pub(crate) fn mapped(roots: &Roots, processes: &[Process]) -> Result<Vec<Mapped>, Failure> {
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

/// The addresses of the devices of these processes, of mediated ones the UUIDs. What may not be read is left out: only root may list the open files of a
/// VM's processes.
pub(crate) fn opened(roots: &Roots, pids: impl Iterator<Item = i32>) -> BTreeSet<String> {
    let numbers: BTreeSet<(u32, u32)> = pids.flat_map(|pid| open_devices(&roots.proc, pid)).collect();
    numbers
        .into_iter()
        .flat_map(|number| behind(&roots.sys, number))
        .collect()
}

/// The numbers of the character devices that a process has open.
fn open_devices(proc: &Path, pid: i32) -> Vec<(u32, u32)> {
    let open = fs::read_dir(proc.join(pid.to_string()).join("fd"));
    let open = open.into_iter().flatten().flatten();
    let numbers = open.filter_map(|entry| {
        // A descriptor on a file system of the pod's is not followed: its server may never answer.
        let is_device = fs::read_link(entry.path()).is_ok_and(|path| path.starts_with("/dev"));
        // O_PATH opens what the container is not allowed to use.
        let info = fs::read_to_string(proc.join(format!("{pid}/fdinfo")).join(entry.file_name())).unwrap_or_default();
        if !is_device || is_path_only(&info) {
            return None;
        }
        let file = fs::metadata(entry.path()).ok()?;
        let number = file.rdev();
        let parts = (rustix::fs::major(number), rustix::fs::minor(number));
        file.file_type().is_char_device().then_some(parts)
    });
    numbers.collect()
}

/// Whether a descriptor was opened with O_PATH: `flags` of its fdinfo, in octal (proc_pid_fdinfo(5)).
fn is_path_only(fdinfo: &str) -> bool {
    let flags = fdinfo.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & rustix::fs::OFlags::PATH.bits() != 0)
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

    #[test]
    fn the_devices_of_a_process_are_those_it_has_open() {
        let null = fs::File::open("/dev/null").unwrap();
        let number = null.metadata().unwrap().rdev();
        let open = open_devices(Path::new("/proc"), std::process::id().cast_signed());
        assert!(
            open.contains(&(rustix::fs::major(number), rustix::fs::minor(number))),
            "{open:?}"
        );
        assert!(open_devices(Path::new("/nowhere"), 1).is_empty());
    }
}
