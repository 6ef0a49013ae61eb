//! What kubelet would do with pods: CPUs, memory and devices, rejections, how many fit.

use super::*;

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
    let because = "Because:   no single NUMA node has enough cpu, even if all of it were free";
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
        format!("{line}: there is no Pod or template \"c\" in it, only Pod \"a\\u{{1b}}[1mb\"")
    );
    let (_, reason) = refused(node.path(), &["/no/such/file"]);
    assert!(reason.starts_with("read /no/such/file: "), "{reason}");
}

#[test]
fn the_node_that_kubevirt_requires_and_the_objects_that_are_left_out_are_named() {
    let node = node(STATIC);
    let vm = "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: vm}\nspec: {template: {spec: {domain: {cpu: {cores: 2, \
              dedicatedCpuPlacement: true}, memory: {guest: 1Gi}}}}}\n";
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: helper}\nspec: {containers: [{name: a}]}\n";
    let path = node.path().join("both.yaml");
    fs::write(&path, format!("{vm}---\n{pod}")).unwrap();
    let line = path.to_str().unwrap();
    let assumed = |answer: &Value| answer["assumed"].to_string();
    let answer = answered(node.path(), &[line]);
    assert_eq!(answer["pod"], "helper");
    let left_out = "not for VirtualMachine/vm, which --pod KIND/NAME chooses";
    assert!(assumed(&answer).contains(left_out), "{answer}");
    let answer = answered(node.path(), &[line, "--pod", "virtualmachine/vm"]);
    assert_eq!((&answer["pod"], &answer["qos"]), (&"vm".into(), &"Guaranteed".into()));
    let required = "KubeVirt also requires that the node has the labels kubevirt.io/cpumanager=true, kubevirt.io/schedulable=true and the \
                    devices devices.kubevirt.io/kvm, devices.kubevirt.io/tun, devices.kubevirt.io/vhost-net";
    assert!(
        assumed(&answer).contains(required) && !assumed(&answer).contains(left_out),
        "{answer}"
    );
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
            .any(|note| note.as_str().unwrap().contains("the NUMA nodes of free devices"))
    );
    write(
        node.path(),
        "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint",
        "{}",
    );
    let answer = answered(node.path(), &["-c", "cpus=2,memory=1Gi"]);
    let fault = answer["faults"][0].as_str().unwrap();
    assert!(fault.contains("kubelet_internal_checkpoint: "), "{fault}");
}
