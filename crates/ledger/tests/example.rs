//! `docs/examples/verify-ledger.py` against rings of ours.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use sha2::{Digest, Sha256};
use stelia_ledger::entry::{Closed, Entry, Event, Reading};
use stelia_ledger::ring::key::Key;
use stelia_ledger::ring::{Limits, Ring};
use stelia_ledger::sample::{Bound, TaskId};

const WORKER: TaskId = TaskId { id: 30, start: 5 };
const LATER: TaskId = TaskId { id: 40, start: 900 };

fn opened(seat: u64, vm: &str, cpus: &str, threads: Vec<TaskId>) -> Event {
    Event::Opened {
        seat,
        vm: vm.to_owned(),
        name: String::new(),
        cpus: cpus.parse().unwrap(),
        cgroup: threads.is_empty().then(|| "/kubepods.slice/a.scope".to_owned()),
        threads,
        own_devices: Vec::new(),
    }
}

/// With a vCPU's thread.
fn of_vm(seat: u64, cpu: u32) -> Event {
    let (id, start) = (7, u64::from(cpu));
    opened(seat, &format!("vm-{cpu}"), &cpu.to_string(), vec![TaskId { id, start }])
}

fn new_ring(directory: &Path, segment_bytes: u64) -> Ring {
    let bytes = 1 << 20;
    Ring::open(directory, Limits { bytes, segment_bytes }).unwrap().0
}

/// Appends an entry. Returns the ring's head.
fn append(ring: &mut Ring, at: u64, events: Vec<Event>, readings: Vec<Reading>) -> (u64, String) {
    let mut entry = Entry {
        at,
        events,
        readings,
        ..Entry::default()
    };
    ring.append(&mut entry).unwrap();
    ring.head().unwrap()
}

fn boot(id: &str) -> Event {
    Event::Boot { id: id.to_owned() }
}

fn reading(seat: u64, switches: u64, own: u64, more: u64, bound: &[(TaskId, (u64, u64))]) -> Reading {
    let bound = bound.iter().map(|(thread, switches)| {
        let bound = Bound {
            name: "kworker/2:1".to_owned(),
            switches: *switches,
            run_ns: 1,
        };
        (*thread, Some(bound))
    });
    Reading {
        seat,
        numbers: [switches, own, more, 0, 0, 0],
        bound: bound.collect(),
        ..Reading::default()
    }
}

/// A ring of several segments and two boots. Seat 1 has 100 − 60 − 3 − 2 = 35 switch-ins of others, give or take what the readings leave
/// open.
fn ring(directory: &Path) -> Ring {
    let mut ring = new_ring(directory, 1);
    let (key, _) = Key::load_or_make(directory, "machine").unwrap();
    let mut write = |events: Vec<Event>, readings: Vec<Reading>| append(&mut ring, 0, events, readings);
    let all = || vec![boot("one"), of_vm(1, 2), of_vm(2, 3)];
    let quiet = |switches| reading(2, switches, switches, 0, &[]);
    write(all(), vec![reading(1, 1000, 500, 1, &[(WORKER, (10, 10))]), quiet(80)]);
    write(all(), vec![reading(1, 1050, 530, 0, &[(WORKER, (13, 13))]), quiet(90)]);
    let (seq, hash) = write(all(), vec![reading(1, 1100, 560, 2, &[(LATER, (2, 2))]), quiet(95)]);
    let closed = Event::Closed {
        seat: 1,
        why: Closed::Boot,
        last: None,
    };
    let signed = key.sign_head("2026-10-31", seq, &hash);
    write(vec![boot("one"), closed, signed], Vec::new());
    write(vec![boot("two"), of_vm(1, 4)], vec![reading(1, 5, 5, 0, &[])]);
    write(vec![boot("two"), of_vm(1, 4)], vec![reading(1, 9, 8, 0, &[])]);
    ring
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(directory)
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "ledger"))
        .collect();
    files.sort();
    files
}

fn script(files: &[PathBuf]) -> Output {
    script_with(&[], files)
}

fn script_with(keys: &[&str], files: &[PathBuf]) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/verify-ledger.py");
    let keys = keys.iter().flat_map(|key| ["--key", key]);
    let mut command = Command::new("python3");
    command.arg(script).args(keys).args(files).output().unwrap()
}

