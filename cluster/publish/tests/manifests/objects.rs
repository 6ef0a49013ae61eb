//! Every manifest as the type that the API server has for it.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, ResourceQuota, Service, ServiceAccount};
use k8s_openapi::api::flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::kustomization::built;
use crate::vms::examples;
use crate::{cluster, documents, has, kind, name, one, only, pods, repository, strings};

/// What the type has no place for is passed over when it is read, so it is missing when it is written again.
fn kept<T: DeserializeOwned + Serialize>(object: &Value) -> Result<(), String> {
    let typed: T = serde_json::from_value(object.clone()).map_err(|e| e.to_string())?;
    let written = serde_json::to_value(typed).map_err(|e| e.to_string())?;
    lost(object, &written, "")
}

fn lost(from: &Value, to: &Value, at: &str) -> Result<(), String> {
    match (from, to) {
        (Value::Object(from), Value::Object(to)) => from.iter().try_for_each(|(key, value)| {
            let path = format!("{at}.{key}");
            lost(value, to.get(key).ok_or(format!("{path} is no field"))?, &path)
        }),
        (Value::Array(from), Value::Array(to)) if from.len() == to.len() => {
            let mut pairs = from.iter().zip(to);
            pairs.try_for_each(|(from, to)| lost(from, to, &format!("{at}[]")))
        }
        // A maximum is a float.
        _ if from == to || from.is_number() && from.as_f64() == to.as_f64() => Ok(()),
        _ => Err(format!("{at}: {from} became {to}")),
    }
}

pub fn check(object: &Value) -> Result<(), String> {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    match (version, kind(object)) {
        ("v1", "Namespace") => kept::<Namespace>(object),
        ("v1", "Pod") => kept::<Pod>(object),
        ("v1", "ResourceQuota") => kept::<ResourceQuota>(object),
        ("v1", "Service") => kept::<Service>(object),
        ("v1", "ServiceAccount") => kept::<ServiceAccount>(object),
        ("v1", "ConfigMap") => kept::<ConfigMap>(object),
        ("apps/v1", "DaemonSet") => kept::<DaemonSet>(object),
        ("apps/v1", "Deployment") => kept::<Deployment>(object),
        ("policy/v1", "PodDisruptionBudget") => kept::<PodDisruptionBudget>(object),
        ("rbac.authorization.k8s.io/v1", "Role") => kept::<Role>(object),
        ("rbac.authorization.k8s.io/v1", "RoleBinding") => kept::<RoleBinding>(object),
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition") => kept::<CustomResourceDefinition>(object),
        ("networking.k8s.io/v1", "NetworkPolicy") => kept::<NetworkPolicy>(object),
        ("rbac.authorization.k8s.io/v1", "ClusterRole") => kept::<ClusterRole>(object),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding") => kept::<ClusterRoleBinding>(object),
        ("flowcontrol.apiserver.k8s.io/v1", "FlowSchema") => kept::<FlowSchema>(object),
        ("flowcontrol.apiserver.k8s.io/v1", "PriorityLevelConfiguration") => kept::<PriorityLevelConfiguration>(object),
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy") => kept::<ValidatingAdmissionPolicy>(object),
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding") => {
            kept::<ValidatingAdmissionPolicyBinding>(object)
        }
        (version, kind) => Err(format!("{kind} of {version:?} is not among the types here")),
    }
}

#[test]
fn every_object_has_only_fields_of_its_type() {
    let mut seen = 0;
    let folders = ["base", "overlays/full", "overlays/units", "overlays/placement"];
    let folders = folders.map(|folder| (folder.to_owned(), built(&cluster(folder))));
    for (file, objects) in examples().into_iter().chain(folders) {
        for object in objects {
            check(&object).unwrap_or_else(|e| panic!("{file}: {} {}: {e}", kind(&object), name(&object)));
            seen += 1;
        }
    }
    assert!(seen >= 80, "{seen}");
}

#[test]
fn a_field_that_does_not_exist_is_noticed() {
    let mut object = only(&built(&cluster("base")), "DaemonSet").clone();
    object["spec"]["template"]["spec"]["hostNetworks"] = json!(false);
    let said = check(&object).expect_err("it is none");
    assert!(said.contains(".spec.template.spec.hostNetworks"), "{said}");
}

