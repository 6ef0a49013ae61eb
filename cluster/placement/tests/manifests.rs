//! The manifests: what they name is there, what the program asks for is granted and no more, and its options are its own.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Parser;
use serde_json::Value;
use stelia_placement::cli::Cli;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/cluster/kubernetes/placement")
}

fn documents(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|cause| panic!("{}: {cause}", path.display()));
    serde_saphyr::from_multiple(&text).unwrap_or_else(|cause| panic!("{}: {cause}", path.display()))
}

/// All objects of a kustomization.
fn objects(name: &str) -> Vec<Value> {
    let folder = folder().join(name);
    let kustomization = documents(&folder.join("kustomization.yaml")).remove(0);
    let listed: BTreeSet<String> = kustomization["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(text)
        .collect();
    listed.iter().flat_map(|file| documents(&folder.join(file))).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value}")).to_owned()
}

fn one<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found = objects
        .iter()
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}

fn container(deployment: &Value) -> &Value {
    &deployment["spec"]["template"]["spec"]["containers"][0]
}

#[test]
fn every_file_is_of_a_kustomization_and_every_object_of_the_project() {
    for (name, apart) in [("base", vec![]), ("scheduler", vec!["vms.yaml", "whole-cpus.yaml"])] {
        let folder = folder().join(name);
        let kustomization = documents(&folder.join("kustomization.yaml")).remove(0);
        let mut listed: BTreeSet<String> = kustomization["resources"]
            .as_array()
            .unwrap()
            .iter()
            .map(text)
            .collect();
        listed.extend(apart.into_iter().map(str::to_owned));
        listed.insert("kustomization.yaml".to_owned());
        let there: BTreeSet<String> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(there, listed);
        for object in objects(name) {
            let labels = &object["metadata"]["labels"];
            assert_eq!(labels["app.kubernetes.io/part-of"], "steliad", "{object}");
            let of_cluster = [
                "ClusterRole",
                "ClusterRoleBinding",
                "CustomResourceDefinition",
                "FlowSchema",
                "ValidatingAdmissionPolicy",
                "ValidatingAdmissionPolicyBinding",
            ];
            let kind = text(&object["kind"]);
            assert!(
                of_cluster.contains(&kind.as_str()) || object["metadata"]["namespace"].is_string(),
                "{object}"
            );
        }
    }
}

