//! The examples of `docs/runner.md` and the manifests start the runner as it wants to be started.

use std::collections::BTreeSet;

use clap::Parser;
use serde_json::Value;

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

fn words(list: &Value) -> Vec<String> {
    let words = list.as_array().into_iter().flatten();
    words.map(|word| word.as_str().unwrap().to_owned()).collect()
}

fn command(of: &Value) -> Vec<String> {
    [words(&of["command"]), words(&of["args"])].concat()
}

/// The commands of whatever has one: a container, a probe, a hook.
fn commands(yaml: &Value, found: &mut Vec<Vec<String>>) {
    if yaml.get("command").is_some() {
        found.push(command(yaml));
    }
    let (list, map) = (yaml.as_array().into_iter().flatten(), yaml.as_object().into_iter());
    for below in list.chain(map.flat_map(|map| map.values())) {
        commands(below, found);
    }
}

#[test]
fn every_manifest_starts_the_runner_as_it_wants_to_be_started() {
    let mut found = Vec::new();
    for block in blocks("yaml") {
        commands(&serde_saphyr::from_str(block).unwrap(), &mut found);
    }
    assert_eq!(found.len(), 4, "{found:?}");
    found.iter().for_each(|command| holds(command));
}

fn list(of: &Value, name: &str) -> Vec<Value> {
    of[name].as_array().cloned().unwrap_or_default()
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
    let manifest: Value = serde_saphyr::from_str(text).unwrap();
    let spec = &manifest["spec"];
    let (init, own) = (list(spec, "initContainers"), list(spec, "containers"));
    let all = [&init[..], &own].concat();
    for container in &all {
        let resources = &container["resources"];
        assert!(resources["limits"].is_object());
        assert_eq!(resources["requests"], resources["limits"]);
    }
    for init in &init {
        // Without a command it is the runner's own image.
        if init.get("command").is_none() {
            holds(&[vec!["stelia-runner".to_owned()], words(&init["args"])].concat());
        }
        // Whole CPUs would make it an owner of CPUs.
        assert!(init["resources"]["limits"]["cpu"].as_str().unwrap().ends_with('m'));
    }
    let [vm] = own.as_slice() else { panic!("{spec}") };
    let limits = &vm["resources"]["limits"];
    limits["cpu"].as_str().unwrap().parse::<u32>().unwrap();
    let probes = ["startupProbe", "readinessProbe", "livenessProbe"].map(|probe| vm.get(probe));
    probes
        .iter()
        .flatten()
        .for_each(|probe| holds(&words(&probe["exec"]["command"])));
    let words = command(vm);
    let options = Cli::try_parse_from(words.iter().map(String::as_str)).unwrap();
    let super::Command::Run(options) = options.command else {
        panic!("{options:?}")
    };
    assert!(options.common.grace.as_secs() + 5 <= spec["terminationGracePeriodSeconds"].as_u64().unwrap());
    // The directory is mounted, and not the socket: by the pod, or by the device plugin.
    let is_mounted = list(vm, "volumeMounts")
        .iter()
        .any(|mount| mount["mountPath"] == "/run/stelia/runner");
    assert!(is_mounted != (limits["stelia.io/vm"] == "1"));
    let names = |of: Vec<Value>| -> BTreeSet<String> { of.iter().map(|one| one["name"].to_string()).collect() };
    let mounts = all.iter().flat_map(|container| list(container, "volumeMounts"));
    assert_eq!(names(mounts.collect()), names(list(spec, "volumes")));
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
