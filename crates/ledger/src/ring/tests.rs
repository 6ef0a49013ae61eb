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

const WIDE: Limits = Limits {
    bytes: 1 << 20,
    segment_bytes: 2000,
};

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
    symlink(&elsewhere, place.join(folder::name_of(1))).unwrap();
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
        .map(|file| folder::first_of(file.file_name().unwrap().to_str().unwrap()).unwrap())
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
    assert!(
        verdict.faults[0].text.contains("ends at number 8, before number 9"),
        "{verdict:?}"
    );
}

#[test]
fn a_crash_at_any_byte_of_the_last_line_loses_that_line_alone() {
    let directory = folder();
    drop(filled(directory.path(), 5, WIDE));
    let file = segments(directory.path()).pop().unwrap();
    let whole = fs::read(&file).unwrap();
    let start = whole[..whole.len() - 1]
        .iter()
        .rposition(|byte| *byte == b'\n')
        .unwrap()
        + 1;
    for length in start..whole.len() {
        for behind in [&b""[..], &[0; 4096], &[b'\n'; 3], b"garbage\nof other\0files\n"] {
            if length + 1 == whole.len() && behind.starts_with(b"\n") {
                // Nothing is missing.
                continue;
            }
            fs::write(&file, [&whole[..length], behind].concat()).unwrap();
            let before = read(directory.path());
            assert_eq!(seqs(&before.0), [1, 2, 3, 4]);
            let (mut ring, found) = open(directory.path(), WIDE);
            assert_eq!(found.cut as usize, length - start + behind.len());
            assert_eq!(found.last.unwrap().0, 4);
            assert_eq!(ring.append(&mut entry(9, 0)).unwrap().seq, 5);
            assert_eq!(read(directory.path()).1, 0);
            assert!(checked(directory.path()).is_good());
        }
    }
}

#[test]
fn a_crash_at_the_beginning_of_a_segment_leaves_the_one_before() {
    for left in [&b""[..], b"a part", &[0; 4096]] {
        let directory = folder();
        let ring = filled(directory.path(), 5, WIDE);
        let name = folder::name_of(6);
        drop(ring);
        fs::write(directory.path().join(name), left).unwrap();
        let (mut ring, found) = open(directory.path(), WIDE);
        assert_eq!((found.cut, found.last.unwrap().0), (left.len() as u64, 5));
        assert_eq!(segments(directory.path()).len(), 1);
        ring.append(&mut entry(9, 0)).unwrap();
        assert_eq!(checked(directory.path()).entries, 6);
        assert!(checked(directory.path()).is_good());
    }
}

#[test]
fn what_somebody_changed_is_never_cut_and_the_next_entry_is_in_a_new_segment() {
    for line in 0..5 {
        let directory = folder();
        drop(filled(directory.path(), 5, WIDE));
        let file = segments(directory.path()).pop().unwrap();
        let mut lines: Vec<String> = fs::read_to_string(&file).unwrap().lines().map(str::to_owned).collect();
        lines[line] = lines[line].replacen("xxx", "yyy", 1);
        let changed = lines.join("\n") + "\n";
        fs::write(&file, &changed).unwrap();
        let (mut ring, found) = open(directory.path(), WIDE);
        assert_eq!(found.cut, 0);
        assert_eq!(found.fault.unwrap().line, line as u64 + 1);
        assert!(ring.starts_segment());
        ring.append(&mut entry(9, 0)).unwrap();
        drop(ring);
        assert_eq!(fs::read_to_string(&file).unwrap(), changed);
        let verdict = checked(directory.path());
        assert_eq!(verdict.faults.len(), 1, "{verdict:?}");
        let (all, faults) = read(directory.path());
        let expected: Vec<u64> = (1..=6).filter(|seq| *seq != line as u64 + 1).collect();
        assert_eq!((seqs(&all), faults), (expected, 1));
        // It is found again, and nothing is in the way of going on.
        let (ring, found) = open(directory.path(), WIDE);
        assert_eq!((found.fault, ring.head().unwrap().0), (None, 6));
    }
}

