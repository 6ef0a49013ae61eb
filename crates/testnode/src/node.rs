//! A whole node, and pods on it as containerd and kubelet make them.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::{fs, io};

use nix::errno::Errno;
use stelia_cpus::{Cpu, CpuSet, Topology};
use stelia_kubelet::{ContainerCgroup, PodUid};
use stelia_node::System;
use stelia_node::cgroup::{CgroupPath, File, Limits};
use stelia_node::systemd::Devices;
use tokio::sync::watch;

use super::counts::Ledger;
use super::partitions::Partitions;
use super::population::Population;
use super::procs::{Birth, Task};
use super::tree::Group;
use super::{Kernel, Model, Settling, State};

/// The memory of each NUMA node, KiB.
const MEMORY_KIB: u64 = 16 << 20;
/// Each NUMA node's huge pages by size in KiB, none of them used.
const HUGE_PAGES: [(u64, u64); 2] = [(2 << 10, 512), (1 << 20, 1)];

/// The OCI runtime below containerd, or CRI-O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    /// The processes are in the container's scope, and systemd knows the devices.
    Runc,
    /// They are in the cgroup `container` of the scope, which has not every limit, and the devices are in `config.json` only.
    Crun,
}

/// The devices in the `config.json` that a container of [`Runtime::Crun`] has.
const CONFIG: &str = r#"{"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"},
    {"allow":true,"type":"c","major":10,"minor":232,"access":"rwm"}]}}}"#;

/// A container of a pod, with the processes a runner starts with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// The pod.
    pub uid: PodUid,
    /// The container's own cgroup: where its processes are at first.
    pub origin: CgroupPath,
    /// The container's first process: the runner.
    pub init: i32,
    /// The placeholder it started.
    pub anchor: i32,
    /// Another process of the container.
    pub other: i32,
}

/// A QEMU process with its threads' numbers on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qemu {
    /// The process, and its first thread.
    pub pid: i32,
    /// The vCPU threads in order of their indexes.
    pub vcpus: Vec<i32>,
    /// An I/O thread.
    pub io: i32,
}

/// A machine of `sockets` with one NUMA node each, whose hardware threads have neighbouring numbers.
pub fn topology(sockets: u32, cores: u32, threads: u32) -> Topology {
    let cpu = |number: u32| {
        let package = number / (cores * threads);
        let core = number / threads % cores;
        let node = package;
        (number, Cpu { package, core, node })
    };
    Topology {
        cpus: (0..sockets * cores * threads).map(cpu).collect(),
    }
}

impl Model {
    /// A node that has just booted: systemd, containerd, kubelet and the daemon run, and no pod. `directory` takes the
    /// files that are read past the seams: `sys`, `run`, `cgroup`, to which a caller adds `kubelet`.
    ///
    /// # Errors
    /// The directory cannot be written to.
    pub fn node(topology: &Topology, directory: &Path, kernel: Kernel) -> io::Result<Self> {
        let cpus = topology.online();
        let first = Task {
            process: 1,
            start: 1,
            name: "systemd".into(),
            numbers: vec![1],
            namespaces: Vec::new(),
            cgroup: CgroupPath::root(),
            mask: cpus.clone(),
        };
        let mut state = State {
            kernel,
            release: "7.2.0".to_owned(),
            settling: Settling::AtOnce,
            topology: topology.clone(),
            online: cpus.clone(),
            memory_nodes: topology.cpus.values().map(|cpu| cpu.node).collect(),
            cpus,
            groups: HashMap::from([(CgroupPath::root(), Group::default())]),
            partitions: Partitions::default(),
            tasks: BTreeMap::new(),
            processes: HashMap::new(),
            population: Population::default(),
            namespaces: Vec::new(),
            next_id: 100,
            clock: 100,
            pidfds: BTreeMap::new(),
            units: BTreeMap::new(),
            directory: directory.to_owned(),
            daemon: 0,
            budget: None,
            cut: false,
            changes: 0,
            chains: Vec::new(),
            ledger: Ledger::default(),
        };
        state.add_task(1, first);
        state.follow_cpusets();
        state.boot()?;
        for name in ["run", "cgroup/stelia.slice"] {
            fs::create_dir_all(directory.join(name))?;
        }
        state.write_sys()?;
        let workqueue = directory.join("sys/devices/virtual/workqueue");
        fs::create_dir_all(&workqueue)?;
        fs::write(workqueue.join("cpumask"), format!("{}\n", state.cpus.to_mask()))?;
        Ok(Self {
            state: Arc::new(Mutex::new(state)),
            daemon: None,
            hanging: Arc::new(watch::Sender::new(false)),
        })
    }

    /// The seams with this node behind them, for a daemon that starts now. One that had them before changes nothing more.
    pub fn system(&self) -> System {
        let mut state = self.lock();
        state.daemon += 1;
        (state.budget, state.cut) = (None, false);
        let directory = state.directory.clone();
        let seam = Self {
            daemon: Some(state.daemon),
            ..self.clone()
        };
        System {
            cgroups: Arc::new(seam.clone()),
            procs: Arc::new(seam.clone()),
            systemd: Arc::new(seam.clone()),
            holders: Arc::new(seam),
            cgroup_root: directory.join("cgroup"),
            sys: directory.join("sys"),
            kernel: state.release.clone(),
            run: directory.join("run"),
        }
    }

    /// When empty scopes are removed; at first [`Settling::AtOnce`].
    pub fn set_settling(&self, settling: Settling) {
        self.lock().settling = settling;
    }

    /// Every CPU of the machine, offline ones included.
    pub fn cpus(&self) -> CpuSet {
        self.lock().cpus.clone()
    }

