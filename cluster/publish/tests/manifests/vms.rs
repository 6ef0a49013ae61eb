//! The examples in `packaging/kubernetes/`: which of them Pod Security admits, and what `vm-policy.yaml` lets a pod ask for.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use rstest::rstest;
use serde_json::{Value, json};

use crate::admission::assert_standard;
use crate::policy::{denials_by, expressions};
use crate::{documents, kind, list, name, only, repository, strings};

const RESOURCE: &str = "stelia.io/vm";
/// The examples that ask for the resource, and Pod Security's level that admits each.
const BY_THE_DEVICE_PLUGIN: [(&str, &str); 7] = [
    ("vm", "restricted"),
    ("vm-hugepages", "baseline"),
    ("vm-libvirt", "restricted"),
    ("vm-qemu", "restricted"),
    ("vm-readiness-gate", "restricted"),
    ("vm-userns", "restricted"),
    ("vm-virtiofsd", "baseline"),
];

/// Every file with the objects in it; kubelet's configuration is none of the API server's.
pub fn examples() -> BTreeMap<String, Vec<Value>> {
    let files = fs::read_dir(repository("packaging/kubernetes")).expect("a folder");
    let files = files.flatten();
    let named = files.filter_map(|file| Some(file.file_name().to_str()?.strip_suffix(".yaml")?.to_owned()));
    let ours = named.filter(|name| !name.starts_with("kubelet-config"));
    ours.map(|name| {
        let objects = documents(&repository(&format!("packaging/kubernetes/{name}.yaml")));
        (name, objects)
    })
    .collect()
}

fn containers(spec: &Value) -> impl Iterator<Item = &Value> {
    [&spec["initContainers"], &spec["containers"]]
        .into_iter()
        .flat_map(list)
}

/// What of the level `baseline` the pod breaks, of the rules that a VM's pod could break.
fn against_baseline(spec: &Value) -> Vec<String> {
    let mut broken = Vec::new();
    for host in ["hostNetwork", "hostPID", "hostIPC"] {
        broken.extend((spec[host] == true).then(|| host.to_owned()));
    }
    let volumes = list(&spec["volumes"]).iter();
    broken.extend(
        volumes
            .filter(|volume| !volume["hostPath"].is_null())
            .map(Value::to_string),
    );
    for container in containers(spec) {
        let context = &container["securityContext"];
        broken.extend((context["privileged"] == true).then(|| "privileged".to_owned()));
        // The one capability that the level `restricted` lets a container add.
        let added = list(&context["capabilities"]["add"]).iter();
        let added = added.filter(|name| *name != "NET_BIND_SERVICE");
        broken.extend(added.map(|name| format!("capabilities: {name}")));
        let ports = list(&container["ports"]).iter();
        broken.extend(ports.filter(|port| !port["hostPort"].is_null()).map(Value::to_string));
    }
    broken
}

/// What of the level `restricted` the pod breaks.
fn against_restricted(spec: &Value) -> Vec<String> {
    const VOLUMES: &str = "name configMap csi downwardAPI emptyDir ephemeral persistentVolumeClaim projected secret";
    let mut broken = against_baseline(spec);
    for volume in list(&spec["volumes"]) {
        let kinds = volume.as_object().expect("a volume").keys();
        broken.extend(kinds.filter(|kind| VOLUMES.split(' ').all(|one| one != *kind)).cloned());
    }
    let of_pod = &spec["securityContext"];
    for container in containers(spec) {
        let own = &container["securityContext"];
        let either = |key: &str| if own[key].is_null() { &of_pod[key] } else { &own[key] };
        let rules = [
            ("runAsNonRoot", *either("runAsNonRoot") == true),
            ("runAsUser", *either("runAsUser") != 0),
            ("seccompProfile", either("seccompProfile")["type"] == "RuntimeDefault"),
            ("allowPrivilegeEscalation", own["allowPrivilegeEscalation"] == false),
            ("capabilities", strings(&own["capabilities"]["drop"]) == ["ALL"]),
        ];
        let of_container = rules.into_iter().filter(|(_, holds)| !holds);
        broken.extend(of_container.map(|(rule, _)| format!("{}: {rule}", container["name"])));
    }
    broken
}

