//! The overlay that installs placement and a scheduler beside the publisher: its parts find each other. That the program takes the options and needs the rights
//! is held in `cluster/placement/tests/manifests.rs`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::kustomization::built;
use crate::{cluster, has, kind, list, name, one, pods, strings};

fn overlay() -> Vec<Value> {
    built(&cluster("overlays/placement"))
}

#[test]
fn it_has_both_parts_no_name_twice_and_nothing_of_the_publishers() {
    let objects = overlay();
    let parts = ["placement/base", "placement/scheduler"];
    let parts: usize = parts.iter().map(|part| built(&cluster(part)).len()).sum();
    assert_eq!(objects.len(), parts);
    let key = |object: &Value| {
        let namespace = object["metadata"]["namespace"].to_string();
        (kind(object).to_owned(), namespace, name(object).to_owned())
    };
    let names: BTreeSet<_> = objects.iter().map(key).collect();
    assert_eq!(names.len(), objects.len());
    // Applied, it would take the publisher's components away again.
    let publishers: BTreeSet<_> = built(&cluster("overlays/full")).iter().map(key).collect();
    assert!(names.is_disjoint(&publishers));
    let there = key(&json!({"kind": "Namespace", "metadata": {"name": "stelia-system"}}));
    assert!(publishers.contains(&there), "the namespace that all of it is in");
    for object in &objects {
        let namespace = object["metadata"]["namespace"].as_str();
        // The right to read how clients of extension servers are told apart is one of kube-system's.
        let elsewhere = name(object) == "stelia-scheduler-authentication";
        let expected = if elsewhere { "kube-system" } else { "stelia-system" };
        assert!(namespace.is_none_or(|namespace| namespace == expected), "{object}");
    }
}