    /// What stands for `/sys`.
    pub fn system_files(&self) -> std::path::PathBuf {
        self.lock().directory.join("sys")
    }

    /// Another kernel than the newest, for daemons that start from now on.
    pub fn set_kernel(&self, release: &str) {
        self.lock().release = release.to_owned();
    }

    /// Take CPUs offline, or bring them back, so that exactly these are online.
    ///
    /// # Errors
    /// The topology's files cannot be written.
    pub fn hotplug(&self, online: &CpuSet) -> io::Result<()> {
        let mut state = self.lock();
        state.hotplug(online.clone())?;
        state.write_sys()
    }

    /// Write a cgroup file as another program on the node does.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn meddle(&self, cgroup: &CgroupPath, file: File, value: &str) -> io::Result<()> {
        self.outside(|state| state.write_file(cgroup, file, value))
    }

    /// What is in a cgroup has so many bytes of anonymous memory from now on.
    ///
    /// # Errors
    /// There is no such cgroup.
    pub fn uses_memory(&self, cgroup: &CgroupPath, bytes: u64) -> io::Result<()> {
        self.outside(|state| {
            state.group_mut(cgroup)?.memory = bytes;
            Ok(())
        })
    }

    /// A container as the runtime makes it below kubepods.slice: `cpus` in its cpuset, a PID namespace of its own, the
    /// runner, its anchor, and one more process. kubelet's checkpoint is the caller's to write.
    ///
    /// # Errors
    /// The pod has a container already (EEXIST).
    pub fn add_pod(&self, uid: &PodUid, cpus: &CpuSet, limits: &Limits) -> io::Result<Pod> {
        self.add_pod_by(Runtime::Runc, uid, cpus, limits)
    }

    /// The same by another runtime.
    ///
    /// # Errors
    /// The pod has a container already (EEXIST); the directory cannot be written to.
    pub fn add_pod_by(&self, runtime: Runtime, uid: &PodUid, cpus: &CpuSet, limits: &Limits) -> io::Result<Pod> {
        let pod = self.start_container(runtime, uid, cpus, limits)?;
        let id = ContainerCgroup::parse(pod.origin.as_str()).map(|container| container.container_id);
        if let (Runtime::Crun, Some(id)) = (runtime, id) {
            let tasks = self
                .lock()
                .directory
                .join("run/containerd/io.containerd.runtime.v2.task");
            let bundle = tasks.join("k8s.io").join(id);
            fs::create_dir_all(&bundle)?;
            fs::write(bundle.join("config.json"), CONFIG)?;
        }
        Ok(pod)
    }

    fn start_container(&self, runtime: Runtime, uid: &PodUid, cpus: &CpuSet, limits: &Limits) -> io::Result<Pod> {
        self.outside(|state| {
            let slice = pod_slice(uid);
            if state.groups.contains_key(&slice) && state.populated(&slice) {
                return Err(Errno::EEXIST);
            }
            let kubepods = CgroupPath::root().child("kubepods.slice");
            let slice = state.start_unit(&kubepods, slice.name(), &Limits::default())?;
            state.add_container(&slice, uid, cpus, limits, runtime)
        })
    }

    /// One more container of a pod, with the same processes.
    ///
    /// # Errors
    /// The pod is gone (ENOENT).
    pub fn add_container(&self, pod: &Pod, cpus: &CpuSet, limits: &Limits) -> io::Result<Pod> {
        self.outside(|state| state.add_container(&pod_slice(&pod.uid), &pod.uid, cpus, limits, Runtime::Runc))
    }

    /// QEMU, started by `creator` (a runner) where that runs, with `vcpus` vCPU threads and an I/O thread.
    ///
    /// # Errors
    /// ESRCH, EAGAIN.
    pub fn add_qemu(&self, creator: i32, vcpus: u32) -> io::Result<Qemu> {
        self.outside(|state| {
            let pid = state.fork(creator, "qemu-system-x86", Birth::Process)?;
            let io = state.fork(pid, "IO iothread0", Birth::Thread)?;
            let vcpu = |index| state.fork(pid, &format!("CPU {index}/KVM"), Birth::Thread);
            let vcpus = (0..vcpus).map(vcpu).collect::<Result<_, _>>()?;
            Ok(Qemu { pid, vcpus, io })
        })
    }

    /// End a container as the runtime does: kill its first process. kubelet removes the pod's own cgroup then.
    ///
    /// # Errors
    /// ESRCH when it ended already.
    pub fn kill_pod(&self, pod: &Pod) -> io::Result<()> {
        self.outside(|state| {
            state.end(pod.init)?;
            state.remove_empty_scopes();
            let slice = pod_slice(&pod.uid);
            state.units.remove(slice.name());
            state.remove_tree(&slice);
            Ok(())
        })
    }
}

fn pod_slice(uid: &PodUid) -> CgroupPath {
    let name = format!("kubepods-pod{}.slice", uid.as_str().replace('-', "_"));
    CgroupPath::root().child("kubepods.slice").child(&name)
}

impl State {
    fn boot(&mut self) -> Result<(), Errno> {
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
            let pid = self.fork(1, name, Birth::Process)?;
            self.move_process(pid, &cgroup)?;
        }
        Ok(())
    }

    fn add_container(
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
        let init = self.fork(shim, "stelia-runner", Birth::Namespace)?;
        self.move_process(init, &origin)?;
        let anchor = self.fork(init, "stelia-runner", Birth::Process)?;
        let other = self.fork(init, "virtiofsd", Birth::Process)?;
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

    /// The daemon's own process.
    pub fn daemon_process(&self) -> Result<i32, Errno> {
        self.find("steliad")
    }

    fn write_sys(&self) -> io::Result<()> {
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
