use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde_json::json;
use stelia_ledger::account::Range;
use stelia_ledger::day::Month;
use stelia_ledger::entry::Entry;
use stelia_ledger::ring::{Limits, Ring as Writer};

use super::*;

const MINUTE: u64 = 60_000_000;
/// 2026-10-01.
const OCTOBER: u64 = 1_790_812_800_000_000;

/// The first file of a ring.
const FIRST: &str = "00000000000000000001.ledger";

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
        json!({"seq": 0, "at": at, "up": MINUTE, "events": [{"event": "boot", "id": "b"}, opened],
            "readings": [{"s": 1, "n": [100, 90, 0, 5, 6, 0], "f": true}]}),
        json!({"seq": 0, "at": at + MINUTE, "up": 2 * MINUTE, "readings": [{"s": 1, "n": [113, 100, 0, 50, 66, 0]}]}),
    ];
    for entry in entries {
        let mut entry: Entry = serde_json::from_value(entry).unwrap();
        ring.append(&mut entry).unwrap();
    }
}

fn pattern(text: &str) -> Vec<Pattern> {
    vec![Pattern::parse(text).unwrap()]
}

/// The account of the VMs that a pattern fits, if a ring has one.
fn account(rings: &[RingCopy], text: &str, period: (u64, u64), now_us: u64) -> Option<Ledger> {
    has_vm(rings, &pattern(text)).then(|| Ledger::of(rings.to_vec(), &pattern(text), period, now_us))
}

fn october() -> (u64, u64) {
    Month::parse("2026-10").unwrap().period()
}

/// Whether a sentence about what is missing begins so.
fn has(ledger: &Ledger, begin: &str) -> bool {
    ledger.missing.iter().any(|one| one.starts_with(begin))
}

fn read(argument: &Path) -> Vec<RingCopy> {
    read_all(&[argument])
}

fn read_all(arguments: &[&Path]) -> Vec<RingCopy> {
    let of = |argument: &&Path| of_argument(argument.to_str().unwrap()).unwrap();
    let copies = arguments.iter().flat_map(of);
    copies.map(|copy| copy.read(october(), &[])).collect()
}

/// The copied rings of two nodes, on which a VM was one after the other, and another VM.
fn copies() -> tempfile::TempDir {
    let all = tempfile::tempdir().unwrap();
    let n1 = all.path().join("n1/ledger");
    ring(&n1, "team-a/vm-005-x", "aaa", OCTOBER + MINUTE);
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
    let period = october();
    let ledger = account(&rings, "team-a/vm-005-*", period, OCTOBER + 3 * DAY_US).unwrap();
    assert_eq!((ledger.merged.covered_us, ledger.merged.parts.len()), (2 * MINUTE, 2));
    assert_eq!(ledger.merged.totals.other_tasks, Range { least: 6, most: 6 });
    let without: Vec<(u64, u64)> = ledger
        .merged
        .without
        .iter()
        .map(|time| (time.from_us, time.until_us))
        .collect();
    assert_eq!(without[0], (OCTOBER + 60 * MINUTE, OCTOBER + 2 * DAY_US));
    assert_eq!(ledger.failure(), None);
    let text = ledger.text(TextStyle::from(true));
    assert!(text.contains("2 on 2 nodes"), "{text}");
    let n1 = copies.path().join("n1/ledger").display().to_string();
    let n1 = format!("n1 ({n1}): its ring ends before the period");
    assert!(has(&ledger, &n1), "{:?}", ledger.missing);
    assert!(text.contains("no ring has the VM"), "{text}");
    // It comes before rings that end early.
    assert!(
        ledger.missing[0].contains(" hours from 2026-10-01 01:00 to "),
        "{:?}",
        ledger.missing
    );
    assert!(account(&rings, "nobody", period, u64::MAX).is_none());
}

#[test]
fn a_ring_that_was_changed_is_named_and_not_counted() {
    let copies = copies();
    let folder = copies.path().join("n2");
    let file = folder.join(FIRST);
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("113", "110")).unwrap();
    let rings = read(copies.path());
    let period = october();
    let ledger = account(&rings, "vm-005-*", period, OCTOBER + 3 * DAY_US).unwrap();
    assert_eq!(ledger.merged.parts.len(), 1);
    let n2 = format!("n2 ({}): its ring is not counted: ", folder.display());
    assert!(has(&ledger, &n2), "{:?}", ledger.missing);
    assert_eq!(ledger.failure().unwrap(), "1 of 3 rings cannot be counted");
    assert!(ledger.missing[0].ends_with("a ring that is not counted may have it"));
}

