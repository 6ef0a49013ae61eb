//! The object: when it is written, and what is in it.

use std::time::Duration;

use serde_json::json;
use stelia_publish::{PublishOptions, Publisher, Reading};

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn the_object_is_applied_once_with_its_owner_and_looked_at_every_half_hour() {
    let (publisher, log) = run(server(healthy), options(), told(6));
    pass(10.0).await;
    let all = log.all();
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(all[0].is("GET", NODE));
    let object = &all[1];
    assert!(object.is("PATCH", OBJECT), "{object:?}");
    assert_eq!(object.query, "&fieldManager=steliad");
    assert_eq!(object.content_type, "application/apply-patch+yaml");
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "worker-1", "uid": UID}]);
    assert_eq!(object.body["metadata"]["ownerReferences"], owner);
    assert_eq!((available(object), state(object)), ("6", None));
    assert!(publisher.status.borrow().settled);
    pass(26.0 * 60.0).await;
    assert_eq!(log.all().len(), 2, "unchanged is unwritten");
    pass(8.0 * 60.0).await;
    assert_eq!((log.all().len(), log.objects().len()), (4, 2), "one look, one apply");
    pass(10.0 * 3600.0).await;
    let looks = log.objects().len() - 2;
    assert!((18..=23).contains(&looks), "{looks} in ten hours");
}

#[tokio::test(start_paused = true)]
async fn nodes_begin_spread_over_a_minute_and_a_change_is_written_at_once() {
    let mut begins = Vec::new();
    for number in 0..40 {
        let (client, log) = server(healthy);
        let mut told = told(6);
        told.node = format!("worker-{number}");
        told.object.as_mut().unwrap()["metadata"]["name"] = told.node.clone().into();
        let publisher = Running::new(client, PublishOptions::new(told.node.clone()), told);
        pass(61.0).await;
        begins.push(log.all()[0].at);
        drop(publisher);
    }
    let early = begins.iter().filter(|at| **at < Duration::from_secs(30)).count();
    assert!((10..=30).contains(&early), "{begins:?}");
    assert!(begins.iter().all(|at| *at < Duration::from_secs(60)), "{begins:?}");
    begins.sort();
    begins.dedup();
    assert_eq!(begins.len(), 40, "no two at the same time");

    let (client, log) = server(healthy);
    let late = PublishOptions::new("worker-1");
    let publisher = Running::new(client, late, told(6));
    pass(0.5).await;
    assert_eq!(log.all().len(), 0, "this name is among the later ones");
    publisher.tell(told(4));
    pass(0.3).await;
    assert_eq!(available(&log.objects()[0]), "4");
}

#[tokio::test(start_paused = true)]
async fn a_burst_is_one_write_and_writes_are_two_seconds_apart() {
    let (publisher, log) = run(server(healthy), options(), told(6));
    pass(10.0).await;
    log.clear();
    for free in 0..5 {
        publisher.tell(told(free));
        pass(0.02).await;
    }
    pass(0.2).await;
    let written = log.objects();
    assert_eq!((written.len(), available(&written[0])), (1, "4"));
    // A node that changes without end.
    for free in 0..100 {
        publisher.tell(told(free % 7));
        pass(0.1).await;
    }
    let times: Vec<Duration> = log.objects().iter().map(|seen| seen.at).collect();
    assert!((5..=6).contains(&times.len()), "{times:?}");
    let apart = |two: &[Duration]| two[1] - two[0] >= Duration::from_secs(2);
    assert!(times.windows(2).all(apart), "{times:?}");
    pass(3.0).await;
    assert_eq!(available(log.objects().last().unwrap()), "1", "the last of all");
}

