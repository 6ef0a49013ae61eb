//! Up to where somebody vouches for a ring, and that nobody does for one that anybody could have made.

use std::ops::Range;

use super::*;

#[test]
fn an_entry_that_is_known_and_cannot_be_compared_is_a_fault() {
    let directory = folder();
    let limits = limits(3000, 600);
    let ring = filled(directory.path(), 60, limits);
    let zeros = "0".repeat(64);
    let of = |seq: u64, hash: &str| {
        let verdict = verify(verify::Ring::Directory(directory.path()), &[], Some((seq, hash))).unwrap();
        let texts: Vec<String> = verdict.faults.iter().map(|fault| fault.text.clone()).collect();
        (verdict.compared_seq, texts.join("\n"))
    };
    let first = checked(directory.path()).first_seq;
    assert!(first > 1);
    for (seq, text) in [
        (0, "cannot be compared: the ledger begins with number"),
        (first - 1, "cannot be compared: the ledger begins with number"),
        (61, "cannot be compared: the ledger ends at number 60"),
        (u64::MAX, "cannot be compared"),
        (first, "another hash"),
    ] {
        let (compared, fault) = of(seq, &zeros);
        assert!(compared == 0 && fault.contains(text), "{seq}: {fault}");
    }
    let (seq, hash) = ring.head().unwrap();
    assert_eq!(of(seq, &hash), (60, String::new()));
    // The entry itself was changed: the chain says so, and that nothing was compared.
    let file = segments(directory.path()).pop().unwrap();
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replacen("xxx", "xyx", 1)).unwrap();
    let changed = read(directory.path()).0;
    let lost = (first..=60).find(|seq| !seqs(&changed).contains(seq)).unwrap();
    assert!(of(lost, &zeros).1.contains("is not there as it was written"));
    let empty = folder();
    let verdict = verify(verify::Ring::Directory(empty.path()), &[], Some((1, &zeros))).unwrap();
    assert!(verdict.faults[0].text.contains("no entries"), "{verdict:?}");
}

/// Entries of these days, two of each, and the heads that `heads` gives for a day that has ended, its last entry's number and hash.
fn days(directory: &Path, days: Range<u64>, first: Vec<Event>, heads: impl Fn(u64, &str, u64, &str) -> Vec<Event>) {
    let (mut ring, _) = open(directory, WIDE);
    let mut events = first;
    for number in days {
        for part in 1..=2 {
            let mut entry = Entry {
                at: (20_000 + number) * 86_400_000_000 + part,
                events: std::mem::take(&mut events),
                ..entry(0, 0)
            };
            ring.append(&mut entry).unwrap();
        }
        let (seq, hash) = ring.head().unwrap();
        let day = crate::day::day((20_000 + number) * 86_400_000_000);
        events = heads(number, &day, seq, &hash);
    }
}

/// A key, and another.
fn keys() -> (TempDir, Key, Key) {
    let place = folder();
    let of = |name: &str| Key::load_or_make(&place.path().join(name), "m").unwrap().0;
    let (one, other) = (of("one"), of("other"));
    (place, one, other)
}

fn named(key: &Key) -> Event {
    Event::Key { key: key.public() }
}

/// What is wrong to whoever knows this key.
fn faults(directory: &Path, key: &Key) -> Vec<String> {
    let verdict = verify(verify::Ring::Directory(directory), &[key.public()], None).unwrap();
    verdict.faults.into_iter().map(|fault| fault.text).collect()
}

#[test]
fn a_ledger_that_nobody_signed_is_a_fault_to_whoever_has_a_key() {
    let (_place, key, _) = keys();
    let directory = folder();
    days(directory.path(), 0..31, vec![named(&key)], |_, _, _, _| Vec::new());
    assert!(checked(directory.path()).is_good(), "the chain is right");
    let found = faults(directory.path(), &key);
    assert!(found.len() == 1 && found[0].contains("no entry"), "{found:?}");
    // To the node itself a ledger of one day without a head is none.
    let own = verify::check(verify::Ring::Directory(directory.path()), &[key.public()], None).unwrap();
    assert!(
        own.is_good() && own.vouched_seq == 0 && own.days_without_head.len() == 30,
        "{own:?}"
    );
}

