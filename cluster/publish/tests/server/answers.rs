//! Every way in which an API server answers badly, or not at all.

use std::time::Duration;

use serde_json::json;
use stelia_publish::{PublishOptions, Reading};

use crate::support::*;

/// A publisher whose objects are answered like this; everything else succeeds.
fn objects(mut reply: impl FnMut(usize) -> Reply + Send + 'static) -> (Running, Log) {
    let mut count = 0;
    let (client, log) = server(move |seen| {
        if seen.is("PATCH", OBJECT) {
            count += 1;
            reply(count)
        } else {
            healthy(seen)
        }
    });
    let options = PublishOptions {
        ready_label: true,
        ..options()
    };
    (Running::new(client, options, Reading::of(told(6))), log)
}

fn times(log: &Log) -> Vec<Duration> {
    log.objects().iter().map(|seen| seen.at).collect()
}

/// The pause before each, but for the first.
fn pauses(log: &Log) -> Vec<f64> {
    times(log)
        .windows(2)
        .map(|two| (two[1] - two[0]).as_secs_f64())
        .collect()
}

const HOUR: f64 = 3600.0;

#[tokio::test(start_paused = true)]
async fn an_hour_without_the_api_server_ends_with_one_write_of_the_newest() {
    let away = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_away = away.clone();
    let (client, log) = server(move |seen| {
        if is_away.load(std::sync::atomic::Ordering::Relaxed) {
            Reply::Closed("Connection refused (os error 111)")
        } else {
            healthy(seen)
        }
    });
    let publisher = Running::new(client, options(), Reading::of(told(6)));
    pass(10.0).await;
    log.clear();
    away.store(true, std::sync::atomic::Ordering::Relaxed);
    for minute in 0..60 {
        publisher.tell(told(minute % 6));
        pass(60.0).await;
    }
    let tried = log.all().len();
    // Doubled up to five minutes, and half of that on the average.
    assert!((15..60).contains(&tried), "{tried} requests in an hour");
    assert!(publisher.problem("api").unwrap().contains("Connection refused"));
    log.clear();
    away.store(false, std::sync::atomic::Ordering::Relaxed);
    pass(305.0).await;
    let written: Vec<String> = log.objects().iter().map(|seen| available(seen).to_owned()).collect();
    assert_eq!(written, ["5"], "one, the newest");
    assert_eq!(publisher.problem("api"), None);
}

