//! The host's CPUs as the kernel describes them: sockets, NUMA nodes, cores, SMT siblings.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use crate::cpuset::CpuSet;

/// One logical CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Cpu {
    /// Socket (`physical_package_id`).
    pub package: u32,
    /// Core; unique within its socket only (`core_id`).
    pub core: u32,
    /// NUMA node.
    pub node: u32,
}

/// The online CPUs by number.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
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
