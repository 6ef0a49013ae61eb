use rstest::rstest;
use serde_json::json;
use stelia_koordinator::allocator::{CpuBindPolicy, NumaTopologyAlignmentPolicy, Qos};

use super::*;

fn document(command: &[&str], annotations: Value) -> Value {
    let limits = json!({"cpu": "4", "memory": "8Gi", "stelia.io/vm": "1"});
    let side = json!({"name": "log", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}});
    let vm = json!({"name": "vm", "command": command, "resources": {"limits": limits}});
    json!({
        "metadata": {"name": "vm", "uid": "3ceda12c-3ee9-40fa-9f42-61428fe654a6", "annotations": annotations},
        "spec": {"containers": [side, vm]},
    })
}

fn read(command: &[&str], annotations: Value) -> Result<Request, RequestError> {
    Request::of_pod(&document(command, annotations), ScoringStrategy::default())
}

#[test]
fn the_container_that_asks_for_a_vm_has_it() {
    let request = read(&[], json!({})).unwrap();
    let vm = request.vm.as_ref().unwrap();
    assert_eq!((vm.container.as_str(), vm.follows_scheduler), ("vm", false));
    assert!(!vm.allocation.asks());
    assert_eq!(request.limit_milli(vm), Some(4000));
    // The resource itself is nothing that a node looks at, and neither is who the pod is.
    let other = Request::of_pod(&document(&["other"], json!(null)), ScoringStrategy::default());
    assert_eq!(other, Ok(request));
}