#[test]
fn more_than_a_line_that_is_no_entry_stays() {
    let directory = folder();
    drop(filled(directory.path(), 2, WIDE));
    let file = segments(directory.path()).pop().unwrap();
    let file = fs::OpenOptions::new().append(true).open(file).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length + 20 * (1 << 20)).unwrap();
    let limits = Limits {
        bytes: 1 << 30,
        segment_bytes: 1 << 20,
    };
    let (mut ring, found) = open(directory.path(), limits);
    assert_eq!((found.cut, found.fault.is_some()), (0, true));
    assert_eq!(ring.append(&mut entry(9, 0)).unwrap().seq, 3);
    assert_eq!(file.metadata().unwrap().len(), length + 20 * (1 << 20));
    assert_eq!(seqs(&read(directory.path()).0), [1, 2, 3]);
    assert!(!checked(directory.path()).is_good());
}

#[test]
fn a_last_segment_without_any_entry_stays_where_no_crash_left_it() {
    let directory = folder();
    drop(filled(directory.path(), 2, WIDE));
    let other = directory.path().join(folder::name_of(9));
    File::create(&other).unwrap().set_len(20 << 20).unwrap();
    let limits = Limits {
        bytes: 1 << 30,
        segment_bytes: 1 << 20,
    };
    let (mut ring, _) = open(directory.path(), limits);
    assert_eq!(ring.append(&mut entry(9, 0)).unwrap().seq, 10);
    drop(ring);
    assert!(other.exists());
    assert_eq!(seqs(&read(directory.path()).0), [1, 2, 10]);
}

#[test]
fn an_entry_of_a_newer_version_is_not_cut() {
    let directory = folder();
    drop(filled(directory.path(), 1, WIDE));
    let file = segments(directory.path()).pop().unwrap();
    let text = fs::read_to_string(&file).unwrap();
    let last = line::Hash::read(&text.as_bytes()[..64]).unwrap();
    let json = r#"{"seq":2,"at":2,"up":2,"events":[{"event":"of-next-year"}]}"#;
    let line = format!("{} {json}\n", line::Hash::of(&last, json.as_bytes()));
    fs::write(&file, text + &line).unwrap();
    let (mut ring, found) = open(directory.path(), WIDE);
    assert_eq!((found.cut, found.last.unwrap().0), (0, 2));
    ring.append(&mut entry(9, 0)).unwrap();
    assert_eq!(seqs(&read(directory.path()).0), [1, 3]);
}

#[test]
fn a_line_that_is_too_long_is_one_fault_and_reading_goes_on() {
    let directory = folder();
    drop(filled(directory.path(), 3, WIDE));
    let file = segments(directory.path()).pop().unwrap();
    let text = fs::read_to_string(&file).unwrap();
    let (first, rest) = text.split_once('\n').unwrap();
    let long = vec![b'x'; MAX_LINE_BYTES + 5];
    fs::write(&file, [first.as_bytes(), b"\n", &long, b"\n", rest.as_bytes()].concat()).unwrap();
    let (all, faults) = read(directory.path());
    // The line behind it cannot be compared with it.
    assert_eq!((seqs(&all), faults), (vec![1, 3], 2));
    let (mut ring, _) = open(
        directory.path(),
        Limits {
            bytes: 64 << 20,
            segment_bytes: 4 << 20,
        },
    );
    let error = ring.append(&mut entry(1, MAX_LINE_BYTES)).unwrap_err();
    assert!(matches!(error, RingError::TooLong { .. }), "{error}");
    assert_eq!(ring.append(&mut entry(1, 1)).unwrap().seq, 4);
}

