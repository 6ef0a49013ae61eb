//! A node's tree as `tests/vm/jobs/record-tree` wrote it down, and the model made into that node.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use stelia_cpus::{Cpu, CpuSet, Topology};
use stelia_kubelet::checkpoint::CPU_MANAGER_STATE;
use stelia_node::cgroup::{CgroupPath, Cgroups, File, HugePage, Limits};
use stelia_node::proc::Procs;
use stelia_node::systemd::{Devices, Listening, Systemd};
use stelia_testnode::{Kernel, Model};

/// The three files of one recording.
pub struct Recorded {
    pub kernel: String,
    topology: Topology,
    /// Files of the kernel's unbound workers.
    workers: Vec<(String, String)>,
    /// Parents before children.
    groups: Vec<Group>,
    kubelet: &'static str,
}

/// One cgroup.
#[derive(Debug, Default)]
struct Group {
    path: String,
    /// `user.stelia.*`, without that.
    attributes: BTreeMap<String, String>,
    /// By name, in the order written.
    files: Vec<(String, String)>,
    threads: Vec<Thread>,
}

/// One thread.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Thread {
    id: i32,
    process: i32,
    start: u64,
    /// In each PID namespace, the host's first.
    numbers: Vec<i32>,
    /// Where it may run.
    on: CpuSet,
    name: String,
}

/// What systemd makes by itself, top-level: it is in the model from its boot on, and not on every node.
const TOP: [&str; 5] = [
    "/init.scope",
    "/system.slice",
    "/user.slice",
    "/kubepods.slice",
    "/stelia.slice",
];
/// Controllers that the model does not have.
const UNKNOWN: [&str; 2] = ["rdma", "misc"];

fn thread(line: &str) -> Thread {
    let words: Vec<&str> = line.splitn(11, ' ').collect();
    let [
        "thread",
        id,
        "of",
        process,
        "start",
        start,
        "numbers",
        numbers,
        "on",
        on,
        name,
    ] = words[..]
    else {
        panic!("{line:?}");
    };
    Thread {
        id: id.parse().unwrap(),
        process: process.parse().unwrap(),
        start: start.parse().unwrap(),
        numbers: numbers.split('/').map(|number| number.parse().unwrap()).collect(),
        on: on.parse().unwrap(),
        name: name.to_owned(),
    }
}

fn group(text: &str) -> Group {
    let mut group = Group::default();
    for line in text.lines() {
        if let Some(path) = line.strip_prefix('[') {
            group.path = path.trim_end_matches(']').to_owned();
        } else if line.starts_with("thread ") {
            group.threads.push(thread(line));
        } else {
            let (name, value) = line.split_once('=').unwrap_or_else(|| panic!("{line:?}"));
            match name.strip_prefix("user.") {
                None => group.files.push((name.to_owned(), value.to_owned())),
                // The others are systemd's own.
                Some(name) => group.attributes.extend(
                    name.strip_prefix("stelia.")
                        .map(|name| (name.to_owned(), value.to_owned())),
                ),
            }
        }
    }
    group
}

impl Group {
    fn cgroup(&self) -> CgroupPath {
        CgroupPath::parse(&self.path).unwrap()
    }

    fn file(&self, name: &str) -> &str {
        let found = self.files.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value)
    }

    /// The pod it belongs to, by its path.
    fn pod(&self) -> Option<String> {
        let after = |word: &str| Some(self.path.split_once(word)?.1.split('.').next()?.replace('_', "-"));
        after("/stelia-instance-").or_else(|| after("/kubepods-pod"))
    }

    /// Whether a daemon had systemd make it.
    fn is_scope(&self) -> bool {
        self.path.starts_with("/stelia.slice/") && self.path.ends_with(".scope")
    }

    fn controllers(&self) -> BTreeSet<&str> {
        let all = self.file("cgroup.subtree_control").split(' ');
        all.filter(|name| !name.is_empty() && !UNKNOWN.contains(name)).collect()
    }

    /// Write a file, unless it reads like that already.
    fn write(&self, model: &Model, file: File, value: &str) {
        let cgroup = self.cgroup();
        if model.read(&cgroup, file).is_ok_and(|now| now != value) {
            model.write(&cgroup, file, value).unwrap();
        }
    }
}

