//! Every way in which an API server answers badly, or not at all.

use std::time::Duration;

use serde_json::json;
use stelia_publish::{PublishOptions, Reading};

use crate::support::*;

/// A publisher whose objects are answered like this; everything else succeeds.
fn objects(mut reply: impl FnMut(usize) -> Reply + Send + 'static) -> (Running, Log) {
    let mut count = 0;
    let (client, log) = answering("PATCH", OBJECT, move |_| {
        count += 1;
        reply(count)
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

/// What the first answers mean for the part that got them, and for the others.
struct Case {
    /// How often it is answered so; then it is accepted.
    times: usize,
    answer: fn() -> Reply,
    part: &'static str,
    problem: &'static str,
    /// Of the pauses before each further request, the first and the next ones; the least and the most, in seconds.
    pauses: [(f64, f64); 2],
    /// Whether the label is written meanwhile; `None`: that is not asserted.
    goes_on: Option<bool>,
}

const SOON: (f64, f64) = (0.0, 8.1);
/// A tenth of five minutes once, because an API server that has just started answers so, too.
const LONG: [(f64, f64); 2] = [(27.0, 33.0), (270.0, 330.0)];

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_no_success_is_named_and_the_request_comes_again_as_it_allows() {
    let cases: Vec<Case> = vec![
        Case {
            times: 2,
            answer: || Reply::Never,
            part: "api",
            problem: "no answer within 10 s",
            pauses: [(10.0, 12.0), (10.0, 14.1)],
            goes_on: None,
        },
        Case {
            times: 3,
            answer: || Reply::Later(429, 30),
            part: "api",
            problem: "429 ",
            pauses: [(30.0, 32.0), (30.0, 36.0)],
            goes_on: Some(false),
        },
        Case {
            times: 3,
            answer: || Reply::Later(503, 30),
            part: "api",
            problem: "503 ",
            pauses: [(30.0, 32.0), (30.0, 36.0)],
            goes_on: Some(false),
        },
        // The status may ask for a pause too.
        Case {
            times: 1,
            answer: || {
                let details = json!({"retryAfterSeconds": 40});
                Reply::Json(
                    429,
                    json!({"kind": "Status", "code": 429, "message": "slow down", "details": details}),
                )
            },
            part: "api",
            problem: "429 Too Many Requests: slow down",
            pauses: [(40.0, 42.0), SOON],
            goes_on: None,
        },
        Case {
            times: 1,
            answer: || Reply::Closed("invalid peer certificate: certificate not valid yet: verification time 1"),
            part: "api",
            problem: "certificate not valid yet",
            pauses: [SOON, SOON],
            goes_on: None,
        },
        Case {
            times: 3,
            answer: || status(500, "InternalError", "failed calling webhook", json!([])),
            part: "object",
            problem: "500 Internal Server Error: failed calling webhook",
            pauses: [SOON, SOON],
            goes_on: Some(true),
        },
        Case {
            times: 3,
            answer: || conflict("koordlet"),
            part: "object",
            problem: "koordlet also writes this, and what it wrote differs",
            pauses: LONG,
            goes_on: Some(true),
        },
        Case {
            times: 2,
            answer: || Reply::Text(404, "404 page not found"),
            part: "object",
            problem: "the CRD of NodeResourceTopology is not in the cluster: 404 Not Found: 404 page not found",
            pauses: LONG,
            goes_on: Some(true),
        },
        Case {
            times: 2,
            answer: || status(410, "Gone", "the API version is no longer served", json!([])),
            part: "object",
            problem: "the CRD of NodeResourceTopology is not in the cluster: 410 Gone",
            pauses: LONG,
            goes_on: Some(true),
        },
        // An expired token costs one request.
        Case {
            times: 4,
            answer: || status(401, "Unauthorized", "Unauthorized", json!([])),
            part: "api",
            problem: "401 Unauthorized: Unauthorized",
            pauses: [(0.0, 0.01), SOON],
            goes_on: None,
        },
    ];
    for case in cases {
        let (publisher, log) = objects(move |count| if count <= case.times { (case.answer)() } else { ok() });
        let mut told = None;
        let mut labels = 0;
        for _ in 0..20_000 {
            pass(0.05).await;
            if log.objects().len() > case.times {
                break;
            }
            told = publisher.problem(case.part).or(told);
            labels = log.of("PATCH", NODE).len();
        }
        let told = told.unwrap_or_else(|| panic!("{}", case.problem));
        assert!(told.contains(case.problem), "{told}: {}", case.problem);
        if let Some(goes_on) = case.goes_on {
            assert_eq!(labels > 0, goes_on, "{}", case.problem);
        }
        let pauses = pauses(&log);
        assert_eq!(pauses.len(), case.times, "{}", case.problem);
        let bounds = [case.pauses[0], case.pauses[1], case.pauses[1], case.pauses[1]];
        for (pause, (least, most)) in pauses.iter().zip(bounds) {
            assert!((least..=most).contains(pause), "{}: {pauses:?}", case.problem);
        }
        pass(1.0).await;
        assert!(publisher.status.borrow().problems.is_empty(), "{}", case.problem);
        assert!(log.objects().iter().all(|seen| !seen.query.contains("force")));
    }
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
async fn an_answer_without_end_is_not_read() {
    let (client, log) = answering("GET", NODE, |_| {
        Reply::Json(200, json!({"metadata": {"uid": "x".repeat(2 << 20)}}))
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
