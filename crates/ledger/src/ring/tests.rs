mod changes;
mod full_disk;
mod keys;
mod reading;
mod recovery;
mod vouched;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use tempfile::TempDir;

use super::disk::Disk;
use super::folder::Folder;
use super::key::{Key, KeyError, KeyOrigin, retired};
use super::read::entries;
use super::verify::{self, verify};
use super::*;
use crate::entry::{Entry, Event};
use crate::verdict::Verdict;

const WIDE: Limits = limits(1 << 20, 2000);

const fn limits(bytes: u64, segment_bytes: u64) -> Limits {
    Limits { bytes, segment_bytes }
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn open(directory: &Path, limits: Limits) -> (Ring, RingRecovery) {
    Ring::open(directory, limits).unwrap()
}

/// An entry that a test tells from others.
fn entry(at: u64, length: usize) -> Entry {
    let text = "x".repeat(length);
    Entry {
        at,
        up: at,
        events: vec![Event::Started { version: text }],
        ..Entry::default()
    }
}

/// `count` entries, at 1, 2, …
fn filled(directory: &Path, count: u64, limits: Limits) -> Ring {
    let (mut ring, _) = open(directory, limits);
    for at in 1..=count {
        ring.append(&mut entry(at, 100)).unwrap();
    }
    ring
}

/// A closed ring of so many entries, and its only segment.
fn written(count: u64) -> (TempDir, PathBuf) {
    let directory = folder();
    drop(filled(directory.path(), count, WIDE));
    let file = segments(directory.path()).pop().unwrap();
    (directory, file)
}

fn segments(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(directory)
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "ledger"))
        .collect();
    files.sort();
    files
}

fn bytes(directory: &Path) -> u64 {
    let length = |path: &PathBuf| fs::metadata(path).unwrap().len();
    segments(directory).iter().map(length).sum()
}

fn checked(directory: &Path) -> Verdict {
    verify(verify::Ring::Directory(directory), &[], None).unwrap()
}

/// The entries and how many faults lie between them.
fn read(directory: &Path) -> (Vec<Entry>, usize) {
    let (good, bad): (Vec<_>, Vec<_>) = entries(directory, None).unwrap().partition(Result::is_ok);
    (good.into_iter().map(|entry| entry.unwrap().0).collect(), bad.len())
}

fn seqs(entries: &[Entry]) -> Vec<u64> {
    entries.iter().map(|entry| entry.seq).collect()
}

#[test]
fn what_is_written_is_read_and_a_second_start_goes_on() {
    let directory = folder();
    let place = directory.path().join("ledger");
    let (mut ring, found) = open(&place, WIDE);
    assert_eq!((found, ring.head()), (RingRecovery::default(), None));
    assert!(ring.starts_segment());
    let mut written = entry(7, 10);
    let first = ring.append(&mut written).unwrap();
    assert!(!ring.starts_segment());
    assert_eq!(written.seq, 1);
    drop(ring);
    let (mut ring, found) = open(&place, WIDE);
    assert_eq!(found.last, Some((1, first.hash)));
    assert_eq!((found.cut, found.fault), (0, None));
    let second = ring.append(&mut entry(8, 10)).unwrap();
    assert_eq!(ring.head(), Some((2, second.hash.clone())));
    let (all, faults) = read(&place);
    assert_eq!((all[0].clone(), seqs(&all), faults), (written, vec![1, 2], 0));
    let verdict = checked(&place);
    assert!(verdict.is_good(), "{verdict:?}");
    assert_eq!((verdict.hash, verdict.entries, verdict.last_us), (second.hash, 2, 8));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&place), 0o700);
    assert_eq!(mode(&segments(&place)[0]), 0o600);
}

#[test]
fn there_is_one_writer() {
    let directory = folder();
    let (ring, _) = open(directory.path(), WIDE);
    assert!(matches!(Ring::open(directory.path(), WIDE), Err(RingError::Locked(_))));
    drop(ring);
    open(directory.path(), WIDE);
}

