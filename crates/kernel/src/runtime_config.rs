//! A container's `config.json` (OCI runtime specification), as the container runtime wrote it.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use stelia_kubelet::{ContainerCgroup, PodName, PodUid, is_label};

use crate::runtime_folders::{self, Bundle};
use crate::systemd::Devices;

/// The parts of `config.json` that are read.
#[derive(Debug, Default, Deserialize)]
pub struct Config {
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    process: Started,
    #[serde(default)]
    mounts: Vec<Mount>,
    #[serde(default)]
    linux: Linux,
}

#[derive(Debug, Default, Deserialize)]
struct Mount {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    source: String,
    #[serde(default)]
    options: Vec<String>,
}

/// Where the host's cgroups are.
const CGROUPS: &str = "/sys/fs/cgroup";

impl Mount {
    /// Whether cgroups can be made and written by way of it.
    fn writes_cgroups(&self) -> bool {
        let has = |option: &str| self.options.iter().any(|has| has == option);
        let source = Path::new(&self.source);
        if matches!(self.kind.as_str(), "cgroup" | "cgroup2") || source.starts_with(CGROUPS) {
            return !has("ro") && !has("rro");
        }
        // What is mounted below a source that is bound read-only stays writable.
        let is_above = source.is_absolute() && Path::new(CGROUPS).starts_with(source);
        is_above && has("rbind") && !has("rro")
    }
}

/// The process that the container begins with.
#[derive(Debug, Default, Deserialize)]
struct Started {
    /// The value of [`ADOPT`]; nothing else of the environment is kept, which has secrets.
    #[serde(default, rename = "env", deserialize_with = "adopt")]
    adopt: Option<String>,
    #[serde(default)]
    capabilities: Capabilities,
}

#[derive(Debug, Default, Deserialize)]
struct Capabilities {
    #[serde(default)]
    bounding: Vec<String>,
}

/// The environment variable by which a container refuses adoption: its value is `no` then.
pub const ADOPT: &str = "STELIA_ADOPT";
/// What it says then.
const REFUSED: &str = "no";

/// The last `STELIA_ADOPT=` of the environment, as a program would read it.
fn adopt<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let words = Option::<Vec<String>>::deserialize(from)?.unwrap_or_default();
    let mut values = words
        .iter()
        .rev()
        .filter_map(|word| word.strip_prefix(ADOPT)?.strip_prefix('='));
    Ok(values.next().map(str::to_owned))
}

#[derive(Debug, Default, Deserialize)]
struct Linux {
    #[serde(default)]
    resources: Resources,
    #[serde(default)]
    devices: Vec<DeviceNode>,
    #[serde(default)]
    namespaces: Vec<Namespace>,
}

#[derive(Debug, Default, Deserialize)]
struct Namespace {
    #[serde(rename = "type")]
    kind: String,
}

/// A device node of the container's `/dev`. Its path there is not read: a device plugin may give it any.
#[derive(Debug, Default, Deserialize)]
struct DeviceNode {
    #[serde(default, rename = "type")]
    kind: String,
    major: Option<i64>,
    minor: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
struct Resources {
    #[serde(default)]
    devices: Vec<Rule>,
    #[serde(default)]
    cpu: Cpu,
}

#[derive(Debug, Default, Deserialize)]
struct Cpu {
    shares: Option<u64>,
}

/// What a container's configuration says about it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Container {
    /// Its pod, by the runtime's annotations.
    pub pod: Option<PodName>,
    /// Its name, by the runtime's annotations.
    pub name: Option<String>,
    /// `cpu.shares`, which kubelet computed from the request when the container was created.
    pub shares: Option<u64>,
    /// Its environment has `STELIA_ADOPT=no`.
    pub refuses_adoption: bool,
    /// Why its root, who is the host's, may make and write cgroups below its own.
    pub writes_cgroups: Option<&'static str>,
}

/// A rule of the device cgroup. A field that is left out matches all.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Rule {
    allow: bool,
    #[serde(default, rename = "type")]
    kind: Option<String>,
    major: Option<i64>,
    minor: Option<i64>,
    #[serde(default)]
    access: Option<String>,
}

