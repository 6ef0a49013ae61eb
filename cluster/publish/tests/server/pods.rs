//! The pods' conditions.

use serde_json::json;
use stelia_api::publication::Publication;
use stelia_publish::PublishOptions;
use stelia_publish::options::PodConditions;

use crate::support::*;

const POD: &str = "/api/v1/namespaces/tenant/pods/vm-1";
const STATUS: &str = "/api/v1/namespaces/tenant/pods/vm-1/status";

fn conditions(of: PodConditions) -> PublishOptions {
    PublishOptions {
        pod_conditions: of,
        ..options()
    }
}

fn with(isolated: bool) -> Publication {
    Publication {
        pods: vec![pod(1, isolated)],
        ..told(6)
    }
}

/// How often the pod with this UID and these gates is asked for, and how often its condition is written, which changes once.
async fn requests(uid: String, gates: serde_json::Value) -> (usize, usize) {
    let (client, log) = answering("GET", POD, move |_| {
        let pod = json!({"metadata": {"uid": uid}, "spec": {"readinessGates": gates}});
        Reply::Json(200, pod)
    });
    let publisher = Running::new(client, conditions(PodConditions::Gated), with(false));
    pass(5.0).await;
    publisher.tell(with(true));
    pass(60.0).await;
    assert_eq!(publisher.problems(), 0);
    (log.of("GET", POD).len(), log.of("PATCH", STATUS).len())
}

#[tokio::test(start_paused = true)]
async fn a_pods_condition_is_applied_to_the_pod_of_this_uid() {
    let (publisher, log) = run(server(healthy), conditions(PodConditions::All), with(false));
    pass(5.0).await;
    let patch = &log.of("PATCH", STATUS)[0];
    assert_eq!(
        patch.body,
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "tenant", "name": "vm-1", "uid": pod(1, true).uid},
            "status": {"conditions": [{"type": "stelia.io/isolated", "status": "False", "reason": "Waiting", "message": "",
                "lastTransitionTime": "2023-11-14T22:13:20Z"}]}})
    );
    assert_eq!(patch.query.as_str(), "&fieldManager=steliad");
    assert_eq!(log.of("GET", POD).len(), 0);
    publisher.tell(with(true));
    pass(0.25).await;
    let condition = &log.of("PATCH", STATUS)[1].body["status"]["conditions"][0];
    assert_eq!(condition["status"], "True");
    // The VM has ended, and its pod is still there.
    publisher.tell(told(6));
    pass(1.0).await;
    assert_eq!(log.of("PATCH", STATUS)[2].body["status"], json!({}));
    log.clear();
    pass(600.0).await;
    assert_eq!(log.all().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_asked_once_for_its_readiness_gates_and_another_of_the_name_is_not_written() {
    let own = || pod(1, true).uid;
    let [ours, other] = ["stelia.io/isolated", "other/x"].map(|kind| json!({"conditionType": kind}));
    for (uid, gates, expected) in [
        (own(), json!([other, ours]), (1, 2)),
        (own(), json!([]), (1, 0)),
        (own(), json!([other]), (1, 0)),
        ("another".to_owned(), json!([ours]), (1, 0)),
    ] {
        assert_eq!(requests(uid.clone(), gates.clone()).await, expected, "{uid} {gates}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_gone_is_written_once() {
    let uid = json!([{"reason": "FieldValueInvalid", "message": "field is immutable", "field": "metadata.uid"}]);
    let mismatch = "Precondition failed: UID in precondition: a, UID in object meta: b";
    let answers = [
        (404, "NotFound", "pods \"vm-1\" not found", json!([])),
        (410, "Gone", "gone", json!([])),
        (409, "Conflict", mismatch, json!([])),
        (422, "Invalid", "Pod \"vm-1\" is invalid", uid),
    ];
    for (code, reason, text, causes) in answers {
        let (client, log) = answering("PATCH", STATUS, move |_| status(code, reason, text, causes.clone()));
        let publisher = Running::new(client, conditions(PodConditions::All), with(false));
        pass(5.0).await;
        publisher.tell(with(true));
        pass(600.0).await;
        assert_eq!(log.of("PATCH", STATUS).len(), 1, "{code}: the pod is gone");
        assert!(publisher.is_done(), "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_is_refused_is_named_and_sent_again_when_it_is_another() {
    let mut first = true;
    let (client, log) = answering("PATCH", STATUS, move |_| {
        if std::mem::replace(&mut first, false) {
            status(422, "Invalid", "reason: Invalid value", json!([]))
        } else {
            ok()
        }
    });
    let publisher = Running::new(client, conditions(PodConditions::All), with(false));
    pass(3600.0).await;
    assert_eq!(log.of("PATCH", STATUS).len(), 1);
    let problem = publisher.problem("conditions").unwrap();
    assert!(problem.contains("tenant/vm-1: 422"), "{problem}");
    publisher.tell(with(true));
    pass(5.0).await;
    assert_eq!((log.of("PATCH", STATUS).len(), publisher.problems()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_missing_right_is_missing_for_all_pods() {
    let (client, log) = server(|seen| {
        if seen.path.contains("/pods/") {
            status(403, "Forbidden", "not for you", json!([]))
        } else {
            healthy(seen)
        }
    });
    let many = Publication {
        pods: (0..50).map(|number| pod(number, true)).collect(),
        ..told(6)
    };
    let publisher = Running::new(client, conditions(PodConditions::All), many);
    pass(200.0).await;
    let asked = log.all().iter().filter(|seen| seen.path.contains("/pods/")).count();
    assert_eq!(asked, 2, "soon once more");
    assert!(publisher.problem("conditions").unwrap().contains("patch pods/status"));
    assert_eq!(log.objects().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn hundreds_of_pods_take_their_time_and_names_that_are_none_ask_for_nothing() {
    let (client, log) = server(healthy);
    let mut odd = pod(1, true);
    odd.name = "../../nodes/x".into();
    let many = Publication {
        pods: (100..400).map(|number| pod(number, true)).chain([odd]).collect(),
        ..told(6)
    };
    let publisher = Running::new(client, conditions(PodConditions::All), many);
    pass(10.0).await;
    let asked = log.all().len();
    assert!((50..=62).contains(&asked), "{asked} in 10 s: ten, and five a second");
    pass(60.0).await;
    assert_eq!(log.all().len(), 302);
    assert!(publisher.status.borrow().settled);
    assert!(log.all().iter().all(|seen| !seen.path.contains("..")));
}