#[test]
fn names_are_unique_and_selectors_find_what_they_are_for() {
    let objects = built(&cluster("overlays/full"));
    let mut names: Vec<(&str, &str)> = objects.iter().map(|object| (kind(object), name(object))).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);

    let spec = &only(&objects, "DaemonSet")["spec"];
    let labels = &spec["template"]["metadata"]["labels"];
    let selectors = [
        &spec["selector"]["matchLabels"],
        &only(&objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ];
    assert!(selectors.into_iter().all(|selector| has(labels, selector)));
    let namespaces = objects.iter();
    let namespaces = namespaces.filter_map(|object| object["metadata"]["namespace"].as_str());
    let namespaces: BTreeSet<&str> = namespaces.collect();
    assert_eq!(namespaces, [name(only(&objects, "Namespace"))].into());
    let account = &spec["template"]["spec"]["serviceAccountName"];
    assert_eq!(account, name(only(&objects, "ServiceAccount")));
    for binding in objects.iter().filter(|object| kind(object).ends_with("PolicyBinding")) {
        let policy = binding["spec"]["policyName"].as_str().expect("a policy");
        one(&objects, "ValidatingAdmissionPolicy", policy);
        assert_eq!(strings(&binding["spec"]["validationActions"]), ["Deny"], "{policy}");
    }
    let level = &only(&objects, "FlowSchema")["spec"]["priorityLevelConfiguration"]["name"];
    assert_eq!(level, name(only(&objects, "PriorityLevelConfiguration")));
}

#[test]
fn the_pods_have_no_privilege_and_see_one_folder_of_the_host_to_read() {
    let objects = built(&cluster("overlays/full"));
    let (pod, container) = pods(only(&objects, "DaemonSet"));
    for host in ["hostNetwork", "hostPID", "hostIPC"] {
        assert!(pod[host].is_null(), "{host}");
    }
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    let expected = json!({"allowPrivilegeEscalation": false, "privileged": false, "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"]}});
    assert_eq!(container["securityContext"], expected);
    // Requests without equal limits: else it would count for the fingerprint.
    // A request of any CPU at all takes a whole one from VMs, where allocatable is what VMs may have.
    assert!(container["resources"]["limits"]["cpu"].is_null() && container["resources"]["requests"]["cpu"].is_null());

    let volumes = pod["volumes"].as_array().expect("volumes");
    let hosts: Vec<&Value> = volumes.iter().filter(|volume| !volume["hostPath"].is_null()).collect();
    let folder = json!({"path": stelia_api::publication::DIRECTORY, "type": "Directory"});
    assert!(hosts.len() == 1 && hosts[0]["hostPath"] == folder, "{hosts:?}");
    let mounts = container["volumeMounts"].as_array().expect("mounts");
    assert!(mounts.len() == volumes.len() && mounts.iter().all(|mount| mount["readOnly"] == true));
    let argument = format!("--directory={}", stelia_api::publication::DIRECTORY);
    assert_eq!(strings(&container["args"])[0], argument);
    // The token is the pod's own, and short-lived; what else is in the volume is public.
    let sources = volumes[1]["projected"]["sources"].as_array().expect("sources");
    let token = json!({"path": "token", "expirationSeconds": 3600});
    assert_eq!(sources[0]["serviceAccountToken"], token);
}

#[test]
fn the_example_waits_for_the_condition_and_its_service_for_the_pod() {
    let objects = documents(&repository("packaging/kubernetes/vm-readiness-gate.yaml"));
    let (pod, service) = (only(&objects, "Pod"), only(&objects, "Service"));
    // Apart from its gate and its label it is the pod that the node tests run.
    let vm = documents(&repository("packaging/kubernetes/vm.yaml"));
    let mut expected = only(&vm, "Pod").clone();
    let name = "vm-readiness-gate";
    expected["metadata"] = json!({"name": name, "labels": {"app": name}});
    expected["spec"]["readinessGates"] = json!([{"conditionType": "stelia.io/isolated"}]);
    assert_eq!(*pod, expected);
    assert!(has(&pod["metadata"]["labels"], &service["spec"]["selector"]));
    assert_eq!(service["spec"]["publishNotReadyAddresses"], false);
}