/// The configurations of a container, as [`runtime_folders`] finds them. `run` is `/run`.
fn configs(run: &Path, id: &str) -> impl Iterator<Item = (Keys, Config)> {
    let node = run.parent().unwrap_or(run);
    let bundles = runtime_folders::bundles(node, id).into_iter();
    bundles.filter_map(|bundle| {
        let config = Config::parse(&fs::read_to_string(bundle.config()).ok()?)?;
        Some((Keys::of(&bundle), config))
    })
}

fn config(run: &Path, id: &str) -> Option<Config> {
    configs(run, id).next().map(|(_, config)| config)
}

/// The annotations by which a manager says whose container it is. Each manager writes its own keys over a pod's annotations of these names.
/// The other manager's keys are not read: CRI-O copies all annotations of a pod, and with them whatever its tenant wrote.
#[derive(Debug, Clone, Copy)]
pub struct Keys {
    namespace: &'static str,
    pod: &'static str,
    uid: &'static str,
    container: &'static str,
}

/// The keys of containerd.
pub const CONTAINERD: Keys = Keys {
    namespace: "io.kubernetes.cri.sandbox-namespace",
    pod: "io.kubernetes.cri.sandbox-name",
    uid: "io.kubernetes.cri.sandbox-uid",
    container: "io.kubernetes.cri.container-name",
};
/// The keys of CRI-O.
pub const CRI_O: Keys = Keys {
    namespace: "io.kubernetes.pod.namespace",
    pod: "io.kubernetes.pod.name",
    uid: "io.kubernetes.pod.uid",
    container: "io.kubernetes.container.name",
};

impl Keys {
    fn of(bundle: &Bundle) -> Self {
        match bundle {
            Bundle::Containerd { .. } => CONTAINERD,
            Bundle::CriO { .. } => CRI_O,
        }
    }
}

impl Config {
    /// Parse a `config.json`; `None` when it is none.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// The container's name, unless Kubernetes would not accept it.
    fn name(&self, keys: Keys) -> Option<String> {
        let name = self.annotations.get(keys.container)?;
        is_label(name).then(|| name.clone())
    }

    /// The pod's name, unless the annotations are another pod's.
    fn pod_name(&self, keys: Keys, pod: &PodUid) -> Option<PodName> {
        let get = |key: &str| self.annotations.get(key).map(String::as_str);
        let same = get(keys.uid).is_none_or(|uid| uid == pod.as_str());
        PodName::new(get(keys.namespace)?, get(keys.pod)?).filter(|_| same)
    }

    /// In a user namespace the owner of the cgroup counts, whatever is mounted.
    fn writes_cgroups(&self) -> Option<&'static str> {
        if self.linux.namespaces.iter().any(|namespace| namespace.kind == "user") {
            return None;
        }
        // It could mount them itself.
        let is_admin = self
            .process
            .capabilities
            .bounding
            .iter()
            .any(|name| name == "CAP_SYS_ADMIN");
        if self.mounts.iter().any(Mount::writes_cgroups) {
            Some("its cgroups are mounted writable")
        } else {
            is_admin.then_some("it has CAP_SYS_ADMIN")
        }
    }

    /// What it says of a container of this pod.
    pub fn container(&self, keys: Keys, pod: &PodUid) -> Container {
        Container {
            pod: self.pod_name(keys, pod),
            name: self.name(keys),
            shares: self.linux.resources.cpu.shares,
            refuses_adoption: self.process.adopt.as_deref() == Some(REFUSED),
            writes_cgroups: self.writes_cgroups(),
        }
    }

    /// The devices it allows.
    pub fn devices(&self, proc_devices: &str) -> Devices {
        translate(&self.linux.resources.devices, proc_devices)
    }
}

/// What is said of a container whose configuration is not found.
const WITHOUT_CONFIG: &str = "the runtime's configuration of it is not found";

/// A container of this pod. Where the runtime's configuration is not found, nothing is known but that it may have any rights.
pub fn container(run: &Path, container: &ContainerCgroup) -> Container {
    let found = configs(run, &container.container_id).map(|(keys, config)| config.container(keys, &container.pod));
    let (mut named, mut others) = (None, None);
    for one in found {
        // If there are several, the one that names this pod is used: a former container's may be left.
        let place = if one.pod.is_some() { &mut named } else { &mut others };
        place.get_or_insert(one);
    }
    named.or(others).unwrap_or_else(|| Container {
        writes_cgroups: Some(WITHOUT_CONFIG),
        ..Container::default()
    })
}