#[test]
fn whoever_is_bound_to_a_role_is_there_and_so_is_the_role() {
    let objects = overlay();
    let bindings = objects.iter().filter(|object| kind(object).ends_with("RoleBinding"));
    let mut ours = 0;
    for binding in bindings {
        for subject in list(&binding["subjects"]) {
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
    assert_eq!(ours, 3);
}

fn name_of(value: &Value) -> &str {
    value["name"].as_str().expect("a name")
}

#[test]
fn the_scheduler_reaches_the_extender_and_nobody_else_does() {
    let objects = overlay();
    let template = |deployment: &str| &one(&objects, "Deployment", deployment)["spec"]["template"];
    let policy = &one(&objects, "NetworkPolicy", "stelia-placement")["spec"];
    let labels = &template("stelia-placement")["metadata"]["labels"];
    assert!(has(labels, &policy["podSelector"]["matchLabels"]));
    let rules = list(&policy["ingress"]);
    let service = &one(&objects, "Service", "stelia-placement")["spec"]["ports"][0]["port"];
    let mut to_service = rules.iter().filter(|rule| &rule["ports"][0]["port"] == service);
    let rule = to_service.next().expect("a rule");
    assert!(to_service.next().is_none(), "{rules:?}");
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
    let probes = ports.iter().find(|port| port["name"] == "probes").expect("it");
    assert_eq!(open, [&probes["containerPort"]]);
}

#[test]
fn the_scheduler_runs_with_the_configuration_that_is_generated() {
    let objects = overlay();
    // kustomize adds the hash of the content.
    let is_it = |object: &&Value| kind(object) == "ConfigMap" && name(object).starts_with("stelia-scheduler-config-");
    let map = objects.iter().find(is_it).expect("it");
    let pod = &one(&objects, "Deployment", "stelia-scheduler")["spec"]["template"]["spec"];
    let (container, volumes) = (&pod["containers"][0], pod["volumes"].as_array().expect("volumes"));
    let volume = volumes.iter().find(|volume| !volume["configMap"].is_null());
    let volume = volume.expect("one");
    assert_eq!(volume["configMap"]["name"], name(map));
    let mounts = container["volumeMounts"].as_array().expect("mounts");
    let mount = mounts.iter().find(|mount| mount["name"] == volume["name"]);
    let mount = mount.expect("one");
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

/// The APF levels of a cluster's own scheduler: by default both accounts are `service-accounts`, at the level workload-low, and their Leases too.
#[test]
fn requests_have_the_priority_of_a_clusters_own_scheduler() {
    let objects = overlay();
    for account in ["stelia-placement", "stelia-scheduler"] {
        one(&objects, "ServiceAccount", account);
        let schema = |name: &str| &one(&objects, "FlowSchema", name)["spec"];
        let (all, leases) = (schema(account), schema(&format!("{account}-leader-election")));
        let level = |of: &Value| of["priorityLevelConfiguration"]["name"].as_str().map(str::to_owned);
        assert_eq!(level(all).as_deref(), Some("workload-high"));
        assert_eq!(level(leases).as_deref(), Some("leader-election"));
        let precedence = |of: &Value| of["matchingPrecedence"].as_u64().expect("a number");
        // service-accounts is 9000.
        assert!(precedence(leases) < precedence(all) && precedence(all) < 9000);
        let subject =
            json!([{"kind": "ServiceAccount", "serviceAccount": {"name": account, "namespace": "stelia-system"}}]);
        for of in [all, leases] {
            assert_eq!(of["rules"][0]["subjects"], subject);
        }
        let rule = &leases["rules"][0]["resourceRules"][0];
        assert_eq!(strings(&rule["apiGroups"]), ["coordination.k8s.io"]);
        assert_eq!(strings(&rule["resources"]), ["leases"]);
    }
}

/// Two instances that are ready: a drain and a rollout replace one after the other, whichever leads, and need no room for a third.
#[test]
fn one_instance_is_replaced_at_a_time_and_none_waits_for_ever() {
    let objects = overlay();
    let deployment = &one(&objects, "Deployment", "stelia-placement")["spec"];
    let probe = |name: &str| &deployment["template"]["spec"]["containers"][0][name]["httpGet"]["path"];
    assert!(probe("readinessProbe") == "/readyz" && probe("livenessProbe") == "/healthz");
    let update = &deployment["strategy"]["rollingUpdate"];
    assert_eq!(*update, json!({"maxUnavailable": 1, "maxSurge": 0}));
    assert_eq!(deployment["replicas"], 2);
    let budget = &one(&objects, "PodDisruptionBudget", "stelia-placement")["spec"];
    assert_eq!(budget["maxUnavailable"], 1);
    assert_eq!(budget["unhealthyPodEvictionPolicy"], "AlwaysAllow");
    // So it is not readiness that the Service goes by, but the EndpointSlice that the leader writes.
    let service = &one(&objects, "Service", "stelia-placement")["spec"];
    assert!(service["selector"].is_null() && service["ports"][0]["targetPort"].is_u64());
    let arguments = strings(&deployment["template"]["spec"]["containers"][0]["args"]);
    assert!(arguments.contains(&"--service=stelia-placement"), "{arguments:?}");
    let role = one(&objects, "Role", "stelia-placement-lease");
    let slices = |rule: &&Value| strings(&rule["resources"]) == ["endpointslices"];
    let mut rules = list(&role["rules"]).iter().filter(slices);
    let rule = rules.find(|rule| rule["resourceNames"] == json!(["stelia-placement"]));
    assert_eq!(strings(&rule.expect("a right")["verbs"]), ["get", "update"]);
}

/// Root on a node has the tokens of its pods, and so the rights of these two: they stay away from tenants' nodes.
#[test]
fn both_run_on_the_control_planes_nodes_and_not_on_the_same_one() {
    let objects = overlay();
    for deployment in ["stelia-placement", "stelia-scheduler"] {
        let (spec, container) = pods(one(&objects, "Deployment", deployment));
        let role = "node-role.kubernetes.io/control-plane";
        assert_eq!(spec["nodeSelector"], json!({"kubernetes.io/os": "linux"}));
        // The label's value is not the same everywhere.
        let required = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        let terms = json!([{"matchExpressions": [{"key": role, "operator": "Exists"}]}]);
        assert_eq!(required["nodeSelectorTerms"], terms, "{deployment}");
        let taints = [role, "node-role.kubernetes.io/master", "node-role.kubernetes.io/etcd"];
        let tolerations = taints.map(|key| json!({"key": key, "operator": "Exists", "effect": "NoSchedule"}));
        assert_eq!(spec["tolerations"], json!(tolerations), "{deployment}");
        let term = &spec["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0];
        let selected = &term["podAffinityTerm"]["labelSelector"]["matchLabels"];
        assert_eq!(selected["app.kubernetes.io/name"], deployment);
        let budget = &one(&objects, "PodDisruptionBudget", deployment)["spec"];
        assert!(budget["maxUnavailable"] == 1 && budget["selector"]["matchLabels"] == *selected);
        assert!(container["resources"]["limits"]["memory"].is_string(), "{deployment}");
    }
}

/// A node whose device plugin offers no healthy device gets no VM, with the extender and without it.
#[test]
fn the_scheduler_counts_the_resource_that_kubelet_publishes() {
    let vms = json!([{"name": "stelia.io/vm", "ignoredByScheduler": false}]);
    for (file, managed) in [("vms.yaml", vms), ("whole-cpus.yaml", Value::Null)] {
        let configuration = crate::documents(&cluster("placement/scheduler").join(file)).remove(0);
        assert_eq!(configuration["profiles"][0]["pluginConfig"], Value::Null, "{file}");
        assert_eq!(configuration["extenders"][0]["managedResources"], managed, "{file}");
    }
}