#[test]
fn a_ring_that_ends_hours_before_the_period_is_missing() {
    let all = tempfile::tempdir().unwrap();
    let end = OCTOBER + 31 * DAY_US;
    let hour = 60 * MINUTE;
    ring(&all.path().join("n1"), "team-a/web", "aaa", end - 2 * hour);
    ring(&all.path().join("n2"), "team-a/web", "bbb", end - 24 * hour - MINUTE);
    let rings = read(all.path());
    let period = october();
    let of = |now: u64| account(&rings, "team-a/web", period, now).unwrap();
    let missing = of(end + DAY_US).missing;
    assert!(!missing.iter().any(|one| one.starts_with("n1 ")), "{missing:?}");
    let ends = missing.iter().find(|one| one.starts_with("n2 ")).unwrap();
    assert!(ends.ends_with("at 2026-10-31 00:00, 24.0 hours before its end"));
    // While the month lasts its end is now.
    let missing = of(end - 23 * hour).missing;
    assert!(!missing.iter().any(|one| one.starts_with("n2 ")), "{missing:?}");
}

#[test]
fn a_name_that_several_namespaces_have_is_refused_and_a_glob_is_not() {
    let all = tempfile::tempdir().unwrap();
    let uids = [
        "11111111-0000-4000-8000-000000000001",
        "11111111-0000-4000-8000-000000000002",
    ];
    ring(&all.path().join("n1"), "team-a/web", uids[0], OCTOBER);
    ring(&all.path().join("n2"), "team-b/web", uids[1], OCTOBER);
    let rings = read(all.path());
    for text in ["web", "11111111"] {
        let refused = ambiguous(&rings, &pattern(text)).unwrap();
        assert!(refused.contains("such as team-a and team-b: "), "{refused}");
    }
    for text in ["team-a/web", "w*", "*/web", uids[0], "nobody"] {
        assert_eq!(ambiguous(&rings, &pattern(text)), None, "{text}");
    }
}

#[test]
fn a_copy_that_ends_within_a_line_is_counted_up_to_there() {
    let all = tempfile::tempdir().unwrap();
    let folder = all.path().join("n1");
    ring(&folder, "team-a/web", "aaa", OCTOBER);
    let file = folder.join(FIRST);
    let whole = fs::read_to_string(&file).unwrap();
    let period = october();
    let of = |text: &str| {
        fs::write(&file, text).unwrap();
        account(&read(all.path()), "team-a/web", period, OCTOBER + MINUTE)
    };
    // One more line, of which a part was copied.
    let ledger = of(&format!("{whole}{}", &whole[..40])).unwrap();
    assert_eq!((ledger.merged.covered_us, ledger.failure()), (MINUTE, None));
    assert!(ledger.rings[0].is_cut_off && ledger.missing[0].contains("the last line of its ring is incomplete"));
    // Another fault beside it is one.
    let changed = format!("{}{}", whole.replace("113", "110"), &whole[..40]);
    assert!(of(&changed).is_none());
    assert!(read(all.path())[0].problem.is_some());
    // Nothing before it is good.
    assert!(of(&whole[..40]).is_none());
    assert!(read(all.path())[0].problem.is_some());
}

#[test]
fn a_symbolic_link_and_what_is_larger_than_any_ring_are_not_read() {
    let copies = copies();
    let path = |name: &str| copies.path().join(name);
    std::os::unix::fs::symlink("n2", path("n4")).unwrap();
    for (name, segment) in [("n5", "n2"), ("n6", "")] {
        fs::create_dir(path(name)).unwrap();
        let file = path(name).join(FIRST);
        match segment {
            "" => fs::File::create(file).unwrap().set_len(17 << 30).unwrap(),
            from => std::os::unix::fs::symlink(path(from).join(FIRST), file).unwrap(),
        }
    }
    let rings = read(copies.path());
    let problem = |name: &str| {
        let ring = rings.iter().find(|ring| ring.node == name).unwrap();
        ring.problem.clone().unwrap_or_default()
    };
    assert!(problem("n4").starts_with(&format!("open {}: ", path("n4").display())));
    assert!(problem("n5").ends_with("it is no regular file"));
    assert!(problem("n6").contains("it has 18253611008 bytes"), "{}", problem("n6"));
    assert_eq!(problem("n2"), "");
}

