//! Victims of a preemption.

use super::*;

#[tokio::test]
async fn victims_are_kept_where_their_end_makes_room() {
    let served = full().await;
    let kept = served.post("/preempt", &served.recorded("preempt-args.json")).await;
    assert_eq!(kept, json(&text("preempt-result.json")));
    // A pod that kubelet gave its CPUs gives them back too.
    let args = served.recorded("preempt-args.json").replace(UNKNOWN, KUBELETS);
    let victims = &served.post("/preempt", &args).await["NodeNameToMetaVictims"];
    let names: Vec<&String> = victims.as_object().unwrap().keys().collect();
    assert_eq!(names, ["kubelet", "steliad"]);
    let expected = serde_json::json!({"Pods": [{"UID": KUBELETS}], "NumPDBViolations": 0});
    assert_eq!(victims["kubelet"], expected);
    // A pod without CPUs of its own goes wherever counting says.
    let shared = args.replace("\"4\"", "\"1500m\"");
    let shared = shared.replace("stelia.io/vm", "example.com/other");
    let victims = &served.post("/preempt", &shared).await["NodeNameToMetaVictims"];
    assert_eq!(victims.as_object().unwrap().len(), 3, "{victims}");
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
    let victim = format!("{{\"UID\":\"{VICTIM}\"}}");
    let all = format!("[{victim}]");
    let told = format!("{{\"Pods\":{all},\"NumPDBViolations\":1}}");
    for (from, to) in [
        (victim.as_str(), ""),
        (VICTIM, "nobody"),
        (VICTIM, ""),
        (&all, "null"),
        (&told, "null"),
    ] {
        let answer = served.post("/preempt", &args.replace(from, to)).await;
        assert_eq!(answer, json(r#"{"NodeNameToMetaVictims":{}}"#), "{to}");
    }
    // The same pod a thousand times leaves once.
    let often = vec![victim.clone(); 1000].join(",");
    let answer = served.post("/preempt", &args.replace(&victim, &often)).await;
    let pods = &answer["NodeNameToMetaVictims"]["steliad"]["Pods"];
    assert_eq!(pods.as_array().unwrap().len(), 1000);
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
    let victims = async |node: &str| served.post("/preempt", &nominated(node)).await["NodeNameToMetaVictims"].take();
    let none = serde_json::json!({});
    let mut low = load::pod("low", VICTIM, 12, true);
    low["spec"]["nodeName"] = "steliad".into();
    served.server.put("", "pods", low);
    assert_ne!(victims("steliad").await, none);
    served.server.remove("", "pods", "vms", "low");
    until(async || victims("steliad").await == none).await;
    // Room elsewhere is nobody's reason to wait: that node may not be for the pod.
    for other in ["kubelet", "nowhere", ""] {
        assert_ne!(victims(other).await, none, "{other}");
    }
    // Another pod took the room.
    let mut steliad = Machine::new("steliad".to_owned(), Kind::Steliad);
    for number in 1..=2 {
        let other = format!("9b2c3d4e-0000-4000-8000-{number:012}");
        steliad.register(&other, 12, None).unwrap();
    }
    served.publish(&steliad);
    until(async || victims("steliad").await != none).await;
}
