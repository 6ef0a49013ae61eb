//! The examples of `docs/runner.md` and the manifests start the runner as it wants to be started.

use clap::Parser;
use serde::Deserialize;

use super::Cli;
use crate::helpers::spec::parse_file;

const PAGE: &str = include_str!("../../../../docs/runner.md");

/// The blocks of one language in the page.
fn blocks(language: &str) -> Vec<&'static str> {
    let mut blocks = Vec::new();
    let mut rest = PAGE;
    while let Some((_, found)) = rest.split_once("\n```") {
        let (block, after) = found.split_once("\n```\n").unwrap();
        blocks.extend(block.strip_prefix(&format!("{language}\n")));
        rest = after;
    }
    blocks
}

fn holds(words: &[String]) {
    let options = words.iter().map(String::as_str);
    Cli::try_parse_from(options).unwrap_or_else(|error| panic!("{words:?}: {error}"));
}

#[test]
fn every_command_is_one_the_runner_takes() {
    let text = blocks("sh").join("\n").replace("\\\n", "");
    let commands: Vec<_> = text.lines().filter(|line| line.starts_with("stelia-runner")).collect();
    assert!(commands.len() >= 8, "{commands:?}");
    commands
        .iter()
        .for_each(|command| holds(&shlex::split(command).unwrap()));
}

#[test]
fn every_helpers_file_is_one_the_runner_takes() {
    let blocks = blocks("toml");
    assert_eq!(blocks.len(), 1);
    assert_eq!(parse_file(blocks[0]).unwrap().len(), 3);
}

/// Anything that may hold a command: a container, a probe, a hook.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Yaml {
    List(Vec<Yaml>),
    Map(std::collections::BTreeMap<String, Yaml>),
    Text(String),
    Other(serde::de::IgnoredAny),
}

impl Yaml {
    fn texts(&self) -> Vec<String> {
        match self {
            Yaml::List(list) => list.iter().flat_map(Yaml::texts).collect(),
            Yaml::Text(text) => vec![text.clone()],
            other => panic!("{other:?}"),
        }
    }

    fn commands(&self, found: &mut Vec<Vec<String>>) {
        match self {
            Yaml::List(list) => list.iter().for_each(|one| one.commands(found)),
            Yaml::Map(map) => {
                if let Some(command) = map.get("command") {
                    let args = map.get("args").map(Yaml::texts).unwrap_or_default();
                    found.push([command.texts(), args].concat());
                }
                map.values().for_each(|one| one.commands(found));
            }
            Yaml::Text(_) | Yaml::Other(_) => {}
        }
    }
}

#[test]
fn every_manifest_starts_the_runner_as_it_wants_to_be_started() {
    let mut commands = Vec::new();
    for block in blocks("yaml") {
        let yaml: Yaml = serde_saphyr::from_str(block).unwrap();
        yaml.commands(&mut commands);
    }
    assert_eq!(commands.len(), 4, "{commands:?}");
    commands.iter().for_each(|command| holds(command));
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    spec: PodSpec,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    termination_grace_period_seconds: u64,
    #[serde(default)]
    init_containers: Vec<Container>,
    containers: Vec<Container>,
    volumes: Vec<Volume>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    #[serde(default)]
    command: Vec<String>,
    #[serde(default)]
    args: Vec<String>,
    startup_probe: Option<Probe>,
    readiness_probe: Option<Probe>,
    liveness_probe: Option<Probe>,
    resources: Resources,
    volume_mounts: Vec<Volume>,
}

impl Container {
    fn words(&self) -> Vec<String> {
        [self.command.clone(), self.args.clone()].concat()
    }

    fn probes(&self) -> impl Iterator<Item = &Probe> {
        [&self.startup_probe, &self.readiness_probe, &self.liveness_probe]
            .into_iter()
            .flatten()
    }
}

#[derive(Debug, Deserialize)]
struct Probe {
    exec: Exec,
}

#[derive(Debug, Deserialize)]
struct Exec {
    command: Vec<String>,
}