#[test]
fn copies_of_one_nodes_ring_are_added_where_their_times_differ() {
    let all = tempfile::tempdir().unwrap();
    let path = |name: &str| all.path().join(name);
    ring(&path("a/n1"), "team-a/web", "aaa", OCTOBER);
    ring(&path("b/n1"), "team-a/web", "aaa", OCTOBER + DAY_US);
    ring(&path("c/n1"), "team-a/web", "aaa", OCTOBER + DAY_US);
    let period = october();
    let of = |names: &[&str]| {
        let paths: Vec<_> = names.iter().map(|name| path(name)).collect();
        let rings = read_all(&paths.iter().map(|path| path.as_path()).collect::<Vec<_>>());
        account(&rings, "team-a/web", period, OCTOBER + DAY_US + MINUTE).unwrap()
    };
    for names in [["a", "b"], ["b", "a"]] {
        let ledger = of(&names);
        assert_eq!((ledger.merged.covered_us, ledger.merged.parts.len()), (2 * MINUTE, 2));
        assert!(ledger.merged.repeated.is_empty());
        assert!(ledger.text(TextStyle::from(true)).contains("1 on 1 node\n"));
        let n1 = path("b/n1").display().to_string();
        let between = format!("n1 ({n1}): entries are in no copy of its ring: 23.9 hours");
        let without = "23 hours from 2026-10-01 01:00 to 2026-10-02 00:00: no ring has the VM";
        assert!(
            ledger.missing.len() == 2 && has(&ledger, &between) && has(&ledger, without),
            "{:?}",
            ledger.missing
        );
    }
    // The third has the entries of the second, which is counted once.
    let ledger = of(&["a", "b", "c"]);
    assert_eq!((ledger.merged.covered_us, ledger.rings.len()), (2 * MINUTE, 3));
    assert_eq!((ledger.merged.repeated.len(), ledger.missing.len()), (1, 2));
    // The fourth has other entries at the same times.
    ring(&path("d/n1"), "team-a/web", "aaa", OCTOBER + DAY_US + 1);
    let ledger = of(&["b", "d"]);
    assert_eq!((ledger.merged.covered_us, ledger.merged.repeated.len()), (MINUTE, 1));
    let n1 = path("d/n1").display().to_string();
    let same = format!("n1 ({n1}): its pod is in another ring at the same times");
    assert!(has(&ledger, &same), "{:?}", ledger.missing);
    assert!(
        ledger
            .missing
            .concat()
            .contains(&format!("pod aaa of n1 ({})", path("b/n1").display()))
    );
}

#[test]
fn a_pod_that_two_rings_have_with_the_same_times_is_counted_once_and_nothing_is_missing() {
    let all = tempfile::tempdir().unwrap();
    for node in ["n1", "n2"] {
        ring(&all.path().join(node), "team-a/web", "aaa", OCTOBER);
    }
    let period = (OCTOBER, OCTOBER + MINUTE);
    let ledger = account(&read(all.path()), "team-a/web", period, OCTOBER + DAY_US).unwrap();
    assert_eq!((ledger.missing.len(), ledger.merged.repeated.len()), (0, 1));
    let text = ledger.text(TextStyle::from(true));
    assert!(text.contains("counted there") && !text.contains("missing"), "{text}");
}

#[test]
fn a_file_of_zeros_is_refused_before_its_end_is_read() {
    let all = tempfile::tempdir().unwrap();
    fs::create_dir(all.path().join("n1")).unwrap();
    let file = all.path().join("n1").join(FIRST);
    fs::File::create(&file).unwrap().set_len(15 << 30).unwrap();
    let rings = read(all.path());
    let problem = rings[0].problem.clone().unwrap_or_default();
    assert!(problem.contains("it has a line of more than 8388608 bytes"));
}

#[test]
fn an_argument_names_the_node_or_its_folder_does() {
    let copies = copies();
    let one = format!("worker-1={}", copies.path().join("n2").display());
    assert_eq!(of_argument(&one).unwrap()[0].node, "worker-1");
    let ledger = copies.path().join("n1/ledger");
    assert_eq!(of_argument(ledger.to_str().unwrap()).unwrap()[0].node, "n1");
    let empty = tempfile::tempdir().unwrap();
    for wrong in [empty.path().to_str().unwrap(), "/nonexistent"] {
        let refused = of_argument(wrong).unwrap_err();
        assert!(refused.starts_with(&format!("read {wrong}: ")), "{refused}");
    }
}