/// The character devices that the runtime made in the container, by major and minor number. Empty where its configuration is not found.
pub fn character_devices(run: &Path, id: &str) -> Vec<(u32, u32)> {
    let nodes = config(run, id).map(|config| config.linux.devices).unwrap_or_default();
    let nodes = nodes.into_iter().filter(|node| matches!(node.kind.as_str(), "c" | "u"));
    let number = |number: Option<i64>| u32::try_from(number?).ok();
    nodes
        .filter_map(|node| Some((number(node.major)?, number(node.minor)?)))
        .collect()
}

/// The devices a container may open, where systemd does not know them: the container is no unit (cgroupfs driver), or its
/// runtime keeps devices closed by a program of its own (crun). `proc_devices` is the text of `/proc/devices`. `None` where
/// the runtime's configuration is not found.
pub fn devices(run: &Path, id: &str, proc_devices: &str) -> Option<Devices> {
    Some(config(run, id)?.devices(proc_devices))
}

/// What runc and crun both allow every container, whatever its rules say (runc `libcontainer/specconv`, crun
/// `src/libcrun/cgroup-resources.c`): making device nodes, the devices of the OCI runtime specification, terminals. CRI-O
/// leaves them to the runtime: its rules do not name them.
const ALWAYS: [(&str, &str); 10] = [
    ("char-*", "m"),
    ("block-*", "m"),
    ("/dev/char/1:3", "rwm"),
    ("/dev/char/1:5", "rwm"),
    ("/dev/char/1:7", "rwm"),
    ("/dev/char/1:8", "rwm"),
    ("/dev/char/1:9", "rwm"),
    ("/dev/char/5:0", "rwm"),
    ("/dev/char/5:2", "rwm"),
    ("char-pts", "rwm"),
];

/// systemd knows device nodes and classes of devices, and a policy that denies the rest. Without any rule nothing is open
/// but what always is: a privileged container has a rule that says so.
fn translate(rules: &[Rule], proc_devices: &str) -> Devices {
    let mut allowed: Vec<&Rule> = Vec::new();
    let mut everything = false;
    for rule in rules {
        let all = rule.kind.as_deref().is_none_or(|kind| kind == "a");
        if all {
            // A rule for all devices replaces what came before.
            everything = rule.allow;
            allowed.clear();
        } else if rule.allow {
            allowed.push(rule);
        } else {
            allowed.retain(|other| (&other.kind, other.major, other.minor) != (&rule.kind, rule.major, rule.minor));
        }
    }
    if everything {
        return Devices {
            policy: "auto".into(),
            allow: Vec::new(),
        };
    }
    let allow = allowed.iter().filter_map(|rule| {
        let block = rule.kind.as_deref() == Some("b");
        let class = if block { "block" } else { "char" };
        let node = match (number(rule.major), number(rule.minor)) {
            (Some(major), Some(minor)) => format!("/dev/{class}/{major}:{minor}"),
            (Some(major), None) => format!("{class}-{}", driver(proc_devices, block, major)?),
            (None, _) => format!("{class}-*"),
        };
        Some((node, rule.access.clone().unwrap_or_else(|| "rwm".into())))
    });
    let mut allow: Vec<(String, String)> = allow.collect();
    for (node, access) in ALWAYS {
        let always = (node.to_owned(), access.to_owned());
        if !allow.contains(&always) {
            allow.push(always);
        }
    }
    Devices {
        policy: "strict".into(),
        allow,
    }
}

/// -1 stands for all too.
fn number(value: Option<i64>) -> Option<u32> {
    u32::try_from(value?).ok()
}

