mod described;
mod machines;

use std::fs;
use std::path::Path;

use clap::Parser;
use serde_json::{Value, json};
use stelia_cpus::testing::Shape;
use stelia_cpus::{Cpu, CpuSet, Topology};
use stelia_kubelet::PodUid;
use stelia_node_report::{Alignment, ApiVersion, Facts, Kubelet, PodAllocation, numa, report};
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

#[test]
fn a_pod_gets_what_kubelet_would_take_and_the_rest_is_told() {
    let node = node(&format!("{STATIC}topologyManagerPolicy: best-effort\n"));
    let text = steliactl(node.path(), &["-c", "name=vm,cpus=4,memory=1Gi", "--until-full"]).unwrap();
    let text = text.replace(&node.path().display().to_string(), "");
    insta::assert_snapshot!(text);
}

#[test]
fn one_that_fits_nowhere_is_rejected_in_kubelets_words_and_the_program_fails() {
    let node = node(&format!("{STATIC}topologyManagerPolicy: single-numa-node\n"));
    let (printed, reason) = refused(node.path(), &["-c", "name=vm,cpus=10,memory=1Gi"]);
    assert_eq!(
        reason,
        "kubelet would reject the pod: TopologyAffinityError: Resources cannot be allocated with Topology locality"
    );
    let because = "Because:   cpu fits on no single NUMA node, however free";
    for line in ["Admitted:  no: TopologyAffinityError", "For:       vm, cpu", because] {
        assert!(printed.contains(line), "{line}\n{printed}");
    }
    let options = "cpuManagerPolicyOptions: {full-pcpus-only: \"true\"}\n";
    let node = self::node(&format!("{STATIC}{options}"));
    let answer = answered(node.path(), &["-c", "cpus=3,memory=1Gi"]);
    let rejection = &answer["rejection"];
    assert_eq!(
        (&answer["admitted"], &rejection["reason"]),
        (&false.into(), &"SMTAlignmentError".into())
    );
    assert_eq!(
        rejection["message"],
        "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"
    );
    assert_eq!(
        answer["kubelet"]["cpu_manager_policy_options"],
        serde_json::json!(["full-pcpus-only"])
    );
}

#[test]
fn more_of_it_fit_until_kubelet_says_no() {
    let node = node(STATIC);
    let answer = answered(node.path(), &["-c", "cpus=6,memory=1Gi", "--until-full"]);
    let fits = &answer["until_full"];
    assert_eq!((&fits["count"], &fits["or_more"]), (&2.into(), &false.into()));
    assert_eq!(fits["then"]["reason"], "UnexpectedAdmissionError");
    // They are disjoint, and none has reserved CPUs or the other pod's.
    let lists = fits["cpus"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cpus| set(cpus.as_str().unwrap()));
    let mut held = set("0,1,8,9");
    for cpus in lists {
        assert!(cpus.is_disjoint(&held), "{cpus}");
        held = held.union(&cpus);
    }
    assert_eq!(held, set("0-15"));
    let shared = answered(node.path(), &["-c", "cpus=1500m,memory=1Gi", "--until-full"]);
    assert_eq!(
        (&shared["until_full"]["count"], &shared["until_full"]["or_more"]),
        (&256.into(), &true.into())
    );
    let why = "c0 has no CPUs of its own: it requests 1500m CPUs, no whole number";
    assert_eq!(shared["why_not_better"], serde_json::json!([why]));
}