#[test]
fn segments_that_ended_before_are_left_out_but_for_the_one_before() {
    let directory = folder();
    // The clock goes back by 25 in the middle.
    let (mut ring, _) = open(
        directory.path(),
        Limits {
            segment_bytes: 1,
            ..WIDE
        },
    );
    for at in [10, 20, 30, 40, 15, 25, 35, 45] {
        ring.append(&mut entry(at, 0)).unwrap();
    }
    let since = |us| {
        let found: Vec<u64> = entries(directory.path(), Some(us))
            .unwrap()
            .map(|entry| entry.unwrap().0.at)
            .collect();
        found
    };
    assert_eq!(since(0).len(), 8);
    assert_eq!(since(11).len(), 8);
    assert_eq!(since(25), [20, 30, 40, 15, 25, 35, 45]);
    assert_eq!(since(42), [35, 45]);
    assert_eq!(since(100), [45]);
}

#[test]
fn a_reader_comes_to_what_is_written_while_it_reads() {
    let directory = folder();
    let mut ring = filled(
        directory.path(),
        3,
        Limits {
            segment_bytes: 300,
            ..WIDE
        },
    );
    let mut reader = entries(directory.path(), None).unwrap();
    assert_eq!(reader.next().unwrap().unwrap().0.seq, 1);
    for at in 4..20 {
        ring.append(&mut entry(at, 100)).unwrap();
    }
    let rest: Vec<u64> = reader.map(|entry| entry.unwrap().0.seq).collect();
    assert_eq!(rest, (2..20).collect::<Vec<_>>());
}

#[test]
fn a_reader_goes_on_behind_segments_that_are_removed_while_it_reads() {
    let directory = folder();
    let limits = Limits {
        bytes: 3000,
        segment_bytes: 600,
    };
    let mut ring = filled(directory.path(), 12, limits);
    let mut reader = entries(directory.path(), None).unwrap();
    let first = reader.next().unwrap().unwrap().0.seq;
    for at in 13..40 {
        ring.append(&mut entry(at, 100)).unwrap();
    }
    let rest: Vec<u64> = reader.map(|entry| entry.unwrap().0.seq).collect();
    assert!(first < rest[0] && rest.is_sorted(), "{first} {rest:?}");
    assert_eq!(rest.last(), Some(&39));
}

#[test]
fn limits_that_become_smaller_hold_from_the_next_entry_on() {
    let directory = folder();
    let mut ring = filled(directory.path(), 60, WIDE);
    assert!(bytes(directory.path()) > 6000);
    ring.set_limits(Limits {
        bytes: 3000,
        segment_bytes: 1000,
    });
    let appended = ring.append(&mut entry(61, 100)).unwrap();
    assert!(appended.removed > 0);
    assert!(bytes(directory.path()) <= 3000);
    assert!(checked(directory.path()).is_good());
    assert_eq!(read(directory.path()).0.last().unwrap().seq, 61);
}

/// A disk with so much room, shared by all files of the directory.
#[derive(Clone)]
struct Small {
    directory: PathBuf,
    room: Arc<Mutex<u64>>,
    /// `fdatasync` fails as often, and `ftruncate`.
    broken: Arc<Mutex<(u32, u32)>>,
}

impl Small {
    fn of(directory: &Path, room: u64) -> Self {
        Self {
            directory: directory.to_owned(),
            room: Arc::new(Mutex::new(room)),
            broken: Arc::default(),
        }
    }

    fn fails(of: &mut u32) -> io::Result<()> {
        if *of == 0 {
            return Ok(());
        }
        *of -= 1;
        Err(rustix::io::Errno::IO.into())
    }
}

impl Disk for Small {
    fn create(&mut self, folder: &Folder, name: &str) -> Result<File, RingError> {
        if bytes(&self.directory) >= *self.room.lock().unwrap() {
            return Err(RingError::system("open", &self.directory.join(name))(
                rustix::io::Errno::NOSPC,
            ));
        }
        folder.create(name)
    }

