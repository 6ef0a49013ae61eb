//! Described nodes, invalid words, other settings.

use super::*;

#[test]
fn a_described_node_answers_as_this_one_does() {
    let distances = [(0, 10), (1, 21)];
    let memory = numa::NumaMemory {
        total: 16 << 30,
        ..numa::NumaMemory::default()
    };
    let numa = |id: u32| {
        let described = numa::KernelNumaNode {
            distances: distances.map(|(other, distance)| ((other + id) % 2, distance)).into(),
            memory: Some(memory),
            ..numa::KernelNumaNode::default()
        };
        (id, described)
    };
    let facts = Facts {
        name: "worker-7".to_owned(),
        topology: topology(),
        numa: [numa(0), numa(1)].into(),
        reserved: set("0,8"),
        exclusive: set("1,9"),
        shared: set("0,2-8,10-15"),
        allocations: vec![PodAllocation {
            pod: PodUid::parse(OTHER).unwrap(),
            name: None,
            cpus: set("1,9"),
            by_kubelet: true,
        }],
        containers: std::collections::BTreeSet::new(),
        kubelet: Kubelet {
            cpu_policy: "static".to_owned(),
            reserved: set("0,8"),
            alignment: Some(Alignment {
                policy: "restricted".to_owned(),
                scope: "pod".to_owned(),
            }),
            ..Kubelet::default()
        },
        allocator: None,
        pods: None,
        devices: std::collections::BTreeMap::new(),
        problems: Vec::new(),
    };
    let here = node(&format!(
        "{STATIC}topologyManagerPolicy: restricted\ntopologyManagerScope: pod\n"
    ));
    let printed = serde_json::to_string(&report(&facts, ApiVersion::V1Alpha2)).unwrap();
    write(here.path(), "worker.json", &printed);
    let file = here.path().join("worker.json");
    for pod in [
        "cpus=2,memory=1Gi",
        "cpus=8,memory=1Gi",
        "cpus=13,memory=1Gi",
        "cpus=1500m,memory=1Gi",
    ] {
        let line = ["-c", pod, "--until-full", "--what-if"];
        let described = answered(
            Path::new("/nowhere"),
            &[&line[..], &["--node", file.to_str().unwrap()]].concat(),
        );
        let own = answered(here.path(), &line);
        assert_eq!(described["node"], "worker-7");
        for part in [
            "admitted",
            "rejection",
            "containers",
            "kubelet",
            "until_full",
            "why_not_better",
        ] {
            assert_eq!(described[part], own[part], "{part}");
        }
    }
    write(here.path(), "worker.json", "kind: Pod");
    let (_, reason) = refused(here.path(), &["-c", "cpus=1", "-n", file.to_str().unwrap()]);
    assert!(reason.starts_with(&format!("{}: ", file.display())), "{reason}");
}

#[test]
fn a_wrong_word_is_wrong_usage() {
    let root = Path::new("/nowhere");
    for words in [&["-c", "cpus=x"][..], &["-c", "name=a", "-c", "name=a"]] {
        assert_eq!(steliactl(root, words).unwrap_err().exit_code(), 2, "{words:?}");
    }
    for words in [
        &["plan"][..],
        &["plan", "pod.yaml", "-c", "cpus=1"],
        &["plan", "-c", "cpus=1", "--pod", "a"],
    ] {
        assert!(
            Cli::try_parse_from([&["steliactl"], words].concat()).is_err(),
            "{words:?}"
        );
    }
}

#[test]
fn other_settings_name_their_gates_and_whether_these_are_on() {
    let gates = |config: &str| answered(node(config).path(), &["-c", "cpus=2,memory=1Gi", "--what-if"]);
    let find = |rows: &Value, option: &str| {
        let has = |row: &&Value| row["kubelet"]["cpu_manager_policy_options"] == serde_json::json!([option]);
        rows["what_if"].as_array().unwrap().iter().find(has).unwrap().clone()
    };
    let feature = |answer: &Value, name: &str| {
        let features = answer["features"].as_array().unwrap();
        features.iter().find(|feature| feature["name"] == name).unwrap().clone()
    };
    let none = serde_json::json!([]);
    let alpha = serde_json::json!(["CPUManagerPolicyAlphaOptions"]);
    let answer = gates(STATIC);
    assert_eq!(find(&answer, "align-by-socket")["missing_gates"], alpha);
    assert_eq!(find(&answer, "distribute-cpus-across-numa")["missing_gates"], none);
    assert_eq!(
        feature(&answer, "align-by-socket"),
        serde_json::json!({"name": "align-by-socket", "stages": "alpha 1.25", "feature_gate": alpha[0], "on": false})
    );
    assert_eq!(feature(&answer, "full-pcpus-only")["feature_gate"], Value::Null);
    // The gates of the kubelet on this node.
    let told = "featureGates: {CPUManagerPolicyAlphaOptions: true, CPUManagerPolicyBetaOptions: false}\n";
    let answer = gates(&format!("{STATIC}{told}"));
    assert_eq!(find(&answer, "align-by-socket")["missing_gates"], none);
    assert_eq!(
        find(&answer, "distribute-cpus-across-numa")["missing_gates"],
        serde_json::json!(["CPUManagerPolicyBetaOptions"])
    );
    // Without `--what-if` the list is empty.
    let answer = answered(node(STATIC).path(), &["-c", "cpus=2,memory=1Gi"]);
    assert_eq!(answer["features"], none);
}

#[test]
fn other_settings_are_printed_with_their_gates() {
    let node = node(STATIC);
    let text = steliactl(node.path(), &["-c", "cpus=2,memory=1Gi", "--what-if"]).unwrap();
    let text = text.replace(&node.path().display().to_string(), "");
    insta::assert_snapshot!(text);
}