#[test]
fn settings_are_compared_side_by_side() {
    let node = node(STATIC);
    let answer = answered(node.path(), &["-c", "cpus=6,memory=1Gi", "--what-if"]);
    let rows = answer["what_if"].as_array().unwrap();
    let find = |policy: &str, scope: &str, option: &str| {
        let row = rows.iter().find(|row| {
            let kubelet = &row["kubelet"];
            let options: Vec<&str> = kubelet["cpu_manager_policy_options"]
                .as_array()
                .unwrap()
                .iter()
                .flat_map(Value::as_str)
                .collect();
            kubelet["topology_manager_policy"] == policy
                && kubelet["topology_manager_scope"] == scope
                && options.join(",") == option
        });
        row.unwrap_or_else(|| panic!("{policy} {scope} {option}: {rows:#?}"))
    };
    assert_eq!(rows.iter().filter(|row| row["now"] == true).count(), 1);
    assert_eq!(find("none", "container", "")["now"], true);
    // Two NUMA nodes would have six free CPUs; the reserved core and the other pod's CPUs leave one that has.
    let single = find("single-numa-node", "pod", "");
    assert_eq!(
        (&single["admitted"], &single["numa_nodes"], &single["fits"]),
        (&true.into(), &"1".into(), &1.into())
    );
    let cores = |row: &Value| {
        set(row["cpus"].as_str().unwrap())
            .iter()
            .map(|cpu| cpu % 8)
            .collect::<CpuSet>()
    };
    assert_eq!(cores(find("none", "container", "")).len(), 3);
    assert_eq!(
        cores(find("none", "container", "distribute-cpus-across-cores")).len(),
        4
    );
    assert_eq!(find("none", "container", "strict-cpu-reservation")["fits"], 2);
    // Options that exclude each other make a row without an answer; the command does not fail.
    let socket = answered(
        self::node(&format!("{STATIC}topologyManagerPolicy: single-numa-node\n")).path(),
        &["-c", "cpus=2,memory=1Gi", "--what-if"],
    );
    let rows_of_socket = socket["what_if"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["no_start"] != Value::Null);
    assert_eq!(rows_of_socket.count(), 1);
    let text = steliactl(node.path(), &["-c", "cpus=6,memory=1Gi", "--what-if"]).unwrap();
    assert!(text.contains("NOW  TOPOLOGY          SCOPE      CPU OPTIONS"), "{text}");
}

#[test]
fn a_manifest_is_asked_about_as_the_flags_are() {
    let node = node(STATIC);
    let manifest = "apiVersion: v1\nkind: Pod\nmetadata: {name: \"a\\e[1mb\"}\nspec:\n  containers:\n  - name: vm\n    \
                    resources: {limits: {cpu: 4, memory: 1Gi}}\n  - {name: side}\n";
    let path = node.path().join("pod.yaml");
    fs::write(&path, manifest).unwrap();
    let line = path.to_str().unwrap();
    let text = steliactl(node.path(), &[line]).unwrap();
    assert!(text.contains("Pod:             a?[1mb (Burstable)"), "{text}");
    assert!(
        text.contains("vm has no CPUs of its own: its pod is Burstable, not Guaranteed"),
        "{text}"
    );
    let (_, reason) = refused(node.path(), &[line, "--pod", "c"]);
    assert_eq!(
        reason,
        format!("{line}: there is no Pod \"c\" in it, only Pod \"a\\u{{1b}}[1mb\"")
    );
    let (_, reason) = refused(node.path(), &["/no/such/file"]);
    assert!(reason.starts_with("read /no/such/file: "), "{reason}");
}

#[test]
fn without_a_kubelet_its_state_file_tells_the_policy() {
    let node = node("");
    let answer = answered(node.path(), &["-c", "cpus=4,memory=1Gi"]);
    assert_eq!(answer["kubelet"]["cpu_manager_policy"], "static");
    assert!(
        answer["assumed"][0]
            .as_str()
            .unwrap()
            .contains("no kubelet runs on this node"),
        "{answer}"
    );
    // CPUs that are in none of kubelet's lists count as reserved.
    Checkpoint::create(&node.path().join("var/lib/kubelet"), &set("2-15")).unwrap();
    let answer = answered(node.path(), &["-c", "cpus=8,memory=1Gi"]);
    assert_eq!(answer["kubelet"]["reserved_cpus"], "0-1");
    assert_eq!(answer["containers"][0]["cpus"], "4-7,12-15");
}

