//! Each flag of the program that writes something more has its component, its role and its place in the policies, and the other way round.

use std::collections::BTreeSet;

use clap::{CommandFactory, Parser};
use serde_json::{Value, json};
use stelia_publish::program::Arguments;

use crate::kustomization::built;
use crate::policy::policies;
use crate::{cluster, documents, folders, kind, name, only, read, repository, strings};

/// Group, resource, verb.
type Right = (&'static str, &'static str, &'static str);

/// What each component's role allows: group, resource, verb.
const RIGHTS: [(&str, &str, &[Right]); 4] = [
    (
        "pod-conditions",
        "--pod-conditions",
        &[("", "pods", "get"), ("", "pods/status", "patch")],
    ),
    (
        "pod-events",
        "--pod-events",
        &[
            ("events.k8s.io", "events", "create"),
            ("events.k8s.io", "events", "patch"),
        ],
    ),
    (
        "ready-label",
        "--ready-label",
        &[("", "nodes", "get"), ("", "nodes", "patch")],
    ),
    (
        "startup-taint",
        "--remove-taint",
        &[("", "nodes", "get"), ("", "nodes", "patch")],
    ),
];
/// Components that need no right.
const WITHOUT: [&str; 2] = ["metrics", "withdraw"];
const BASE: [(&str, &str, &str); 5] = [
    ("", "nodes", "get"),
    ("topology.node.k8s.io", "noderesourcetopologies", "create"),
    ("topology.node.k8s.io", "noderesourcetopologies", "delete"),
    ("topology.node.k8s.io", "noderesourcetopologies", "get"),
    ("topology.node.k8s.io", "noderesourcetopologies", "patch"),
];

fn allowed(role: &Value) -> BTreeSet<(String, String, String)> {
    let mut all = BTreeSet::new();
    for rule in role["rules"].as_array().expect("rules") {
        for group in strings(&rule["apiGroups"]) {
            for resource in strings(&rule["resources"]) {
                let verbs = strings(&rule["verbs"]);
                all.extend(
                    verbs
                        .into_iter()
                        .map(|verb| (group.to_owned(), resource.to_owned(), verb.to_owned())),
                );
            }
        }
    }
    all
}

fn owned(rights: &[(&str, &str, &str)]) -> BTreeSet<(String, String, String)> {
    rights
        .iter()
        .map(|(group, resource, verb)| ((*group).into(), (*resource).into(), (*verb).into()))
        .collect()
}

#[test]
fn the_base_allows_the_topology_and_to_read_nodes_and_each_component_what_its_flag_needs() {
    let base = built(&cluster("base"));
    assert_eq!(allowed(only(&base, "ClusterRole")), owned(&BASE));
    let there = folders(&cluster("components"));
    let there: BTreeSet<&str> = there.iter().filter_map(|path| path.file_name()?.to_str()).collect();
    let known = RIGHTS.iter().map(|(component, ..)| *component).chain(WITHOUT);
    assert_eq!(there, known.collect());
    for (component, flag, rights) in RIGHTS {
        let folder = cluster("components").join(component);
        let objects = documents(&folder.join("rbac.yaml"));
        assert_eq!(objects.len(), 2);
        assert_eq!(allowed(only(&objects, "ClusterRole")), owned(rights), "{component}");
        let patch: Value = documents(&folder.join("flag.yaml")).remove(0);
        let appended = patch[0]["value"].as_str().expect("a flag");
        assert_eq!(appended.split('=').next(), Some(flag), "{component}");
    }
}

#[test]
fn every_role_is_bound_to_the_account_and_to_the_certificates() {
    let objects = built(&cluster("overlays/full"));
    let of = |wanted: &str| {
        objects
            .iter()
            .filter(|object| kind(object) == wanted)
            .collect::<Vec<_>>()
    };
    let (roles, bindings) = (of("ClusterRole"), of("ClusterRoleBinding"));
    assert_eq!((roles.len(), bindings.len()), (5, 5));
    let subjects = json!([
        {"kind": "ServiceAccount", "name": "stelia-publish", "namespace": "stelia-system"},
        {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "stelia:publish"},
    ]);
    for (role, binding) in roles.iter().zip(&bindings) {
        assert_eq!(name(role), name(binding));
        let reference = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name(role)});
        assert_eq!(binding["roleRef"], reference);
        assert_eq!(binding["subjects"], subjects);
    }
    // Whoever has the rights is who the policies and the flow schema are about.
    let account = name(only(&objects, "ServiceAccount"));
    let user = format!("request.userInfo.username.endsWith(':{account}')");
    for policy in policies() {
        let condition = policy["spec"]["matchConditions"][0]["expression"]
            .as_str()
            .expect("one");
        assert!(
            condition.contains(&user) && condition.contains("'stelia:publish' in request.userInfo.groups"),
            "{condition}"
        );
    }
    let flow = &only(&objects, "FlowSchema")["spec"]["rules"][0]["subjects"];
    assert_eq!(
        flow[0]["serviceAccount"],
        json!({"name": account, "namespace": "stelia-system"})
    );
    assert_eq!(flow[1]["group"], json!({"name": "stelia:publish"}));
}

