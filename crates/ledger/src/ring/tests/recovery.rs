//! What a crash left is removed when the ring is opened, and what somebody changed is not.

use super::*;

#[test]
fn a_crash_at_any_byte_of_the_last_line_loses_that_line_alone() {
    let (directory, file) = written(5);
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
        let name = folder::segment_name(6);
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
        let (directory, file) = written(5);
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
    let (directory, file) = written(2);
    let file = fs::OpenOptions::new().append(true).open(file).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length + 20 * (1 << 20)).unwrap();
    let limits = limits(1 << 30, 1 << 20);
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
    let other = directory.path().join(folder::segment_name(9));
    File::create(&other).unwrap().set_len(20 << 20).unwrap();
    let limits = limits(1 << 30, 1 << 20);
    let (mut ring, _) = open(directory.path(), limits);
    assert_eq!(ring.append(&mut entry(9, 0)).unwrap().seq, 10);
    drop(ring);
    assert!(other.exists());
    assert_eq!(seqs(&read(directory.path()).0), [1, 2, 10]);
}

/// Adds an entry of another version to a segment of one entry.
fn append(file: &Path, json: &str) {
    let text = fs::read_to_string(file).unwrap();
    let last = line_format::Hash::parse(&text.as_bytes()[..64]).unwrap();
    let line = format!("{} {json}\n", line_format::Hash::of(&last, json.as_bytes()));
    fs::write(file, text + &line).unwrap();
}

#[test]
fn an_entry_of_a_newer_version_is_not_cut() {
    let (directory, file) = written(1);
    let json = r#"{"seq":2,"at":2,"up":2,"of-next-year":1}"#;
    append(&file, json);
    let (mut ring, found) = open(directory.path(), WIDE);
    assert_eq!((found.cut, found.last.unwrap().0), (0, 2));
    ring.append(&mut entry(9, 0)).unwrap();
    assert_eq!(seqs(&read(directory.path()).0), [1, 3]);
}

/// The rest of its entry is read, and whoever checks the ring is told.
#[test]
fn an_event_of_a_newer_version_is_no_fault() {
    let (directory, file) = written(1);
    let json = r#"{"seq":2,"at":2,"up":2,"events":[{"event":"of-next-year","to":[{"a":1}]},{"event":"stopped"}]}"#;
    append(&file, json);
    let (mut ring, found) = open(directory.path(), WIDE);
    assert_eq!((found.last.unwrap().0, found.fault), (2, None));
    ring.append(&mut entry(9, 0)).unwrap();
    assert_eq!(segments(directory.path()).len(), 1, "the segment goes on");
    let (all, faults) = read(directory.path());
    assert_eq!((seqs(&all), faults), (vec![1, 2, 3], 0));
    assert_eq!(all[1].events, [Event::Newer, Event::Stopped {}]);
    let verdict = checked(directory.path());
    assert!(verdict.is_good(), "{verdict:?}");
    assert_eq!(verdict.newer_events, 1);
}
