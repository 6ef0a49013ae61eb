//! The state against an API server in memory that keeps what is applied, loses answers and is away at times. Times are values: a year
//! takes no time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::StatusCode;
use proptest::prelude::*;
use serde_json::{Value, json};
use stelia_api::publication::{Event, EventKind, Publication, PublishedPod, SUMMARY, Summary};

use super::*;
use crate::answer::{ApiFailure, FailureKind};
use crate::options::PodConditions;

const UID: &str = "11111111-0000-4000-8000-000000000001";

fn told(free: u32, ready: bool, pods: &[u32], events: u64) -> Publication {
    let pod = |number: &u32| PublishedPod {
        uid: format!("pod-{number}"),
        namespace: "tenant".into(),
        name: format!("vm-{number}"),
        container: "compute".into(),
        isolation: "vcpus".into(),
        state: "isolated".into(),
        isolated: (free + number).is_multiple_of(2),
        reason: "Isolated".into(),
        message: String::new(),
        since_us: 1,
    };
    let event = |number| Event {
        number,
        uid: format!("pod-{}", number % 5),
        namespace: "tenant".into(),
        name: format!("vm-{}", number % 5),
        kind: EventKind::Normal,
        reason: "Isolated".into(),
        message: String::new(),
        time_us: 1,
        count: 1,
    };
    let object = json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": "worker-1"},
        "zones": [{"name": "node-0", "available": free}],
    });
    let ready = json!({"status": ready, "reason": "Ready", "message": ""});
    Publication {
        object: (free != 7).then_some(object),
        pods: pods.iter().map(pod).collect(),
        events: (events.saturating_sub(9)..=events).map(event).collect(),
        ..serde_json::from_value(json!({"version": 1, "node": "worker-1", "ready": ready, "pods": [], "events": []}))
            .unwrap()
    }
}

/// What happens to a request.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Answered,
    /// Carried out, and nobody hears of it.
    Lost,
    /// Not carried out.
    Away,
    Code(u16),
}

/// What stands, by method-less path; what was applied there last.
#[derive(Default)]
struct Server {
    stands: BTreeMap<String, Value>,
    posted: BTreeSet<String>,
    writes: Vec<Duration>,
}

impl Server {
    fn answer(&mut self, request: &PublisherRequest, fate: Fate, now: Duration) -> Result<Vec<u8>, ApiFailure> {
        let path = request.uri().path().to_owned();
        let body: Value = serde_json::from_slice(request.body()).unwrap_or_default();
        if request.method() == "PATCH" && path.contains("noderesourcetopologies") {
            self.writes.push(now);
        }
        let failed = |code: u16, body: Value| {
            let code = StatusCode::from_u16(code).unwrap();
            Err(ApiFailure::of(code, None, body.to_string().as_bytes()))
        };
        let unheard = Err(ApiFailure::new(FailureKind::Away, "away".into()));
        match fate {
            Fate::Away => return unheard,
            Fate::Code(code) => return failed(code, Value::Null),
            Fate::Answered | Fate::Lost => {}
        }
        let mut exists = false;
        match request.method().as_str() {
            "PATCH" => drop(self.stands.insert(path, body)),
            "POST" => {
                let name = body["metadata"]["name"].as_str().unwrap().to_owned();
                exists = !self.posted.insert(name);
            }
            _ => {}
        }
        match fate {
            Fate::Lost => unheard,
            _ if exists => failed(409, json!({"kind": "Status", "reason": "AlreadyExists", "code": 409})),
            _ => Ok(json!({"metadata": {"uid": UID, "resourceVersion": "1"}, "spec": {}})
                .to_string()
                .into_bytes()),
        }
    }
}

struct Run {
    state: ReconcilerState,
    server: Server,
    now: Duration,
    requests: usize,
}

impl Run {
    fn new(options: PublishOptions) -> Self {
        Self {
            state: ReconcilerState::new(options),
            server: Server::default(),
            now: Duration::ZERO,
            requests: 0,
        }
    }

    /// Until then; each request has its fate.
    fn until(&mut self, end: Duration, mut fate: impl FnMut() -> Fate) {
        for _ in 0..1_000_000 {
            match self.state.next(self.now) {
                Next::Send(task, request) => {
                    self.requests += 1;
                    let answer = self.server.answer(&request, fate(), self.now);
                    self.state.answered(&task, answer, self.now);
                }
                Next::Wait(Some(at)) if at < end => self.now = self.now.max(at),
                Next::Wait(_) => {
                    self.now = end;
                    return;
                }
            }
        }
        panic!("requests without end at {:?}: {:?}", self.now, self.state.status());
    }
}

fn all() -> PublishOptions {
    PublishOptions {
        ready_label: true,
        remove_taint: Some("stelia.io/not-ready".into()),
        pod_conditions: PodConditions::All,
        pod_events: true,
        ..PublishOptions::new("worker-1")
    }
}

