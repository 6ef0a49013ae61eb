//! What kubelet's configuration, state files and version decide, and where they leave no answer.

use super::*;

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