#[test]
fn what_the_runner_will_ask_is_read_from_its_command() {
    let command = "/usr/bin/stelia-runner run --qmp=/run/q --qos LSR --cpu-bind-policy=SpreadByPCPUs \
        --resource-spec /etc/p/spec --resource-status=/etc/p/status --cpus 3 -- qemu-system-x86_64 --qos=BE";
    let command: Vec<&str> = command.split(' ').collect();
    let spec = json!({koordinator::RESOURCE_SPEC: r#"{"requiredCPUBindPolicy":"FullPCPUs"}"#});
    let vm = read(&command, spec).unwrap().vm.unwrap();
    assert!(vm.follows_scheduler);
    let asked = vm.allocation;
    assert_eq!((asked.qos, asked.cpus), (Some(Qos::Lsr), Some(3)));
    assert_eq!(asked.cpu_bind_policy, Some(CpuBindPolicy::SpreadByPcpus));
    assert_eq!(asked.required_cpu_bind_policy, Some(CpuBindPolicy::FullPcpus));
    // Without the option the runner does not look at the annotation.
    let spec = json!({koordinator::RESOURCE_SPEC: "no JSON"});
    assert!(read(&["stelia-runner", "run"], spec).is_ok());
}

#[rstest]
#[case(&["r", "--qos=best"], json!({}), "container vm: its options")]
#[case(&["r", "--cpus=0"], json!({}), "option --cpus: \"0\"")]
#[case(&["r", "--cpu-limit", "a"], json!({}), "option --cpu-limit")]
#[case(&["r", "--cpus"], json!({}), "has no value")]
#[case(&["r", "--resource-spec=f"], json!({"scheduling.koordinator.sh/resource-spec": "{\"a\": 1}"}), "annotation scheduling")]
fn what_the_runner_would_refuse_is_named(#[case] command: &[&str], #[case] annotations: Value, #[case] says: &str) {
    let error = read(command, annotations).unwrap_err().to_string();
    assert!(error.contains(says), "{error}");
}

#[test]
fn a_pod_has_one_vm_or_none() {
    let mut two = document(&[], json!({}));
    two["spec"]["containers"][0]["resources"]["limits"]["stelia.io/vm"] = json!("1");
    let error = Request::of_pod(&two, ScoringStrategy::default()).unwrap_err();
    assert!(matches!(error, RequestError::SeveralVms(..)), "{error}");
    let none = json!({"metadata": {}, "spec": {"containers": [{"name": "a"}]}});
    assert_eq!(Request::of_pod(&none, ScoringStrategy::default()).unwrap().vm, None);
    for wrong in [
        json!(null),
        json!([]),
        json!({"spec": {"containers": "a"}}),
        json!({"spec": {"containers": []}}),
    ] {
        assert!(Request::of_pod(&wrong, ScoringStrategy::default()).is_err(), "{wrong}");
    }
}

/// The names are the command line's, which only programs have.
#[test]
fn every_option_of_an_allocation_is_read() {
    use clap::{Args, Command};

    let command = AllocationRequest::augment_args(Command::new("x"));
    let mut options: Vec<&str> = command.get_arguments().filter_map(|option| option.get_long()).collect();
    options.sort_unstable();
    let mut names = options::NAMES.to_vec();
    names.sort_unstable();
    assert_eq!(names, options);
}

#[test]
fn limits_and_alignments_are_read() {
    let words = [
        "r",
        "--cpu-limit=2.5",
        "--numa-topology-alignment-policy",
        "SingleNUMANode",
    ];
    let words = words.map(|word| Text::Known(word.to_owned()));
    let read = options::parse(&words).unwrap().allocation;
    assert_eq!(read.cpu_limit, Some(2500));
    let alignment = read.numa_topology_alignment_policy;
    assert_eq!(alignment, Some(NumaTopologyAlignmentPolicy::SingleNumaNode));
}

fn with_env(command: &[&str], labels: Value, env: Value) -> Result<Request, RequestError> {
    let mut pod = document(command, json!({"cpus": "3"}));
    pod["metadata"]["labels"] = labels;
    pod["spec"]["containers"][1]["env"] = env;
    Request::of_pod(&pod, ScoringStrategy::default())
}

/// As docs/runner.md shows it.
#[test]
fn the_class_and_the_cpus_are_taken_from_variables() {
    let of = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    let env = json!([
        {"name": "QOS", "valueFrom": of("metadata.labels['koordinator.sh/qosClass']")},
        {"name": "CPUS", "valueFrom": of("metadata.annotations['cpus']")},
        {"name": "ALL", "value": "--cpu-bind-policy=SpreadByPCPUs"},
    ]);
    let command = "stelia-runner run --qos=$(QOS) --cpus $(CPUS) $(ALL) -- --qos=$(NONE)";
    let command: Vec<&str> = command.split(' ').collect();
    let request = with_env(&command, json!({"koordinator.sh/qosClass": "LSE"}), env).unwrap();
    let asked = request.vm.unwrap().allocation;
    assert_eq!((asked.qos, asked.cpus), (Some(Qos::Lse), Some(3)));
    assert_eq!(asked.cpu_bind_policy, Some(CpuBindPolicy::SpreadByPcpus));
}

#[rstest]
#[case(&["r", "--qos=$(QOS)"], json!([]), r#"its options"#)]
#[case(&["r", "--qos=$$(QOS)"], json!([{"name": "QOS", "value": "LSE"}]), "its options")]
#[case(&["r", "--qos=$(QOS)"], json!([{"name": "QOS", "valueFrom": {"secretKeyRef": {"name": "s"}}}]), "option --qos: variable QOS comes from secretKeyRef, which is not read")]
#[case(&["r", "--cpus", "$(N)"], json!([{"name": "N", "valueFrom": {"configMapKeyRef": {"name": "s"}}}]), "option --cpus: variable N comes from configMapKeyRef")]
fn a_variable_that_is_not_known_here_is_named(#[case] command: &[&str], #[case] env: Value, #[case] says: &str) {
    let error = with_env(command, json!({}), env).unwrap_err().to_string();
    assert!(error.starts_with("container vm: ") && error.contains(says), "{error}");
}

/// What is of no concern here may be whatever it is.
#[test]
fn other_options_may_come_from_secrets() {
    let env = json!([{"name": "S", "valueFrom": {"secretKeyRef": {"name": "s"}}}]);
    let command = ["r", "--qmp=/run/$(S)", "$(S)", "--uri", "$(S)", "--qos", "LSR"];
    let vm = with_env(&command, json!({}), env).unwrap().vm.unwrap();
    assert_eq!(vm.allocation.qos, Some(Qos::Lsr));
}

#[test]
fn the_label_counts_where_the_runner_is_not_told() {
    let of = |command: &[&str], label: &str| {
        let labels = json!({QOS_CLASS: label});
        with_env(command, labels, json!([])).unwrap().vm.unwrap().allocation.qos
    };
    assert_eq!(of(&["r"], "LSE"), Some(Qos::Lse));
    assert_eq!(of(&["r", "--qos=LSR"], "LSE"), Some(Qos::Lsr));
    assert_eq!(of(&["r"], "SYSTEM"), None);
}