#[test]
fn without_any_kubelet_the_answer_is_not_known() {
    let node = node("");
    fs::remove_dir_all(node.path().join("var")).unwrap();
    let (printed, reason) = refused(node.path(), &["-c", "cpus=4,memory=1Gi"]);
    assert!(
        printed.is_empty() && reason.starts_with("unknown: no kubelet runs on this node"),
        "{reason}"
    );
    // One that kubeadm set up and that cannot start runs for moments only.
    let file = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncpuManagerPolicy: static\n";
    write(node.path(), "var/lib/kubelet/config.yaml", file);
    let (_, reason) = refused(node.path(), &["-c", "cpus=4,memory=1Gi"]);
    assert!(
        reason.starts_with("kubelet would not start: cpuManagerPolicy static needs CPUs"),
        "{reason}"
    );
    write(
        node.path(),
        "var/lib/kubelet/config.yaml",
        &format!("{file}reservedSystemCPUs: \"0\"\n"),
    );
    let answer = answered(node.path(), &["-c", "cpus=4,memory=1Gi"]);
    assert_eq!(answer["kubelet"]["reserved_cpus"], "0");
    assert!(
        answer["assumed"][0]
            .as_str()
            .unwrap()
            .contains("settings are taken from /var/lib/kubelet/config.yaml"),
        "{answer}"
    );
}

#[rstest::rstest]
#[case("cpuManagerPolicy: static\n", "cpuManagerPolicy static needs CPUs that are reserved")]
#[case(
    "cpuManagerPolicy: none\ncpuManagerPolicyOptions: {full-pcpus-only: \"true\"}\n",
    "the policy none has no options"
)]
#[case(
    "cpuManagerPolicy: static\nreservedSystemCPUs: 0\n",
    "/etc/kubelet.yaml: reservedSystemCPUs is the number 0, and kubelet takes a text only"
)]
#[case(
    "cpuManagerPolicy: static\nreservedSystemCPUs: 0,8\nmemoryManagerPolicy: Static\n",
    "reservedMemory has 0 bytes of memory in sum"
)]
#[case(
    "cpuManagerPolicy: static\nreservedSystemCPUs: 0,8\ncpuManagerPolicyOptions: {align-by-socket: \"true\"}\n",
    "needs the feature gate CPUManagerPolicyAlphaOptions"
)]
#[case(
    "cpuManagerPolicy: static\nreservedSystemCPUs: 0,99\n",
    "this node has no CPUs 99 online"
)]
fn a_kubelet_that_would_not_start_admits_nothing(#[case] config: &str, #[case] why: &str) {
    let node = node(config);
    let (printed, reason) = refused(node.path(), &["-c", "cpus=4,memory=1Gi"]);
    assert!(printed.is_empty(), "{printed}");
    assert!(
        reason.starts_with("kubelet would not start: ") && reason.contains(why),
        "{reason}"
    );
}

#[test]
fn what_kubelet_passes_over_is_a_warning() {
    let node = node(&format!(
        "{STATIC}reservedCpus: 0-4\naddress: a\naddress: b\nfeatureGates: {{CPUManager: true}}\n"
    ));
    let answer = answered(node.path(), &["-c", "cpus=4,memory=1Gi"]);
    let warnings = answer["warnings"].to_string();
    for expected in [
        "did you mean reservedSystemCPUs?",
        "address is there twice",
        "no gate CPUManager",
    ] {
        assert!(warnings.contains(expected), "{warnings}");
    }
    assert_eq!(answer["admitted"], true);
}

#[test]
fn memory_of_a_fresh_memory_manager_is_given_from_what_is_left() {
    let node = node(&format!(
        "{STATIC}memoryManagerPolicy: Static\nreservedMemory: [{{numaNode: 0, limits: {{memory: 100Mi}}}}]\n"
    ));
    let answer = answered(node.path(), &["-c", "cpus=4,memory=1Gi"]);
    assert_eq!(answer["kubelet"]["memory_manager_policy"], "Static");
    assert_eq!(answer["containers"][0]["memory"][0]["nodes"], "0");
    let (printed, _) = refused(node.path(), &["-c", "cpus=4,memory=33Gi"]);
    assert!(printed.contains("Admitted:"), "{printed}");
}