#[test]
fn what_asks_for_the_resource_has_no_path_of_the_node_and_is_admitted_by_pod_security() {
    let mut asking = Vec::new();
    for (file, objects) in examples() {
        for pod in objects.iter().filter(|object| kind(object) == "Pod") {
            assert_eq!(name(pod), file);
            let spec = &pod["spec"];
            let amounts = containers(spec).map(|container| &container["resources"]["limits"][RESOURCE]);
            let amounts: Vec<_> = amounts.collect();
            if amounts.iter().all(|amount| amount.is_null()) {
                assert_ne!(against_baseline(spec), Vec::<String>::new(), "{file}");
                continue;
            }
            // The VM's container alone, which comes last.
            let (last, others) = amounts.split_last().expect("a container");
            assert!(**last == "1" && others.iter().all(|amount| amount.is_null()), "{file}");
            let level = BY_THE_DEVICE_PLUGIN.iter().find(|(named, _)| *named == file);
            match level {
                Some((_, "restricted")) => assert_eq!(against_restricted(spec), Vec::<String>::new(), "{file}"),
                Some((_, "baseline")) => assert_eq!(against_baseline(spec), Vec::<String>::new(), "{file}"),
                other => panic!("{file}: {other:?}"),
            }
            // What the device plugin mounts is no volume of the pod's.
            let mounts = containers(spec).flat_map(|container| list(&container["volumeMounts"]));
            let paths: Vec<&str> = mounts.filter_map(|mount| mount["mountPath"].as_str()).collect();
            let mounted = |path: &&str| path.starts_with("/run/stelia") || *path == "/usr/bin/stelia-runner";
            assert!(!paths.iter().any(mounted), "{file}: {paths:?}");
            let is_adopted = ["vm-libvirt", "vm-qemu"].contains(&file.as_str());
            let program = if is_adopted {
                "/bin/sh"
            } else {
                "/usr/bin/stelia-runner"
            };
            assert_eq!(list(&spec["containers"][0]["command"])[0], program, "{file}");
            asking.push(file.clone());
        }
    }
    assert_eq!(asking, BY_THE_DEVICE_PLUGIN.map(|(name, _)| name));
}

#[test]
fn the_variant_with_host_paths_is_the_same_vm() {
    let examples = examples();
    let pod = |name: &str| only(&examples[name], "Pod")["spec"].clone();
    let (vm, other) = (pod("vm"), pod("vm-hostpath"));
    for key in ["image", "args", "stdin", "tty"] {
        assert_eq!(vm["containers"][0][key], other["containers"][0][key], "{key}");
    }
    let mut amounts = vm["containers"][0]["resources"]["limits"].clone();
    let limits = amounts.as_object_mut().expect("limits");
    limits.remove(RESOURCE);
    limits.insert("squat.ai/kvm".to_owned(), json!("1"));
    assert_eq!(amounts, other["containers"][0]["resources"]["limits"]);
}

/// The review of a pod whose containers ask for these amounts, and whose init containers for those.
fn asks(amounts: &[&Value], of_init: &[&Value]) -> Value {
    let containers = |amounts: &[&Value]| -> Value {
        let container = |limits: &Value| json!({"name": "c", "image": "i", "resources": {"limits": limits}});
        amounts.iter().map(|limits| container(limits)).collect()
    };
    let mut spec = json!({"containers": containers(amounts)});
    if !of_init.is_empty() {
        spec["initContainers"] = containers(of_init);
    }
    json!({"request": {"operation": "CREATE", "resource": {"group": "", "version": "v1", "resource": "pods"},
        "userInfo": {"username": "someone", "groups": []}, "oldObject": null,
        "object": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}}})
}

fn policy() -> Value {
    only(&examples()["vm-policy"], "ValidatingAdmissionPolicy").clone()
}

fn said(review: &Value) -> Vec<String> {
    let denials = denials_by(&[policy()], review);
    denials.into_iter().map(|(_, message)| message).collect()
}