#[test]
fn a_key_vouches_up_to_its_last_head_and_days_that_ended_after_it_are_named() {
    let (_place, key, _) = keys();
    let signed = |until: u64, hole: u64| {
        let directory = folder();
        days(directory.path(), 0..10, vec![named(&key)], |number, day, seq, hash| {
            let head = (number < until && number != hole).then(|| key.sign_head(day, seq, hash));
            head.into_iter().collect()
        });
        verify(verify::Ring::Directory(directory.path()), &[key.public()], None).unwrap()
    };
    let whole = signed(10, 99);
    assert_eq!(
        (whole.faults.len(), whole.vouched_seq, whole.vouched_by.clone()),
        (0, 18, key.public()),
        "{whole:?}"
    );
    // A later head covers the day that has none of its own.
    let hole = signed(10, 4);
    assert_eq!(
        (hole.faults.len(), hole.vouched_seq, hole.days_without_head.len()),
        (0, 18, 0)
    );
    // From the seventh day on nobody signed.
    let stopped = signed(6, 99);
    assert_eq!(
        (stopped.vouched_seq, stopped.days_without_head.len()),
        (12, 3),
        "{stopped:?}"
    );
    assert!(stopped.faults[0].text.contains("up to entry 12 only"), "{stopped:?}");
}

#[test]
fn a_ledger_of_another_host_or_key_is_a_fault() {
    let (_place, key, other) = keys();
    // Signed by another key throughout, which it names or hides.
    for first in [vec![named(&other)], vec![named(&key)], Vec::new()] {
        let directory = folder();
        days(directory.path(), 0..5, first, |_, day, seq, hash| {
            vec![other.sign_head(day, seq, hash)]
        });
        let found = faults(directory.path(), &key);
        assert!(found.iter().any(|text| text.contains("unknown key")), "{found:?}");
        assert!(found.iter().any(|text| text.contains("no entry")), "{found:?}");
    }
    // A second key comes in behind what the first one signed, and the first one does not vouch for it.
    let directory = folder();
    days(
        directory.path(),
        0..8,
        vec![named(&key)],
        |number, day, seq, hash| match number {
            0..=3 => vec![key.sign_head(day, seq, hash)],
            4 => vec![named(&other)],
            _ => vec![other.sign_head(day, seq, hash)],
        },
    );
    let found = faults(directory.path(), &key);
    assert!(found[0].contains("unknown key as the one in use"), "{found:?}");
    assert!(found.last().unwrap().contains("up to entry 8 only"), "{found:?}");
    let both = [key.public(), other.public()];
    let verdict = verify(verify::Ring::Directory(directory.path()), &both, None).unwrap();
    assert!(verdict.is_good() && verdict.vouched_by == other.public(), "{verdict:?}");
}

#[test]
fn heads_that_were_signed_before_vouch_for_nothing_that_was_written_later() {
    let (_place, key, _) = keys();
    // The host's own heads of entries that a forged ledger does not have, or has others of: no, of another hash, or of gone entries.
    let directory = folder();
    days(directory.path(), 0..5, vec![named(&key)], |_, day, seq, _| {
        vec![key.sign_head(day, seq, &"a".repeat(64))]
    });
    let found = faults(directory.path(), &key);
    assert!(found.iter().any(|text| text.contains("not that of")), "{found:?}");
    assert!(found.iter().any(|text| text.contains("no entry")), "{found:?}");
    // One that is kept back comes at the end: the days between are as unsigned as before.
    let directory = folder();
    let kept = std::cell::RefCell::new(None);
    days(directory.path(), 0..9, vec![named(&key)], |number, day, seq, hash| {
        if number == 1 {
            *kept.borrow_mut() = Some(key.sign_head(day, seq, hash));
        }
        kept.borrow_mut().take_if(|_| number == 7).into_iter().collect()
    });
    let found = faults(directory.path(), &key);
    assert!(found[0].contains("up to entry 4 only"), "{found:?}");
    // In another order, or twice.
    for order in [[3, 1], [1, 1]] {
        let directory = folder();
        let heads = std::cell::RefCell::new(Vec::new());
        days(directory.path(), 0..5, vec![named(&key)], |number, day, seq, hash| {
            heads.borrow_mut().push(key.sign_head(day, seq, hash));
            match number {
                3 => order.map(|at| heads.borrow()[at].clone()).into(),
                _ => Vec::new(),
            }
        });
        let found = faults(directory.path(), &key);
        assert!(found[0].contains("a head before it"), "{found:?}");
    }
    // All of it is there but the entries that were signed: the heads alone are nothing.
    let directory = folder();
    days(directory.path(), 0..30, vec![named(&key)], |_, day, seq, hash| {
        vec![key.sign_head(day, seq, hash)]
    });
    let files = segments(directory.path());
    for file in &files[..files.len() - 1] {
        fs::remove_file(file).unwrap();
    }
    let rest = verify(verify::Ring::Directory(directory.path()), &[key.public()], None).unwrap();
    assert!(
        rest.is_good() && rest.vouched_seq >= rest.first_seq,
        "as a full ring leaves it: {rest:?}"
    );
    let text = fs::read_to_string(files.last().unwrap()).unwrap();
    let line = text.lines().next().unwrap();
    fs::write(files.last().unwrap(), format!("{line}\n")).unwrap();
    let found = faults(directory.path(), &key);
    assert!(found.iter().any(|text| text.contains("no entry")), "{found:?}");
}