/// The driver's name of a major number in `/proc/devices`.
fn driver(proc_devices: &str, block: bool, major: u32) -> Option<String> {
    let (chars, blocks) = proc_devices.split_once("Block devices:").unwrap_or((proc_devices, ""));
    let part = if block { blocks } else { chars };
    part.lines().find_map(|line| {
        let (number, name) = line.trim().split_once(' ')?;
        (number.parse() == Ok(major)).then(|| name.trim().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROC_DEVICES: &str = "Character devices:\n  1 mem\n136 pts\n\nBlock devices:\n  7 loop\n";

    fn rules(json: &str) -> Devices {
        translate(&serde_json::from_str::<Vec<Rule>>(json).unwrap(), PROC_DEVICES)
    }

    /// What is allowed beyond what always is.
    fn beyond(devices: &Devices) -> Vec<(&str, &str)> {
        let allow = devices.allow.iter();
        let pairs = allow.map(|(node, access)| (node.as_str(), access.as_str()));
        pairs.filter(|pair| !ALWAYS.contains(pair)).collect()
    }

    #[test]
    fn what_the_runtime_allows_is_what_systemd_allows() {
        let devices = rules(
            r#"[{"allow":false,"access":"rwm"},{"allow":true,"type":"c","access":"m"},
            {"allow":true,"type":"c","major":10,"minor":232,"access":"rw"},
            {"allow":true,"type":"c","major":136,"access":"rwm"},{"allow":true,"type":"b","major":7,"minor":-1}]"#,
        );
        assert_eq!(devices.policy, "strict");
        assert_eq!(beyond(&devices), [("/dev/char/10:232", "rw"), ("block-loop", "rwm")]);
        // What the rules name and what always is are there once each.
        assert_eq!(devices.allow.len(), ALWAYS.len() + 2);
    }

    const POD: &str = "b9e4f71c-64a5-4f8d-8574-41363cbaf8e5";

    /// The pod and the container by these annotations.
    fn named(keys: Keys, json: &str) -> (Option<String>, Option<String>) {
        let config = Config::parse(&format!(r#"{{"annotations":{json}}}"#)).unwrap();
        let container = config.container(keys, &PodUid::parse(POD).unwrap());
        (container.pod.map(|name| name.to_string()), container.name)
    }

    #[test]
    fn the_pods_name_is_what_the_runtime_says_of_this_pod() {
        let name = |keys, json: &str| named(keys, json).0;
        let containerd = r#"{"io.kubernetes.cri.sandbox-namespace":"team-a","io.kubernetes.cri.sandbox-name":"vm",
            "io.kubernetes.cri.sandbox-uid":"b9e4f71c-64a5-4f8d-8574-41363cbaf8e5"}"#;
        assert_eq!(name(CONTAINERD, containerd).as_deref(), Some("team-a/vm"));
        let crio = r#"{"io.kubernetes.pod.namespace":"team-a","io.kubernetes.pod.name":"vm"}"#;
        assert_eq!(name(CRI_O, crio).as_deref(), Some("team-a/vm"));
        assert_eq!(
            name(CONTAINERD, &containerd.replace("b9e4", "b9e5")),
            None,
            "another pod's"
        );
        let no_namespace = containerd.replace("team-a", "team a");
        assert_eq!(name(CONTAINERD, &no_namespace), None, "no namespace of Kubernetes'");
        assert_eq!(name(CONTAINERD, r#"{"io.kubernetes.cri.sandbox-name":"vm"}"#), None);
    }

    #[test]
    fn a_tenants_annotations_of_the_other_managers_keys_are_not_read() {
        // What CRI-O writes for a pod whose tenant wrote containerd's keys into its annotations.
        let crio = r#"{"io.kubernetes.pod.namespace":"team-evil","io.kubernetes.pod.name":"vm","io.kubernetes.container.name":"compute",
            "io.kubernetes.cri.sandbox-namespace":"bank","io.kubernetes.cri.sandbox-name":"payments",
            "io.kubernetes.cri.container-name":"x\n\u001b[31mY"}"#;
        assert_eq!(
            named(CRI_O, crio),
            (Some("team-evil/vm".into()), Some("compute".into()))
        );
        let only_theirs = r#"{"io.kubernetes.pod.namespace":"bank","io.kubernetes.pod.name":"vm","io.kubernetes.container.name":"x"}"#;
        assert_eq!(named(CONTAINERD, only_theirs), (None, None));
        // A name is a DNS label, whoever wrote it.
        let escape = r#"{"io.kubernetes.container.name":"x\n\u001b[31mY"}"#;
        assert_eq!(named(CRI_O, escape).1, None);
    }

    #[test]
    fn a_container_refuses_adoption_by_its_environment_of_which_nothing_else_is_kept() {
        let pod = PodUid::parse("b9e4f71c-64a5-4f8d-8574-41363cbaf8e5").unwrap();
        let refuses = |process: &str| {
            let config = Config::parse(&format!(r#"{{"process":{process}}}"#)).unwrap();
            assert!(!format!("{config:?}").contains("secret"), "{config:?}");
            config.container(CONTAINERD, &pod).refuses_adoption
        };
        assert!(refuses(r#"{"env":["TOKEN=secret","STELIA_ADOPT=no","PATH=/bin"]}"#));
        assert!(refuses(r#"{"env":["STELIA_ADOPT=yes","STELIA_ADOPT=\u006eo"]}"#));
        for other in [
            r#"{"env":["STELIA_ADOPT=no","STELIA_ADOPT=yes"]}"#,
            r#"{"env":["STELIA_ADOPT=","STELIA_ADOPTS=no","NO_STELIA_ADOPT=no","STELIA_ADOPT"]}"#,
            r#"{"env":[]}"#,
            r#"{"env":null}"#,
            "{}",
        ] {
            assert!(!refuses(other), "{other}");
        }
        assert_eq!(
            Config::parse("{}").unwrap().container(CONTAINERD, &pod),
            Container::default()
        );
    }

    #[test]
    fn a_container_writes_cgroups_where_they_are_mounted_so_or_it_may_mount_them() {
        let writes = |json: &str| Config::parse(json).unwrap().writes_cgroups().is_some();
        let mounted = |mount: &str| writes(&format!(r#"{{"mounts":[{mount}]}}"#));
        let cgroup = r#"{"destination":"/sys/fs/cgroup","type":"cgroup","source":"cgroup","options":["nosuid","relatime","ro"]}"#;
        assert!(!mounted(cgroup) && mounted(&cgroup.replace("\"ro\"", "\"rw\"")));
        let bound = |source: &str, options: &str| {
            mounted(&format!(
                r#"{{"destination":"/x","type":"bind","source":"{source}","options":[{options}]}}"#
            ))
        };
        assert!(bound("/sys/fs/cgroup", r#""rbind","rw""#) && bound("/sys/fs/cgroup/kubepods.slice", r#""bind""#));
        assert!(!bound("/sys/fs/cgroup", r#""rbind","ro""#));
        // Read-only is the uppermost mount alone.
        assert!(
            bound("/", r#""rbind","ro""#) && !bound("/sys", r#""rbind","rro""#) && !bound("/sys", r#""bind","rw""#)
        );
        assert!(!bound("/var/lib", r#""rbind","rw""#) && !bound("", r#""rbind""#));
        let admin = r#""process":{"capabilities":{"bounding":["CAP_CHOWN","CAP_SYS_ADMIN"]}}"#;
        assert!(writes(&format!("{{{admin}}}")));
        let user = r#""linux":{"namespaces":[{"type":"pid"},{"type":"user"}]}"#;
        assert!(!writes(&format!("{{{admin},{user}}}")) && !writes("{}"));
        let unknown = ContainerCgroup::parse(&format!("/kubepods/pod{POD}/50ab")).unwrap();
        assert!(container(Path::new("/nowhere/run"), &unknown).writes_cgroups.is_some());
    }

    #[test]
    fn a_privileged_container_may_open_everything() {
        let devices = rules(r#"[{"allow":false,"access":"rwm"},{"allow":true,"access":"rwm"}]"#);
        assert_eq!((devices.policy.as_str(), devices.allow.len()), ("auto", 0));
        assert!(!devices.restrict());
    }

    #[test]
    fn a_device_taken_back_is_not_allowed() {
        let devices = rules(
            r#"[{"allow":false},{"allow":true,"type":"c","major":1,"minor":1},{"allow":false,"type":"c","major":1,"minor":1}]"#,
        );
        assert_eq!((devices.policy.as_str(), beyond(&devices)), ("strict", vec![]));
    }

    #[test]
    fn rules_that_name_nothing_leave_what_every_container_has() {
        for json in [r#"[{"allow":false,"access":"rwm"}]"#, "[]"] {
            let devices = rules(json);
            assert!(devices.restrict() && beyond(&devices).is_empty(), "{json}: {devices:?}");
            let null = ("/dev/char/1:3".to_owned(), "rwm".to_owned());
            assert!(devices.allow.contains(&null), "{json}");
        }
    }
}
