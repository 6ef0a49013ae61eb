mod described;
mod gpu;
mod kubelet;
mod machines;
mod pods;
mod records;

use std::fs;
use std::path::Path;

use clap::Parser;
use serde_json::{Value, json};
use stelia_cpus::testing::Shape;
use stelia_cpus::{Cpu, CpuSet, Topology};
use stelia_koordinator::report::{Alignment, ApiVersion, Facts, Kubelet, PodAllocation, numa, report};
use stelia_kubelet::PodUid;
use stelia_testnode::kubelet::Checkpoint;
use tempfile::TempDir;

use super::*;
use crate::cli::{Cli, Command};

const OTHER: &str = "416de7c2-21de-472d-817c-fa9d4306cb7d";

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Two NUMA nodes of four cores with two threads: 0-3,8-11 and 4-7,12-15.
fn topology() -> Topology {
    let shape = Shape {
        nodes: 2,
        cores: 4,
        threads: 2,
        interleaved: true,
    };
    shape.topology()
}

/// A directory like a node's root, with a kubelet that has this configuration. CPUs 1 and 9 are another pod's.
fn node(config: &str) -> TempDir {
    let root = TempDir::new().unwrap();
    let topology = topology();
    let cpus = "sys/devices/system/cpu";
    write(root.path(), &format!("{cpus}/online"), "0-15\n");
    for (number, Cpu { package, core, node }) in &topology.cpus {
        write(
            root.path(),
            &format!("{cpus}/cpu{number}/topology/physical_package_id"),
            &package.to_string(),
        );
        write(
            root.path(),
            &format!("{cpus}/cpu{number}/topology/core_id"),
            &core.to_string(),
        );
        write(
            root.path(),
            &format!("{cpus}/cpu{number}/cache/index3/id"),
            &node.to_string(),
        );
    }
    let nodes = "sys/devices/system/node";
    write(root.path(), &format!("{nodes}/online"), "0-1\n");
    for (id, list, distances) in [(0, "0-3,8-11", "10 21"), (1, "4-7,12-15", "21 10")] {
        write(root.path(), &format!("{nodes}/node{id}/cpulist"), list);
        write(root.path(), &format!("{nodes}/node{id}/distance"), distances);
        let meminfo = format!("Node {id} MemTotal: 16777216 kB\nNode {id} MemFree: 8388608 kB\n");
        write(root.path(), &format!("{nodes}/node{id}/meminfo"), &meminfo);
    }
    write(root.path(), "proc/1/comm", "systemd\n");
    if !config.is_empty() {
        write(root.path(), "proc/77/comm", "kubelet\n");
        write(root.path(), "proc/77/status", "Uid:\t0\t0\t0\t0\n");
        write(root.path(), "proc/77/cgroup", "0::/system.slice/kubelet.service\n");
        write(root.path(), "proc/77/cmdline", "kubelet\0--config=/etc/kubelet.yaml\0");
        write(
            root.path(),
            "etc/kubelet.yaml",
            &format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{config}"),
        );
    }
    let mut state = Checkpoint::create(&root.path().join("var/lib/kubelet"), &set("0-15")).unwrap();
    state.admit(&PodUid::parse(OTHER).unwrap(), "vm", &set("1,9")).unwrap();
    root
}

const DEVICE: &str = "nvidia.com/gpu";
const STATIC: &str = "cpuManagerPolicy: static\nreservedSystemCPUs: 0,8\n";

/// The memory manager's state file with the checksum that fits; `text`: the file with a given one.
fn write_memory(root: &Path, text: impl Fn(u64) -> String) {
    let wrong = stelia_kubelet::MemoryManagerState::parse(text(1).as_bytes())
        .unwrap_err()
        .to_string();
    let right = wrong.split("gives ").nth(1).unwrap();
    let right: String = right.chars().take_while(char::is_ascii_digit).collect();
    let text = text(right.parse().unwrap());
    write(root, "var/lib/kubelet/memory_manager_state", &text);
}

fn steliactl(root: &Path, line: &[&str]) -> Result<String, Failure> {
    let cli = Cli::try_parse_from([&["steliactl", "plan"], line].concat()).unwrap();
    match &cli.command {
        Command::Plan(asked) => run(asked, root, cli.output_options()?),
        other => panic!("{other:?}"),
    }
}

fn answered(root: &Path, line: &[&str]) -> Value {
    let text = match steliactl(root, &[&["-o", "json"], line].concat()) {
        Ok(text) => text,
        Err(Failure::Partial { printed, .. }) => printed,
        Err(other) => panic!("{other}"),
    };
    serde_json::from_str(&text).unwrap()
}

fn refused(root: &Path, line: &[&str]) -> (String, String) {
    let failure = steliactl(root, line).unwrap_err();
    assert_eq!(failure.exit_code(), 1);
    match failure {
        Failure::Partial { printed, reason } => (printed, reason),
        Failure::Other(text) => (String::new(), text),
        other => panic!("{other:?}"),
    }
}