#[test]
fn files_that_contradict_each_other_are_no_ground_for_an_answer() {
    let node = node("cpuManagerPolicy: none\n");
    let (_, reason) = refused(node.path(), &["-c", "cpus=4,memory=1Gi"]);
    assert_eq!(
        reason,
        "kubelet would not start: configured policy \"none\" differs from state checkpoint policy \"static\""
    );
    let node = self::node("cpuManagerPolicy: static\nreservedSystemCPUs: 0-1\n");
    let (_, reason) = refused(node.path(), &["-c", "cpus=4,memory=1Gi"]);
    assert!(
        reason.contains("not all reserved cpus: \"0-1\" are present"),
        "{reason}"
    );
    write(node.path(), "var/lib/kubelet/cpu_manager_state", "{}");
    let (_, reason) = refused(node.path(), &["-c", "cpus=4,memory=1Gi"]);
    assert!(
        reason.contains("cpu_manager_state: the file is of no known schema"),
        "{reason}"
    );
}

#[test]
fn cpus_reserved_by_amount_are_those_that_kubelet_chooses() {
    let config = "cpuManagerPolicy: static\nkubeReserved: {cpu: 500m, memory: 1Gi}\nsystemReserved: {cpu: \"1.2\"}\n";
    let node = node(config);
    let answer = answered(node.path(), &["-c", "cpus=4,memory=1Gi"]);
    assert_eq!(answer["kubelet"]["reserved_cpus"], "0,8");
    assert_eq!(answer["containers"][0]["cpus"], "2-3,10-11");
    let node = self::node("cpuManagerPolicy: static\nkubeReserved: {cpu: much}\n");
    let (_, reason) = refused(node.path(), &["-c", "cpus=4,memory=1Gi"]);
    assert_eq!(
        reason,
        "kubelet would not start: kubeReserved.cpu: \"much\" is not a quantity, such as 2, 500m or 1Gi"
    );
}

#[test]
fn devices_are_those_of_kubelets_own_record() {
    let node = node(STATIC);
    let genuine = "../../tests/data/kubelet-checkpoints/k136-gate-off/08-device/kubelet_internal_checkpoint";
    let text = fs::read_to_string(genuine).unwrap();
    write(
        node.path(),
        "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint",
        &text,
    );
    let answer = answered(
        node.path(),
        &["-c", &format!("cpus=2,memory=1Gi,{DEVICE}=1"), "--until-full"],
    );
    assert_eq!(answer["containers"][0]["devices"][0]["resource"], DEVICE);
    assert_eq!(
        answer["until_full"]["then"]["reason"], "UnexpectedAdmissionError",
        "{answer}"
    );
    // Of three, two are taken by a pod that runs.
    assert_eq!(answer["until_full"]["count"], 1);
    assert_eq!(
        answer["containers"][0]["devices"][0]["ids"],
        serde_json::json!(["GPU-9d0e"])
    );
    let assumed = answer["assumed"].as_array().unwrap();
    assert!(
        assumed
            .iter()
            .any(|note| note.as_str().unwrap().starts_with("the NUMA nodes of devices"))
    );
    write(
        node.path(),
        "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint",
        "{}",
    );
    let (_, reason) = refused(node.path(), &["-c", "cpus=2,memory=1Gi"]);
    assert!(reason.contains("kubelet_internal_checkpoint: "), "{reason}");
}

#[rstest::rstest]
#[case("1.37", Ok(37))]
#[case("v1.36.3", Ok(36))]
#[case("v1.37.0-rc.1+k3s1", Ok(37))]
#[case("2.1", Err(()))]
#[case("1", Err(()))]
#[case("1.x", Err(()))]
fn a_version_is_read_as_kubernetes_writes_it(#[case] text: &str, #[case] expected: Result<u32, ()>) {
    assert_eq!(minor(text).map_err(|_| ()), expected);
}

