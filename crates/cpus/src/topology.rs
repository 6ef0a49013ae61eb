//! The host's CPUs as the kernel describes them: sockets, NUMA nodes, cores, SMT siblings.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use crate::CpuSet;
use crate::files::PAGE;

mod sys;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

/// One logical CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Cpu {
    /// Socket (`physical_package_id`). Where the architecture has none (-1 on POWER, s390 and RISC-V) all CPUs are of one, 0.
    pub package: u32,
    /// Core; unique within its socket only: `core_id`, or the core's rank where this does not tell the socket's cores apart.
    pub core: u32,
    /// NUMA node.
    pub node: u32,
}

/// The online CPUs by number.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Topology {
    /// Those that are online, by number.
    pub cpus: BTreeMap<u32, Cpu>,
}

impl Topology {
    /// Read it below `sys` (`/sys`). Cores are those of the kernel's lists of siblings; where it has none, CPUs of the same
    /// NUMA node, socket, die and `core_id` are one core.
    ///
    /// # Errors
    /// The list of online CPUs cannot be read. A CPU without topology files (it went offline meanwhile) is left out.
    pub fn read(sys: &Path) -> io::Result<Self> {
        sys::read(sys, sys::Cores::Kernel)
    }

    /// Read it below `sys` (`/sys`) as kubelet's library cadvisor does, whatever the kernel says of siblings: CPUs of the same
    /// NUMA node, socket and `core_id` are one core (on s390 of the same book and drawer), and without NUMA each socket is a node.
    pub fn read_as_kubelet(sys: &Path) -> io::Result<Self> {
        sys::read(sys, sys::Cores::Cadvisor)
    }

    /// The CPUs that are there, offline ones included, below `sys` (`/sys`); the online ones where the kernel says no more.
    pub fn present(sys: &Path) -> io::Result<CpuSet> {
        let cpus = sys.join("devices/system/cpu");
        list(&cpus.join("present")).or_else(|_| list(&cpus.join("online")))
    }

    /// The CPUs that are online, as text, below `sys` (`/sys`): it changes when one goes or comes.
    pub fn online_text(sys: &Path) -> io::Result<Vec<u8>> {
        crate::files::read(&sys.join("devices/system/cpu/online"))
    }

    /// The CPUs that are there and not online, below `sys` (`/sys`); none where the kernel does not say which are there.
    pub fn offline(sys: &Path) -> CpuSet {
        let cpus = sys.join("devices/system/cpu");
        let read = |file: &str| list(&cpus.join(file)).ok();
        match (read("present"), read("online")) {
            (Some(present), Some(online)) => present.difference(&online),
            _ => CpuSet::new(),
        }
    }

    /// The L3 cache of each online CPU (`cache/index3/id`), below `sys` (`/sys`), as far as the kernel tells.
    pub fn caches(&self, sys: &Path) -> BTreeMap<u32, u32> {
        let cache = |cpu: &u32| {
            let path = sys.join(format!("devices/system/cpu/cpu{cpu}/cache/index3/id"));
            Some((*cpu, id(&path)?))
        };
        self.cpus.keys().filter_map(cache).collect()
    }

    /// Its siblings: the CPUs of the same core, itself included.
    pub fn siblings(&self, cpu: u32) -> CpuSet {
        let Some(own) = self.cpus.get(&cpu) else {
            return CpuSet::new();
        };
        let same = |other: &Cpu| (other.package, other.core) == (own.package, own.core);
        let siblings = self.cpus.iter().filter(|(_, other)| same(other));
        siblings.map(|(cpu, _)| *cpu).collect()
    }

    /// The online CPUs of the NUMA nodes of these CPUs.
    pub fn near(&self, cpus: &CpuSet) -> CpuSet {
        let here = self.cpus.iter().filter(|(number, _)| cpus.contains(**number));
        let nodes: BTreeSet<u32> = here.map(|(_, cpu)| cpu.node).collect();
        let near = self.cpus.iter().filter(|(_, cpu)| nodes.contains(&cpu.node));
        near.map(|(number, _)| *number).collect()
    }

    /// The online CPUs.
    pub fn online(&self) -> CpuSet {
        self.cpus.keys().copied().collect()
    }
}

fn id(path: &Path) -> Option<u32> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The kernel prints most of its lists into one page, and of a longer one only the beginning: the line feed is missing then.
fn list(path: &Path) -> io::Result<CpuSet> {
    let named = |cause: io::Error| io::Error::new(cause.kind(), format!("read {}: {cause}", path.display()));
    let text = fs::read_to_string(path).map_err(named)?;
    let bad = |cause: String| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {cause}", path.display()));
    if text.len() + 1 >= PAGE && !text.ends_with('\n') {
        return Err(bad(format!("the kernel cut the list off after {} bytes", text.len())));
    }
    text.parse::<CpuSet>().map_err(|cause| bad(cause.to_string()))
}
