use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const MINUTE: u64 = 60_000_000;

fn new_event(pod: usize, reason: &str, message: &str, time_us: u64) -> Event {
    Event {
        number: 0,
        uid: format!("uid-{pod}"),
        namespace: "team-a".to_owned(),
        name: format!("vm-{pod}"),
        kind: EventKind::Warning,
        reason: reason.to_owned(),
        message: message.to_owned(),
        time_us,
        count: 1,
    }
}

fn log(all: impl IntoIterator<Item = Event>) -> EventLog {
    let mut log = EventLog::after(Vec::new(), 0);
    all.into_iter().for_each(|one| log.note(one));
    log
}

#[test]
fn a_repetition_within_ten_minutes_raises_the_count_of_its_number() {
    let again = log([0, 9, 18, 29].map(|minute| new_event(1, "Refused", "no", minute * MINUTE)));
    let shown: Vec<_> = again
        .events()
        .iter()
        .map(|event| (event.number, event.count, event.time_us / MINUTE))
        .collect();
    assert_eq!(shown, [(0, 3, 18), (1, 1, 29)]);
}

#[test]
fn another_reason_message_or_pod_is_another_event() {
    let all = log([
        new_event(1, "Refused", "no", 1),
        new_event(1, "Refused", "never", 1),
        new_event(1, "Evicted", "no", 1),
        new_event(2, "Refused", "no", 1),
    ]);
    assert_eq!(all.events().len(), 4);
}

#[test]
fn numbers_go_on_after_a_restart_and_begin_above_the_floor_without_a_file() {
    let mut first = EventLog::after(Vec::new(), 700);
    first.note(new_event(1, "Isolated", "", 1));
    let mut second = EventLog::after(first.events().to_vec(), 3);
    second.note(new_event(2, "Isolated", "", 2));
    assert_eq!(
        second.events().iter().map(|event| event.number).collect::<Vec<_>>(),
        [700, 701]
    );
}

#[test]
fn a_pod_that_is_refused_without_end_pushes_out_its_own_events_only() {
    let others = (0..200).map(|pod| new_event(pod, "Isolated", "", 1));
    let rude = (0..5000).map(|at: u64| new_event(999, "Refused", &at.to_string(), at));
    let all = log(others.chain(rude));
    let of_rude = all.events().iter().filter(|event| event.uid == "uid-999").count();
    assert_eq!(
        (all.events().len(), of_rude),
        (200 + MAX_EVENTS_PER_POD, MAX_EVENTS_PER_POD)
    );
    assert_eq!(all.events().last().unwrap().message, "4999");
}

#[test]
fn a_text_is_no_longer_than_the_api_server_takes() {
    for long in ["a".repeat(5000), "é".repeat(1000)] {
        let log = log([new_event(1, "Refused", &long, 1), new_event(1, "Refused", &long, 2)]);
        let event = &log.events()[0];
        assert!(
            (MAX_MESSAGE_BYTES - 4..=MAX_MESSAGE_BYTES).contains(&event.message.len()) && event.message.ends_with('…')
        );
        assert_eq!(
            (log.events().len(), event.count),
            (1, 2),
            "what is cut is compared as it is cut"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn whatever_happens_it_is_bounded_and_in_order(
        all in prop::collection::vec((0..400usize, 0..3usize, 0..40u32, 0..3 * MINUTE), 1..700)
    ) {
        let mut log = EventLog::after(Vec::new(), 5);
        let (mut time, mut given) = (0, BTreeSet::new());
        for (pod, reason, message, later) in all {
            time += later;
            let last = log.events().last().map(|event| event.number);
            log.note(new_event(pod, ["Refused", "Isolated", "Intruded"][reason], &message.to_string(), time));
            let events = log.events();
            prop_assert!(events.len() <= MAX_EVENTS);
            prop_assert!(events.is_sorted_by(|a, b| a.number < b.number));
            let newest = events.last().map(|event| event.number);
            if newest > last {
                prop_assert!(given.insert(newest), "a number was given twice");
            }
            let uid = format!("uid-{pod}");
            prop_assert!(events.iter().filter(|event| event.uid == uid).count() <= MAX_EVENTS_PER_POD);
        }
    }
}
