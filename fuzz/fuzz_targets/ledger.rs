//! A segment of the ledger, as somebody else may have left it: the bytes as they are, and each line of them behind its right hash.
#![no_main]

use std::fs;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use sha2::{Digest, Sha256};
use stelia_ledger::account::accounts;
use stelia_ledger::entry::{Entry, Event};
use stelia_ledger::ring::verify::{self, verify};
use stelia_ledger::ring::{Limits, Ring, read};
use steliad_fuzz::{fits, same};

const LIMITS: Limits = Limits {
    bytes: 1 << 20,
    segment_bytes: 1 << 16,
};

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    check(&hashed(bytes));
});

/// What a writer would have made of these lines, were they entries.
fn hashed(bytes: &[u8]) -> Vec<u8> {
    let mut before = "0".repeat(64);
    let mut lines = Vec::new();
    for json in bytes.split(|byte| *byte == b'\n').take(50) {
        let digest = Sha256::new()
            .chain_update(&before)
            .chain_update(b"\n")
            .chain_update(json);
        before = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        lines.extend([before.as_bytes(), b" ", json, b"\n"].concat());
    }
    lines
}

fn entries(directory: &Path) -> Vec<Entry> {
    let mut good = Vec::new();
    for next in read::entries(directory, None).unwrap() {
        match next {
            Ok((entry, hash)) => {
                assert_eq!(hash.len(), 64);
                good.push(entry);
            }
            Err(fault) => fits(&fault.text),
        }
    }
    assert!(good.is_sorted_by(|one, next| one.seq < next.seq), "{good:?}");
    good
}

/// Whatever the entries are, there is an account of them, and its bounds are bounds.
fn add_up(entries: &[Entry]) {
    let entries = entries.iter().map(|entry| (entry.clone(), "hash".to_owned()));
    for account in accounts(entries, 0, 0, None).values() {
        let days = account.days.iter().map(|day| day.other_tasks);
        for range in days.chain([account.totals.other_tasks]) {
            assert!(range.least <= range.most, "{account:?}");
        }
        assert!(account.covered_us <= account.promised_us, "{account:?}");
    }
}

fn check(bytes: &[u8]) {
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() { memory } else { Path::new("/tmp") };
    let directory = tempfile::tempdir_in(place).unwrap();
    let directory = directory.path();
    let segment = directory.join("00000000000000000001.ledger");
    fs::write(&segment, bytes).unwrap();
    let before = entries(directory);
    add_up(&before);
    let _ = read::entries(directory, Some(5)).unwrap().count();
    let (mut ring, found) = Ring::open(directory, LIMITS).unwrap();
    assert!(found.cut <= bytes.len() as u64);
    same(&entries(directory), &before, "only what is no entry is cut off");
    let mut more = Entry {
        at: 1,
        events: vec![Event::Cut { bytes: found.cut }],
        ..Entry::default()
    };
    if before.last().is_some_and(|last| last.seq > u64::MAX / 2) {
        return;
    }
    let appended = ring.append(&mut more).unwrap();
    drop(ring);
    let after = entries(directory);
    same(&after.last(), &Some(&more), "what is written is read");
    same(&&after[..before.len()], &&before[..], "and all that was there");
    let verdict = verify(
        verify::Ring::Directory(directory),
        &[],
        Some((appended.seq, &appended.hash)),
    )
    .unwrap();
    same(&verdict.hash, &appended.hash, "the last hash");
    assert_eq!(verdict.entries, after.len() as u64);
    if found.fault.is_some() {
        assert!(!verdict.is_good());
    }
    let (_, found) = Ring::open(directory, LIMITS).unwrap();
    same(&found.last, &Some((appended.seq, appended.hash)), "found again");
    assert_eq!((found.cut, found.fault), (0, None));
}
