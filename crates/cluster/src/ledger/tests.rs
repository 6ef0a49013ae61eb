use std::fs;
use std::path::Path;

use serde_json::json;
use stelia_ledger::entry::Entry;
use stelia_ledger::ring::{Limits, Ring as Writer};

use super::*;

const MINUTE: u64 = 60_000_000;
/// 2026-10-01.
const OCTOBER: u64 = 1_790_812_800_000_000;

/// The ring of a node: a VM on CPU 2 that is read twice, a minute apart, while three other tasks run.
fn ring(folder: &Path, pod: &str, uid: &str, at: u64) {
    let limits = Limits {
        bytes: 1 << 20,
        segment_bytes: 1 << 16,
    };
    fs::create_dir_all(folder).unwrap();
    let (mut ring, _) = Writer::open(folder, limits).unwrap();
    let opened =
        json!({"event": "opened", "seat": 1, "vm": uid, "name": pod, "cpus": "2", "threads": [{"id": 10, "start": 1}]});
    let entries = [
        json!({"at": at, "up": MINUTE, "events": [{"event": "boot", "id": "b"}, opened],
            "readings": [{"s": 1, "n": [100, 90, 0, 5, 6, 0], "f": true}]}),
        json!({"at": at + MINUTE, "up": 2 * MINUTE, "readings": [{"s": 1, "n": [113, 100, 0, 50, 66, 0]}]}),
    ];
    for entry in entries {
        let mut entry: Entry = serde_json::from_value(entry).unwrap();
        ring.append(&mut entry).unwrap();
    }
}

fn pattern(text: &str) -> Vec<Pattern> {
    vec![Pattern::parse(text).unwrap()]
}

fn read(argument: &Path) -> Vec<ReadRing> {
    let rings = of_argument(argument.to_str().unwrap()).unwrap();
    let (since, until) = Month::parse("2026-10").unwrap().period();
    rings.iter().map(|ring| ring.read(since, until, &[])).collect()
}

/// The copied rings of two nodes, on which a VM was one after the other, and another VM.
fn copies() -> tempfile::TempDir {
    let all = tempfile::tempdir().unwrap();
    ring(
        &all.path().join("n1/ledger"),
        "team-a/vm-005-x",
        "aaa",
        OCTOBER + MINUTE,
    );
    ring(&all.path().join("n2"), "team-a/vm-005-y", "bbb", OCTOBER + 2 * DAY_US);
    ring(&all.path().join("n3"), "team-b/other", "ccc", OCTOBER + 2 * DAY_US);
    all
}

#[test]
fn the_pods_of_a_vm_on_two_nodes_are_one_account() {
    let copies = copies();
    let rings = read(copies.path());
    let nodes: Vec<&str> = rings.iter().map(|ring| ring.node.as_str()).collect();
    assert_eq!(nodes, ["n1", "n2", "n3"]);
    let period = Month::parse("2026-10").unwrap().period();
    let ledger = Ledger::of(&rings, &pattern("team-a/vm-005-*"), period, OCTOBER + 3 * DAY_US).unwrap();
    assert_eq!((ledger.covered_us, ledger.parts.len()), (2 * MINUTE, 2));
    assert_eq!(ledger.totals.other_tasks, Range { least: 6, most: 6 });
    assert_eq!(ledger.days_without, ["2026-10-02"]);
    assert_eq!(ledger.failure(), None);
    let text = ledger.text(TextStyle::from(true));
    assert!(text.contains("2 on 2 nodes"), "{text}");
    assert!(
        text.contains("Missing: n1: its ring ends at 2026-10-01 00:02: copy it again\n"),
        "{text}"
    );
    assert!(
        text.contains("no ring has the VM on 1 day from 2026-10-02 to 2026-10-02"),
        "{text}"
    );
    assert!(Ledger::of(&rings, &pattern("nobody"), period, u64::MAX).is_none());
}

#[test]
fn a_ring_that_was_changed_is_named_and_not_counted() {
    let copies = copies();
    let folder = copies.path().join("n2");
    let file = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let file = file
        .into_iter()
        .find(|path| path.extension().is_some_and(|ending| ending == "ledger"))
        .unwrap();
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("113", "110")).unwrap();
    let rings = read(copies.path());
    let period = Month::parse("2026-10").unwrap().period();
    let ledger = Ledger::of(&rings, &pattern("vm-005-*"), period, OCTOBER + 3 * DAY_US).unwrap();
    assert_eq!(ledger.parts.len(), 1);
    assert!(
        ledger
            .missing
            .iter()
            .any(|one| one.starts_with("n2: its ring is not counted: ")),
        "{:?}",
        ledger.missing
    );
    assert_eq!(ledger.failure().unwrap(), "1 of 3 rings cannot be counted");
}

#[test]
fn an_argument_names_the_node_or_its_folder_does() {
    let copies = copies();
    let one = format!("worker-1={}", copies.path().join("n2").display());
    assert_eq!(of_argument(&one).unwrap()[0].node, "worker-1");
    let ledger = copies.path().join("n1/ledger");
    assert_eq!(of_argument(ledger.to_str().unwrap()).unwrap()[0].node, "n1");
    let empty = tempfile::tempdir().unwrap();
    assert!(
        of_argument(empty.path().to_str().unwrap())
            .unwrap_err()
            .contains("there is no ledger here")
    );
    assert!(
        of_argument("/nonexistent")
            .unwrap_err()
            .starts_with("read /nonexistent: ")
    );
}

#[test]
fn numbers_are_never_better_than_they_are() {
    assert_eq!(share(100_000, 99_999), "99.99 %");
    assert_eq!(share(7, 7), "100.00 %");
    assert_eq!(
        (share(0, 0), hours(5_400_000_000), clock(OCTOBER)),
        (String::new(), "1.5".to_owned(), "2026-10-01 00:00".to_owned())
    );
}
