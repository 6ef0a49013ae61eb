//! `docs/runner.md`: its examples work, and no option is left out of the help.

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
    volumes: Vec<Yaml>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    #[serde(default)]
    command: Vec<String>,
    args: Vec<String>,
    resources: Resources,
    volume_mounts: Vec<Yaml>,
}

#[derive(Debug, Deserialize)]
struct Resources {
    requests: std::collections::BTreeMap<String, String>,
    limits: std::collections::BTreeMap<String, String>,
}

#[rstest::rstest]
#[case(include_str!("../../../../packaging/kubernetes/vm.yaml"))]
#[case(include_str!("../../../../packaging/kubernetes/vm-restricted.yaml"))]
#[case(include_str!("../../../../packaging/kubernetes/vm-hugepages.yaml"))]
#[case(include_str!("../../../../packaging/kubernetes/vm-koordinator.yaml"))]
fn the_manifests_are_guaranteed_pods_that_the_runner_and_the_daemon_take(#[case] text: &str) {
    let Manifest { spec } = serde_saphyr::from_str(text).unwrap();
    for container in spec.init_containers.iter().chain(&spec.containers) {
        assert_eq!(container.resources.requests, container.resources.limits);
    }
    for init in &spec.init_containers {
        let words: Vec<String> = ["stelia-runner".to_owned()]
            .into_iter()
            .chain(init.args.clone())
            .collect();
        holds(&words);
        // Whole CPUs would make it an owner of CPUs.
        assert!(init.resources.limits["cpu"].ends_with('m'));
    }
    let [vm] = spec.containers.as_slice() else {
        panic!("{spec:?}")
    };
    vm.resources.limits["cpu"].parse::<u32>().unwrap();
    let words = [vm.command.clone(), vm.args.clone()].concat();
    let options = Cli::try_parse_from(words.iter().map(String::as_str)).unwrap();
    let super::Command::Run(options) = options.command else {
        panic!("{options:?}")
    };
    assert!(options.common.grace.as_secs() + 5 <= spec.termination_grace_period_seconds);
    // The directory is mounted, and not the socket.
    let mount = |place: &Yaml| matches!(place, Yaml::Map(map) if map.get("mountPath").is_some_and(|path| path.texts() == ["/run/stelia/runner"]));
    assert!(vm.volume_mounts.iter().any(mount));
    assert_eq!(vm.volume_mounts.len(), spec.volumes.len());
}

#[test]
fn kubelets_configuration_is_one_that_gives_whole_cores() {
    let text = include_str!("../../../../packaging/kubernetes/kubelet-config.yaml");
    let fragment = stelia_kubelet::config::Fragment::parse(text, "kubelet-config.yaml").unwrap();
    let config = stelia_kubelet::config::KubeletConfig::new([fragment], Default::default()).unwrap();
    assert_eq!(config.cpu_manager_policy, "static");
    assert!(config.cpu_option("full-pcpus-only"));
    assert!(!config.reserved_system_cpus.is_empty());
}