/// A volume, or where one is mounted.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    name: String,
    mount_path: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Resources {
    requests: std::collections::BTreeMap<String, String>,
    limits: std::collections::BTreeMap<String, String>,
}

#[rstest::rstest]
#[case(include_str!("../../../../packaging/kubernetes/vm.yaml"))]
#[case(include_str!("../../../../packaging/kubernetes/vm-hostpath.yaml"))]
#[case(include_str!("../../../../packaging/kubernetes/vm-privileged.yaml"))]
#[case(include_str!("../../../../packaging/kubernetes/vm-virtiofsd.yaml"))]
#[case(include_str!("../../../../packaging/kubernetes/vm-hugepages.yaml"))]
#[case(include_str!("../../../../packaging/kubernetes/vm-userns.yaml"))]
#[case(include_str!("../../../../packaging/kubernetes/vm-koordinator.yaml"))]
#[case(include_str!("../../../../packaging/kubernetes/vm-emulated.yaml"))]
fn the_manifests_are_guaranteed_pods_that_the_runner_and_the_daemon_take(#[case] text: &str) {
    let Manifest { spec } = serde_saphyr::from_str(text).unwrap();
    let all = || spec.init_containers.iter().chain(&spec.containers);
    for container in all() {
        assert_eq!(container.resources.requests, container.resources.limits);
    }
    for init in &spec.init_containers {
        // Without a command it is the runner's own image.
        if init.command.is_empty() {
            holds(&[vec!["stelia-runner".to_owned()], init.args.clone()].concat());
        }
        // Whole CPUs would make it an owner of CPUs.
        assert!(init.resources.limits["cpu"].ends_with('m'));
    }
    let [vm] = spec.containers.as_slice() else {
        panic!("{spec:?}")
    };
    vm.resources.limits["cpu"].parse::<u32>().unwrap();
    vm.probes().for_each(|probe| holds(&probe.exec.command));
    let words = vm.words();
    let options = Cli::try_parse_from(words.iter().map(String::as_str)).unwrap();
    let super::Command::Run(options) = options.command else {
        panic!("{options:?}")
    };
    assert!(options.common.grace.as_secs() + 5 <= spec.termination_grace_period_seconds);
    // The directory is mounted, and not the socket: by the pod, or by the device plugin.
    let mounts = || all().flat_map(|container| &container.volume_mounts);
    let is_mounted = vm
        .volume_mounts
        .iter()
        .any(|mount| mount.mount_path.as_deref() == Some("/run/stelia/runner"));
    let asks = vm.resources.limits.get("stelia.io/vm").map(String::as_str) == Some("1");
    assert!(is_mounted != asks);
    assert!(mounts().all(|mount| spec.volumes.iter().any(|volume| volume.name == mount.name)));
    assert!(
        spec.volumes
            .iter()
            .all(|volume| mounts().any(|mount| mount.name == volume.name))
    );
}

/// Only the one that is for tests does without KVM, and it says what it is.
#[test]
fn a_manifest_emulates_its_guest_only_where_it_says_that_it_is_for_tests() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/kubernetes");
    let files = std::fs::read_dir(folder).unwrap().flatten();
    for file in files.filter(|file| file.file_type().unwrap().is_file()) {
        let text = std::fs::read_to_string(file.path()).unwrap();
        if text.contains("kind: Pod") {
            let for_tests = text.starts_with("# For tests only");
            assert_eq!(
                (text.contains("tcg"), text.contains("kvm")),
                (for_tests, !for_tests),
                "{file:?}"
            );
        }
    }
}

#[test]
fn kubelets_configuration_is_one_that_gives_whole_cores() {
    let text = include_str!("../../../../packaging/kubernetes/kubelet-config.yaml");
    let file = stelia_kubelet::config::File::parse(text, "kubelet-config.yaml").unwrap();
    let config = stelia_kubelet::config::KubeletConfig::new(Some(file), Vec::new(), Default::default()).unwrap();
    assert_eq!(config.warnings, []);
    assert_eq!(config.cpu_manager_policy, "static");
    assert!(config.cpu_option("full-pcpus-only"));
    assert!(!config.reserved_system_cpus.is_empty());
}
