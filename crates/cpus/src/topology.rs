//! The host's CPUs as the kernel describes them: sockets, NUMA nodes, cores, SMT siblings.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use crate::CpuSet;
use crate::files::PAGE;

/// One logical CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Cpu {
    /// Socket (`physical_package_id`).
    pub package: u32,
    /// Core; unique within its socket only (`core_id`).
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
    /// Read it below `sys` (`/sys`).
    ///
    /// # Errors
    /// The list of online CPUs cannot be read. A CPU without topology files (it went offline meanwhile) is left out.
    pub fn read(sys: &Path) -> io::Result<Self> {
        let cpus = sys.join("devices/system/cpu");
        let online = list(&cpus.join("online"))?;
        let mut nodes = BTreeMap::new();
        for entry in fs::read_dir(sys.join("devices/system/node"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = entry.file_name();
            let node = name
                .to_str()
                .and_then(|name| name.strip_prefix("node")?.parse::<u32>().ok());
            if let Some(node) = node {
                nodes.extend(list(&entry.path().join("cpulist"))?.iter().map(|cpu| (cpu, node)));
            }
        }
        let describe = |number: u32| {
            let folder = cpus.join(format!("cpu{number}/topology"));
            let cpu = Cpu {
                package: id(&folder.join("physical_package_id"))?,
                core: id(&folder.join("core_id"))?,
                // A kernel without NUMA has no node directories: everything is node 0.
                node: nodes.get(&number).copied().unwrap_or(0),
            };
            Some((number, cpu))
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

/// Made-up hosts for tests of decisions.
#[cfg(any(test, feature = "testing"))]
pub mod testing {
    use proptest::prelude::*;

    use crate::{Cpu, Topology};

    /// A regular host.
    #[derive(Debug, Clone, Copy)]
    pub struct Shape {
        /// NUMA nodes.
        pub nodes: u32,
        /// Cores of each node.
        pub cores: u32,
        /// Hardware threads of each core.
        pub threads: u32,
        /// Whether all first siblings are numbered before all second ones, as Linux mostly finds them.
        pub interleaved: bool,
    }

    impl Shape {
        /// The host of this shape, every CPU of it online.
        pub fn topology(self) -> Topology {
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
    pub fn shapes() -> impl Strategy<Value = Shape> {
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

    /// The files of a host below a directory, as the kernel prints them.
    fn written(topology: &Topology) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: String, text: String| {
            let path = dir.path().join("devices/system").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        };
        write("cpu/online".into(), topology.online().to_string());
        for (number, cpu) in &topology.cpus {
            let file = |name: &str| format!("cpu/cpu{number}/topology/{name}");
            write(file("physical_package_id"), cpu.package.to_string());
            write(file("core_id"), cpu.core.to_string());
        }
        let nodes: BTreeSet<u32> = topology.cpus.values().map(|cpu| cpu.node).collect();
        for node in nodes {
            let here = topology.cpus.iter().filter(|(_, cpu)| cpu.node == node);
            let cpus: CpuSet = here.map(|(number, _)| *number).collect();
            write(format!("node/node{node}/cpulist"), cpus.to_string());
        }
        dir
    }

    #[test]
    fn hosts_of_the_article_and_of_4096_cpus_are_read() {
        for (nodes, cores, near, sibling) in [(2, 32, "0-31,64-95", 65), (16, 128, "0-127,2048-2175", 2049)] {
            let shape = testing::Shape {
                nodes,
                cores,
                threads: 2,
                interleaved: true,
            };
            let host = shape.topology();
            let dir = written(&host);
            let read = Topology::read(dir.path()).unwrap();
            assert_eq!(read, host);
            assert_eq!(read.near(&"1".parse().unwrap()).to_string(), near);
            assert_eq!(read.siblings(1), [1, sibling].into_iter().collect());
        }
    }

    #[test]
    fn a_list_that_the_kernel_cut_off_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("devices/system/cpu/online");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // One thread of each core, where siblings are numbered one after the other.
        let all: CpuSet = (0..4096).step_by(2).collect();
        let text = all.to_string();
        fs::write(&path, &text[..PAGE - 1]).unwrap();
        let error = Topology::read(dir.path()).unwrap_err().to_string();
        assert!(
            error.contains("cpu/online") && error.contains("cut the list off"),
            "{error}"
        );
        // A kernel that prints it whole.
        fs::write(&path, format!("{text}\n")).unwrap();
        assert_eq!(list(&path).unwrap(), all);
    }

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