#[test]
fn json_has_few_members_of_a_ring_whatever_its_folder_is_called() {
    let all = tempfile::tempdir().unwrap();
    let folder = all.path().join(std::ffi::OsStr::from_bytes(b"n\xff"));
    ring(&folder, "team-a/web", "aaa", OCTOBER);
    let ledger = account(&read(all.path()), "*", october(), OCTOBER + DAY_US).unwrap();
    let json = serde_json::to_value(&ledger).unwrap();
    let members = json["rings"][0].as_object().unwrap().keys();
    let members: Vec<&str> = members.map(String::as_str).collect();
    let expected = "directory first_seq first_us is_cut_off last_seq last_us node problem vouched_seq";
    assert_eq!(members, expected.split(' ').collect::<Vec<_>>());
    let directory = json["rings"][0]["directory"].as_str().unwrap();
    assert!(directory.ends_with("n\u{fffd}"), "{directory}");
}

/// Whoever gives the ring of one node twice instead of another's is found out by the keys of nodes.
#[test]
fn a_key_of_a_node_vouches_for_no_other_nodes_ring() {
    let all = copies();
    let copies = of_argument(all.path().to_str().unwrap()).unwrap();
    let key = |node: Option<&str>| NodeKey {
        node: node.map(str::to_owned),
        key: format!("{}=", "A".repeat(43)),
    };
    let problems = |keys: &[NodeKey]| {
        let read = copies.iter().map(|copy| copy.clone().read((0, u64::MAX), keys));
        read.map(|ring| ring.problem.unwrap_or_default()).collect::<Vec<_>>()
    };
    assert!(problems(&[]).iter().all(String::is_empty));
    let has_no_key = |problem: &String| problem.contains("no --key is for node");
    let of_one = problems(&[key(Some("n1"))]);
    assert!(of_one[0].contains("key") && !has_no_key(&of_one[0]), "{of_one:?}");
    assert!(of_one[1..].iter().all(has_no_key), "{of_one:?}");
    assert!(!problems(&[key(None)]).iter().any(has_no_key));
}

/// On a terminal each reason is there once, with its rings.
#[test]
fn a_terminal_has_the_rings_by_reason_and_whole_days() {
    let all = tempfile::tempdir().unwrap();
    for number in 0..5 {
        let node = format!("worker-{number}.fra1.compute.example.internal");
        let pod = format!("team-alpha/virt-launcher-database-001-abcd{number}");
        ring(&all.path().join(node), &pod, &format!("aaa{number}"), OCTOBER);
    }
    let ledger = account(&read(all.path()), "*", october(), OCTOBER + DAY_US).unwrap();
    let text = ledger.text(crate::tests::terminal(80));
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert_eq!(text.matches("2026-10-01  2026-10-01").count(), 5, "{text}");
    assert!(text.contains("RINGS"), "{text}");
}

#[test]
fn that_no_ring_has_a_vm_is_told_with_the_period_and_the_rings_that_are_not_counted() {
    let ring = |node: &str, problem: Option<&str>| RingCopy {
        node: node.to_owned(),
        directory: format!("rings/{node}").into(),
        problem: problem.map(str::to_owned),
        ..RingCopy::default()
    };
    let wrong = |cause: &str| ring("n1", Some(cause));
    let month = " from 2026-10-01 00:00 to 2026-11-01 00:00 (UTC)";
    let none = format!("no ring has such a VM{month}");
    assert_eq!(absent(&[ring("n1", None)], october()), none);
    assert_eq!(absent(&[ring("n1", None)], (0, u64::MAX)), "no ring has such a VM");
    let unknown = |number| ring(&format!("n{number:02}"), Some("unknown key"));
    let told = absent(&(0..40).map(unknown).collect::<Vec<_>>(), october());
    assert!(told.contains("no counted ring has such a VM"), "{told}");
    assert!(told.contains("n00 (rings/n00), n01 (rings/n01), n02 (rings/n02), …: unknown key"));
    let told = absent(&["a", "b", "c", "d", "e"].map(wrong), october());
    assert!(told.contains("n1 (rings/n1): c; 2 more rings not counted for other causes"));
}