#[test]
fn no_symbolic_link_is_followed() {
    let directory = folder();
    let place = directory.path().join("ledger");
    let elsewhere = directory.path().join("elsewhere");
    fs::write(&elsewhere, "kept").unwrap();
    fs::create_dir(&place).unwrap();
    symlink(&elsewhere, place.join(folder::segment_name(1))).unwrap();
    assert!(Ring::open(&place, WIDE).is_err());
    assert_eq!(read(&place), (Vec::new(), 1));
    assert_eq!(fs::read(&elsewhere).unwrap(), b"kept");
    let linked = directory.path().join("linked");
    symlink(&place, &linked).unwrap();
    assert!(Ring::open(&linked, WIDE).is_err());
    assert!(entries(&linked, None).is_err());
}

#[test]
fn a_segment_that_is_full_is_followed_by_one_that_can_be_read_alone() {
    let directory = folder();
    let ring = filled(directory.path(), 60, WIDE);
    let files = segments(directory.path());
    assert!(files.len() > 3, "{files:?}");
    let starts: BTreeSet<u64> = files
        .iter()
        .map(|file| folder::first_entry(file.file_name().unwrap().to_str().unwrap()).unwrap())
        .collect();
    for entry in read(directory.path()).0 {
        assert_eq!(starts.contains(&entry.seq), !entry.before.is_empty(), "{}", entry.seq);
    }
    // Each of them, and any that follow each other.
    for from in 0..files.len() {
        let verdict = verify(
            verify::Ring::Files(&files[from..]),
            &[],
            ring.head().as_ref().map(|h| (h.0, h.1.as_str())),
        );
        assert_eq!(verdict.unwrap().faults, []);
        let alone = verify(verify::Ring::Files(&files[from..=from]), &[], None).unwrap();
        assert!(alone.is_good() && alone.entries > 0, "{alone:?}");
    }
    let gap = [files[0].clone(), files[2].clone()];
    assert!(!verify(verify::Ring::Files(&gap), &[], None).unwrap().is_good());
}

#[test]
fn what_is_missing_at_the_end_is_seen_by_whoever_knows_a_later_entry() {
    let directory = folder();
    let ring = filled(directory.path(), 9, WIDE);
    let (seq, hash) = ring.head().unwrap();
    let file = segments(directory.path()).pop().unwrap();
    let of = |expected| verify(verify::Ring::Directory(directory.path()), &[], expected).unwrap();
    assert!(of(Some((seq, hash.as_str()))).is_good());
    assert!(!of(Some((seq, "0"))).is_good());
    let text = fs::read_to_string(&file).unwrap();
    let end = text.trim_end().rfind('\n').unwrap() + 1;
    fs::write(&file, &text[..end]).unwrap();
    assert!(of(None).is_good());
    let verdict = of(Some((seq, hash.as_str())));
    assert!(verdict.faults[0].text.contains("ends at number 8"), "{verdict:?}");
}

#[test]
fn limits_that_become_smaller_hold_from_the_next_entry_on() {
    let directory = folder();
    let mut ring = filled(directory.path(), 60, WIDE);
    assert!(bytes(directory.path()) > 6000);
    ring.set_limits(limits(3000, 1000));
    let appended = ring.append(&mut entry(61, 100)).unwrap();
    assert!(appended.removed > 0);
    assert!(bytes(directory.path()) <= 3000);
    assert!(checked(directory.path()).is_good());
    assert_eq!(read(directory.path()).0.last().unwrap().seq, 61);
}

fn signed(ring: &mut Ring, key: &Key, change: impl Fn(&mut Event)) {
    let (seq, hash) = ring.head().unwrap();
    let mut head = key.sign_head("2026-10-31", seq, &hash);
    change(&mut head);
    let mut entry = Entry {
        events: vec![Event::Key { key: key.public() }, head],
        ..Entry::default()
    };
    ring.append(&mut entry).unwrap();
}