    fn write(&mut self, file: &File, bytes_: &[u8], at: u64) -> io::Result<()> {
        let room = *self.room.lock().unwrap();
        let left = room.saturating_sub(bytes(&self.directory)) as usize;
        file.write_all_at(&bytes_[..left.min(bytes_.len())], at)?;
        if left < bytes_.len() {
            return Err(rustix::io::Errno::NOSPC.into());
        }
        Ok(())
    }

    fn sync(&mut self, _: &File) -> io::Result<()> {
        Self::fails(&mut self.broken.lock().unwrap().0)
    }

    fn cut(&mut self, file: &File, length: u64) -> io::Result<()> {
        Self::fails(&mut self.broken.lock().unwrap().1)?;
        file.set_len(length)
    }
}

#[test]
fn a_full_disk_stops_the_ring_and_erases_nothing_of_it() {
    let directory = folder();
    let small = Small::of(directory.path(), 5000);
    let limits = Limits {
        bytes: 1 << 20,
        segment_bytes: 600,
    };
    let (mut ring, _) = Ring::open_on(Box::new(small.clone()), directory.path(), limits).unwrap();
    let mut kept = 0;
    for at in 1..100 {
        match ring.append(&mut entry(at, 100)) {
            Ok(appended) => {
                assert_eq!(appended.removed, 0);
                kept += 1;
            }
            Err(error) => assert!(error.to_string().contains("No space left"), "{error}"),
        }
        assert!(checked(directory.path()).is_good());
    }
    assert!((10..99).contains(&kept), "{kept}");
    // Whoever fills the disk, and takes each block that becomes free, gets none of the ring's.
    *small.room.lock().unwrap() = 0;
    let (before, files) = (ring.head(), segments(directory.path()).len());
    for at in 0..30 {
        ring.append(&mut entry(at, 100)).unwrap_err();
    }
    assert_eq!(ring.head(), before);
    assert!(segments(directory.path()).len() >= files);
    let (all, _) = read(directory.path());
    assert_eq!(seqs(&all), (1..=kept).collect::<Vec<u64>>());
    // Also to a daemon that starts meanwhile.
    drop(ring);
    let (mut ring, _) = Ring::open_on(Box::new(small.clone()), directory.path(), limits).unwrap();
    ring.append(&mut entry(1, 100)).unwrap_err();
    assert_eq!(ring.head(), before);
    // Once there is room it goes on where it was.
    *small.room.lock().unwrap() = 1 << 20;
    assert_eq!(ring.append(&mut entry(1, 100)).unwrap().seq, kept + 1);
    assert!(checked(directory.path()).is_good());
    assert_eq!(read(directory.path()).0.len() as u64, kept + 1);
}

#[test]
fn nothing_is_removed_for_an_entry_that_cannot_be_written_although_the_ring_is_at_its_limit() {
    let directory = folder();
    let small = Small::of(directory.path(), 1 << 20);
    let limits = Limits {
        bytes: 3000,
        segment_bytes: 600,
    };
    let (mut ring, _) = Ring::open_on(Box::new(small.clone()), directory.path(), limits).unwrap();
    while ring.append(&mut entry(1, 100)).unwrap().removed == 0 {}
    *small.room.lock().unwrap() = 0;
    let first = read(directory.path()).0[0].seq;
    for _ in 0..30 {
        ring.append(&mut entry(1, 100)).unwrap_err();
    }
    assert_eq!(read(directory.path()).0[0].seq, first);
    // Who makes the ring smaller makes room, also on a full disk.
    ring.set_limits(Limits {
        bytes: 1500,
        segment_bytes: 600,
    });
    ring.append(&mut entry(1, 100)).unwrap_err();
    assert!(bytes(directory.path()) <= 1500);
    assert!(checked(directory.path()).is_good());
}

