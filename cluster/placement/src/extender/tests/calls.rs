//! filter, prioritize and bind, as kube-scheduler sends them and as nonsense.

use super::*;
use crate::extender::calls::{MAX_FIT_NODES, best_nodes};

#[tokio::test]
async fn kube_schedulers_calls_are_answered_as_it_expects() {
    let served = plain().await;
    let recorded = served.recorded("filter.http");
    let (code, body) = exchange(&mut served.connect().await, recorded.as_bytes()).await;
    assert_eq!((code, json(&body)), (200, json(&text("filter-result.json"))));
    let hosts = served.post("/prioritize", &served.recorded("filter-args.json")).await;
    for (at, name) in ["steliad", "kubelet", "worker-without-object"].into_iter().enumerate() {
        let score = hosts[at]["Score"].as_i64().unwrap();
        assert!(hosts[at]["Host"] == name && (i64::from(at < 2)..=10).contains(&score));
        assert!(at < 2 || score == 0, "{hosts}");
    }
    let bound = served.post("/bind", &text("binding-args.json")).await;
    assert_eq!(bound, json(&text("binding-result.json")));
    // To another node: it is bound.
    let again = text("binding-args.json").replace("steliad", "kubelet");
    assert_eq!(served.post("/bind", &again).await, json(&text("binding-refused.json")));
    let pod = served.server.object("", "pods", "tenant-a", "vm-1").unwrap();
    assert_eq!(pod["spec"]["nodeName"], "steliad");
}

/// kube-scheduler would look for victims on a node of `FailedNodes`, find none, and take that for an error.
#[tokio::test]
async fn no_refusal_is_one_that_preemption_could_resolve() {
    let served = full().await;
    let result = served.post("/filter", &served.recorded("filter-args.json")).await;
    let refused = result["FailedAndUnresolvableNodes"].as_object().unwrap();
    assert_eq!((refused.len(), &result["FailedNodes"]), (3, &serde_json::json!({})));
    assert_eq!((&result["Error"], served.placer.waiting()), (&"".into(), 1));
}

/// It is refused by every node, with the whole reason: an error would be retried for ever.
#[tokio::test]
async fn a_pod_that_no_node_could_take_is_refused_by_each_with_the_whole_reason() {
    let served = plain().await;
    let mut args = json(&served.recorded("filter-args.json"));
    let containers = args["Pod"]["spec"]["containers"].as_array_mut().unwrap();
    let name = "a-container-with-a-name-as-long-as-the-api-server-lets-it-be-63";
    let asks = |one: &&Value| one.to_string().contains("stelia.io/vm");
    let mut second = containers.iter().find(asks).unwrap().clone();
    second["name"] = name.into();
    containers.push(second);
    let result = served.post("/filter", &args.to_string()).await;
    assert!(result["Error"] == "" && result["NodeNames"] == serde_json::json!([]));
    let refused = result["FailedAndUnresolvableNodes"].as_object().unwrap();
    assert_eq!(refused.len(), args["NodeNames"].as_array().unwrap().len());
    assert!(refused.values().all(|why| why.as_str().unwrap().contains(name)));
}

#[tokio::test]
async fn nonsense_is_an_error_and_nothing_else() {
    let served = plain().await;
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let args = text("filter-args.json");
    let hostile = [
        String::new(),
        "null".to_owned(),
        "[]".to_owned(),
        "{}".to_owned(),
        deep.clone(),
        format!("{{\"Pod\":{deep},\"NodeNames\":[]}}"),
        args[..args.len() / 2].to_owned(),
        args.replace("\"4\"", "\"99999999999999999999999999\""),
        args.replace("\"4\"", "-1"),
        args.replace("\"containers\"", "\"container\""),
        text("filter-args-nodes.json"),
        "\u{0}\u{1}".to_owned(),
    ];
    for body in &hostile {
        let result = served.post("/filter", body).await;
        let names = result["NodeNames"].as_array();
        let refused = result["Error"] != "" || names.is_some_and(|names| !names.contains(&"steliad".into()));
        assert!(refused || body.contains("\"container\""), "{result} to {body:.200}");
        assert_eq!(served.ask("POST", "/bind", body).await.0, 200);
        served.ask("POST", "/prioritize", body).await;
    }
    let (_, answer) = served.ask("POST", "/filter", &text("filter-args-nodes.json")).await;
    assert!(answer.contains("nodeCacheCapable must be true"), "{answer}");
    // Nothing was bound by it, and the next one is answered.
    assert_eq!(served.placer.reservation_counts(), Default::default());
    assert_eq!(served.post("/filter", &args).await, json(&text("filter-result.json")));
}

#[test]
fn the_best_nodes_are_named_and_equal_ones_take_turns() {
    let names: Vec<String> = (0..250).map(|number| format!("w-{number:03}")).collect();
    let fit = |scores: fn(usize) -> u16| -> Vec<(u16, &str)> {
        let each = names.iter().enumerate();
        each.map(|(at, name)| (scores(at), name.as_str())).collect()
    };
    // A few nodes: all, as they came.
    let few: Vec<(u16, &str)> = fit(|at| at as u16).into_iter().take(MAX_FIT_NODES).collect();
    assert_eq!(best_nodes(few, 7), names[..MAX_FIT_NODES]);
    let mut best = best_nodes(fit(|at| at as u16), 7);
    best.sort_unstable();
    assert_eq!(best, names[150..]);
    // The best ten are always among them, of the others those that the number chooses.
    let scores = |at: usize| if at.is_multiple_of(25) { 900 } else { 500 };
    let (one, other) = (best_nodes(fit(scores), 30), best_nodes(fit(scores), 180));
    for best in [&one, &other] {
        assert_eq!(best.len(), MAX_FIT_NODES);
        assert!((0..250).step_by(25).all(|at| best[..10].contains(&names[at].as_str())));
    }
    assert!(one.contains(&"w-031") && !one.contains(&"w-181"), "{one:?}");
    assert!(other.contains(&"w-181") && !other.contains(&"w-031"), "{other:?}");
}
