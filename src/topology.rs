//! The host's CPUs as the kernel describes them: sockets, NUMA nodes, cores, SMT siblings.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use crate::cpuset::CpuSet;

/// One logical CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Cpu {
    /// Socket (`physical_package_id`).
    pub package: u32,
    /// Core; unique within its socket only (`core_id`).
    pub core: u32,
    /// NUMA node.
    pub node: u32,
}

/// The online CPUs by number.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Topology {
    /// Online CPUs.
    pub cpus: BTreeMap<u32, Cpu>,
}

impl Topology {
    /// Read it below `sys` (`/sys`).
    ///
    /// # Errors
    /// The list of online CPUs cannot be read. A CPU without topology files (it went offline meanwhile) is left out.
    pub fn read(sys: &Path) -> io::Result<Self> {
        let cpus = sys.join("devices/system/cpu");
        let online = list(&cpus.join("online"))?;
        let mut nodes = BTreeMap::new();
        if let Ok(entries) = fs::read_dir(sys.join("devices/system/node")) {
            for entry in entries.flatten() {
                let name = entry.file_name();
                let Some(node) = name
                    .to_str()
                    .and_then(|name| name.strip_prefix("node")?.parse::<u32>().ok())
                else {
                    continue;
                };
                nodes.extend(list(&entry.path().join("cpulist"))?.iter().map(|cpu| (cpu, node)));
            }
        }
        let number = |cpu: u32, file: &str| -> Option<u32> {
            fs::read_to_string(cpus.join(format!("cpu{cpu}/topology/{file}")))
                .ok()?
                .trim()
                .parse()
                .ok()
        };
        let describe = |cpu: u32| {
            let package = number(cpu, "physical_package_id")?;
            let core = number(cpu, "core_id")?;
            // A kernel without NUMA has no node directories: everything is node 0.
            Some((
                cpu,
                Cpu {
                    package,
                    core,
                    node: nodes.get(&cpu).copied().unwrap_or(0),
                },
            ))
        };
        Ok(Self {
            cpus: online.iter().filter_map(describe).collect(),
        })
    }

    /// The CPUs that are there, offline ones included, below `sys` (`/sys`); the online ones where the kernel says no more.
    ///
    /// # Errors
    /// The lists cannot be read.
    pub fn present(sys: &Path) -> io::Result<CpuSet> {
        let cpus = sys.join("devices/system/cpu");
        list(&cpus.join("present")).or_else(|_| list(&cpus.join("online")))
    }

    /// The CPUs that are online, as text, below `sys` (`/sys`): it changes when one goes or comes.
    ///
    /// # Errors
    /// The list cannot be read.
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
            Some((*cpu, fs::read_to_string(path).ok()?.trim().parse().ok()?))
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

    /// The online CPUs of the NUMA nodes that these CPUs are of.
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

fn list(path: &Path) -> io::Result<CpuSet> {
    fs::read_to_string(path)?
        .parse()
        .map_err(|cause| io::Error::new(io::ErrorKind::InvalidData, cause))
}

/// Made-up hosts for tests of decisions.
#[cfg(test)]
pub(crate) mod testing {
    use proptest::prelude::*;

    use super::{Cpu, Topology};

    /// A regular host.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Shape {
        pub(crate) nodes: u32,
        /// A node.
        pub(crate) cores: u32,
        /// A core.
        pub(crate) threads: u32,
        /// Whether all first siblings are numbered before all second ones, as Linux mostly finds them.
        pub(crate) interleaved: bool,
    }

    impl Shape {
        pub(crate) fn topology(self) -> Topology {
            let all_cores = self.nodes * self.cores;
            let describe = |cpu: u32| {
                let core = if self.interleaved {
                    cpu % all_cores
                } else {
                    cpu / self.threads
                };
                let node = core / self.cores;
                let described = Cpu {
                    package: node,
                    core: core % self.cores,
                    node,
                };
                (cpu, described)
            };
            Topology {
                cpus: (0..all_cores * self.threads).map(describe).collect(),
            }
        }
    }

    /// 1 to 8 NUMA nodes, with and without SMT, up to 1024 CPUs.
    pub(crate) fn shapes() -> impl Strategy<Value = Shape> {
        let threads = prop_oneof![Just(1u32), Just(2), Just(4)];
        (1u32..=8, 1u32..=32, threads, any::<bool>()).prop_map(|(nodes, cores, threads, interleaved)| Shape {
            nodes,
            cores,
            threads,
            interleaved,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_of_two_sockets_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("devices/system/cpu/online", "0-3\n");
        for cpu in 0..4u32 {
            write(
                &format!("devices/system/cpu/cpu{cpu}/topology/physical_package_id"),
                &format!("{}\n", cpu / 2),
            );
            write(&format!("devices/system/cpu/cpu{cpu}/topology/core_id"), "0\n");
        }
        write("devices/system/node/node0/cpulist", "0-1\n");
        write("devices/system/node/node1/cpulist", "2-3\n");
        let topology = Topology::read(dir.path()).unwrap();
        assert_eq!(
            topology.cpus[&3],
            Cpu {
                package: 1,
                core: 0,
                node: 1
            }
        );
        assert_eq!(topology.online().to_string(), "0-3");
    }
}
