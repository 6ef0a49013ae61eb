//! The manifests: what they name is there, what the program asks for is granted and no more, and its options are its own.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Parser;
use clap_complete::Shell;
use serde_json::Value;
use stelia_placement::cli::Cli;
use stelia_placement::extender::{Tls, TlsFiles};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/cluster/kubernetes/placement")
}

fn documents(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|cause| panic!("{}: {cause}", path.display()));
    serde_saphyr::from_multiple(&text).unwrap_or_else(|cause| panic!("{}: {cause}", path.display()))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

/// All objects of a kustomization.
fn objects(name: &str) -> Vec<Value> {
    let folder = folder().join(name);
    let kustomization = documents(&folder.join("kustomization.yaml")).remove(0);
    let files = list(&kustomization["resources"]).iter();
    files.flat_map(|file| documents(&folder.join(text(file)))).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value}")).to_owned()
}

fn one<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let is = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
    objects.iter().find(is).unwrap_or_else(|| panic!("no {kind} {name}"))
}

fn container(deployment: &Value) -> &Value {
    &deployment["spec"]["template"]["spec"]["containers"][0]
}

#[test]
fn every_object_is_of_the_project_and_of_its_namespace() {
    let of_cluster = "ClusterRole ClusterRoleBinding CustomResourceDefinition FlowSchema ValidatingAdmissionPolicy \
        ValidatingAdmissionPolicyBinding";
    for object in ["base", "scheduler"].into_iter().flat_map(objects) {
        let metadata = &object["metadata"];
        assert_eq!(metadata["labels"]["app.kubernetes.io/part-of"], "steliad", "{object}");
        let is_of_cluster = of_cluster.split_whitespace().any(|kind| object["kind"] == kind);
        assert!(is_of_cluster || metadata["namespace"].is_string(), "{object}");
    }
}

#[test]
fn the_deployments_options_are_the_programs() {
    let objects = objects("base");
    let deployment = one(&objects, "Deployment", "stelia-placement");
    let container = container(deployment);
    let arguments = list(&container["args"]).iter().map(text);
    // Of the pod's own fields, as the environment has it.
    let mut variables = list(&container["env"]).iter();
    let address = variables.find(|one| one["name"] == "POD_IP").unwrap();
    assert_eq!(address["valueFrom"]["fieldRef"]["fieldPath"], "status.podIP");
    let arguments = arguments.chain(["--address=10.0.0.1".to_owned()]);
    let cli = Cli::try_parse_from(std::iter::once("stelia-placement".to_owned()).chain(arguments)).unwrap();
    assert_eq!(cli.service.as_deref(), Some("stelia-placement"));
    assert!(cli.tls_client_ca.is_some(), "anybody could bind pods");
    let ports = list(&container["ports"]).iter().map(|port| &port["containerPort"]);
    let ports: Vec<&Value> = ports.collect();
    assert_eq!(ports, [&cli.listen.port(), &cli.probes.unwrap().port()]);
    let mounted = text(&container["volumeMounts"][0]["mountPath"]);
    for file in [cli.tls_cert, cli.tls_key, cli.tls_client_ca].into_iter().flatten() {
        assert_eq!(file.parent().unwrap(), Path::new(&mounted));
    }
    let context = &container["securityContext"];
    assert_eq!(context["readOnlyRootFilesystem"], true);
    assert_eq!(context["allowPrivilegeEscalation"], false);
    let selected = &deployment["spec"]["selector"]["matchLabels"];
    for (kind, at) in [
        ("PodDisruptionBudget", "/spec/selector/matchLabels"),
        ("NetworkPolicy", "/spec/podSelector/matchLabels"),
    ] {
        let object = one(&objects, kind, "stelia-placement");
        assert_eq!(object.pointer(at), Some(selected), "{kind}");
    }
}

#[test]
fn what_it_asks_of_the_api_server_is_granted_and_no_more() {
    let objects = objects("base");
    let mut granted = BTreeSet::new();
    let roles = objects
        .iter()
        .filter(|object| object["kind"] == "ClusterRole" || object["kind"] == "Role");
    for rule in roles.flat_map(|role| list(&role["rules"])) {
        for resource in list(&rule["resources"]) {
            let verbs = list(&rule["verbs"]).iter();
            granted.extend(verbs.map(|verb| format!("{} {}", text(verb), text(resource))));
        }
    }
    // By the sources of apiserver/.
    let asked = [
        "create endpointslices",
        "create endpointslices/restricted",
        "create leases",
        "create pods/binding",
        "get endpointslices",
        "get leases",
        "get pods",
        "list noderesourcetopologies",
        "list pods",
        "patch pods/status",
        "update endpointslices",
        "update leases",
        "watch noderesourcetopologies",
        "watch pods",
    ];
    let granted: Vec<&str> = granted.iter().map(String::as_str).collect();
    assert_eq!(granted, asked);
    let lease = one(&objects, "Role", "stelia-placement-lease");
    let mut rules = list(&lease["rules"]).iter();
    let named = rules.find(|rule| rule["resourceNames"].is_array()).unwrap();
    let usual = Cli::try_parse_from(["stelia-placement"]).unwrap();
    assert_eq!(named["resourceNames"][0], usual.lease_name.as_str());
}

