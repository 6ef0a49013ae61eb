//! Records what kubelet and a container runtime create for a pod, and each content of kubelet's state file. `real::kubelet` and `real::crio`
//! compare the real programs with the recordings, `standin` compares the stand-in.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use inotify::{Inotify, WatchMask};
use serde_json::Value;

use super::{CGROUP, Pod, STATE, container_id, json, read, run, text};

/// Each thing that was looked at, and what it was.
pub type Seen = BTreeMap<String, String>;

pub const KUBELET_WITH_CONTAINERD: &str =
    include_str!("../../vm/standin/recordings/kubelet-1.36.3-containerd-1.7.24-runc-1.1.15.json");
pub const KUBELET_WITH_CRIO: &str =
    include_str!("../../vm/standin/recordings/kubelet-1.36.3-crio-1.36.3-crun-1.27.json");
/// Where containerd's shims keep the containers of the CRI.
pub const CONTAINERD: &str = "/run/containerd/io.containerd.runtime.v2.task/k8s.io";

const CGROUP_FILES: [&str; 8] = [
    "cgroup.type",
    "cpu.max",
    "cpu.weight",
    "cpuset.cpus",
    "cpuset.cpus.partition",
    "cpuset.mems",
    "memory.max",
    "pids.max",
];
const UNIT_PROPERTIES: [&str; 18] = [
    "AllowedCPUs",
    "AllowedMemoryNodes",
    "CPUAccounting",
    "CPUQuotaPerSecUSec",
    "CPUQuotaPeriodUSec",
    "CPUWeight",
    "DefaultDependencies",
    "Delegate",
    "DelegateControllers",
    "Description",
    "DevicePolicy",
    "IOAccounting",
    "MemoryAccounting",
    "MemoryMax",
    "Slice",
    "TasksAccounting",
    "TasksMax",
    "Transient",
];
/// Annotations whose values are recorded. Others have times, paths and hashes in them.
const RECORDED_ANNOTATIONS: [&str; 3] = [
    "io.kubernetes.cri.",
    "io.kubernetes.pod.",
    "io.kubernetes.container.name",
];

/// What a running pod's container is, from the file that its runtime was given, the units, and the cgroups up to kubelet's.
pub fn record_pod(label: &str, pod: &Pod, config: &Path) -> Seen {
    let mut seen = Seen::new();
    let config = json(&read(config));
    let names = differing_names(pod, &config);
    let hide = |text: &str| {
        let hidden = |text: String, (name, short): &(String, &str)| text.replace(name.as_str(), short);
        names.iter().fold(text.to_owned(), hidden)
    };
    let mut add = |kind: &str, name: &str, value: &str| {
        seen.insert(format!("{label}: {kind}: {}", hide(name)), hide(value));
    };
    // kubelet's first slice has what the node has.
    let own = pod.origin();
    for cgroup in own.ancestors().take_while(|path| !path.ends_with("kubepods.slice")) {
        let below = cgroup.strip_prefix(CGROUP).expect("a cgroup").display().to_string();
        for file in CGROUP_FILES {
            if let Ok(text) = fs::read_to_string(cgroup.join(file)) {
                add("cgroup", &format!("{below}: {file}"), text.trim_end());
            }
        }
        let unit = cgroup.file_name().and_then(|name| name.to_str());
        let unit = unit.expect("a cgroup's name");
        if unit.ends_with(".slice") || unit.ends_with(".scope") {
            for line in run(&["systemctl", "show", "-p", &UNIT_PROPERTIES.join(","), unit]).lines() {
                let (property, value) = line.split_once('=').expect("a property");
                add("unit", &format!("{unit}: {property}"), value);
            }
        }
    }
    for (name, value) in of_config(&config) {
        add("config.json", &name, &value);
    }
    seen
}

/// The same of the pods of a recording, one for each QoS class, that containerd runs, and the writes of the state file when the guaranteed one
/// comes and ends. `start` starts that of a class, and `settle` is given the guaranteed one and the others before they are looked at.
pub fn record_pods(start: impl Fn(&str) -> Pod, settle: impl FnOnce(&Pod, &[Pod; 2]), end: impl FnOnce(&Pod)) -> Seen {
    let shared_classes = ["burstable", "besteffort"];
    let shared = shared_classes.map(&start);
    let (mut seen, mut guaranteed) = (Seen::new(), None);
    seen.extend(record_state_writes("admission", || {
        guaranteed.insert(start("guaranteed")).uid.clone()
    }));
    let guaranteed = guaranteed.expect("a pod");
    settle(&guaranteed, &shared);
    for (label, pod) in shared_classes.iter().zip(&shared).chain([(&"guaranteed", &guaranteed)]) {
        seen.extend(record_pod(label, pod, &of_containerd(pod)));
    }
    seen.extend(record_state_writes("removal", || {
        end(&guaranteed);
        guaranteed.uid.clone()
    }));
    seen
}

/// The names that differ from pod to pod, and what is recorded instead.
fn differing_names(pod: &Pod, config: &Value) -> Vec<(String, &'static str)> {
    let sandbox_keys = ["io.kubernetes.cri.sandbox-id", "io.kubernetes.cri-o.SandboxID"];
    let sandbox = sandbox_keys.iter().find_map(|key| config["annotations"][key].as_str());
    let mut names = vec![
        (pod.uid.replace('-', "_"), "UID"),
        (pod.uid.clone(), "UID"),
        (container_id(pod), "ID"),
    ];
    names.extend(sandbox.map(|id| (id.to_owned(), "SANDBOX")));
    names.push((pod.name.clone(), "NAME"));
    names
}