#[test]
fn the_room_of_a_segment_is_reserved_when_it_begins_and_given_back_when_it_is_full() {
    use std::os::unix::fs::MetadataExt;
    let directory = folder();
    let limits = Limits {
        bytes: 8 << 20,
        segment_bytes: 1 << 20,
    };
    let (mut ring, _) = open(directory.path(), limits);
    ring.append(&mut entry(1, 100)).unwrap();
    let blocks = |at: usize| fs::metadata(&segments(directory.path())[at]).unwrap().blocks() * 512;
    let length = bytes(directory.path());
    assert!(length < 1000, "{length}");
    if blocks(0) < 1 << 20 {
        // A file system that cannot, such as ZFS.
        return;
    }
    for at in 0..2 {
        ring.append(&mut entry(at, 600_000)).unwrap();
    }
    ring.append(&mut entry(9, 100)).unwrap();
    assert_eq!(segments(directory.path()).len(), 2);
    assert!(blocks(1) >= 1 << 20);
    drop(ring);
    let (mut ring, found) = open(directory.path(), limits);
    assert_eq!((found.cut, found.fault), (0, None));
    ring.append(&mut entry(10, 100)).unwrap();
    assert_eq!(seqs(&read(directory.path()).0), [1, 2, 3, 4, 5]);
}

