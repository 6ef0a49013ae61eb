//! What kubelet would do with pods: CPUs, memory and devices, rejections, how many fit.

use super::*;

#[test]
fn a_pod_gets_what_kubelet_would_take_and_the_rest_is_told() {
    let node = aligned("best-effort");
    let text = steliactl(node.path(), "-c name=vm,cpus=4,memory=1Gi --until-full").unwrap();
    let text = text.replace(&node.path().display().to_string(), "");
    insta::assert_snapshot!(text);
}

#[test]
fn one_that_fits_nowhere_is_rejected_in_kubelets_words_and_the_program_fails() {
    let node = aligned("single-numa-node");
    let (printed, reason) = refused(node.path(), "-c name=vm,cpus=10,memory=1Gi");
    // What is printed before has the rest.
    assert_eq!(reason, "kubelet would reject the pod: TopologyAffinityError");
    says(
        &printed,
        &["no NUMA node has 10 CPUs, even if all were free: 8 at most\n"],
    );
    let options = "cpuManagerPolicyOptions: {full-pcpus-only: \"true\"}\n";
    let node = self::node(&format!("{STATIC}{options}"));
    holds(
        &answered(node.path(), "-c cpus=3,memory=1Gi"),
        json!({
            "/admitted": false, "/rejection/reason": "SMTAlignmentError",
            "/rejection/message": "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2",
            "/rejection/fix": "request 4 CPUs, or another multiple of the 2 threads per core (full-pcpus-only)",
            "/settings/cpu_manager/options/full-pcpus-only": true,
        }),
    );
}

#[test]
fn more_of_it_fit_until_kubelet_says_no() {
    let node = node(STATIC);
    let fits = &answered(node.path(), "-c cpus=6,memory=1Gi --until-full")["until_full"];
    holds(fits, json!({"/count": 2, "/then/reason": "UnexpectedAdmissionError"}));
    holds(
        &answered(node.path(), "-c cpus=1500m,memory=1Gi --until-full"),
        json!({
            "/until_full/count": 256, "/until_full/then": null,
            "/not_exclusive": ["none: 1500m CPUs are requested, not a whole number"], "/why_not_better": [],
        }),
    );
}

#[test]
fn a_manifest_is_asked_about_as_the_flags_are() {
    let node = node(STATIC);
    let manifest = "apiVersion: v1\nkind: Pod\nmetadata: {name: \"a\\e[1mb\"}\nspec:\n  containers:\n  - name: vm\n    \
                    resources: {limits: {cpu: 4, memory: 1Gi}}\n  - {name: side}\n";
    write(node.path(), "pod.yaml", manifest);
    let file = node.path().join("pod.yaml").display().to_string();
    let text = steliactl(node.path(), &file).unwrap();
    // The first thing after Admitted.
    let expected = [
        "a?[1mb (Burstable)",
        "yes\nExclusive CPUs:  none: the pod is Burstable: container side has no CPU limit\n",
    ];
    says(&text, &expected);
    let (_, reason) = refused(node.path(), &format!("{file} --pod c"));
    assert_eq!(
        reason,
        format!("{file}: there is no Pod or template \"c\" in it, only Pod \"a\\u{{1b}}[1mb\"")
    );
    let (_, reason) = refused(node.path(), "/no/such/file");
    assert!(reason.starts_with("read /no/such/file: "), "{reason}");
}

#[test]
fn the_node_that_kubevirt_requires_and_the_objects_that_are_left_out_are_named() {
    let node = node(STATIC);
    let vm = "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: vm}\nspec: {template: {spec: {domain: {cpu: {cores: 2, \
              dedicatedCpuPlacement: true}, memory: {guest: 1Gi}}}}}\n";
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: helper}\nspec: {containers: [{name: a}]}\n";
    write(node.path(), "both.yaml", format!("{vm}---\n{pod}"));
    let file = node.path().join("both.yaml").display().to_string();
    let left_out = "not for VirtualMachine/vm, which --pod KIND/NAME chooses";
    let answer = answered(node.path(), &file);
    assert_eq!(answer["pod"], "helper");
    says(&answer["assumed"].to_string(), &[left_out]);
    let answer = answered(node.path(), &format!("{file} --pod virtualmachine/vm"));
    holds(&answer, json!({"/pod": "vm", "/qos": "Guaranteed"}));
    let required = ["the labels kubevirt.io/cpumanager=true", "devices.kubevirt.io/kvm"];
    says(&answer["assumed"].to_string(), &required);
    never_says(&answer["assumed"].to_string(), &[left_out]);
}

#[test]
fn memory_of_a_fresh_memory_manager_is_given_from_what_is_left() {
    let reserved = "memoryManagerPolicy: Static\nreservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}]\n";
    let node = node(&format!("{STATIC}{reserved}"));
    holds(
        &answered(node.path(), FOUR),
        json!({"/settings/memory_manager/policy": "Static", "/containers/0/memory/0/nodes": "0"}),
    );
    let (printed, _) = refused(node.path(), "-c cpus=4,memory=33Gi");
    says(&printed, &["Admitted:"]);
}

#[test]
fn devices_are_those_of_kubelets_own_record() {
    let node = node(STATIC);
    let genuine = "../../tests/data/kubelet-checkpoints/k136-gate-off/08-device/kubelet_internal_checkpoint";
    write(node.path(), RECORD, fs::read_to_string(genuine).unwrap());
    let answer = answered(node.path(), &format!("{TWO},{DEVICE}=1 --until-full"));
    // Of three, two are taken by a pod that runs.
    holds(
        &answer,
        json!({
            "/containers/0/devices/nvidia.com~1gpu/ids": ["GPU-9d0e"],
            "/until_full/count": 1, "/until_full/then/reason": "UnexpectedAdmissionError",
        }),
    );
    says(
        &answer["assumed"].to_string(),
        &["the NUMA nodes of their free devices"],
    );
    write(node.path(), RECORD, "{}");
    let answer = answered(node.path(), TWO);
    says(&answer["faults"][0].to_string(), &["kubelet_internal_checkpoint: "]);
}