/// The parts of config.json that kubelet and the runtime decide.
fn of_config(config: &Value) -> Seen {
    let mut seen = Seen::new();
    let (linux, process) = (&config["linux"], &config["process"]);
    for (name, value) in config["annotations"].as_object().into_iter().flatten() {
        let is_recorded = RECORDED_ANNOTATIONS.iter().any(|prefix| name.starts_with(prefix));
        let recorded = if is_recorded { &text(value) } else { "(not recorded)" };
        seen.insert(format!("annotation {name}"), recorded.to_owned());
    }
    for mount in config["mounts"].as_array().into_iter().flatten() {
        let target = mount["destination"].as_str().expect("a mount's place");
        let how = format!("{} {}", text(&mount["type"]), sorted(&mount["options"]));
        seen.insert(format!("mount {target}"), how);
    }
    for namespace in linux["namespaces"].as_array().into_iter().flatten() {
        let is_anothers = namespace["path"].is_string();
        let of = if is_anothers { "another's" } else { "its own" };
        seen.insert(format!("namespace {}", text(&namespace["type"])), of.to_owned());
    }
    for (kind, value) in process["capabilities"].as_object().into_iter().flatten() {
        seen.insert(format!("capabilities {kind}"), sorted(value));
    }
    for (kind, resources) in linux["resources"].as_object().into_iter().flatten() {
        // Devices are compared as devices: each runtime has its own way of saying the same.
        if kind != "devices" {
            seen.insert(format!("resources {kind}"), resources.to_string());
        }
    }
    let rules = linux["resources"]["devices"].as_array().into_iter().flatten();
    let mut rules: Vec<String> = rules.map(Value::to_string).collect();
    rules.sort_unstable();
    seen.insert("device rules".into(), rules.join(" "));
    for key in ["oomScoreAdj", "user"] {
        seen.insert(key.into(), process[key].to_string());
    }
    // An absent one is false.
    let of_root = ("root read-only", &config["root"]["readonly"]);
    for (key, value) in [("noNewPrivileges", &process["noNewPrivileges"]), of_root] {
        seen.insert(key.into(), (value == true).to_string());
    }
    for key in ["maskedPaths", "readonlyPaths"] {
        seen.insert(key.into(), sorted(&linux[key]));
    }
    seen.insert("cgroupsPath".into(), text(&linux["cgroupsPath"]));
    seen.insert("seccomp".into(), linux["seccomp"].is_object().to_string());
    seen
}

fn sorted(list: &Value) -> String {
    let all = list.as_array().into_iter().flatten();
    let mut words: Vec<&str> = all.filter_map(Value::as_str).collect();
    words.sort_unstable();
    words.join(" ")
}

/// Each content of kubelet's state file while `body` runs, without checksums. `body` returns the pod's UID, which is replaced by `UID`.
fn record_state_writes(label: &str, body: impl FnOnce() -> String) -> Seen {
    let mut inotify = Inotify::init().expect("inotify");
    let folder = Path::new(STATE).parent().expect("a folder");
    let watched = inotify.watches().add(folder, WatchMask::MOVED_TO);
    watched.expect("the folder is watched");
    let ended = AtomicBool::new(false);
    let (uid, contents) = thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut contents = vec![read(STATE)];
            let mut buffer = [0; 4096];
            loop {
                // Whatever was written before the body's end is read after it was seen to have ended.
                let last = ended.load(Ordering::SeqCst);
                match inotify.read_events(&mut buffer) {
                    Ok(_) => contents.push(read(STATE)),
                    Err(_) if last => return contents,
                    Err(_) => thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        let uid = body();
        ended.store(true, Ordering::SeqCst);
        (uid, watcher.join().expect("the watcher"))
    });
    let without_checksum = |text: &String| {
        let mut content = json(text);
        let members = content.as_object_mut().expect("an object");
        members.retain(|key, _| key != "checksum");
        content.to_string().replace(&uid, "UID")
    };
    let mut contents: Vec<String> = contents.iter().map(without_checksum).collect();
    contents.dedup();
    let numbered = contents.into_iter().enumerate();
    numbered
        .map(|(number, text)| (format!("{label}: write {number}"), text))
        .collect()
}

pub fn differences(recording: &str, here: &Seen) -> BTreeMap<String, String> {
    let recorded: Seen = serde_json::from_str(recording).expect("a recording");
    let names = recorded.keys().chain(here.keys());
    let value = |of: &Seen, name: &str| of.get(name).cloned().unwrap_or_else(|| "(none)".into());
    names
        .map(|name| (name, value(&recorded, name), value(here, name)))
        .filter(|(_, recorded, here)| recorded != here)
        .map(|(name, recorded, here)| (name.clone(), format!("recorded {recorded}, here {here}")))
        .collect()
}

/// Holds the real programs to their recording. What was seen is printed when it differs, so that it can become the recording.
pub fn assert_recorded(recording: &str, here: &Seen) {
    let differences = differences(recording, here);
    if !differences.is_empty() {
        let text = serde_json::to_string_pretty(here).expect("JSON");
        println!("RECORDING BEGINS\n{text}\nRECORDING ENDS");
    }
    let is_as_recorded = differences.is_empty();
    assert!(is_as_recorded, "docs/real.md, \"A new version\": {differences:#?}");
}

/// Where containerd has a container's config.json.
pub fn of_containerd(pod: &Pod) -> PathBuf {
    Path::new(CONTAINERD).join(container_id(pod)).join("config.json")
}