#[test]
fn the_schedulers_configuration_leads_to_the_service() {
    let base = objects("base");
    let service = one(&base, "Service", "stelia-placement");
    let port = service["spec"]["ports"][0]["port"].as_u64().unwrap();
    let namespace = text(&service["metadata"]["namespace"]);
    let scheduler = objects("scheduler");
    let mounts = &container(one(&scheduler, "Deployment", "stelia-scheduler"))["volumeMounts"];
    for file in ["vms.yaml", "whole-cpus.yaml"] {
        let configuration = documents(&folder().join("scheduler").join(file)).remove(0);
        assert_eq!(configuration["apiVersion"], "kubescheduler.config.k8s.io/v1");
        assert_eq!(configuration["profiles"][0]["percentageOfNodesToScore"], 10);
        let extender = &configuration["extenders"][0];
        let address = format!("https://stelia-placement.{namespace}.svc:{port}");
        assert_eq!(extender["urlPrefix"], address);
        for path in ["filter", "prioritize", "preempt", "bind"] {
            assert_eq!(extender[format!("{path}Verb")], path);
        }
        assert_eq!(extender["nodeCacheCapable"], true);
        assert_eq!(extender["ignorable"], false);
        let files = &extender["tlsConfig"];
        for file in ["caFile", "certFile", "keyFile"] {
            let path = text(&files[file]);
            let mut mounts = list(mounts).iter();
            let is_mounted = mounts.any(|mount| path.starts_with(&text(&mount["mountPath"])));
            assert!(is_mounted, "{path}");
        }
        // It must wait for longer than a bind may take.
        let patience: u64 = text(&extender["httpTimeout"]).trim_end_matches('s').parse().unwrap();
        assert!(patience >= 12, "{patience}");
    }
}

#[test]
fn help_names_every_path_and_the_completion_every_option() {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let script = String::from_utf8(Cli::completion(shell)).unwrap();
        assert!(script.contains("tls-client-ca"), "{shell}");
    }
    let wrong = [
        vec!["--tls-cert", "a"],
        vec!["--tls-client-ca", "a"],
        vec!["--listen", "nowhere"],
        vec!["--scoring-strategy", "Best"],
        vec!["--completions", "bash", "--listen", "127.0.0.1:1"],
    ];
    for arguments in wrong {
        let given = std::iter::once("stelia-placement").chain(arguments.iter().copied());
        assert!(Cli::try_parse_from(given).is_err(), "{arguments:?}");
    }
}

/// The page's first block of this language that has this text.
fn block(language: &str, has: &str) -> String {
    let page = std::fs::read_to_string(folder().join("../../../../docs/cluster/placement.md")).unwrap();
    let mut blocks = page.split("\n```").filter_map(|block| block.strip_prefix(language));
    blocks.find(|block| block.contains(has)).unwrap().to_owned()
}

/// The VM that the page shows goes to the scheduler that is installed, and is read as the page says.
#[test]
fn the_pages_vm_is_read_as_it_is_meant() {
    let pod: Value = serde_saphyr::from_str(&block("yaml\n", "kind: Pod")).unwrap();
    let configuration = documents(&folder().join("scheduler/vms.yaml")).remove(0);
    let scheduler = &configuration["profiles"][0]["schedulerName"];
    assert_eq!(pod["spec"]["schedulerName"], *scheduler);
    let request = stelia_placement_rules::Request::of_pod(&pod, Default::default()).unwrap();
    let vm = request.vm.expect("a VM");
    assert!(vm.follows_scheduler, "the CPUs that are chosen for it");
    assert_eq!(vm.allocation.qos, Some(stelia_koordinator::allocator::Qos::Lsr));
}

/// The commands of the page make certificates that each side accepts of the other.
#[test]
fn the_pages_commands_make_certificates() {
    // A cluster is not needed for that.
    let commands = block("sh\n", "openssl").replace("kubectl -n", "true -n");
    let made = tempfile::tempdir().unwrap();
    let run = |script: &str| {
        let mut shell = std::process::Command::new("sh");
        let output = shell.args(["-ec", script]).current_dir(made.path()).output().unwrap();
        assert!(
            output.status.success(),
            "{script}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    run(&commands);
    let server = "-purpose sslserver -verify_hostname stelia-placement.stelia-system.svc";
    run(&format!("openssl verify {server} -CAfile ca.crt placement.crt"));
    run("openssl verify -purpose sslclient -CAfile ca.crt scheduler.crt");
    let files = |name: &str| TlsFiles {
        certificate: made.path().join(format!("{name}.crt")),
        key: made.path().join(format!("{name}.key")),
        clients: Some(made.path().join("ca.crt")),
    };
    for name in ["placement", "scheduler"] {
        assert!(Tls::new(files(name)).is_ok(), "{name}");
    }
}
