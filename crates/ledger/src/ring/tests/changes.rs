//! Whatever is changed in the files is a fault, and the ring stays within its limits.

use super::*;

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