#[test]
fn the_deployments_options_are_the_programs() {
    let objects = objects("base");
    let deployment = one(&objects, "Deployment", "stelia-placement");
    let container = container(deployment);
    let arguments = container["args"].as_array().unwrap().iter().map(text);
    // Of the pod's own fields, as the environment has it.
    let address = container["env"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["name"] == "POD_IP")
        .unwrap();
    assert_eq!(address["valueFrom"]["fieldRef"]["fieldPath"], "status.podIP");
    let arguments = arguments.chain(["--address=10.0.0.1".to_owned()]);
    let cli = Cli::try_parse_from(std::iter::once("stelia-placement".to_owned()).chain(arguments)).unwrap();
    assert_eq!(cli.service.as_deref(), Some("stelia-placement"));
    assert!(cli.tls_client_ca.is_some(), "anybody could bind pods");
    let ports: Vec<u64> = container["ports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|port| port["containerPort"].as_u64().unwrap())
        .collect();
    assert_eq!(
        ports,
        [u64::from(cli.listen.port()), u64::from(cli.probes.unwrap().port())]
    );
    let mounted = text(&container["volumeMounts"][0]["mountPath"]);
    for file in [cli.tls_cert, cli.tls_key, cli.tls_client_ca].into_iter().flatten() {
        assert_eq!(file.parent().unwrap(), Path::new(&mounted));
    }
    let context = &container["securityContext"];
    assert_eq!(
        (&context["readOnlyRootFilesystem"], &context["allowPrivilegeEscalation"]),
        (&true.into(), &false.into())
    );
    assert_eq!(deployment["spec"]["replicas"], 2);
    let selected = &deployment["spec"]["selector"]["matchLabels"];
    for (kind, at) in [
        ("PodDisruptionBudget", "/spec/selector/matchLabels"),
        ("NetworkPolicy", "/spec/podSelector/matchLabels"),
    ] {
        assert_eq!(
            one(&objects, kind, "stelia-placement").pointer(at),
            Some(selected),
            "{kind}"
        );
    }
}

#[test]
fn what_it_asks_of_the_api_server_is_granted_and_no_more() {
    let objects = objects("base");
    let mut granted = BTreeSet::new();
    for object in objects
        .iter()
        .filter(|object| ["ClusterRole", "Role"].contains(&object["kind"].as_str().unwrap()))
    {
        for rule in object["rules"].as_array().unwrap() {
            for (resource, verb) in rule["resources"].as_array().unwrap().iter().flat_map(|resource| {
                rule["verbs"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(move |verb| (resource, verb))
            }) {
                granted.insert(format!("{} {}", text(verb), text(resource)));
            }
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
    let named = lease["rules"]
        .as_array()
        .unwrap()
        .iter()
        .find(|rule| rule["resourceNames"].is_array())
        .unwrap();
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
    for (file, managed) in [("vms.yaml", true), ("whole-cpus.yaml", false)] {
        let configuration = documents(&folder().join("scheduler").join(file)).remove(0);
        assert_eq!(configuration["apiVersion"], "kubescheduler.config.k8s.io/v1");
        assert_eq!(configuration["profiles"][0]["percentageOfNodesToScore"], 10);
        let extender = &configuration["extenders"][0];
        assert_eq!(
            extender["urlPrefix"],
            format!("https://stelia-placement.{namespace}.svc:{port}")
        );
        for (verb, path) in [
            ("filterVerb", "filter"),
            ("prioritizeVerb", "prioritize"),
            ("preemptVerb", "preempt"),
            ("bindVerb", "bind"),
        ] {
            assert_eq!(extender[verb], path);
        }
        assert_eq!(
            (&extender["nodeCacheCapable"], &extender["ignorable"]),
            (&true.into(), &false.into())
        );
        let resource = &extender["managedResources"][0];
        // kube-scheduler counts it too: kubelet publishes how many a node has.
        let expected = managed.then_some((stelia_placement_rules::request::VM_RESOURCE, false));
        assert_eq!(
            resource["name"]
                .as_str()
                .map(|name| (name, resource["ignoredByScheduler"] == true)),
            expected
        );
        let files = &extender["tlsConfig"];
        for file in ["caFile", "certFile", "keyFile"] {
            let path = text(&files[file]);
            let is_mounted = mounts
                .as_array()
                .unwrap()
                .iter()
                .any(|mount| path.starts_with(&text(&mount["mountPath"])));
            assert!(is_mounted, "{path}");
        }
        // It must wait for longer than a bind may take.
        let patience: u64 = text(&extender["httpTimeout"]).trim_end_matches('s').parse().unwrap();
        assert!(patience >= 12, "{patience}");
    }
}

#[test]
fn help_names_every_path_and_the_completion_every_option() {
    for shell in [
        clap_complete::Shell::Bash,
        clap_complete::Shell::Zsh,
        clap_complete::Shell::Fish,
    ] {
        let script = String::from_utf8(Cli::completion(shell)).unwrap();
        assert!(
            script.contains("tls-client-ca") && script.contains("lease-namespace"),
            "{shell}"
        );
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

/// The VM that the page shows goes to the scheduler that is installed, and is read as the page says.
#[test]
fn the_pages_vm_is_read_as_it_is_meant() {
    let page = folder().join("../../../../docs/cluster/placement.md");
    let text = std::fs::read_to_string(&page).unwrap();
    let blocks = text.split("\n```").filter_map(|block| block.strip_prefix("yaml\n"));
    let shown = blocks
        .into_iter()
        .find(|block| block.contains("kind: Pod"))
        .expect("a VM");
    let pod: Value = serde_saphyr::from_str(shown).unwrap();
    let configuration = documents(&folder().join("scheduler/vms.yaml")).remove(0);
    assert_eq!(
        pod["spec"]["schedulerName"],
        configuration["profiles"][0]["schedulerName"]
    );
    let request = stelia_placement_rules::Request::of_pod(&pod, Default::default()).unwrap();
    let vm = request.vm.expect("a VM");
    assert!(vm.follows_scheduler, "the CPUs that are chosen for it");
    assert_eq!(vm.allocation.qos, Some(stelia_koordinator::allocator::Qos::Lsr));
}

/// The commands of the page make certificates that each side accepts of the other.
#[test]
fn the_pages_commands_make_certificates() {
    let page = std::fs::read_to_string(folder().join("../../../../docs/cluster/placement.md")).unwrap();
    let blocks = page.split("\n```").filter_map(|block| block.strip_prefix("sh\n"));
    let commands = blocks
        .into_iter()
        .find(|block| block.contains("openssl"))
        .expect("commands");
    // A cluster is not needed for that.
    let commands = commands.replace("kubectl -n", "true -n");
    let made = tempfile::tempdir().unwrap();
    let run = |script: &str| {
        let output = std::process::Command::new("sh")
            .args(["-ec", script])
            .current_dir(made.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{script}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    run(&commands);
    run(
        "openssl verify -purpose sslserver -verify_hostname stelia-placement.stelia-system.svc -CAfile ca.crt placement.crt",
    );
    run("openssl verify -purpose sslclient -CAfile ca.crt scheduler.crt");
    let files = |name: &str| stelia_placement::extender::TlsFiles {
        certificate: made.path().join(format!("{name}.crt")),
        key: made.path().join(format!("{name}.key")),
        clients: Some(made.path().join("ca.crt")),
    };
    for name in ["placement", "scheduler"] {
        assert!(stelia_placement::extender::Tls::new(files(name)).is_ok(), "{name}");
    }
}