/// The files that are compared, and of those that can be written the ones that are, in this order.
fn files() -> impl Iterator<Item = (File, bool)> {
    let written = [
        File::CpuWeight,
        File::CpuMax,
        File::IoWeight,
        File::PidsMax,
        File::MemoryMax,
        File::MemoryHigh,
        File::MemoryMin,
        File::MemoryLow,
        File::MemorySwapMax,
        File::MemoryOomGroup,
        File::HugetlbMax(HugePage::Mb2),
        File::HugetlbReservedMax(HugePage::Mb2),
        File::Mems,
        File::Cpus,
        File::CpusExclusive,
        File::Partition,
    ];
    let read = [
        File::Type,
        File::Freeze,
        File::IoMax,
        File::CpusEffective,
        File::CpusExclusiveEffective,
        File::CpusIsolated,
    ];
    let written = written.into_iter().map(|file| (file, true));
    written.chain(read.into_iter().map(|file| (file, false)))
}

impl Recorded {
    /// From the texts of the files `node`, `tree` and `cpu_manager_state`.
    pub fn parse(node: &str, tree: &str, kubelet: &'static str) -> Self {
        let mut recorded = Self {
            kernel: String::new(),
            topology: Topology::default(),
            workers: Vec::new(),
            groups: tree.split("\n\n").map(group).collect(),
            kubelet,
        };
        for line in node.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u32>().unwrap();
            match words[..] {
                ["kernel", release] => recorded.kernel = release.to_owned(),
                ["workqueue", file, mask] => recorded.workers.push((file.to_owned(), mask.to_owned())),
                ["cpu", ..] => {
                    let (package, core, node) = (number(3), number(5), number(7));
                    recorded.topology.cpus.insert(number(1), Cpu { package, core, node });
                }
                _ => panic!("{line:?}"),
            }
        }
        recorded
    }

    /// Every thread with the cgroup it is in.
    fn threads(&self) -> impl Iterator<Item = (&Group, &Thread)> {
        let groups = self.groups.iter();
        groups.flat_map(|group| group.threads.iter().map(move |thread| (group, thread)))
    }

    /// Every thread of a pod, with the pod.
    pub fn pods(&self) -> impl Iterator<Item = (i32, String)> {
        self.threads().map(|(group, thread)| (thread.id, group.pod().unwrap()))
    }

    /// Each pod with its container's own cgroup and the CPUs that kubelet put there.
    pub fn origins(&self) -> impl Iterator<Item = (String, (CgroupPath, CpuSet))> {
        let is_origin = |group: &&Group| group.path.starts_with("/kubepods.slice/") && group.path.ends_with(".scope");
        let origins = self.groups.iter().filter(is_origin);
        origins.map(|group| {
            let cpus = group.file("cpuset.cpus").parse().unwrap();
            (group.pod().unwrap(), (group.cgroup(), cpus))
        })
    }

    /// That node, with kubelet's file in `directory/kubelet`. No daemon has asked it anything.
    pub async fn node(&self, directory: &Path) -> Model {
        let model = Model::node(&self.topology, directory, Kernel::V6_12).unwrap();
        model.set_kernel(&self.kernel);
        for top in TOP {
            if !self.groups.iter().any(|group| group.path == top) {
                model.remove(&CgroupPath::parse(top).unwrap()).unwrap();
            }
        }
        let first = self.start_processes(&model);
        self.make_groups(&model, &first).await;
        self.move_threads(&model);
        for (file, is_written) in files() {
            for group in self.groups.iter().filter(|_| is_written) {
                if group.files.iter().any(|(name, _)| name == file.name()) {
                    group.write(&model, file, group.file(file.name()));
                }
            }
        }
        for (group, thread) in self.threads() {
            if thread.on.to_string() != group.file("cpuset.cpus.effective") {
                model.pin(thread.id, &thread.on).unwrap();
            }
        }
        for group in &self.groups {
            for (name, value) in &group.attributes {
                model.set_attribute(&group.cgroup(), name, value).unwrap();
            }
        }
        let workqueue = model.system_files().join("devices/virtual/workqueue");
        for (file, mask) in &self.workers {
            fs::write(workqueue.join(file), format!("{mask}\n")).unwrap();
        }
        fs::create_dir_all(directory.join("kubelet")).unwrap();
        fs::write(directory.join("kubelet").join(CPU_MANAGER_STATE), self.kubelet).unwrap();
        self.compare(&model, None);
        model
    }

    /// Every thread, with the numbers and the start time it had. Answers each pod's first process.
    fn start_processes(&self, model: &Model) -> BTreeMap<String, i32> {
        let mut pods: BTreeMap<String, BTreeMap<i32, &Thread>> = BTreeMap::new();
        for (group, thread) in self.threads() {
            let inner = *thread.numbers.last().unwrap();
            pods.entry(group.pod().unwrap()).or_default().insert(inner, thread);
        }
        // For those that had ended when the tree was recorded.
        let mut spare = 1_000_000;
        let mut first = BTreeMap::new();
        for (pod, threads) in pods {
            let init = threads[&1].id;
            let mut next = 1;
            for (inner, thread) in threads {
                while next < inner {
                    model.next_id(spare);
                    let ended = model.spawn(init, "ended").unwrap();
                    model.end(ended).unwrap();
                    (spare, next) = (spare + 1, next + 1);
                }
                model.next_id(thread.id);
                model.next_start(thread.start);
                let started = match thread.id {
                    id if id == init => model.spawn_in_namespace(1, &thread.name),
                    id if id == thread.process => model.spawn(init, &thread.name),
                    _ => model.spawn_thread(thread.process, &thread.name),
                };
                assert_eq!(started.unwrap(), thread.id);
                next = inner + 1;
            }
            first.insert(pod, init);
        }
        let last = self.threads().map(|(_, thread)| thread.start).max();
        model.next_id(10_000);
        model.next_start(last.unwrap_or_default() + 1000);
        first
    }

    /// The cgroups with their types and controllers. A scope's first process goes down into it at once: there are no
    /// controllers for what is below a cgroup that has processes.
    async fn make_groups(&self, model: &Model, first: &BTreeMap<String, i32>) {
        let nothing = Devices {
            policy: "strict".into(),
            allow: Vec::new(),
        };
        for group in &self.groups {
            let cgroup = group.cgroup();
            if group.is_scope() {
                let pid = first[&group.pod().unwrap()].unsigned_abs();
                let (listening, limits) = (Listening::default(), Limits::default());
                let started = model.start_scope(listening, cgroup.name(), "", pid, &limits, &nothing);
                started.await.unwrap();
            } else {
                model.create(&cgroup).unwrap();
            }
            match group.file("cgroup.type") {
                "threaded" => model.write(&cgroup, File::Type, "threaded").unwrap(),
                "domain threaded" => {
                    let pid = first[&group.pod().unwrap()].to_string();
                    model.write(&cgroup, File::Procs, &pid).unwrap();
                }
                _ => {}
            }
        }
        let change = |group: &Group, sign: &str| {
            let now = model.read(&group.cgroup(), File::SubtreeControl).unwrap();
            let (now, then) = (
                now.split(' ').filter(|name| !name.is_empty()).collect(),
                group.controllers(),
            );
            let names = if sign == "+" { &then - &now } else { &now - &then };
            for name in names {
                let word = format!("{sign}{name}");
                model.write(&group.cgroup(), File::SubtreeControl, &word).unwrap();
            }
        };
        self.groups.iter().for_each(|group| change(group, "+"));
        self.groups.iter().rev().for_each(|group| change(group, "-"));
    }

    fn move_threads(&self, model: &Model) {
        for (group, thread) in self.threads().filter(|(_, thread)| thread.id == thread.process) {
            model
                .write(&group.cgroup(), File::Procs, &thread.id.to_string())
                .unwrap();
        }
        for (group, thread) in self.threads() {
            let (id, cgroup) = (thread.id, group.cgroup());
            if Procs::cgroup(model, id).unwrap() != cgroup {
                model.write(&cgroup, File::Threads, &id.to_string()).unwrap();
            }
        }
    }

    /// Hold the model to what the kernel said of this node: every file, and where each thread is and may run. `float`: but for the
    /// CPUs of this pod's float.
    pub fn compare(&self, model: &Model, float: Option<&str>) {
        let other = |group: &Group| float.is_some_and(|pod| group.path.contains(pod) && group.path.ends_with("/float"));
        for group in &self.groups {
            for (file, _) in
                files().filter(|(file, _)| !(other(group) && matches!(file, File::Cpus | File::CpusEffective)))
            {
                if let Some((name, value)) = group.files.iter().find(|(name, _)| name == file.name()) {
                    let now = model.read(&group.cgroup(), file);
                    assert_eq!(now.as_deref().ok(), Some(value.as_str()), "{}/{name}", group.path);
                }
            }
        }
        let tasks = model.tasks();
        for (group, thread) in self.threads().filter(|(group, _)| !other(group)) {
            let expected = (thread.id, group.cgroup(), thread.on.clone());
            // What stayed in a container whose CPUs the kernel took is kept on float's.
            let confined = group.path.starts_with("/kubepods.slice");
            let is_there = |(id, cgroup, on): &(i32, CgroupPath, CpuSet)| {
                (*id, cgroup) == (expected.0, &expected.1)
                    && (*on == expected.2 || confined && on.is_subset(&expected.2))
            };
            assert!(tasks.iter().any(is_there), "{expected:?}");
        }
    }
}
