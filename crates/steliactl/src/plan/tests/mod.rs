mod allocator;
mod described;
mod gpu;
mod kubelet;
mod machines;
mod pods;
mod records;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use stelia_cpus::testing::Shape;
use stelia_cpus::{Cpu, CpuSet, Topology};
use stelia_koordinator::report::{Alignment, ApiVersion, Facts, Kubelet, PodAllocation, numa, report};
use stelia_kubelet::PodUid;
use stelia_kubelet::cpu_manager_state::CheckpointError;
use stelia_testnode::kubelet::Checkpoint;
use tempfile::TempDir;

use super::*;
use crate::cli::Command;
use crate::tests::fixtures::{block_on, cli, holds, is_refused, never_says, says, write};

const OTHER: &str = "416de7c2-21de-472d-817c-fa9d4306cb7d";
const DEVICE: &str = "nvidia.com/gpu";
const RECORD: &str = "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint";
const STATIC: &str = "cpuManagerPolicy: static\nreservedSystemCPUs: 0,8\n";
/// Asks about a pod with so many CPUs.
const TWO: &str = "-c cpus=2,memory=1Gi";
const FOUR: &str = "-c cpus=4,memory=1Gi";

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

fn shape(nodes: u32, cores: u32) -> Topology {
    let shape = Shape {
        nodes,
        cores,
        threads: 2,
        interleaved: true,
    };
    shape.topology()
}

/// Two NUMA nodes of four cores with two threads: 0-3,8-11 and 4-7,12-15.
fn topology() -> Topology {
    shape(2, 4)
}

/// A directory like a node's root, with a kubelet that has this configuration. CPUs 1 and 9 are another pod's.
fn node(config: &str) -> TempDir {
    let root = TempDir::new().unwrap();
    let put = |path: String, text: &str| write(root.path(), &path, text);
    let topology = topology();
    let cpus = "sys/devices/system/cpu";
    put(format!("{cpus}/online"), "0-15\n");
    for (number, Cpu { package, core, node }) in &topology.cpus {
        let cpu = format!("{cpus}/cpu{number}");
        put(format!("{cpu}/topology/physical_package_id"), &package.to_string());
        put(format!("{cpu}/topology/core_id"), &core.to_string());
        put(format!("{cpu}/cache/index3/id"), &node.to_string());
    }
    let nodes = "sys/devices/system/node";
    put(format!("{nodes}/online"), "0-1\n");
    for (id, list, distances) in [(0, "0-3,8-11", "10 21"), (1, "4-7,12-15", "21 10")] {
        put(format!("{nodes}/node{id}/cpulist"), list);
        put(format!("{nodes}/node{id}/distance"), distances);
        let meminfo = format!("Node {id} MemTotal: 16777216 kB\nNode {id} MemFree: 8388608 kB\n");
        put(format!("{nodes}/node{id}/meminfo"), &meminfo);
    }
    put("proc/1/comm".to_owned(), "systemd\n");
    if !config.is_empty() {
        let config = format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{config}");
        for (path, text) in [
            ("proc/77/comm", "kubelet\n"),
            ("proc/77/status", "Uid:\t0\t0\t0\t0\n"),
            ("proc/77/cgroup", "0::/system.slice/kubelet.service\n"),
            ("proc/77/cmdline", "kubelet\0--config=/etc/kubelet.yaml\0"),
            ("etc/kubelet.yaml", &config),
        ] {
            put(path.to_owned(), text);
        }
    }
    let mut state = Checkpoint::create(&root.path().join("var/lib/kubelet"), &set("0-15")).unwrap();
    state.admit(&PodUid::parse(OTHER).unwrap(), "vm", &set("1,9")).unwrap();
    root
}

/// The same with a policy of the Topology Manager.
fn aligned(policy: &str) -> TempDir {
    node(&format!("{STATIC}topologyManagerPolicy: {policy}\n"))
}

/// A described machine whose CPUs are all free.
fn facts(name: &str, topology: Topology) -> Facts {
    Facts {
        name: name.to_owned(),
        numa: BTreeMap::new(),
        reserved: CpuSet::new(),
        exclusive: CpuSet::new(),
        shared: topology.online(),
        topology,
        allocations: Vec::new(),
        containers: BTreeSet::new(),
        kubelet: Kubelet {
            cpu_policy: "none".to_owned(),
            ..Kubelet::default()
        },
        allocator: None,
        pods: None,
        devices: BTreeMap::new(),
        problems: Vec::new(),
    }
}