#[test]
fn an_entry_that_is_not_safely_on_the_disk_is_taken_back_at_the_latest_before_the_next() {
    for (syncs, cuts) in [(1, 0), (1, 1), (2, 3)] {
        let directory = folder();
        let small = Small::of(directory.path(), 1 << 20);
        let (mut ring, _) = Ring::open_on(Box::new(small.clone()), directory.path(), WIDE).unwrap();
        ring.append(&mut entry(1, 100)).unwrap();
        *small.broken.lock().unwrap() = (syncs, cuts);
        let mut failed = 0;
        let seq = loop {
            match ring.append(&mut entry(2, 10)) {
                Ok(appended) => break appended.seq,
                Err(_) => failed += 1,
            }
        };
        assert_eq!(seq, 2);
        assert!(failed >= syncs, "{failed}");
        let (all, faults) = read(directory.path());
        assert_eq!((seqs(&all), faults), (vec![1, 2], 0));
    }
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

#[test]
fn a_signed_head_is_checked_and_a_strange_key_is_a_fault() {
    let directory = folder();
    let mut ring = filled(directory.path(), 5, WIDE);
    let (key, _) = Key::load_or_make(directory.path(), "m").unwrap();
    signed(&mut ring, &key, |_| {});
    let verdict = checked(directory.path());
    assert!(verdict.is_good() && verdict.heads[0].good, "{verdict:?}");
    assert_eq!((verdict.keys, verdict.heads[0].seq), (vec![key.public()], 5));
    let of = |known: &str| verify(verify::Ring::Directory(directory.path()), &[known.to_owned()], None).unwrap();
    assert!(of(&key.public()).is_good());
    let strange = of("another");
    assert!(strange.faults[0].text.contains("unknown key"), "{strange:?}");
    assert!(!strange.heads[0].good);
}

#[test]
fn a_head_that_says_anything_else_than_was_signed_is_a_fault() {
    let changes: [fn(&mut Event); 4] = [
        |head| {
            if let Event::Head { day, .. } = head {
                *day = "2026-11-01".to_owned();
            }
        },
        |head| {
            if let Event::Head { seq, .. } = head {
                *seq -= 1;
            }
        },
        |head| {
            if let Event::Head { hash, .. } = head {
                *hash = "0".repeat(64);
            }
        },
        |head| {
            if let Event::Head { signature, .. } = head {
                signature.clear();
            }
        },
    ];
    for change in changes {
        let directory = folder();
        let mut ring = filled(directory.path(), 5, WIDE);
        let (key, _) = Key::load_or_make(directory.path(), "m").unwrap();
        signed(&mut ring, &key, change);
        let verdict = checked(directory.path());
        assert_eq!((verdict.faults.len(), verdict.heads[0].good), (1, false), "{verdict:?}");
    }
    // The signature is right, and the hash is not the entry's.
    let directory = folder();
    let mut ring = filled(directory.path(), 5, WIDE);
    let (key, _) = Key::load_or_make(directory.path(), "m").unwrap();
    signed(&mut ring, &key, |head| {
        *head = key.sign_head("2026-10-31", 3, &"0".repeat(64))
    });
    let verdict = checked(directory.path());
    assert!(verdict.faults[0].text.contains("not that of the entry"), "{verdict:?}");
}

#[test]
fn a_host_that_was_started_from_anothers_disk_gets_a_key_of_its_own() {
    let directory = folder();
    let made = |machine: &str| Key::load_or_make(directory.path(), machine).unwrap();
    let (first, how) = made("aaaa\n");
    assert_eq!(how, KeyOrigin::New);
    let (again, how) = made("aaaa");
    assert_eq!((again.public(), how), (first.public(), KeyOrigin::Loaded));
    assert_eq!(made("").1, KeyOrigin::Loaded);
    let (other, how) = made("bbbb");
    assert_eq!(how, KeyOrigin::Cloned);
    assert_ne!(other.public(), first.public());
    assert_eq!(retired(directory.path()).unwrap(), [first.public()]);
    assert_eq!(made("bbbb").1, KeyOrigin::Loaded);
    made("cccc");
    assert_eq!(retired(directory.path()).unwrap(), [first.public(), other.public()]);
    let mode = fs::metadata(directory.path().join("key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(!format!("{other:?}").contains("seed"));
}

#[test]
fn a_key_file_that_is_something_else_is_not_overwritten() {
    for text in ["", "stelia-ledger key 2\n", "stelia-ledger key 1\nmachine a\nseed x\n"] {
        let directory = folder();
        fs::write(directory.path().join("key"), text).unwrap();
        let error = Key::load_or_make(directory.path(), "a").unwrap_err();
        assert!(matches!(error, KeyError::Format(_)), "{error}");
        assert_eq!(fs::read_to_string(directory.path().join("key")).unwrap(), text);
    }
}

/// What somebody does to a ring.
#[derive(Debug, Clone)]
enum Change {
    Flip(usize, u8),
    Drop(usize),
    Insert(usize, u8),
    DropLine(usize),
    SwapLines(usize, usize),
    Repeat(usize),
    SwapSegments(usize, usize),
    DropSegment(usize),
}

fn changes() -> impl Strategy<Value = Change> {
    use Change::*;
    let place = 0..1_000_000_usize;
    prop_oneof![
        4 => (place.clone(), 1..=255_u8).prop_map(|(at, by)| Flip(at, by)),
        4 => place.clone().prop_map(Drop),
        4 => (place.clone(), any::<u8>()).prop_map(|(at, byte)| Insert(at, byte)),
        1 => place.clone().prop_map(DropLine),
        1 => (place.clone(), place.clone()).prop_map(|(a, b)| SwapLines(a, b)),
        1 => place.clone().prop_map(Repeat),
        1 => (place.clone(), place.clone()).prop_map(|(a, b)| SwapSegments(a, b)),
        1 => place.prop_map(DropSegment),
    ]
}

/// `None` where nothing would be different, or only the end or the beginning is missing.
fn change(ring: &[Vec<u8>], change: &Change) -> Option<Vec<Option<Vec<u8>>>> {
    let whole: Vec<u8> = ring.concat();
    let lengths: Vec<usize> = ring.iter().map(Vec::len).collect();
    let place = |at: usize| {
        let mut at = at % whole.len();
        let segment = lengths.iter().position(|length| {
            let inside = at < *length;
            at -= if inside { 0 } else { *length };
            inside
        });
        (segment.unwrap(), at)
    };
    let lines = |segment: &[u8]| -> Vec<Vec<u8>> {
        segment
            .split_inclusive(|byte| *byte == b'\n')
            .map(<[u8]>::to_vec)
            .collect()
    };
    let mut changed: Vec<Option<Vec<u8>>> = ring.iter().cloned().map(Some).collect();
    let last = ring.len() - 1;
    match *change {
        Change::Flip(at, by) => {
            let (segment, at) = place(at);
            changed[segment].as_mut()?[at] ^= by;
        }
        Change::Drop(at) => {
            let (segment, at) = place(at);
            changed[segment].as_mut()?.remove(at);
        }
        Change::Insert(at, byte) => {
            let (segment, at) = place(at);
            changed[segment].as_mut()?.insert(at + 1, byte);
        }
        Change::DropLine(at) => {
            let (segment, at) = place(at);
            let mut lines = lines(&ring[segment]);
            let line = at % lines.len();
            if segment == last && line + 1 == lines.len() {
                return None;
            }
            lines.remove(line);
            changed[segment] = Some(lines.concat());
        }
        Change::SwapLines(at, other) => {
            let (segment, at) = place(at);
            let mut lines = lines(&ring[segment]);
            let count = lines.len();
            lines.swap(at % count, other % count);
            changed[segment] = Some(lines.concat());
        }
        Change::Repeat(at) => {
            let (segment, at) = place(at);
            let mut lines = lines(&ring[segment]);
            let line = at % lines.len();
            lines.insert(line, lines[line].clone());
            changed[segment] = Some(lines.concat());
        }
        Change::SwapSegments(one, other) => changed.swap(one % ring.len(), other % ring.len()),
        Change::DropSegment(one) => {
            let one = one % ring.len();
            if one == 0 || one == last {
                return None;
            }
            changed[one] = None;
        }
    }
    let same = changed
        .iter()
        .zip(ring)
        .all(|(changed, was)| changed.as_ref() == Some(was));
    (!same).then_some(changed)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_change_is_a_fault_and_nothing_false_is_read(what in changes(), bounded in any::<bool>()) {
        let directory = folder();
        let limits = Limits { bytes: if bounded { 2500 } else { 1 << 20 }, segment_bytes: 800 };
        drop(filled(directory.path(), 20, limits));
        let (written, _) = read(directory.path());
        let files = segments(directory.path());
        let ring: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
        if let Some(changed) = change(&ring, &what) {
            for (file, bytes) in files.iter().zip(changed) {
                match bytes {
                    Some(bytes) => fs::write(file, bytes).unwrap(),
                    None => fs::remove_file(file).unwrap(),
                }
            }
            let verdict = checked(directory.path());
            prop_assert!(!verdict.is_good());
            let (now, _) = read(directory.path());
            prop_assert!(now.iter().all(|entry| written.contains(entry)));
            prop_assert!(seqs(&now).is_sorted_by(|one, next| one < next));
            // The writer goes on, and what it writes is read.
            let (mut ring, _) = open(directory.path(), WIDE);
            let mut more = entry(77, 5);
            ring.append(&mut more).unwrap();
            let (then, _) = read(directory.path());
            prop_assert_eq!(then.last(), Some(&more));
            prop_assert_eq!(&then[..now.len()], &now[..]);
        }
    }

    #[test]
    fn the_ring_stays_within_its_limits(
        lengths in proptest::collection::vec((0..6000_usize, any::<bool>()), 1..60),
        total in 1000..9000_u64, segment in 1..9000_u64,
    ) {
        let directory = folder();
        let limits = Limits { bytes: total, segment_bytes: segment };
        let (mut ring, _) = open(directory.path(), limits);
        for (length, again) in lengths {
            let before = ring.head();
            match ring.append(&mut entry(1, length)) {
                Ok(appended) => prop_assert_eq!(ring.head(), Some((appended.seq, appended.hash))),
                Err(error) => {
                    prop_assert!(matches!(error, RingError::TooLong { .. }), "{}", error);
                    prop_assert_eq!(ring.head(), before);
                }
            }
            prop_assert!(bytes(directory.path()) <= total);
            if again {
                drop(ring);
                ring = open(directory.path(), limits).0;
            }
        }
        prop_assert!(checked(directory.path()).is_good());
    }
}
