//! Makes a complete node, and pods on it as containerd and kubelet make them.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::{fs, io};

use nix::errno::Errno;
use stelia_cpus::{Cpu, CpuSet, Topology};
use stelia_kernel::System;
use stelia_kernel::cgroup::{CgroupPath, File, Limits};
use stelia_kernel::oci::{Identity, RuntimeVerdict, open_runtime, verdict_file};
use stelia_kubelet::{ContainerCgroup, PodName, PodUid};
use tokio::sync::watch;

use super::counts::CallLog;
use super::partitions::Partitions;
use super::population::Population;
use super::procs::{ForkKind, Task};
use super::tree::Group;
use super::{Kernel, Model, ScopeRemoval, State};

/// The OCI runtime below containerd or CRI-O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    /// The processes are in the container's scope, and systemd knows the devices.
    Runc,
    /// The processes are in the cgroup `container` of the scope, which lacks some limits, and the devices are in
    /// `config.json` only.
    Crun,
}

/// The devices in the `config.json` that a container of [`Runtime::Crun`] has.
const CONFIG: &str = r#"{"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"},
    {"allow":true,"type":"c","major":10,"minor":232,"access":"rwm"}]}}}"#;

/// A container of a pod, with the processes that exist when the runner starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    pub uid: PodUid,
    /// The container's own cgroup, in which its processes start.
    pub origin: CgroupPath,
    /// The container's first process: the runner.
    pub init: i32,
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
    pub io: i32,
}

