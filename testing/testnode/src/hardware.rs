//! What a node has before the first pod, and what a container consists of.

use std::{fs, io};

use nix::errno::Errno;
use stelia_cpus::{Cpu, CpuSet};
use stelia_kernel::cgroup::{CgroupPath, Limits};
use stelia_kernel::systemd::Devices;
use stelia_kubelet::{ContainerCgroup, PodUid};

use super::procs::ForkKind;
use super::{Pod, Runtime, State};

/// The memory of each NUMA node, in KiB.
const MEMORY_KIB: u64 = 16 << 20;
/// The huge pages of each NUMA node by size in KiB, all free.
const HUGE_PAGES: [(u64, u64); 2] = [(2 << 10, 512), (1 << 20, 1)];

impl State {
    /// systemd, the services, and their slices.
    pub fn boot(&mut self) -> Result<(), Errno> {
        let root = CgroupPath::root();
        self.write_control(&root, "+cpuset +cpu +io +memory +hugetlb +pids")?;
        let none = Limits::default();
        let init = self.start_unit(&root, "init.scope", &none)?;
        self.move_process(1, &init)?;
        for slice in ["system.slice", "user.slice", "kubepods.slice", "stelia.slice"] {
            self.start_unit(&root, slice, &none)?;
        }
        for (unit, name) in [
            ("containerd.service", "containerd-shim"),
            ("kubelet.service", "kubelet"),
            ("steliad.service", "steliad"),
        ] {
            let cgroup = self.start_unit(&root.child("system.slice"), unit, &none)?;
            let pid = self.fork(1, name, ForkKind::Process)?;
            self.move_process(pid, &cgroup)?;
        }
        Ok(())
    }

    pub fn add_container(
        &mut self,
        slice: &CgroupPath,
        uid: &PodUid,
        cpus: &CpuSet,
        limits: &Limits,
        runtime: Runtime,
    ) -> Result<Pod, Errno> {
        self.clock += 1;
        let unit = format!("cri-containerd-{:064x}.scope", self.clock);
        let mut origin = self.start_unit(slice, &unit, limits)?;
        self.write_cpus(&origin, &cpus.to_string())?;
        if runtime == Runtime::Crun {
            let nothing = Devices {
                policy: "auto".into(),
                allow: Vec::new(),
            };
            self.restrict(&unit, &nothing);
            self.write_control(&origin, "+cpuset +cpu +io +memory +hugetlb +pids")?;
            origin = origin.child(ContainerCgroup::SUBGROUP);
            self.create(&origin)?;
            self.write_cpus(&origin, &cpus.to_string())?;
        }
        let shim = self.find("containerd-shim")?;
        let init = self.fork(shim, "stelia-runner", ForkKind::Namespace)?;
        self.move_process(init, &origin)?;
        let anchor = self.fork(init, "stelia-runner", ForkKind::Process)?;
        let other = self.fork(init, "virtiofsd", ForkKind::Process)?;
        Ok(Pod {
            uid: uid.clone(),
            origin,
            init,
            anchor,
            other,
        })
    }

    fn find(&self, name: &str) -> Result<i32, Errno> {
        let found = self.tasks.iter().find(|(_, task)| task.name == name);
        found.map(|(id, _)| *id).ok_or(Errno::ESRCH)
    }

    pub fn daemon_process(&self) -> Result<i32, Errno> {
        self.find("steliad")
    }

    /// Writes `/sys/devices/system` as the kernel shows this topology.
    pub fn write_sys(&self) -> io::Result<()> {
        let sys = self.directory.join("sys/devices/system");
        let write = |path: String, text: String| {
            let path = sys.join(path);
            fs::create_dir_all(path.parent().unwrap_or(&sys))?;
            fs::write(path, format!("{text}\n"))
        };
        write("cpu/online".into(), self.online.to_string())?;
        write("cpu/possible".into(), self.cpus.to_string())?;
        write("cpu/present".into(), self.cpus.to_string())?;
        for node in self.memory_nodes.iter() {
            let here = |cpu: &u32| self.topology.cpus.get(cpu).is_some_and(|cpu| cpu.node == node);
            let cpus: CpuSet = self.online.iter().filter(here).collect();
            write(format!("node/node{node}/cpulist"), cpus.to_string())?;
            let distances = self.memory_nodes.iter();
            let distances = distances.map(|other| if other == node { "10" } else { "20" });
            write(
                format!("node/node{node}/distance"),
                distances.collect::<Vec<_>>().join(" "),
            )?;
            let fields = [("MemTotal", MEMORY_KIB), ("MemFree", MEMORY_KIB / 2)];
            let line = |(name, kib)| format!("Node {node} {name}: {kib} kB");
            write(format!("node/node{node}/meminfo"), fields.map(line).join("\n"))?;
            for (size, pages) in HUGE_PAGES {
                for name in ["nr_hugepages", "free_hugepages"] {
                    let file = format!("node/node{node}/hugepages/hugepages-{size}kB/{name}");
                    write(file, pages.to_string())?;
                }
            }
        }
        write("node/online".into(), self.memory_nodes.to_string())?;
        for (number, cpu) in &self.topology.cpus {
            let same = |other: &Cpu| (other.package, other.core) == (cpu.package, cpu.core);
            let cpus = self.topology.cpus.iter().filter(|(_, other)| same(other));
            let siblings: CpuSet = cpus.map(|(number, _)| *number).collect();
            let file = |name: &str| format!("cpu/cpu{number}/topology/{name}");
            write(file("physical_package_id"), cpu.package.to_string())?;
            write(file("core_id"), cpu.core.to_string())?;
            write(file("thread_siblings_list"), siblings.to_string())?;
        }
        Ok(())
    }
}
