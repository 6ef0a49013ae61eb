//! Each flag of the program that writes something more has its component, its role and its place in the policies, and the other way round.

use std::collections::BTreeSet;

use clap::{CommandFactory, Parser};
use serde_json::{Value, json};
use stelia_publish::program::Arguments;

use crate::kustomization::built;
use crate::policy::policies;
use crate::{allowed, cluster, documents, folders, kind, name, one, only, pods, read, repository, strings};

/// Group, resource, verb.
type Right = (&'static str, &'static str, &'static str);

/// What each component's role allows: group, resource, verb.
const RIGHTS: [(&str, &str, &[Right]); 5] = [
    ("pod-conditions", "--pod-conditions", &PODS),
    ("pod-events", "--pod-events", &EVENTS),
    ("ready-label", "--ready-label", &NODES),
    ("rebind", "--rebind", &REBINDS),
    ("startup-taint", "--remove-taint", &NODES),
];
const PODS: [Right; 2] = [("", "pods", "get"), ("", "pods/status", "patch")];
const EVENTS: [Right; 2] = [
    ("events.k8s.io", "events", "create"),
    ("events.k8s.io", "events", "patch"),
];
const REBINDS: [Right; 3] = [
    ("isolation.stelia.io", "rebindresources", "list"),
    ("isolation.stelia.io", "rebindresources", "watch"),
    ("isolation.stelia.io", "rebindresources/status", "patch"),
];
const NODES: [Right; 2] = [("", "nodes", "get"), ("", "nodes", "patch")];
/// Components that need no right.
const WITHOUT: [&str; 2] = ["metrics", "withdraw"];
const BASE: [Right; 5] = [
    ("", "nodes", "get"),
    ("topology.node.k8s.io", "noderesourcetopologies", "create"),
    ("topology.node.k8s.io", "noderesourcetopologies", "delete"),
    ("topology.node.k8s.io", "noderesourcetopologies", "get"),
    ("topology.node.k8s.io", "noderesourcetopologies", "patch"),
];

fn owned(rights: &[Right]) -> BTreeSet<(String, String, String)> {
    let rights = rights.iter();
    rights
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
    let of = |wanted: &'static str| objects.iter().filter(move |object| kind(object) == wanted);
    let (roles, bindings) = (of("ClusterRole"), of("ClusterRoleBinding"));
    assert_eq!((roles.clone().count(), bindings.clone().count()), (5, 5));
    let subjects = json!([
        {"kind": "ServiceAccount", "name": "stelia-publish", "namespace": "stelia-system"},
        {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "stelia:publish"},
    ]);
    for (role, binding) in roles.zip(bindings) {
        assert_eq!(name(role), name(binding));
        let reference = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name(role)});
        assert_eq!(binding["roleRef"], reference);
        assert_eq!(binding["subjects"], subjects);
    }
    // Whoever has the rights is who the policies and the flow schema are about.
    let account = name(only(&objects, "ServiceAccount"));
    let user = format!("request.userInfo.username.endsWith(':{account}')");
    for policy in policies() {
        let condition = policy["spec"]["matchConditions"][0]["expression"].as_str();
        let condition = condition.expect("one");
        assert!(condition.contains(&user), "{condition}");
        assert!(condition.contains("'stelia:publish' in request.userInfo.groups"));
    }
    let flow = &only(&objects, "FlowSchema")["spec"]["rules"][0]["subjects"];
    let expected = json!({"name": account, "namespace": "stelia-system"});
    assert_eq!(flow[0]["serviceAccount"], expected);
    assert_eq!(flow[1]["group"], json!({"name": "stelia:publish"}));
}

#[test]
fn whatever_a_role_allows_to_write_a_policy_looks_at() {
    let mut objects = built(&cluster("overlays/full"));
    objects.extend(documents(&cluster("components/rebind/rbac.yaml")));
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

fn policy(named: &str) -> String {
    one(policies(), "ValidatingAdmissionPolicy", named)["spec"].to_string()
}

#[test]
fn the_taint_of_the_component_is_the_policys() {
    let patch = documents(&cluster("components/startup-taint/flag.yaml")).remove(0);
    let flag = patch[0]["value"].as_str().and_then(|flag| flag.split_once('='));
    let key = flag.expect("a key").1;
    assert!(policy("stelia-publish-nodes").contains(&format!("t.key == '{key}'")));
}

#[test]
fn the_program_takes_every_argument_and_variable_of_the_manifests_and_of_the_unit() {
    let objects = built(&cluster("overlays/full"));
    let (_, container) = pods(only(&objects, "DaemonSet"));
    let mut arguments = strings(&container["args"]);
    let program = "stelia-publish";
    Arguments::try_parse_from([program].into_iter().chain(arguments.iter().copied())).expect("arguments");
    let withdraw = documents(&cluster("components/withdraw/flag.yaml")).remove(0);
    arguments.extend(["--rebind", withdraw[0]["value"].as_str().expect("a flag")]);
    Arguments::try_parse_from([program].into_iter().chain(arguments)).expect("arguments");

    let command = Arguments::command();
    let variables = command.get_arguments().filter_map(|one| one.get_env());
    let variables: BTreeSet<String> = variables.map(|one| one.to_string_lossy().into_owned()).collect();
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
    assert!(used.iter().all(|one| variables.contains(one)), "{used:?}");
}

/// What the program can write and nobody could switch on would be dead; `--once` and the like write nothing more.
#[test]
fn every_option_that_writes_more_is_a_component() {
    let without_right =
        "directory node-name kubeconfig field-manager start-spread once withdraw metrics log-format boot-id";
    let command = Arguments::command();
    let options: BTreeSet<&str> = command.get_arguments().filter_map(|one| one.get_long()).collect();
    let known = RIGHTS.iter().map(|(_, flag, _)| flag.trim_start_matches('-'));
    assert_eq!(options, known.chain(without_right.split(' ')).collect());
}

/// Which resources a node has is kubelet's to say: no role of ours lets a publisher write them.
#[test]
fn no_role_allows_to_write_the_status_of_nodes() {
    for overlay in ["overlays/full", "overlays/units", "overlays/placement"] {
        let objects = built(&cluster(overlay));
        let roles = objects.iter();
        let roles = roles.filter(|object| ["ClusterRole", "Role"].contains(&kind(object)));
        let resources: Vec<String> = roles.flat_map(allowed).map(|(_, resource, _)| resource).collect();
        assert!(!resources.is_empty() && !resources.contains(&"nodes/status".to_owned()));
    }
}

/// What the program writes by name is what the policies let through.
#[test]
fn the_policies_have_the_names_that_the_program_writes() {
    use stelia_publish::decide::content::{CONDITION, CONTROLLER, GROUP, READY_LABEL, REMOVED_TAINTS};
    let nodes = policy("stelia-publish-nodes");
    for written in [READY_LABEL, REMOVED_TAINTS] {
        assert!(nodes.contains(&format!("k == '{written}'")), "{written}");
    }
    assert!(policy("stelia-publish-pods").contains(&format!("c.type == '{CONDITION}'")));
    assert!(policy("stelia-publish-events").contains(&format!("reportingController == '{CONTROLLER}'")));
    assert!(policy("stelia-publish-topology").contains(&format!("\"{GROUP}\"")));
}
