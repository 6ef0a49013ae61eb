//! Keys, and the heads that they sign.

use super::*;

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
    let change = |number: usize, head: &mut Event| match (number, head) {
        (0, Event::Head { day, .. }) => *day = "2026-11-01".to_owned(),
        (1, Event::Head { seq, .. }) => *seq -= 1,
        (2, Event::Head { hash, .. }) => *hash = "0".repeat(64),
        (_, Event::Head { signature, .. }) => signature.clear(),
        other => panic!("{other:?}"),
    };
    for number in 0..4 {
        let directory = folder();
        let mut ring = filled(directory.path(), 5, WIDE);
        let (key, _) = Key::load_or_make(directory.path(), "m").unwrap();
        signed(&mut ring, &key, |head| change(number, head));
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