#[test]
fn an_entry_that_is_known_vouches_for_no_day_that_ended_after_it() {
    let (_place, key, _) = keys();
    let ring = |text: &str, heads: bool| {
        let directory = folder();
        days(directory.path(), 0..1, vec![named(&key)], |_, _, _, _| Vec::new());
        let forged = vec![Event::Key { key: text.to_owned() }];
        days(directory.path(), 1..39, forged, |_, day, seq, hash| {
            heads.then(|| key.sign_head(day, seq, hash)).into_iter().collect()
        });
        directory
    };
    let hash_of = |directory: &TempDir, seq: u64| {
        let files = segments(directory.path());
        let text: String = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
        let line = text.lines().nth(usize::try_from(seq).unwrap() - 1).unwrap();
        line.split(' ').next().unwrap().to_owned()
    };
    let of = |directory: &TempDir, known: &[String], seq: u64| {
        let hash = hash_of(directory, seq);
        verify(verify::Ring::Directory(directory.path()), known, Some((seq, &hash))).unwrap()
    };
    // Anybody can write 38 days after the first two entries, whose hashes stay what they are.
    let (written, forged) = (ring("one", true), ring("two", false));
    assert_eq!(hash_of(&written, 2), hash_of(&forged, 2));
    assert_ne!(hash_of(&written, 3), hash_of(&forged, 3));
    for seq in [1, 2] {
        let verdict = of(&forged, &[], seq);
        let [fault] = verdict.faults.as_slice() else {
            panic!("{verdict:?}")
        };
        assert!(fault.text.contains(&format!("up to entry {seq} only")), "{fault:?}");
        assert_eq!(
            (verdict.days_without_head.len() as u64, verdict.compared_seq),
            (39 - seq, seq)
        );
    }
    // The newest entry, and one of the day that has not ended, vouch for every day that has.
    for (seq, good) in [(78, true), (77, true), (76, true), (75, false)] {
        assert_eq!(of(&forged, &[], seq).is_good(), good, "{seq}");
    }
    // One that cannot be compared is one fault.
    let zeros = "0".repeat(64);
    let other = verify(verify::Ring::Directory(forged.path()), &[], Some((1, &zeros))).unwrap();
    assert_eq!(other.faults.len(), 1, "{other:?}");
}

#[test]
fn a_key_vouches_for_the_days_after_an_old_entry_that_is_known_and_an_entry_not_for_those_after_the_head() {
    let (_place, key, _) = keys();
    let ring = |signed: u64| {
        let directory = folder();
        days(directory.path(), 0..10, vec![named(&key)], |number, day, seq, hash| {
            let head = (number < signed).then(|| key.sign_head(day, seq, hash));
            head.into_iter().collect()
        });
        let (ring, _) = open(directory.path(), WIDE);
        (directory, ring.head().unwrap())
    };
    let (directory, _) = ring(10);
    let text = fs::read_to_string(&segments(directory.path())[0]).unwrap();
    let hash = text.split(' ').next().unwrap();
    let of = |directory: &TempDir, known: (u64, &str)| {
        verify(verify::Ring::Directory(directory.path()), &[key.public()], Some(known)).unwrap()
    };
    let old = of(&directory, (1, hash));
    assert!(old.is_good() && old.days_without_head.is_empty(), "{old:?}");
    // Both have to hold: the newest entry does not stand in for heads that are not there.
    let (directory, (seq, hash)) = ring(5);
    let newest = of(&directory, (seq, &hash));
    assert!(newest.faults[0].text.contains("up to entry 10 only"), "{newest:?}");
}