#[tokio::test(start_paused = true)]
async fn what_was_and_is_again_is_not_written() {
    let (publisher, log) = run(server(healthy), options(), told(6));
    pass(10.0).await;
    log.clear();
    publisher.tell(told(4));
    pass(0.1).await;
    publisher.tell(told(6));
    pass(10.0).await;
    assert_eq!(log.all().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_restarts_changes_nothing_and_one_that_is_away_is_told() {
    let (publisher, log) = run(server(healthy), with_label(), told(6));
    pass(10.0).await;
    log.clear();
    let away = Reading {
        daemon_lives: false,
        ..Reading::of(told(6))
    };
    publisher.readings.send_replace(away.clone());
    pass(59.0).await;
    assert_eq!(publisher.problem("daemon").unwrap(), "steliad does not run");
    publisher.tell(told(6));
    pass(100.0).await;
    assert_eq!(log.all().len(), 0, "a restart, an upgrade");

    publisher.readings.send_replace(away);
    pass(61.0).await;
    let objects = log.objects();
    assert_eq!((objects.len(), state(&objects[0])), (1, Some("away")));
    assert_eq!(available(&objects[0]), "6", "what it has free is as it was known last");
    let ready = |at: usize| log.of("PATCH", NODE)[at].body["metadata"]["labels"]["stelia.io/ready"].clone();
    assert_eq!(ready(0), "false");
    publisher.tell(told(6));
    pass(3.0).await;
    assert_eq!(state(log.objects().last().unwrap()), None);
    assert_eq!(ready(1), "true");
    assert_eq!(log.all().len(), 4);
    assert_eq!(publisher.problem("daemon"), None);
}

#[tokio::test(start_paused = true)]
async fn a_file_of_no_use_leaves_the_last_good_one_standing_and_is_told_after_a_minute() {
    let (publisher, log) = run(server(healthy), options(), told(6));
    pass(10.0).await;
    log.clear();
    publisher.readings.send_replace(Reading {
        problem: Some("node.json: version 2, not 1: written by a newer steliad".into()),
        ..Reading::of(told(6))
    });
    pass(59.0).await;
    assert_eq!(log.all().len(), 0);
    assert!(publisher.problem("file").unwrap().contains("newer steliad"));
    pass(2.0).await;
    assert_eq!(state(&log.objects()[0]), Some("unusable"));
}

#[tokio::test(start_paused = true)]
async fn facts_that_cannot_be_used_mark_the_object_also_after_a_restart() {
    let (publisher, log) = run(server(healthy), options(), told(6));
    pass(10.0).await;
    log.clear();
    let mut unusable = told(6);
    unusable.object = None;
    publisher.tell(unusable.clone());
    pass(1.0).await;
    let marked = log.objects()[0].clone();
    assert_eq!((available(&marked), state(&marked)), ("6", Some("unusable")));
    drop(publisher);

    // The object stands at the API server; this publisher never saw one.
    let mut stands = marked.body;
    stands["metadata"]["uid"] = "u".into();
    stands["metadata"]["managedFields"] = json!([{"manager": "steliad"}]);
    stands["metadata"]["annotations"] = json!({"somebody.else/x": "1", "node.koordinator.sh/cpu-topology": "{}"});
    let (client, log) = answering("GET", OBJECT, move |_| Reply::Json(200, stands.clone()));
    let publisher = Running::new(client, options(), unusable.clone());
    pass(10.0).await;
    let again = log.objects();
    assert_eq!((again.len(), log.of("GET", OBJECT).len()), (1, 1));
    assert_eq!((available(&again[0]), state(&again[0])), ("6", Some("unusable")));
    let metadata = &again[0].body["metadata"];
    let topology = json!({"node.koordinator.sh/cpu-topology": "{}"});
    assert_eq!(metadata["annotations"], topology);
    assert!(metadata["uid"].is_null() && metadata["managedFields"].is_null());
    drop(publisher);

    // None stands, or it is somebody else's: nothing is written.
    for stands in [Reply::Text(404, "404 page not found"), ok()] {
        let mut stands = Some(stands);
        let (client, log) = answering("GET", OBJECT, move |_| stands.take().expect("asked once"));
        let publisher = Running::new(client, options(), unusable.clone());
        pass(100.0).await;
        assert_eq!((log.objects().len(), log.of("GET", OBJECT).len()), (0, 1));
        assert_eq!(publisher.problems(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn another_nodes_publication_is_not_published() {
    let (client, log) = server(healthy);
    let publisher = Running::of(Publisher::new(client, options()), Reading::default());
    let [mut node, mut name, mut kind] = [6, 6, 6].map(told);
    node.node = "worker-2".into();
    name.object.as_mut().unwrap()["metadata"]["name"] = "worker-2".into();
    kind.object.as_mut().unwrap()["apiVersion"] = "v1".into();
    for (foreign, found) in [(node, "worker-2"), (name, "worker-2"), (kind, "\"v1\"")] {
        publisher.tell(foreign);
        pass(5.0).await;
        assert!(publisher.problem("file").unwrap().contains(found));
    }
    assert_eq!(log.objects().len(), 0);
    publisher.tell(told(6));
    pass(5.0).await;
    assert_eq!((log.objects().len(), publisher.problem("file")), (1, None));
}
