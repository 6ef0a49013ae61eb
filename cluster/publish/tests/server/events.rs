//! The pods' events.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use stelia_api::publication::{Event, Publication};
use stelia_publish::PublishOptions;

use crate::support::*;

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/tenant/events";

fn posting() -> PublishOptions {
    PublishOptions {
        pod_events: true,
        boot_id: Some("boot-1".into()),
        started_us: 1_700_000_100_000_000,
        ..options()
    }
}

fn with(events: impl IntoIterator<Item = Event>) -> Publication {
    Publication {
        events: events.into_iter().collect(),
        ..told(6)
    }
}

fn names(log: &Log) -> Vec<String> {
    let name = |seen: Seen| seen.body["metadata"]["name"].as_str().unwrap().to_owned();
    log.of("POST", EVENTS).into_iter().map(name).collect()
}

#[tokio::test(start_paused = true)]
async fn an_event_is_posted_once_and_repetitions_are_its_series() {
    let (publisher, log) = run(server(healthy), posting(), with([event(7, 1)]));
    pass(5.0).await;
    let posted = log.of("POST", EVENTS);
    let name = names(&log).remove(0);
    assert_eq!(
        posted[0].body,
        json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"namespace": "tenant", "name": name},
            "eventTime": "2023-11-14T22:13:20.000000Z",
            "type": "Warning",
            "reason": "Intruded",
            "action": "Intruded",
            "note": "ksoftirqd ran on CPU 2",
            "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": "tenant", "name": "vm-1", "uid": pod(1, true).uid},
            "reportingController": "stelia.io/steliad",
            "reportingInstance": "worker-1",
        })
    );
    assert!(name.starts_with("vm-1."), "{name}");
    for count in 2..20 {
        publisher.tell(with([event(7, count)]));
        pass(2.0).await;
    }
    pass(60.0).await;
    assert_eq!(log.of("POST", EVENTS).len(), 1);
    let series = log.of("PATCH", &format!("{EVENTS}/{name}"));
    assert_eq!(series.len(), 1, "a minute apart");
    let expected = json!({"count": 19, "lastObservedTime": "2023-11-14T22:13:20.000000Z"});
    assert_eq!(series[0].body, json!({"series": expected}));
    assert_eq!(series[0].content_type, "application/merge-patch+json");
    assert_eq!(publisher.status.borrow().events_posted, 2);
}

