//! Reading while the ring is written, and from a time on.

use super::*;

#[test]
fn a_line_that_is_too_long_is_one_fault_and_reading_goes_on() {
    let (directory, file) = written(3);
    let text = fs::read_to_string(&file).unwrap();
    let (first, rest) = text.split_once('\n').unwrap();
    let long = vec![b'x'; MAX_LINE_BYTES + 5];
    fs::write(&file, [first.as_bytes(), b"\n", &long, b"\n", rest.as_bytes()].concat()).unwrap();
    let (all, faults) = read(directory.path());
    // The line behind it cannot be compared with it.
    assert_eq!((seqs(&all), faults), (vec![1, 3], 2));
    let (mut ring, _) = open(directory.path(), limits(64 << 20, 4 << 20));
    let error = ring.append(&mut entry(1, MAX_LINE_BYTES)).unwrap_err();
    assert!(matches!(error, RingError::TooLong { .. }), "{error}");
    assert_eq!(ring.append(&mut entry(1, 1)).unwrap().seq, 4);
}

#[test]
fn segments_that_ended_before_are_left_out_but_for_the_one_before() {
    let directory = folder();
    // The clock goes back by 25 in the middle.
    let (mut ring, _) = open(directory.path(), limits(WIDE.bytes, 1));
    for at in [10, 20, 30, 40, 15, 25, 35, 45] {
        ring.append(&mut entry(at, 0)).unwrap();
    }
    let since = |us| -> Vec<u64> {
        let found = entries(directory.path(), Some(us)).unwrap();
        found.map(|entry| entry.unwrap().0.at).collect()
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
    let mut ring = filled(directory.path(), 3, limits(WIDE.bytes, 300));
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
    let limits = limits(3000, 600);
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