fn fates() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => Just(Fate::Answered),
        2 => Just(Fate::Lost),
        2 => Just(Fate::Away),
        3 => prop::sample::select(vec![400_u16, 401, 403, 404, 409, 410, 422, 429, 500, 503]).prop_map(Fate::Code),
    ]
}

fn readings() -> impl Strategy<Value = Reading> {
    let pods = prop::collection::btree_set(0_u32..5, 0..4);
    (0_u32..9, any::<bool>(), pods, 0_u64..40, 0_u32..5).prop_map(|(free, ready, pods, events, daemon)| {
        let pods: Vec<u32> = pods.into_iter().collect();
        Reading {
            daemon_lives: daemon != 0,
            problem: (daemon == 1).then(|| "broken".into()),
            ..Reading::of(told(free, ready, &pods, events))
        }
    })
}

proptest! {
    /// Whatever happened on the way: once the API server answers, what is told stands there, nothing is posted twice, and then it is quiet.
    #[test]
    fn in_the_end_what_is_told_stands(
        steps in prop::collection::vec((readings(), 0_u64..200_000, prop::collection::vec(fates(), 1..8)), 1..12),
    ) {
        let mut run = Run::new(all());
        for (reading, pause, fates) in &steps {
            let mut fates = fates.iter().copied().cycle();
            run.state.take(reading, run.now);
            let end = run.now + Duration::from_millis(*pause);
            run.until(end, || fates.next().unwrap());
        }
        let last = Reading { daemon_lives: true, problem: None, ..Reading::of(told(3, true, &[1, 2], 40)) };
        run.state.take(&last, run.now);
        // The longest rest, and the look after what was refused.
        let end = run.now + Duration::from_secs(4000);
        run.until(end, || Fate::Answered);

        let stands = &run.server.stands;
        let object = &stands["/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/worker-1"];
        prop_assert_eq!(&object["zones"][0]["available"], 3);
        prop_assert_eq!(&object["attributes"], &Value::Null);
        prop_assert_eq!(&object["metadata"]["ownerReferences"][0]["uid"], UID);
        prop_assert_eq!(&stands["/api/v1/nodes/worker-1"]["metadata"]["labels"], &json!({"stelia.io/ready": "true"}));
        let status = run.state.status();
        prop_assert!(status.problems.keys().all(|part| matches!(part, Part::Events | Part::Conditions)), "{:?}", status.problems);

        let requests = run.requests;
        run.state.take(&last, run.now);
        let end = run.now + Duration::from_secs(600);
        run.until(end, || Fate::Answered);
        // At most one look at each of what was written.
        prop_assert!(run.requests - requests <= 4, "{} requests", run.requests - requests);
    }

    /// However the node changes, its object is written at most once in two seconds.
    #[test]
    fn writes_of_the_object_are_apart(
        steps in prop::collection::vec((readings(), 0_u64..5_000), 1..60),
        fates in prop::collection::vec(fates(), 1..10),
    ) {
        let mut run = Run::new(PublishOptions { start_spread: Duration::ZERO, ..PublishOptions::new("worker-1") });
        let mut fates = fates.into_iter().cycle();
        for (reading, pause) in &steps {
            run.state.take(reading, run.now);
            let end = run.now + Duration::from_millis(*pause);
            // An answer that asks for other credentials is the one that is followed at once.
            run.until(end, || match fates.next().unwrap() { Fate::Code(401) => Fate::Away, fate => fate });
        }
        for two in run.server.writes.windows(2) {
            prop_assert!(two[1] - two[0] >= WRITE_INTERVAL, "{:?}", run.server.writes);
        }
    }

    /// The condition of a pod that is told of stands as it is told, if its requests were not refused for what they are.
    #[test]
    fn conditions_follow(
        steps in prop::collection::vec((readings(), 0_u64..60_000, prop::collection::vec(0_usize..3, 1..8)), 1..12),
    ) {
        let mut run = Run::new(all());
        for (reading, pause, fates) in &steps {
            let mut fates = fates.iter().map(|fate| [Fate::Answered, Fate::Lost, Fate::Away][*fate]).cycle();
            run.state.take(reading, run.now);
            let end = run.now + Duration::from_millis(*pause);
            run.until(end, || fates.next().unwrap());
        }
        run.state.take(&Reading::of(told(3, true, &[1, 2], 40)), run.now);
        let end = run.now + Duration::from_secs(1000);
        run.until(end, || Fate::Answered);
        for number in 0..5 {
            let stands = run.server.stands.get(&format!("/api/v1/namespaces/tenant/pods/vm-{number}/status"));
            let status = stands.map_or(&Value::Null, |stands| &stands["status"]["conditions"][0]["status"]);
            match number {
                1 => prop_assert_eq!(status, "True"),
                2 => prop_assert_eq!(status, "False"),
                _ => prop_assert_eq!(status, &Value::Null, "removed, or never there"),
            }
        }
        prop_assert!(!run.state.pods.is_pending());
    }
}

