//! Victims of a preemption.

use super::*;

#[tokio::test]
async fn victims_are_kept_where_their_end_makes_room() {
    let served = full().await;
    let result = text("preempt-result.json");
    let (code, body) = served
        .ask("POST", "/preempt", &served.recorded("preempt-args.json"))
        .await;
    assert_eq!((code, json(&body)), (200, json(&result)));
    // A pod that kubelet gave its CPUs gives them back too.
    let args = served.recorded("preempt-args.json").replace(UNKNOWN, KUBELETS);
    let (_, body) = served.ask("POST", "/preempt", &args).await;
    let victims = &json(&body)["NodeNameToMetaVictims"];
    let names: Vec<&String> = victims.as_object().unwrap().keys().collect();
    assert_eq!(names, ["kubelet", "steliad"]);
    assert_eq!(
        victims["kubelet"],
        serde_json::json!({"Pods": [{"UID": KUBELETS}], "NumPDBViolations": 0})
    );
    // A pod without CPUs of its own goes wherever counting says.
    let shared = args
        .replace("\"4\"", "\"1500m\"")
        .replace("stelia.io/vm", "example.com/other");
    let (_, body) = served.ask("POST", "/preempt", &shared).await;
    assert_eq!(
        json(&body)["NodeNameToMetaVictims"].as_object().unwrap().len(),
        3,
        "{body}"
    );
}

#[tokio::test]
async fn nonsense_about_victims_is_an_error_and_nothing_else() {
    let served = full().await;
    let args = served.recorded("preempt-args.json");
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for body in [
        String::new(),
        "null".to_owned(),
        "{}".to_owned(),
        format!("{{\"Pod\":{deep}}}"),
        args[..args.len() - 2].to_owned(),
        args.replace("NodeNameToMetaVictims", "Other"),
        args.replace("\"4\"", "-1"),
        args.replace("\"NumPDBViolations\":1", "\"NumPDBViolations\":\"1\""),
        args.replace("{\"UID\"", "{\"Name\""),
        served.recorded("filter-args.json"),
    ] {
        let (code, answer) = served.ask("POST", "/preempt", &body).await;
        assert_eq!(code, 400, "{answer} to {body:.200}");
    }
    // What names nobody frees nothing.
    for (from, to) in [
        (format!("{{\"UID\":\"{VICTIM}\"}}"), String::new()),
        (VICTIM.to_owned(), "nobody".to_owned()),
        (VICTIM.to_owned(), String::new()),
        (format!("[{{\"UID\":\"{VICTIM}\"}}]"), "null".to_owned()),
        (
            format!("{{\"Pods\":[{{\"UID\":\"{VICTIM}\"}}],\"NumPDBViolations\":1}}"),
            "null".to_owned(),
        ),
    ] {
        let (code, answer) = served.ask("POST", "/preempt", &args.replace(&from, &to)).await;
        assert_eq!(
            (code, json(&answer)),
            (200, json(r#"{"NodeNameToMetaVictims":{}}"#)),
            "{to}"
        );
    }
    // The same pod a thousand times leaves once.
    let often = vec![format!("{{\"UID\":\"{VICTIM}\"}}"); 1000].join(",");
    let args = args.replace(&format!("{{\"UID\":\"{VICTIM}\"}}"), &often);
    let (code, answer) = served.ask("POST", "/preempt", &args).await;
    let pods = &json(&answer)["NodeNameToMetaVictims"]["steliad"]["Pods"];
    assert_eq!((code, pods.as_array().unwrap().len()), (200, 1000));
    assert_eq!(served.ask("GET", "/preempt", "").await.0, 405);
    assert_eq!(served.placer.reservation_counts(), Default::default());
}

/// kube-scheduler tries a pod again as soon as its victim is deleted, which is before the node's object shows the room.
#[tokio::test]
async fn no_victim_follows_one_that_has_ended_on_the_nominated_node() {
    let served = full().await;
    let args: Value = json(&served.recorded("preempt-args.json").replace(UNKNOWN, KUBELETS));
    let nominated = |node: &str| {
        let mut args = args.clone();
        args["Pod"]["status"]["nominatedNodeName"] = node.into();
        args.to_string()
    };
    let victims = async |node: &str| {
        let (_, body) = served.ask("POST", "/preempt", &nominated(node)).await;
        json(&body)["NodeNameToMetaVictims"].clone()
    };
    let none = serde_json::json!({});
    let mut low = load::pod("low", VICTIM, 12, true);
    low["spec"]["nodeName"] = "steliad".into();
    served.server.put("", "pods", low);
    assert_ne!(victims("steliad").await, none);
    served.server.remove("", "pods", "vms", "low");
    let ended = async {
        while victims("steliad").await != none {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ended).await.unwrap();
    // Room elsewhere is nobody's reason to wait: that node may not be for the pod.
    for other in ["kubelet", "nowhere", ""] {
        assert_ne!(victims(other).await, none, "{other}");
    }
    // Another pod took the room.
    let mut steliad = Machine::new("steliad".to_owned(), Kind::Steliad);
    for other in [
        "9b2c3d4e-0000-4000-8000-000000000001",
        "9b2c3d4e-0000-4000-8000-000000000002",
    ] {
        steliad.register(other, 12, None).unwrap();
    }
    let object = steliad.object();
    served
        .server
        .put("topology.node.k8s.io", "noderesourcetopologies", object);
    let taken = async {
        while victims("steliad").await == none {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), taken).await.unwrap();
}