#[tokio::test(start_paused = true)]
async fn a_restart_posts_none_twice_and_another_boot_has_other_names() {
    let (publisher, log) = run(server(healthy), posting(), with([event(7, 1), event(8, 3)]));
    pass(5.0).await;
    let first = names(&log);
    assert_eq!(log.of("POST", EVENTS)[1].body["series"]["count"], 3);
    drop(publisher);

    let exists = |_: &Seen| status(409, "AlreadyExists", "events already exists", json!([]));
    let (client, log) = answering("POST", EVENTS, exists);
    let publisher = Running::new(client, posting(), with([event(7, 1), event(8, 3)]));
    pass(5.0).await;
    assert_eq!(names(&log), first);
    // How often the second had happened when it was posted is not known.
    let series = log.of("PATCH", &format!("{EVENTS}/{}", first[1]));
    assert_eq!((series.len(), &series[0].body["series"]["count"]), (1, &json!(3)));
    assert!(publisher.is_done());
    log.clear();
    pass(600.0).await;
    assert_eq!(log.all().len(), 0);
    drop(publisher);

    let (client, log) = server(healthy);
    let other = PublishOptions {
        boot_id: Some("boot-2".into()),
        ..posting()
    };
    let _publisher = Running::new(client, other, with([event(7, 1), event(8, 3)]));
    pass(5.0).await;
    let all: BTreeSet<String> = names(&log).into_iter().chain(first).collect();
    assert_eq!(all.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn events_of_more_than_an_hour_before_the_start_are_not_posted() {
    let (client, log) = server(healthy);
    let late = PublishOptions {
        started_us: 1_700_000_000_000_000 + 3601 * 1_000_000,
        ..posting()
    };
    let publisher = Running::new(client, late, with([event(7, 1)]));
    pass(5.0).await;
    assert_eq!(log.of("POST", EVENTS).len(), 0);
    // It happens again: that is new.
    publisher.tell(with([event(7, 2)]));
    pass(120.0).await;
    assert_eq!(log.all().iter().filter(|seen| seen.path.starts_with(EVENTS)).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_pod_to_which_much_happens_is_limited_and_others_are_not() {
    let (client, log) = server(healthy);
    let mut events: Vec<Event> = (0..40).map(|number| event(number, 1)).collect();
    let mut other = event(100, 1);
    (other.uid, other.name) = (pod(2, true).uid, "vm-2".into());
    events.push(other);
    let publisher = Running::new(client, posting(), with(events));
    pass(60.0).await;
    let posted = names(&log);
    assert_eq!(posted.iter().filter(|name| name.starts_with("vm-1.")).count(), 25);
    assert_eq!(posted.iter().filter(|name| name.starts_with("vm-2.")).count(), 1);
    pass(600.0).await;
    assert_eq!(names(&log).len(), 28, "one more in five minutes");
    assert!(!publisher.status.borrow().settled);
}

#[tokio::test(start_paused = true)]
async fn an_hour_without_the_api_server_loses_the_oldest_of_too_many_and_counts_them() {
    let away = Arc::new(AtomicBool::new(false));
    let is_away = away.clone();
    let (client, log) = server(move |seen| {
        if is_away.load(Ordering::Relaxed) {
            Reply::Closed("connection refused")
        } else {
            healthy(seen)
        }
    });
    let publisher = Running::new(client, posting(), told(6));
    pass(5.0).await;
    away.store(true, Ordering::Relaxed);
    // Each publication has the last 20 events only; each event is of another pod.
    for number in 0..300_u64 {
        let last = number.saturating_sub(19)..=number;
        publisher.tell(with(last.map(|number| Event {
            uid: format!("uid-{number}"),
            name: format!("vm-{number}"),
            ..event(number, 1)
        })));
        pass(12.0).await;
    }
    assert_eq!(publisher.status.borrow().events_dropped, 300 - 256);
    away.store(false, Ordering::Relaxed);
    log.clear();
    pass(310.0).await;
    let posted = names(&log);
    assert_eq!(posted.len(), 256);
    assert!(posted[0].starts_with("vm-44."), "{}", posted[0]);
    assert_eq!(posted.iter().collect::<BTreeSet<_>>().len(), 256);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_refused_or_has_no_namespace_any_more_is_not_sent_again() {
    let ending = json!([{"reason": "NamespaceTerminating", "message": "namespace tenant is being terminated"}]);
    let answers = [
        (403, "Forbidden", ending, 0),
        (404, "NotFound", json!([]), 0),
        (422, "Invalid", json!([]), 1),
    ];
    for (code, reason, causes, dropped) in answers {
        let (client, log) = answering("POST", EVENTS, move |_| status(code, reason, "no", causes.clone()));
        let publisher = Running::new(client, posting(), with([event(7, 1)]));
        pass(3000.0).await;
        assert_eq!(log.of("POST", EVENTS).len(), 1, "{code}");
        assert_eq!(publisher.status.borrow().events_dropped, dropped, "{code}");
        assert_eq!(publisher.problem("events").is_some(), dropped > 0, "{code}");
    }

    let (client, log) = answering("POST", EVENTS, |_| status(403, "Forbidden", "no", json!([])));
    let publisher = Running::new(client, posting(), with([event(7, 1), event(8, 1)]));
    pass(250.0).await;
    assert_eq!(log.of("POST", EVENTS).len(), 2, "the right is missing for all");
    assert!(publisher.problem("events").unwrap().contains("create and patch events"));
    pass(1000.0).await;
    assert!(log.of("POST", EVENTS).len() >= 3, "and may be given");
}