#[test]
fn the_script_finds_the_chain_whole_and_says_what_other_tasks_ran() {
    let directory = tempfile::tempdir().unwrap();
    ring(directory.path());
    let mut files = files(directory.path());
    files.reverse();
    let output = script(&files);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(
        said,
        "head 2026-10-31 3 good\nvm-2 2 [33, 36]\nvm-3 3 [0, 0]\nvm-4 4 [1, 1]\n"
    );
}

/// The script takes no `id` of an event that it does not know as a boot's.
#[test]
fn the_script_knows_a_boot_by_its_event_alone() {
    let directory = tempfile::tempdir().unwrap();
    let entry = |seq: u64, before: &str, first: &str, switches: u64| {
        let events = format!(
            r#"{first},{{"event":"opened","seat":1,"vm":"vm","name":"","cpus":"2","threads":[{{"id":7,"start":2}}]}}"#
        );
        let reading = format!(r#"{{"s":1,"n":[{switches},0,0,0,0,0]}}"#);
        let text = format!(
            r#"{{"seq":{seq},"at":{seq},"up":{seq},"before":"{before}","events":[{events}],"readings":[{reading}]}}"#
        );
        let hash = Sha256::digest(format!("{before}\n{text}"));
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = directory.path().join(format!("{seq:020}.ledger"));
        fs::write(path, format!("{hash} {text}\n")).unwrap();
        hash
    };
    let boot = r#"{"event":"boot","id":"one"}"#;
    let first = entry(1, &"0".repeat(64), boot, 10);
    entry(2, &first, &format!(r#"{boot},{{"event":"newer","id":"two"}}"#), 30);
    let output = script(&files(directory.path()));
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, "vm 2 [20, 20]\n", "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_script_claims_no_least_number_of_a_container_whose_tasks_ended() {
    let directory = tempfile::tempdir().unwrap();
    let mut ring = new_ring(directory.path(), 1 << 18);
    let opened = |seat: u64| opened(seat, &format!("container-{seat}"), "2-3", Vec::new());
    let mut ended = reading(2, 150, 120, 0, &[]);
    ended.bound.push((TaskId { id: 0, start: 1 }, None));
    let both = |switches, own| vec![reading(1, switches, own, 0, &[]), reading(2, switches, own, 0, &[])];
    let first = vec![boot("one"), opened(1), opened(2)];
    append(&mut ring, 0, first, both(100, 80));
    append(&mut ring, 0, Vec::new(), vec![reading(1, 150, 120, 0, &[]), ended]);
    append(&mut ring, 0, Vec::new(), both(160, 129));
    let output = script(&files(directory.path()));
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, "container-1 2-3 [11, 11]\ncontainer-2 2-3 [0, 11]\n");
}

#[test]
fn the_script_finds_a_change_a_missing_segment_and_a_false_signature() {
    let directory = tempfile::tempdir().unwrap();
    drop(ring(directory.path()));
    let all = files(directory.path());
    assert!(!script(&[all[0].clone(), all[2].clone()]).status.success());
    let text = fs::read_to_string(&all[1]).unwrap();
    fs::write(&all[1], text.replace("1050", "1150")).unwrap();
    let output = script(&all);
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("number 2 is not what was written"), "{said}");

    let directory = tempfile::tempdir().unwrap();
    let mut ring = ring(directory.path());
    let (key, _) = Key::load_or_make(directory.path(), "machine").unwrap();
    let mut signed = key.sign_head("2026-11-01", 2, &"0".repeat(64));
    let strange = key.sign_head("2026-11-02", 2, &"0".repeat(64));
    if let Event::Head { day, .. } = &mut signed {
        *day = "2026-11-03".to_owned();
    }
    append(&mut ring, 0, vec![signed, strange], Vec::new());
    let output = script(&files(directory.path()));
    assert!(!output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("3 2 BAD\nhead 2026-11-02 2 BAD\n"), "{said}");
}

#[test]
fn the_script_names_file_and_line_of_what_is_cut_or_foreign() {
    let directory = tempfile::tempdir().unwrap();
    let own = key(directory.path(), "own");
    let files = days(directory.path(), 3, &own, |_| None);
    let text = fs::read_to_string(&files[0]).unwrap();
    let start = text.trim_end().rfind('\n').map_or(0, |end| end + 1);
    let (before, last) = text.split_at(start);
    let number = before.lines().count() + 1;
    let zeros = "0".repeat(64);
    for foreign in [
        last[..80].to_owned(),
        last[..10].to_owned(),
        "\n".to_owned(),
        "notes of somebody\n".to_owned(),
        format!("{zeros} [1]\n"),
        format!("{zeros} {{\"seq\":1}}\n"),
        last.replace(':', "\u{fffd}"),
    ] {
        fs::write(&files[0], format!("{before}{foreign}")).unwrap();
        let output = script(&files);
        let said = String::from_utf8(output.stderr).unwrap();
        let told = format!("{}: line {number}: ", files[0].display());
        assert!(
            said.starts_with(&told) && !said.contains("Traceback"),
            "{foreign:?}: {said}"
        );
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    }
    let named = directory.path().join("notes.ledger");
    fs::write(&named, &text).unwrap();
    let said = String::from_utf8(script(&[named]).stderr).unwrap();
    assert!(
        said.contains("ledger: line 0: ") && !said.contains("Traceback"),
        "{said}"
    );
}

/// A ring of so many days, and a head of each day but the last that `signs`; the first entry names the key `named`.
fn days(directory: &Path, days: u64, named: &Key, signs: impl Fn(u64) -> Option<&'static str>) -> Vec<PathBuf> {
    let mut ring = new_ring(&directory.join("ring"), 700);
    let mut events = vec![boot("one"), Event::Key { key: named.public() }];
    for day in 0..days {
        let at = (20_000 + day) * 86_400_000_000;
        let (seq, hash) = append(&mut ring, at, std::mem::take(&mut events), Vec::new());
        let text = stelia_ledger::day::day(at);
        let head = signs(day).map(|name| key(directory, name).sign_head(&text, seq, &hash));
        events.extend(head);
    }
    files(&directory.join("ring"))
}

fn key(directory: &Path, name: &str) -> Key {
    Key::load_or_make(&directory.join(name), "machine").unwrap().0
}

#[test]
fn the_script_says_up_to_which_entry_a_key_vouches_and_fails_as_steliactl_does_where_it_does_not() {
    use stelia_ledger::ring::verify::{Ring as Checked, verify};
    type Signs = fn(u64) -> Option<&'static str>;
    let cases: [(&str, Signs, Option<u64>); 6] = [
        ("all days", |_| Some("own"), Some(9)),
        ("a day without a head", |day| (day != 4).then_some("own"), Some(9)),
        ("nobody", |_| None, None),
        ("another key", |_| Some("other"), None),
        ("a new key", |day| Some(if day < 5 { "own" } else { "other" }), None),
        ("no head after a day", |day| (day < 5).then_some("own"), None),
    ];
    for (what, signs, vouched) in cases {
        let directory = tempfile::tempdir().unwrap();
        let own = key(directory.path(), "own");
        let files = days(directory.path(), 10, &own, signs);
        let output = script_with(&[&own.public()], &files);
        let said = String::from_utf8(output.stdout).unwrap();
        let verdict = verify(Checked::Files(&files), &[own.public()], None).unwrap();
        let good = (output.status.success(), verdict.is_good());
        assert_eq!(
            good,
            (vouched.is_some(), vouched.is_some()),
            "{what}: {said} {verdict:?}"
        );
        if let Some(seq) = vouched {
            let told = format!("{} vouches up to entry {seq} of 10\n", own.public());
            assert!(said.ends_with(&told), "{what}: {said}");
            assert_eq!(verdict.vouched_seq, seq);
        }
        // Without a key it is said that nobody vouches.
        let without = script(&files);
        let said = String::from_utf8(without.stderr).unwrap();
        assert!(without.status.success() && said.contains("nobody"), "{what}: {said}");
        assert!(said.contains(&own.public()), "{said}");
    }
}

#[test]
fn the_script_is_as_short_as_the_manual_says() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/verify-ledger.py");
    assert!(fs::read_to_string(script).unwrap().lines().count() <= 50);
}