#[rstest]
#[case(json!([{"stelia.io/vm": "1", "cpu": "2"}]), json!([]), &[])]
#[case(json!([{"stelia.io/vm": "1"}, {"cpu": "1"}]), json!([{"cpu": "1"}]), &[])]
#[case(json!([{"cpu": "2"}]), json!([]), &[])]
#[case(json!([{"stelia.io/vm": "0"}, {"stelia.io/vm": "1"}]), json!([{"stelia.io/vm": "0"}]), &[])]
#[case(json!([{"stelia.io/vm": "2"}]), json!([]), &["a container must ask for at most one stelia.io/vm"])]
#[case(json!([{"stelia.io/vm": "1k"}]), json!([]), &["a container must ask for at most one stelia.io/vm"])]
#[case(json!([{"stelia.io/vm": "1"}, {"stelia.io/vm": "1"}]), json!([]), &["only one container of a pod may ask for stelia.io/vm"])]
#[case(json!([{"stelia.io/vm": "1"}]), json!([{"stelia.io/vm": "1"}]), &["an init container must not ask for stelia.io/vm"])]
#[case(json!([{"stelia.io/vm": "2"}, {"stelia.io/vm": "1"}]), json!([]),
    &["a container must ask for at most one stelia.io/vm", "only one container of a pod may ask for stelia.io/vm"])]
fn a_pod_asks_for_one_vm(#[case] amounts: Value, #[case] of_init: Value, #[case] messages: &[&str]) {
    let lists = [&amounts, &of_init].map(|one| list(one).iter().collect::<Vec<_>>());
    assert_eq!(said(&asks(&lists[0], &lists[1])), messages);
}

#[test]
fn containers_without_limits_or_without_resources_are_admitted() {
    let mut review = asks(&[&json!({})], &[&json!({})]);
    for key in ["containers", "initContainers"] {
        for resources in [json!({"requests": {}}), Value::Null] {
            let mut container = json!({"name": "c", "image": "i", "resources": resources});
            container
                .as_object_mut()
                .expect("an object")
                .retain(|_, value| !value.is_null());
            review["request"]["object"]["spec"][key][0] = container;
            assert_eq!(said(&review), Vec::<String>::new(), "{key}");
        }
    }
}

#[test]
fn every_example_passes_the_policy() {
    for (file, objects) in examples() {
        for pod in objects.iter().filter(|object| kind(object) == "Pod") {
            let mut review = asks(&[], &[]);
            review["request"]["object"] = pod.clone();
            assert_eq!(said(&review), Vec::<String>::new(), "{file}");
        }
    }
}

#[test]
fn the_policy_is_bound_and_the_quota_counts_the_resource() {
    let examples = examples();
    let policy = policy();
    let binding = only(&examples["vm-policy"], "ValidatingAdmissionPolicyBinding");
    assert_eq!(binding["spec"]["policyName"], name(&policy));
    assert_eq!(strings(&binding["spec"]["validationActions"]), ["Deny"]);
    let hard = &only(&examples["quota"], "ResourceQuota")["spec"]["hard"];
    assert_eq!(*hard, json!({"requests.stelia.io/vm": "4"}));
    assert_standard(&expressions(&[policy]));
}

/// The console's input is QEMU's, which a shell takes from what it starts with `&`.
#[test]
fn the_script_of_vm_qemu_hands_its_input_to_qemu() {
    let examples = examples();
    let container = &examples["vm-qemu"][0]["spec"]["containers"][0];
    let script = strings(&container["args"]).concat();
    let programs = tempfile::tempdir().expect("a folder");
    let qemu = programs.path().join("qemu-system-x86_64");
    fs::write(&qemu, "#!/bin/sh\nexec cat\n").expect("a program");
    fs::set_permissions(&qemu, fs::Permissions::from_mode(0o755)).expect("a program");
    let path = format!("{}:/usr/bin:/bin", programs.path().display());
    let mut shell = Command::new("/bin/sh")
        .args(["-c", &script])
        .env("PATH", path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a shell");
    let mut input = shell.stdin.take().expect("its input");
    input.write_all(b"cirros\n").expect("its input");
    drop(input);
    let output = shell.wait_with_output().expect("its output");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, b"cirros\n", "{output:?}");
}