/// kubelet up to 1.36 takes as few NUMA nodes as can give the CPUs; 1.37 as many as the Topology Manager chose.
#[test]
fn the_version_of_kubelet_decides_how_cpus_are_distributed() {
    let config = "cpuManagerPolicy: static\nreservedSystemCPUs: '0,8'\ntopologyManagerPolicy: best-effort\n\
        cpuManagerPolicyOptions: {distribute-cpus-across-numa: 'true'}\n";
    let root = node(config);
    let unknown = subject::here(root.path(), None).unwrap();
    assert!(
        unknown.notes.iter().any(|note| note.contains("before 1.37")),
        "{:?}",
        unknown.notes
    );
    for (version, later) in [(36, false), (37, true)] {
        let subject = subject::here(root.path(), Some(version)).unwrap();
        assert!(
            !subject.notes.iter().any(|note| note.contains("version")),
            "{:?}",
            subject.notes
        );
        assert_eq!(subject.node.settings().kubelet.affinity_is_least, later);
    }
}

#[test]
fn a_reservation_that_only_the_state_file_has_is_answered_with_and_warned_of() {
    let root = node(&format!("{STATIC}memoryManagerPolicy: Static\n"));
    let line = ["-c", "cpus=2,memory=1Gi"];
    let Err(Failure::Other(why)) = steliactl(root.path(), &line) else {
        panic!("nothing says what is reserved");
    };
    assert!(
        why.starts_with("kubelet would not start: reservedMemory has 0 bytes"),
        "{why}"
    );
    let table = |total: u64| {
        let free = total - (1 << 30);
        json!({"memory": {"total": total, "systemReserved": 1 << 30, "allocatable": free, "reserved": 0, "free": free}})
    };
    let of_node = |id: u32, total| json!({"numberOfAssignments": 0, "memoryMap": table(total), "cells": [id]});
    let write_state = |total: u64| {
        let nodes = json!({"0": of_node(0, 16 << 30), "1": of_node(1, total)});
        let state =
            |checksum: u64| json!({"policyName": "Static", "machineState": nodes, "checksum": checksum}).to_string();
        write_memory(root.path(), state);
    };
    write_state(16 << 30);
    let answer = answered(root.path(), &line);
    assert_eq!(answer["admitted"], true, "{answer}");
    let warnings = answer["warnings"].to_string();
    assert!(
        warnings.contains("would not start anew")
            && warnings.contains("answered with the reservation in memory_manager_state"),
        "{warnings}"
    );
    write_state(15 << 30);
    let Err(Failure::Other(why)) = steliactl(root.path(), &line) else {
        panic!("the file has other memory than the node");
    };
    assert!(
        why.contains("memory of NUMA node 1 is 17179869184 bytes, in the file 16106127360"),
        "{why}"
    );
}

#[test]
fn k3s_that_hides_its_command_line_is_answered_for_only_where_files_agree() {
    let root = node("{}");
    write(root.path(), "proc/77/comm", "k3s-server\n");
    write(root.path(), "proc/77/cmdline", "/usr/local/bin/k3s server\0");
    let line = ["-c", "cpus=2,memory=1Gi"];
    let unknown = || match steliactl(root.path(), &line) {
        Err(Failure::Other(why)) => why,
        other => panic!("{other:?}"),
    };
    let why = unknown();
    assert!(
        why.starts_with("unknown: k3s hides its command line; put kubelet-arg"),
        "{why}"
    );
    assert!(why.contains("differs from state checkpoint policy"), "{why}");
    let state = root.path().join("var/lib/kubelet/cpu_manager_state");
    let kept = fs::read(&state).unwrap();
    fs::remove_file(&state).unwrap();
    assert_eq!(
        unknown(),
        "unknown: k3s hides its command line; put kubelet-arg into /etc/rancher/k3s/config.yaml"
    );
    fs::write(&state, kept).unwrap();
    let arguments = "kubelet-arg: [cpu-manager-policy=static, 'reserved-cpus=0,8']\n";
    write(root.path(), "etc/rancher/k3s/config.yaml", arguments);
    assert_eq!(answered(root.path(), &line)["admitted"], true);
}