/// A topology of `sockets` with one NUMA node each; hardware threads of a core have consecutive numbers.
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
    /// A node that has just booted: systemd, containerd, kubelet and the daemon run, and no pods. `directory` gets the
    /// files that are read without the traits: `sys`, `run` and `cgroup`; the caller adds `kubelet`.
    pub fn node(topology: &Topology, directory: &Path, kernel: Kernel) -> io::Result<Self> {
        let cpus = topology.online();
        let first = Task {
            process: 1,
            start: 1,
            name: "systemd".into(),
            command: Vec::new(),
            numbers: vec![1],
            namespaces: Vec::new(),
            cgroup: CgroupPath::root(),
            mask: cpus.clone(),
        };
        let mut state = State {
            kernel,
            release: "7.2.0".to_owned(),
            scope_removal: ScopeRemoval::AtOnce,
            copes: true,
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
            unreadable: None,
            chains: Vec::new(),
            call_log: CallLog::default(),
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
            told_by: None,
            hanging: Arc::new(watch::Sender::new(false)),
        })
    }

    /// The traits' implementations for a daemon that starts now. A daemon that had them before can change nothing any
    /// more.
    pub fn system(&self) -> System {
        let mut state = self.lock();
        state.daemon += 1;
        (state.budget, state.cut) = (None, false);
        let directory = state.directory.clone();
        let daemon = Self {
            daemon: Some(state.daemon),
            ..self.clone()
        };
        System {
            cgroups: Arc::new(daemon.clone()),
            procs: Arc::new(daemon.clone()),
            systemd: Arc::new(daemon.clone()),
            holders: Arc::new(daemon),
            cgroup_root: directory.join("cgroup"),
            sys: directory.join("sys"),
            kernel: state.release.clone(),
            run: directory.join("run"),
        }
    }

    /// Sets when empty scopes are removed; [`ScopeRemoval::AtOnce`] at first.
    pub fn set_scope_removal(&self, removal: ScopeRemoval) {
        self.lock().scope_removal = removal;
    }

    /// Every CPU of the node, including offline ones.
    pub fn cpus(&self) -> CpuSet {
        self.lock().cpus.clone()
    }

    pub fn memory_nodes(&self) -> CpuSet {
        self.lock().memory_nodes.clone()
    }

    /// The directory that stands for `/sys`.
    pub fn system_files(&self) -> std::path::PathBuf {
        self.lock().directory.join("sys")
    }

    /// Sets the kernel's release for daemons that start from now on.
    pub fn set_kernel(&self, release: &str) {
        self.lock().release = release.to_owned();
    }

    /// Sets which CPUs are online.
    pub fn hotplug(&self, online: &CpuSet) -> io::Result<()> {
        let mut state = self.lock();
        state.hotplug(online.clone())?;
        state.write_sys()
    }

    /// Lets every read of this cgroup's files by the daemon fail with EIO; `None`: none fails any more.
    pub fn set_unreadable(&self, cgroup: Option<&CgroupPath>) {
        self.lock().unreadable = cgroup.cloned();
    }

    /// Writes a cgroup file as another program on the node would.
    pub fn meddle(&self, cgroup: &CgroupPath, file: File, value: &str) -> io::Result<()> {
        self.outside(|state| state.write_file(cgroup, file, value))
    }

    /// Sets the anonymous memory of a cgroup's processes, in bytes.
    pub fn uses_memory(&self, cgroup: &CgroupPath, bytes: u64) -> io::Result<()> {
        self.outside(|state| {
            state.group_mut(cgroup)?.memory = bytes;
            Ok(())
        })
    }

    /// A container as the runtime makes it below kubepods.slice: `cpus` in its cpuset, a PID namespace of its own, the
    /// runner, its anchor, and one more process. EEXIST where the pod has a container already. The caller writes
    /// kubelet's checkpoint.
    pub fn add_pod(&self, uid: &PodUid, cpus: &CpuSet, limits: &Limits) -> io::Result<Pod> {
        self.add_pod_by(Runtime::Runc, uid, cpus, limits)
    }

    /// As [`Self::add_pod`], by another runtime.
    pub fn add_pod_by(&self, runtime: Runtime, uid: &PodUid, cpus: &CpuSet, limits: &Limits) -> io::Result<Pod> {
        let pod = self.start_container(runtime, uid, cpus, limits)?;
        if runtime == Runtime::Crun {
            self.configure(&pod, CONFIG)?;
        }
        self.write_runtime_state(&pod, runtime)?;
        Ok(pod)
    }

    /// Writes the runtime's configuration of a container that runc started, with the pod's name in it.
    pub fn name_pod(&self, pod: &Pod, name: &PodName) -> io::Result<()> {
        let (namespace, name) = (name.namespace(), name.name());
        let config = format!(
            r#"{{"annotations":{{"io.kubernetes.cri.sandbox-namespace":"{namespace}","io.kubernetes.cri.sandbox-name":"{name}",
                "io.kubernetes.cri.sandbox-uid":"{}","io.kubernetes.cri.container-name":"vm"}}}}"#,
            pod.uid
        );
        self.configure(pod, &config)
    }

    /// Writes the runtime's configuration of a container.
    pub fn configure(&self, pod: &Pod, config: &str) -> io::Result<()> {
        let Some(container) = ContainerCgroup::parse(pod.origin.as_str()) else {
            return Ok(());
        };
        let tasks = self
            .lock()
            .directory
            .join("run/containerd/io.containerd.runtime.v2.task");
        let bundle = tasks.join("k8s.io").join(container.container_id);
        fs::create_dir_all(&bundle)?;
        fs::write(bundle.join("config.json"), config)
    }

    /// Writes the runtime's state of a container, and its program.
    fn write_runtime_state(&self, pod: &Pod, runtime: Runtime) -> io::Result<()> {
        let Some(container) = ContainerCgroup::parse(pod.origin.as_str()) else {
            return Ok(());
        };
        let (name, file) = match runtime {
            Runtime::Runc => ("runc", "state.json"),
            Runtime::Crun => ("crun", "status"),
        };
        let directory = self.lock().directory.clone();
        let bundle = directory.join("run/containerd/io.containerd.runtime.v2.task/k8s.io");
        let bundle = bundle.join(&container.container_id);
        let state = directory
            .join("run/containerd/runc/k8s.io")
            .join(&container.container_id);
        let programs = directory.join("usr/bin");
        for folder in [&bundle, &state, &programs] {
            fs::create_dir_all(folder)?;
        }
        if !bundle.join("config.json").exists() {
            fs::write(bundle.join("config.json"), "{}")?;
        }
        fs::write(
            bundle.join("options.json"),
            format!(r#"{{"binary_name":"{name}","systemd_cgroup":true}}"#),
        )?;
        fs::write(state.join(file), "{}")?;
        let program = programs.join(name);
        if !program.exists() {
            fs::write(&program, "")?;
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        }
        Ok(())
    }

    /// Sets whether the runtimes cope with threaded cgroups in a container; they do at first.
    pub fn set_copes(&self, copes: bool) {
        self.lock().copes = copes;
    }

    /// Writes the verdict of `steliad --try-runtime`.
    pub(super) fn try_runtime(&self, container_id: &str) -> Result<(), String> {
        let (directory, copes) = {
            let state = self.lock();
            (state.directory.clone(), state.copes)
        };
        let (runtime, _) = open_runtime(&directory, container_id).map_err(|cause| cause.to_string())?;
        let program = directory.join(runtime.binary.strip_prefix("/").unwrap_or(&runtime.binary));
        let verdict = RuntimeVerdict {
            manager: runtime.manager,
            binary: runtime.binary.clone(),
            identity: Identity::of(&program).map_err(|cause| cause.to_string())?,
            copes,
            words: if copes {
                String::new()
            } else {
                "operation not supported".to_owned()
            },
            tried_us: 1,
        };
        let file = verdict_file(&directory.join("run"), &runtime);
        verdict.write(&file).map_err(|cause| cause.to_string())
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
    pub fn add_container(&self, pod: &Pod, cpus: &CpuSet, limits: &Limits) -> io::Result<Pod> {
        let added =
            self.outside(|state| state.add_container(&pod_slice(&pod.uid), &pod.uid, cpus, limits, Runtime::Runc))?;
        self.write_runtime_state(&added, Runtime::Runc)?;
        Ok(added)
    }

    /// QEMU, forked by `creator` (a runner) and in its cgroup, with `vcpus` vCPU threads and an I/O thread.
    pub fn add_qemu(&self, creator: i32, vcpus: u32) -> io::Result<Qemu> {
        self.outside(|state| {
            let pid = state.fork(creator, "qemu-system-x86", ForkKind::Process)?;
            let io = state.fork(pid, "IO iothread0", ForkKind::Thread)?;
            let vcpu = |index| state.fork(pid, &format!("CPU {index}/KVM"), ForkKind::Thread);
            let vcpus = (0..vcpus).map(vcpu).collect::<Result<_, _>>()?;
            Ok(Qemu { pid, vcpus, io })
        })
    }

    /// Ends a container as the runtime does, by killing its first process; then kubelet removes the pod's own cgroup.
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
