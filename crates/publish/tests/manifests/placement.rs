//! The overlay that installs publisher, placement and a scheduler: its parts find each other. That the program takes the options and needs the rights
//! is held in `crates/placement/tests/manifests.rs`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::kustomization::built;
use crate::{cluster, kind, name, strings};

fn overlay() -> Vec<Value> {
    built(&cluster("overlays/placement"))
}

fn one<'a>(objects: &'a [Value], wanted: &str, named: &str) -> &'a Value {
    let mut found = objects
        .iter()
        .filter(|object| kind(object) == wanted && name(object) == named);
    let object = found.next().unwrap_or_else(|| panic!("no {wanted} {named}"));
    assert!(found.next().is_none(), "{wanted} {named} twice");
    object
}

fn has(labels: &Value, selector: &Value) -> bool {
    let selector = selector.as_object().expect("labels");
    !selector.is_empty() && selector.iter().all(|(key, value)| &labels[key] == value)
}

#[test]
fn it_has_all_of_the_three_and_no_name_twice() {
    let objects = overlay();
    let parts = ["base", "placement/base", "placement/scheduler"];
    let parts: usize = parts.iter().map(|part| built(&cluster(part)).len()).sum();
    assert_eq!(objects.len(), parts);
    let key = |object: &Value| {
        (
            kind(object).to_owned(),
            object["metadata"]["namespace"].clone().to_string(),
            name(object).to_owned(),
        )
    };
    let names: BTreeSet<_> = objects.iter().map(key).collect();
    assert_eq!(names.len(), objects.len());
    for object in &objects {
        let namespace = object["metadata"]["namespace"].as_str();
        // The right to read how clients of extension servers are told apart is one of kube-system's.
        let elsewhere = name(object) == "stelia-scheduler-authentication";
        let expected = if elsewhere { "kube-system" } else { "stelia-system" };
        assert!(namespace.is_none_or(|namespace| namespace == expected), "{object}");
    }
}

#[test]
fn every_image_of_ours_is_of_the_registry_that_is_named_once() {
    let version = env!("CARGO_PKG_VERSION");
    let objects = overlay();
    for (of, program) in [("DaemonSet", "stelia-publish"), ("Deployment", "stelia-placement")] {
        let image = &one(&objects, of, program)["spec"]["template"]["spec"]["containers"][0]["image"];
        assert_eq!(image, &json!(format!("registry.example.com/{program}:{version}")));
    }
    let base = built(&cluster("placement/base"));
    let image = &one(&base, "Deployment", "stelia-placement")["spec"]["template"]["spec"]["containers"][0]["image"];
    assert_eq!(image, &json!(format!("steliad.example/stelia-placement:{version}")));
}

#[test]
fn whoever_is_bound_to_a_role_is_there_and_so_is_the_role() {
    let objects = overlay();
    let bindings = objects
        .iter()
        .filter(|object| ["ClusterRoleBinding", "RoleBinding"].contains(&kind(object)));
    let mut ours = 0;
    for binding in bindings {
        for subject in binding["subjects"].as_array().expect("subjects") {
            if subject["kind"] == "ServiceAccount" {
                one(&objects, "ServiceAccount", name_of(subject));
            }
        }
        let role = name_of(&binding["roleRef"]);
        // Kubernetes' own have a colon, and the reader's role is in kube-system.
        if !role.contains(':') && role != "extension-apiserver-authentication-reader" {
            one(&objects, binding["roleRef"]["kind"].as_str().expect("a kind"), role);
            ours += 1;
        }
    }
    assert!(ours >= 4, "{ours}");
}

fn name_of(value: &Value) -> &str {
    value["name"].as_str().expect("a name")
}

#[test]
fn the_scheduler_reaches_the_extender_and_nobody_else_does() {
    let objects = overlay();
    let template = |deployment: &str| &one(&objects, "Deployment", deployment)["spec"]["template"];
    let policy = &one(&objects, "NetworkPolicy", "stelia-placement")["spec"];
    assert!(has(
        &template("stelia-placement")["metadata"]["labels"],
        &policy["podSelector"]["matchLabels"]
    ));
    let rules = policy["ingress"].as_array().expect("rules");
    let service = &one(&objects, "Service", "stelia-placement")["spec"]["ports"][0]["port"];
    let to_service: Vec<&Value> = rules
        .iter()
        .filter(|rule| &rule["ports"][0]["port"] == service)
        .collect();
    let [rule] = to_service.as_slice() else {
        panic!("{rules:?}")
    };
    let from = rule["from"].as_array().expect("a list: without one everybody comes in");
    let labels = &template("stelia-scheduler")["metadata"]["labels"];
    let lets_in =
        |peer: &&Value| peer["namespaceSelector"].is_null() && has(labels, &peer["podSelector"]["matchLabels"]);
    assert_eq!(from.iter().filter(lets_in).count(), 1);
    // The other port has what kubelet and Prometheus ask for.
    let ports = template("stelia-placement")["spec"]["containers"][0]["ports"]
        .as_array()
        .expect("ports");
    let others = rules.iter().filter(|rule| rule["from"].is_null());
    let open: Vec<&Value> = others.map(|rule| &rule["ports"][0]["port"]).collect();
    assert_eq!(
        open,
        [&ports.iter().find(|port| port["name"] == "probes").expect("it")["containerPort"]]
    );
}

#[test]
fn the_scheduler_runs_with_the_configuration_that_is_generated() {
    let objects = overlay();
    let map = one(&objects, "ConfigMap", "stelia-scheduler");
    let pod = &one(&objects, "Deployment", "stelia-scheduler")["spec"]["template"]["spec"];
    let (container, volumes) = (&pod["containers"][0], pod["volumes"].as_array().expect("volumes"));
    let volume = volumes
        .iter()
        .find(|volume| !volume["configMap"].is_null())
        .expect("one");
    assert_eq!(volume["configMap"]["name"], name(map));
    let mounts = container["volumeMounts"].as_array().expect("mounts");
    let mount = mounts
        .iter()
        .find(|mount| mount["name"] == volume["name"])
        .expect("one");
    let (key, text) = map["data"]
        .as_object()
        .and_then(|data| data.iter().next())
        .expect("a file");
    let argument = format!("--config={}/{key}", mount["mountPath"].as_str().expect("a path"));
    assert!(strings(&container["command"]).contains(&&*argument), "{container}");

    let configuration: Value = serde_saphyr::from_str(text.as_str().expect("a text")).expect("YAML");
    assert_eq!(configuration["kind"], "KubeSchedulerConfiguration");
    // Its Lease is its own, and it may write it.
    let lease = &configuration["leaderElection"];
    let role = one(&objects, "Role", "stelia-scheduler-lease");
    assert_eq!(lease["resourceNamespace"], role["metadata"]["namespace"]);
    let named = role["rules"].as_array().expect("rules").iter();
    let named: Vec<&Value> = named.filter(|rule| rule["resourceNames"].is_array()).collect();
    assert_eq!(named[0]["resourceNames"][0], lease["resourceName"]);
    // Placement itself must not wait for this scheduler.
    for deployment in ["stelia-placement", "stelia-scheduler"] {
        let scheduler = &one(&objects, "Deployment", deployment)["spec"]["template"]["spec"]["schedulerName"];
        assert!(
            scheduler != &configuration["profiles"][0]["schedulerName"] && scheduler.is_string(),
            "{deployment}"
        );
    }
}