#[test]
fn whatever_a_role_allows_to_write_a_policy_looks_at() {
    let objects = built(&cluster("overlays/full"));
    let roles = objects.iter().filter(|object| kind(object) == "ClusterRole");
    let operations = |verb: &str| match verb {
        // Server-side apply makes what is not there.
        "patch" => &["CREATE", "UPDATE"][..],
        "create" => &["CREATE"],
        "delete" => &["DELETE"],
        _ => &[],
    };
    let mut seen = 0;
    for (group, resource, verb) in roles.flat_map(allowed) {
        for operation in operations(&verb) {
            let looked_at = policies().iter().any(|policy| {
                let rule = &policy["spec"]["matchConstraints"]["resourceRules"][0];
                let has = |key: &str, wanted: &str| strings(&rule[key]).contains(&wanted);
                has("apiGroups", &group) && has("resources", &resource) && has("operations", operation)
            });
            assert!(looked_at, "{operation} of {resource} in {group:?}");
            seen += 1;
        }
    }
    assert!(seen >= 10, "{seen}");
}

#[test]
fn the_taint_of_the_component_is_the_policys() {
    let patch = documents(&cluster("components/startup-taint/flag.yaml")).remove(0);
    let key = patch[0]["value"]
        .as_str()
        .and_then(|flag| flag.split_once('='))
        .expect("a key")
        .1;
    let nodes = policies()
        .iter()
        .find(|policy| name(policy) == "stelia-publish-nodes")
        .expect("it");
    assert!(
        nodes["spec"].to_string().contains(&format!("t.key == '{key}'")),
        "{key}"
    );
}

#[test]
fn the_program_takes_every_argument_and_variable_of_the_manifests_and_of_the_unit() {
    let objects = built(&cluster("overlays/full"));
    let container = &only(&objects, "DaemonSet")["spec"]["template"]["spec"]["containers"][0];
    let mut arguments = strings(&container["args"]);
    let program = "stelia-publish";
    Arguments::try_parse_from([program].into_iter().chain(arguments.iter().copied())).expect("arguments");
    let withdraw = documents(&cluster("components/withdraw/flag.yaml")).remove(0);
    arguments.push(withdraw[0]["value"].as_str().expect("a flag"));
    Arguments::try_parse_from([program].into_iter().chain(arguments)).expect("arguments");

    let command = Arguments::command();
    let variables: BTreeSet<String> = command
        .get_arguments()
        .filter_map(|one| Some(one.get_env()?.to_string_lossy().into_owned()))
        .collect();
    let mut used: Vec<String> = vec![container["env"][0]["name"].as_str().expect("a variable").to_owned()];
    for file in [
        "systemd-units/stelia-publish.service",
        "docs/cluster/publish.md",
        "packaging/cluster/publish/debian/prerm",
        "packaging/cluster/publish/rpm/preun",
    ] {
        let text = read(&repository(file));
        let words = text.split(|c: char| !c.is_ascii_uppercase() && c != '_');
        used.extend(words.filter(|word| word.starts_with("STELIA_")).map(str::to_owned));
    }
    assert!(used.len() >= 6, "{used:?}");
    assert!(
        used.iter().all(|one| variables.contains(one)),
        "{used:?} are not all of {variables:?}"
    );
}

/// What the program can write and nobody could switch on would be dead; `--once` and the like write nothing more.
#[test]
fn every_option_that_writes_more_is_a_component() {
    let without_right = [
        "directory",
        "node-name",
        "kubeconfig",
        "field-manager",
        "start-spread",
        "once",
        "withdraw",
        "metrics",
        "log-format",
        "boot-id",
    ];
    let command = Arguments::command();
    let options: BTreeSet<String> = command
        .get_arguments()
        .filter_map(|one| Some(one.get_long()?.to_owned()))
        .collect();
    let known = RIGHTS
        .iter()
        .map(|(_, flag, _)| flag.trim_start_matches('-'))
        .chain(without_right);
    assert_eq!(options, known.map(str::to_owned).collect());
}

/// Which resources a node has is kubelet's to say: no role of ours lets a publisher write them.
#[test]
fn no_role_allows_to_write_the_status_of_nodes() {
    for overlay in ["overlays/full", "overlays/units", "overlays/placement"] {
        let objects = built(&cluster(overlay));
        let roles = objects
            .iter()
            .filter(|object| ["ClusterRole", "Role"].contains(&kind(object)));
        let all: Vec<_> = roles.flat_map(allowed).collect();
        assert!(!all.is_empty(), "{overlay}");
        let status: Vec<_> = all
            .iter()
            .filter(|(_, resource, _)| resource == "nodes/status")
            .collect();
        assert!(status.is_empty(), "{overlay}: {status:?}");
    }
}

/// What the program writes by name is what the policies let through.
#[test]
fn the_policies_have_the_names_that_the_program_writes() {
    use stelia_publish::decide::content::{CONDITION, CONTROLLER, GROUP, READY_LABEL, REMOVED_TAINTS};
    let policy = |wanted: &str| {
        let found = policies().iter().find(|policy| name(policy) == wanted).expect("it");
        found["spec"].to_string()
    };
    let nodes = policy("stelia-publish-nodes");
    for written in [READY_LABEL, REMOVED_TAINTS] {
        assert!(nodes.contains(&format!("k == '{written}'")), "{written}");
    }
    assert!(policy("stelia-publish-pods").contains(&format!("c.type == '{CONDITION}'")));
    assert!(policy("stelia-publish-events").contains(&format!("reportingController == '{CONTROLLER}'")));
    assert!(policy("stelia-publish-topology").contains(&format!("\"{GROUP}\"")));
}
