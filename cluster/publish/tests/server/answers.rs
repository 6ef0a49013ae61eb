//! Every way in which an API server answers badly, or not at all.

use rstest::rstest;
use serde_json::json;

use crate::support::*;

/// A publisher whose objects are answered like this; everything else succeeds.
fn objects(mut reply: impl FnMut(usize) -> Reply + Send + 'static) -> (Running, Log) {
    let mut count = 0;
    let (client, log) = answering("PATCH", OBJECT, move |_| {
        count += 1;
        reply(count)
    });
    (Running::new(client, with_label(), told(6)), log)
}

/// The pause before each, but for the first.
fn pauses(log: &Log) -> Vec<f64> {
    let objects = log.objects();
    let pauses = objects.windows(2).map(|two| two[1].at - two[0].at);
    pauses.map(|pause| pause.as_secs_f64()).collect()
}

const SOON: (f64, f64) = (0.0, 8.1);
/// A tenth of five minutes once, because an API server that has just started answers so, too.
const LONG: [(f64, f64); 2] = [(27.0, 33.0), (270.0, 330.0)];
const IN_30_S: [(f64, f64); 2] = [(30.0, 32.0), (30.0, 36.0)];

/// The status may ask for a pause too.
fn slow_down() -> Reply {
    let details = json!({"retryAfterSeconds": 40});
    let body = json!({"kind": "Status", "code": 429, "message": "slow down", "details": details});
    Reply::Json(429, body)
}

fn answer(code: u16, reason: &str, text: &str) -> Reply {
    status(code, reason, text, json!([]))
}

/// So often the object is answered so, before it is accepted: what is wrong with which part; of the pauses before each further request the first and the
/// next ones, the least and the most in seconds; and whether the label is written meanwhile, or nothing is asserted of that.
#[rstest]
#[case(2, || Reply::Never, "api", "no answer within 10 s", [(10.0, 12.0), (10.0, 14.1)], None)]
#[case(3, || Reply::Later(429, 30), "api", "429 ", IN_30_S, Some(false))]
#[case(3, || Reply::Later(503, 30), "api", "503 ", IN_30_S, Some(false))]
#[case(1, slow_down, "api", "429 Too Many Requests: slow down", [(40.0, 42.0), SOON], None)]
#[case(1, || Reply::Closed("certificate not valid yet"), "api", "certificate not valid yet", [SOON, SOON], None)]
#[case(3, || answer(500, "InternalError", "webhook"), "object", "500 Internal Server Error: webhook", [SOON, SOON], Some(true))]
#[case(3, || conflict("koordlet"), "object", "koordlet also writes this", LONG, Some(true))]
#[case(2, || Reply::Text(404, "404 page not found"), "object", "the CRD of NodeResourceTopology", LONG, Some(true))]
#[case(2, || answer(410, "Gone", "no longer served"), "object", "the CRD of NodeResourceTopology", LONG, Some(true))]
// An expired token costs one request.
#[case(4, || answer(401, "Unauthorized", "Unauthorized"), "api", "401 Unauthorized", [(0.0, 0.01), SOON], None)]
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_no_success_is_named_and_the_request_comes_again_as_it_allows(
    #[case] times: usize,
    #[case] answer: fn() -> Reply,
    #[case] part: &str,
    #[case] problem: &str,
    #[case] expected: [(f64, f64); 2],
    #[case] goes_on: Option<bool>,
) {
    let (publisher, log) = objects(move |count| if count <= times { answer() } else { ok() });
    let (mut told, mut labels) = (None, 0);
    while log.objects().len() <= times {
        pass(0.05).await;
        if log.objects().len() <= times {
            told = publisher.problem(part).or(told);
            labels = log.of("PATCH", NODE).len();
        }
    }
    assert!(told.as_ref().is_some_and(|told| told.contains(problem)), "{told:?}");
    assert!(goes_on.is_none_or(|goes_on| goes_on == (labels > 0)));
    let pauses = pauses(&log);
    assert_eq!(pauses.len(), times);
    let [first, next] = expected;
    for (pause, (least, most)) in pauses.iter().zip([first, next, next, next]) {
        assert!((least..=most).contains(pause), "{pauses:?}");
    }
    pass(1.0).await;
    assert_eq!(publisher.problems(), 0);
    assert!(log.objects().iter().all(|seen| !seen.query.contains("force")));
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
        assert!(publisher.problem("object").unwrap().contains("zones: Required value"));
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
    let publisher = Running::new(client, with_label(), told(6));
    pass(10.0).await;
    let objects = log.objects();
    assert_eq!(objects.len(), 1);
    // Without the Node's UID no owner.
    assert!(objects[0].body["metadata"]["ownerReferences"].is_null());
    for (part, right) in [("node", "get nodes"), ("label", "patch nodes")] {
        assert!(publisher.problem(part).unwrap().contains(right), "{part}");
    }
    pass(250.0).await;
    assert_eq!(log.of("PATCH", NODE).len(), 2);
    assert_eq!(log.of("GET", NODE).len(), 1, "asked for again with the next look only");
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_end_is_not_read() {
    let long = |_: &Seen| Reply::Json(200, json!({"metadata": {"uid": "x".repeat(2 << 20)}}));
    let (client, log) = answering("GET", NODE, long);
    let publisher = Running::new(client, options(), told(6));
    pass(2.0).await;
    assert!(publisher.problem("api").unwrap().contains("length limit exceeded"));
    assert_eq!(log.objects().len(), 0);
}