#[tokio::test(start_paused = true)]
async fn an_outage_in_which_nothing_changed_asks_for_nothing() {
    let (client, log) = server(healthy);
    let publisher = Running::new(client, options(), Reading::of(told(6)));
    pass(10.0).await;
    assert_eq!(log.all().len(), 2);
    // The same again, as a daemon that starts anew writes it.
    publisher.tell(told(6));
    pass(20.0 * 60.0).await;
    assert_eq!(log.all().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_write_of_which_nobody_knows_is_written_again_also_if_it_is_taken_back() {
    let (publisher, log) = objects(|count| match count {
        2 => Reply::Never,
        _ => ok(),
    });
    pass(10.0).await;
    publisher.tell(told(4));
    pass(1.0).await;
    publisher.tell(told(6));
    pass(30.0).await;
    let written: Vec<String> = log.objects().iter().map(|seen| available(seen).to_owned()).collect();
    assert_eq!(written, ["6", "4", "6"], "the second may stand there");
}

#[tokio::test(start_paused = true)]
async fn a_slow_answer_is_given_up_after_ten_seconds() {
    let (publisher, log) = objects(|count| match count {
        1..=2 => Reply::Never,
        _ => ok(),
    });
    pass(10.5).await;
    assert_eq!(publisher.problem("api").unwrap(), "no answer within 10 s");
    pass(60.0).await;
    assert_eq!((log.objects().len(), publisher.problem("api")), (3, None));
    assert!(pauses(&log).iter().all(|pause| *pause >= 10.0), "{:?}", pauses(&log));
}

#[tokio::test(start_paused = true)]
async fn what_the_server_asks_for_is_waited_for_by_everything() {
    for code in [429, 503] {
        let (publisher, log) = objects(move |count| match count {
            1..=3 => Reply::Later(code, 30),
            _ => ok(),
        });
        pass(29.0).await;
        assert_eq!(log.objects().len(), 1);
        assert_eq!(log.of("PATCH", NODE).len(), 0, "the label waits too");
        assert!(publisher.problem("api").unwrap().starts_with(&code.to_string()));
        pass(120.0).await;
        assert_eq!((log.objects().len(), log.of("PATCH", NODE).len()), (4, 1));
        assert!(pauses(&log).iter().all(|pause| *pause >= 30.0), "{:?}", pauses(&log));
        let mut distinct = pauses(&log);
        distinct.dedup();
        assert_eq!(
            distinct.len(),
            3,
            "and not after exactly that: others were told the same"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_status_may_ask_for_a_pause_too() {
    let (_publisher, log) = objects(|count| match count {
        1 => Reply::Json(
            429,
            json!({"kind": "Status", "code": 429, "message": "slow down", "details": {"retryAfterSeconds": 40}}),
        ),
        _ => ok(),
    });
    pass(39.0).await;
    assert_eq!(log.objects().len(), 1);
    pass(3.0).await;
    assert_eq!(log.objects().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_internal_error_of_one_part_keeps_no_other_from_being_written() {
    let (publisher, log) = objects(|_| status(500, "InternalError", "failed calling webhook", json!([])));
    pass(50.0 * 60.0).await;
    assert_eq!(
        log.of("PATCH", NODE).len(),
        2,
        "the label, and its look after half an hour"
    );
    let tried = log.objects().len();
    assert!((12..60).contains(&tried), "{tried}");
    assert!(publisher.problem("object").unwrap().contains("failed calling webhook"));
    assert_eq!(publisher.problem("api"), None);
}

#[tokio::test(start_paused = true)]
async fn a_second_writer_is_named_and_never_overridden() {
    let (publisher, log) = objects(|count| match count {
        1..=3 => conflict("koordlet"),
        _ => ok(),
    });
    pass(10.0).await;
    let problem = publisher.problem("object").unwrap();
    assert!(
        problem.starts_with("koordlet also writes this, and what it wrote differs"),
        "{problem}"
    );
    // A change does not make it better.
    publisher.tell(told(3));
    pass(15.0).await;
    assert_eq!(log.objects().len(), 1);
    pass(HOUR).await;
    let pauses = pauses(&log);
    assert!((27.0..=33.0).contains(&pauses[0]), "{pauses:?}");
    assert!(
        pauses.len() >= 3 && pauses[1..3].iter().all(|pause| (270.0..=330.0).contains(pause)),
        "{pauses:?}"
    );
    assert!(
        log.objects().iter().all(|seen| !seen.query.contains("force")),
        "never forced"
    );
    assert_eq!(publisher.problem("object"), None, "the other one stopped");
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_is_not_sent_again_until_it_is_another() {
    for (code, reason) in [(400, "BadRequest"), (413, "RequestEntityTooLarge"), (422, "Invalid")] {
        let (publisher, log) = objects(move |count| match count {
            1 | 3 => status(code, reason, "zones: Required value", json!([])),
            _ => ok(),
        });
        pass(20.0 * 60.0).await;
        assert_eq!(log.objects().len(), 1, "{code}");
        let problem = publisher.problem("object").unwrap();
        assert!(
            problem.starts_with(&code.to_string()) && problem.contains("zones: Required value"),
            "{problem}"
        );
        publisher.tell(told(5));
        pass(5.0).await;
        assert_eq!((log.objects().len(), publisher.problem("object")), (2, None));
        // Refused again, and looked at after half an hour: a CRD may have been mended.
        publisher.tell(told(4));
        pass(5.0).await;
        assert!(publisher.problem("object").is_some());
        pass(35.0 * 60.0).await;
        assert_eq!((log.objects().len(), publisher.problem("object")), (4, None));
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_crd_the_other_parts_go_on() {
    let (publisher, log) = objects(|count| match count {
        1..=2 => Reply::Text(404, "404 page not found"),
        _ => ok(),
    });
    pass(10.0).await;
    assert_eq!(
        publisher.problem("object").unwrap(),
        "the CRD of NodeResourceTopology is not in the cluster: 404 Not Found: 404 page not found"
    );
    assert_eq!(log.of("PATCH", NODE).len(), 1);
    pass(15.0 * 60.0).await;
    // Soon once, because an API server that has just started answers so, too.
    let pauses = pauses(&log);
    assert!((27.0..=33.0).contains(&pauses[0]) && pauses[1] >= 270.0, "{pauses:?}");
    assert_eq!((log.objects().len(), publisher.problem("object")), (3, None));
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_gone_is_as_one_that_never_was() {
    let (publisher, log) = objects(|_| status(410, "Gone", "the API version is no longer served", json!([])));
    pass(250.0).await;
    assert_eq!(log.objects().len(), 2);
    assert!(publisher.problem("object").unwrap().contains("410 Gone"));
}

#[tokio::test(start_paused = true)]
async fn a_missing_right_is_named_and_the_other_parts_go_on() {
    let (client, log) = server(|seen| match (seen.method.as_str(), seen.path.as_str()) {
        ("PATCH", OBJECT) => ok(),
        _ => status(403, "Forbidden", "User \"u\" cannot do that", json!([])),
    });
    let options = PublishOptions {
        ready_label: true,
        ..options()
    };
    let publisher = Running::new(client, options, Reading::of(told(6)));
    pass(10.0).await;
    let objects = log.objects();
    assert_eq!(objects.len(), 1);
    assert_eq!(
        objects[0].body["metadata"]["ownerReferences"],
        json!(null),
        "without the Node's UID no owner"
    );
    let node = publisher.problem("node").unwrap();
    assert!(node.starts_with("no right to get nodes: 403 Forbidden: User"), "{node}");
    let label = publisher.problem("label").unwrap();
    assert!(label.starts_with("no right to patch nodes: "), "{label}");
    pass(250.0).await;
    assert_eq!(log.of("PATCH", NODE).len(), 2);
    assert_eq!(log.of("GET", NODE).len(), 1, "asked for again with the next look only");
}

#[tokio::test(start_paused = true)]
async fn credentials_that_are_not_accepted_are_read_again_at_once_and_then_less_and_less() {
    let (publisher, log) = objects(|count| match count {
        1..=4 => status(401, "Unauthorized", "Unauthorized", json!([])),
        _ => ok(),
    });
    pass(0.5).await;
    assert_eq!(log.objects().len(), 2, "an expired token costs one request");
    assert_eq!(publisher.problem("api").unwrap(), "401 Unauthorized: Unauthorized");
    pass(60.0).await;
    assert_eq!((log.objects().len(), publisher.problem("api")), (5, None));
}

#[tokio::test(start_paused = true)]
async fn a_certificate_that_is_not_valid_yet_is_told_as_it_is() {
    let (client, _log) =
        server(|_| Reply::Closed("invalid peer certificate: certificate not valid yet: verification time 1"));
    let publisher = Running::new(client, options(), Reading::of(told(6)));
    pass(5.0).await;
    let problem = publisher.problem("api").unwrap();
    assert!(problem.contains("certificate not valid yet"), "{problem}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_end_is_not_read() {
    let (client, log) = server(|seen| {
        if seen.is("GET", NODE) {
            Reply::Json(200, json!({"metadata": {"uid": "x".repeat(2 << 20)}}))
        } else {
            ok()
        }
    });
    let publisher = Running::new(client, options(), Reading::of(told(6)));
    pass(2.0).await;
    assert!(
        publisher.problem("api").unwrap().contains("length limit exceeded"),
        "{:?}",
        publisher.problem("api")
    );
    assert_eq!(log.objects().len(), 0);
}
