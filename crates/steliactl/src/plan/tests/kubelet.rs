//! What kubelet's configuration, state files and version decide, and where they leave no answer.

use super::*;

#[test]
fn without_any_kubelet_the_answer_is_not_known() {
    let node = node("");
    let (printed, reason) = refused(node.path(), FOUR);
    says(&printed, &["Admitted:  unknown\n", "Fix:       start kubelet\n"]);
    says(&reason, &["kubelet is not running and left no configuration"]);
    // One that kubeadm set up and that cannot start runs for moments only.
    let file = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncpuManagerPolicy: static\n";
    fs::remove_dir_all(node.path().join("var")).unwrap();
    let kubeadms = |text: &str| write(node.path(), "var/lib/kubelet/config.yaml", text);
    kubeadms(file);
    let (printed, reason) = refused(node.path(), FOUR);
    says(&printed, &["Fix:       "]);
    says(
        &reason,
        &["kubelet would not start: cpuManagerPolicy static needs CPUs"],
    );
    kubeadms(&format!("{file}reservedSystemCPUs: \"0\"\n"));
    let answer = answered(node.path(), FOUR);
    holds(&answer, json!({"/reserved_cpus": "0"}));
    let assumed = answer["assumed"][0].to_string();
    says(&assumed, &["settings are taken from /var/lib/kubelet/config.yaml"]);
}

#[test]
fn a_kubelet_that_would_not_start_admits_nothing() {
    let with = |rest: &str| format!("cpuManagerPolicy: static\n{rest}\n");
    for (config, why) in [
        (with(""), "cpuManagerPolicy static needs CPUs that are reserved"),
        (
            with("reservedSystemCPUs: 0"),
            "/etc/kubelet.yaml: reservedSystemCPUs is the number 0, and kubelet takes a text only",
        ),
        // The files contradict each other.
        (
            "cpuManagerPolicy: none\n".to_owned(),
            "configured policy \"none\" differs from state checkpoint policy \"static\"",
        ),
    ] {
        let (printed, reason) = refused(node(&config).path(), FOUR);
        says(&printed, &["Admitted:  unknown\n"]);
        says(&reason, &["kubelet runs, but would not start again: ", why]);
    }
}

#[test]
fn a_state_file_of_no_known_schema_is_named() {
    let node = node(STATIC);
    write(node.path(), "var/lib/kubelet/cpu_manager_state", "{}");
    let (_, reason) = refused(node.path(), FOUR);
    says(&reason, &["cpu_manager_state: the file is of no known schema"]);
}

#[test]
fn what_kubelet_passes_over_is_a_warning() {
    let more = "reservedCpus: 0-4\naddress: a\naddress: b\nfeatureGates: {CPUManager: true}\n";
    let answer = answered(node(&format!("{STATIC}{more}")).path(), FOUR);
    let expected = [
        "did you mean reservedSystemCPUs?",
        "address is there twice",
        "no gate CPUManager",
    ];
    says(&answer["warnings"].to_string(), &expected);
    assert_eq!(answer["admitted"], true);
}

#[test]
fn cpus_reserved_by_amount_are_those_that_kubelet_chooses() {
    let config = "cpuManagerPolicy: static\nkubeReserved: {cpu: 500m, memory: 1Gi}\nsystemReserved: {cpu: \"1.2\"}\n";
    let answer = answered(node(config).path(), FOUR);
    holds(
        &answer,
        json!({"/reserved_cpus": "0,8", "/containers/0/cpus": "2-3,10-11"}),
    );
}

#[test]
fn a_version_is_read_as_kubernetes_writes_it() {
    for (text, expected) in [("1.37", 37), ("v1.36.3", 36), ("v1.37.0-rc.1+k3s1", 37)] {
        assert_eq!(minor(text), Ok(expected), "{text}");
    }
    for text in ["2.1", "1", "1.x"] {
        assert!(minor(text).is_err(), "{text}");
    }
}

/// kubelet up to 1.36 takes as few NUMA nodes as can give the CPUs; 1.37 as many as the Topology Manager chose.
#[test]
fn the_version_of_kubelet_decides_how_cpus_are_distributed() {
    let config = "cpuManagerPolicy: static\nreservedSystemCPUs: '0,8'\ntopologyManagerPolicy: best-effort\n\
        cpuManagerPolicyOptions: {distribute-cpus-across-numa: 'true'}\n";
    let root = node(config);
    let unknown = subject::here(root.path(), None).unwrap();
    says(&unknown.notes.join("\n"), &["before 1.37"]);
    for (version, later) in [(36, false), (37, true)] {
        let subject = subject::here(root.path(), Some(version)).unwrap();
        never_says(&subject.notes.join("\n"), &["version"]);
        assert_eq!(subject.node.settings().kubelet.affinity_is_least, later);
    }
}

#[test]
fn a_reservation_that_only_the_state_file_has_is_answered_with_and_warned_of() {
    let root = node(&format!("{STATIC}memoryManagerPolicy: Static\n"));
    let (_, why) = refused(root.path(), TWO);
    says(&why, &["would not start again: reservedMemory has 0 bytes"]);
    write_memory(root.path(), &[[16 << 30, 1 << 30, 0]; 2], Value::Null);
    let answer = answered(root.path(), TWO);
    assert_eq!(answer["admitted"], true, "{answer}");
    let expected = [
        "would not start anew",
        "answered with the reservation in memory_manager_state",
    ];
    says(&answer["warnings"].to_string(), &expected);
}

#[test]
fn k3s_that_hides_its_command_line_is_answered_for_only_where_files_agree() {
    let root = node("{}");
    write(root.path(), "proc/77/comm", "k3s-server\n");
    write(root.path(), "proc/77/cmdline", "/usr/local/bin/k3s server\0");
    let unknown = || refused(root.path(), TWO).1;
    let why = unknown();
    let expected = "k3s hides its command line; put kubelet-arg";
    assert!(why.starts_with(expected), "{why}");
    says(&why, &["differs from state checkpoint policy"]);
    let state = root.path().join("var/lib/kubelet/cpu_manager_state");
    let kept = fs::read(&state).unwrap();
    fs::remove_file(&state).unwrap();
    assert_eq!(unknown(), format!("{expected} into /etc/rancher/k3s/config.yaml"));
    fs::write(&state, kept).unwrap();
    let arguments = "kubelet-arg: [cpu-manager-policy=static, 'reserved-cpus=0,8']\n";
    write(root.path(), "etc/rancher/k3s/config.yaml", arguments);
    assert_eq!(answered(root.path(), TWO)["admitted"], true);
}