#[test]
fn a_thousand_nodes_after_an_outage_come_back_one_after_the_other() {
    // All are cut off at the same moment and have something to write; the API server is back after an hour.
    let mut by_second: BTreeMap<u64, u32> = BTreeMap::new();
    let back = Duration::from_secs(3600);
    for number in 0..1_000 {
        let options = PublishOptions {
            node: "worker-1".into(),
            ..PublishOptions::new(format!("worker-{number}"))
        };
        let mut run = Run::new(options);
        run.state.take(&Reading::of(told(6, true, &[], 0)), run.now);
        run.until(Duration::from_secs(100), || Fate::Answered);
        let before = run.server.writes.len();
        run.state.take(&Reading::of(told(3, true, &[], 0)), run.now);
        run.until(back, || Fate::Away);
        let outage = run.server.writes.len();
        run.until(back + Duration::from_secs(301), || Fate::Answered);
        let after = run.server.writes.len() - outage;
        assert!(outage - before > 5 && after == 1, "one request a node");
        *by_second.entry(run.server.writes[outage].as_secs()).or_default() += 1;
    }
    let most = by_second.values().max().unwrap();
    assert!((4..30).contains(most), "{most} in the busiest second of 300");
}

#[test]
fn an_event_has_one_name_and_what_is_too_long_is_cut_at_a_character() {
    let mut event = told(1, true, &[], 3).events.remove(0);
    event.name = format!("{}.x", "a".repeat(199));
    event.message = "ä".repeat(600);
    let made = content::event("boot", &"n".repeat(200), &event);
    let name = made["metadata"]["name"].as_str().unwrap();
    assert_eq!(name.len(), 199 + 1 + 16, "{name}");
    assert!(pods::is_name(name));
    assert_eq!(made["note"].as_str().unwrap().len(), 1024);
    assert_eq!(made["reportingInstance"].as_str().unwrap().len(), 128);
    assert_eq!(made["series"], Value::Null);
    event.count = 2;
    assert_eq!(content::event("boot", "n", &event)["series"]["count"], 2);
    assert_eq!(content::event_name("boot", &event), name);
    assert_ne!(content::event_name("other", &event), name);
}

#[test]
fn the_state_is_an_attribute_or_in_v1alpha1_an_annotation() {
    let object = told(1, true, &[], 0).object.unwrap();
    let marked = content::object(&object, Freshness::Away, None, None);
    assert_eq!(marked["attributes"], json!([{"name": content::STATE, "value": "away"}]));
    let again = content::object(&marked, Freshness::Unusable, None, None);
    assert_eq!(again["attributes"][0]["value"], "unusable");
    assert_eq!(again["attributes"][1], Value::Null);
    assert_eq!(content::object(&object, Freshness::Current, None, None), object);
    let mut old = object;
    old["apiVersion"] = "topology.node.k8s.io/v1alpha1".into();
    let marked = content::object(&old, Freshness::Away, None, None);
    assert_eq!(marked["metadata"]["annotations"], json!({content::STATE: "away"}));
    assert_eq!(marked["attributes"], Value::Null);
}

#[test]
fn the_summary_is_an_attribute_beside_the_state_and_is_replaced() {
    let summary = |degraded| Summary {
        version: "0.1.0".into(),
        reason: "Ready".into(),
        degraded,
        ..Summary::default()
    };
    let object = told(1, true, &[], 0).object.unwrap();
    let first = content::object(&object, Freshness::Away, None, Some(&summary(0)));
    let second = content::object(&first, Freshness::Away, None, Some(&summary(2)));
    let value = |object: &Value, name: &str| {
        let attributes = object["attributes"].as_array().unwrap();
        let mut of = attributes.iter().filter(|one| one["name"] == name);
        let value = of.next().unwrap()["value"].as_str().unwrap().to_owned();
        assert!(of.next().is_none(), "{object}");
        value
    };
    assert_eq!(value(&second, content::STATE), "away");
    let told: Summary = serde_json::from_str(&value(&second, SUMMARY)).unwrap();
    assert_eq!(told, summary(2));
    // A daemon that writes none leaves what stands.
    let third = content::object(&second, Freshness::Away, None, None);
    assert_eq!(value(&third, SUMMARY), value(&second, SUMMARY));
    let mut old = object;
    old["apiVersion"] = "topology.node.k8s.io/v1alpha1".into();
    let old = content::object(&old, Freshness::Current, None, Some(&summary(1)));
    let text = old["metadata"]["annotations"][SUMMARY].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Summary>(text).unwrap(), summary(1));
}

#[test]
fn an_answer_about_the_node_that_is_not_json_is_told_with_its_cause() {
    let mut random = Random::new(1);
    for (body, expected) in [
        (&b"<html>"[..], Some("expected value")),
        (b"{}", Some("has no UID")),
        (br#"{"metadata": {"uid": "a"}}"#, None),
    ] {
        let said = NodeUid::default().answered(body, Duration::ZERO, &mut random);
        assert_eq!(said.is_some(), expected.is_some(), "{said:?}");
        assert!(said.is_none_or(|said| said.contains(expected.unwrap())));
    }
}