/// What another pod has.
fn given(cpus: &CpuSet) -> Vec<PodAllocation> {
    vec![PodAllocation {
        pod: PodUid::parse(OTHER).unwrap(),
        name: None,
        cpus: cpus.clone(),
        by_kubelet: true,
    }]
}

fn printed(facts: &Facts) -> String {
    serde_json::to_string(&report(facts, ApiVersion::V1Alpha2)).unwrap() + "\n"
}

/// A state file with the checksum that fits; `text`: the file with a given one.
fn checked<T>(parse: fn(&[u8]) -> Result<T, CheckpointError>, text: impl Fn(u64) -> Value) -> String {
    let Err(wrong) = parse(text(1).to_string().as_bytes()) else {
        panic!("the checksum is not compared")
    };
    let wrong = wrong.to_string();
    let right = wrong.split("computed ").nth(1).unwrap();
    let right: String = right.chars().take_while(char::is_ascii_digit).collect();
    text(right.parse().unwrap()).to_string()
}

/// The memory manager's state file. Of each NUMA node the bytes that it has, that are the system's, that are given; `entries`: of pods
/// that all nodes serve together, or null.
fn write_memory(root: &Path, nodes: &[[u64; 3]], entries: Value) {
    let together = !entries.is_null();
    let node = |(id, [total, system, reserved]): (usize, &[u64; 3])| {
        let free = total - system - reserved;
        let table = json!({"total": total, "systemReserved": system, "allocatable": total - system, "reserved": reserved, "free": free});
        let cells: Vec<usize> = if together { (0..nodes.len()).collect() } else { vec![id] };
        let node = json!({"numberOfAssignments": u64::from(together), "memoryMap": {"memory": table}, "cells": cells});
        (id.to_string(), node)
    };
    let machine: serde_json::Map<String, Value> = nodes.iter().enumerate().map(node).collect();
    let text = |checksum: u64| {
        let mut text = json!({"policyName": "Static", "machineState": machine, "checksum": checksum});
        if together {
            text["entries"] = entries.clone();
        }
        text
    };
    let text = checked(stelia_kubelet::MemoryManagerState::parse, text);
    write(root, "var/lib/kubelet/memory_manager_state", text);
}

/// kubelet's record of a resource with these devices, of which a pod has some: each with the number of its NUMA node or -1.
fn record(root: &Path, resource: &str, ids: &[String], used: &[(i64, &str)]) {
    let entry = |(at, (node, id)): (usize, &(i64, &str))| {
        let by_node = serde_json::Map::from_iter([(node.to_string(), json!([id]))]);
        json!({"PodUID": OTHER, "ContainerName": format!("c{at}"), "ResourceName": resource, "DeviceIDs": by_node, "AllocResp": ""})
    };
    let entries: Vec<Value> = used.iter().enumerate().map(entry).collect();
    let registered = serde_json::Map::from_iter([(resource.to_owned(), json!(ids))]);
    let text = |checksum: u64| {
        let data = json!({"PodDeviceEntries": entries, "RegisteredDevices": registered});
        json!({"Data": data, "Checksum": checksum})
    };
    write(root, RECORD, checked(stelia_kubelet::DeviceManagerState::parse, text));
}

/// What the command prints for a line of words. No daemon runs.
fn steliactl(root: &Path, line: &str) -> Result<String, Failure> {
    let words: Vec<&str> = ["plan"].into_iter().chain(line.split_whitespace()).collect();
    let cli = cli(&words);
    let Command::Plan(asked) = cli.asked() else {
        panic!("{cli:?}")
    };
    let nobody = async || Err(Failure::Other("no daemon".to_owned()));
    block_on(run(asked, nobody, root, cli.output_options()?))
}

/// What is printed, whether the pod is admitted or not.
fn told(root: &Path, line: &str) -> String {
    match steliactl(root, line) {
        Ok(text) => text,
        Err(Failure::Partial { printed, .. }) => printed,
        Err(other) => panic!("{other}"),
    }
}

fn answered(root: &Path, line: &str) -> Value {
    serde_json::from_str(&told(root, &format!("-o json {line}"))).unwrap()
}

/// What is printed, and why the command fails.
fn refused(root: &Path, line: &str) -> (String, String) {
    let failure = steliactl(root, line).unwrap_err();
    assert_eq!(failure.exit_code(), 1);
    match failure {
        Failure::Partial { printed, reason, .. } => (printed, reason),
        Failure::Other(text) => (String::new(), text),
        other => panic!("{other:?}"),
    }
}
