//! A copied ring, read without a daemon.

use std::path::Path;

use stelia_ledger::account::{Account, accounts};
use stelia_ledger::ring::read;
use stelia_ledger::ring::verify::{Ring, verify};
use stelia_ledger::verdict::Verdict;

use crate::shared::daemon::Failure;
use crate::shared::output::now;

/// The accounts of all VMs; `until` is 0 for now.
///
/// # Errors
/// The folder cannot be read, has no ledger in it, or a line is not what was written: of a part no account is made.
pub(super) fn accounts_of(directory: &Path, since: u64, until: u64) -> Result<Vec<Account>, Failure> {
    verdict(directory, &[], None)?;
    let entries = read::entries(directory, Some(since)).map_err(|cause| Failure::Other(cause.to_string()))?;
    let mut fault = None;
    let good = entries.map_while(|next| next.map_err(|found| fault = Some(found)).ok());
    let until = if until == 0 { now() } else { until };
    let made = accounts(good, since, until, None);
    match fault {
        None => Ok(made.into_values().collect()),
        Some(fault) => Err(Failure::about(
            directory,
            &format!(
                "{}, line {}: {}: no account is made of it (steliactl ledger verify --directory has all faults)",
                fault.segment, fault.line, fault.text
            ),
        )),
    }
}

/// A copy is read here. `keys` are those that heads must be signed with; without any, those that the ring names. `expected` is an entry's
/// number and hash that are known from elsewhere.
///
/// # Errors
/// The folder cannot be read, or has no ledger in it.
pub(super) fn verdict(directory: &Path, keys: &[String], expected: Option<&Expected>) -> Result<Verdict, Failure> {
    let expected = expected.map(|known| (known.seq, known.hash.as_str()));
    let verdict = verify(Ring::Directory(directory), keys, expected);
    let verdict = verdict.map_err(|cause| Failure::Other(cause.to_string()))?;
    match verdict.segments {
        0 => Err(Failure::about(
            directory,
            &"there is no ledger here: no file NUMBER.ledger",
        )),
        _ => Ok(verdict),
    }
}

/// An entry that is known from elsewhere: a report, a metric, a signal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Expected {
    seq: u64,
    /// 64 hexadecimal digits, small.
    hash: String,
}

/// A public key as `ledger key` prints it: the base64 of 32 bytes.
pub(super) fn key(text: &str) -> Result<String, String> {
    let text = text.trim();
    let digit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    let is_key = text.len() == 44 && text.strip_suffix('=').is_some_and(|digits| digits.bytes().all(digit));
    if is_key {
        Ok(text.to_owned())
    } else {
        Err("expected a public key as ledger key prints it, 44 characters that end with =".to_owned())
    }
}

/// `40112:8f3a…`.
pub(super) fn expected(text: &str) -> Result<Expected, String> {
    let read = || {
        let (seq, hash) = text.split_once(':')?;
        let hash = hash.to_ascii_lowercase();
        let is_hash = hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        let seq = seq.parse().ok()?;
        is_hash.then_some(Expected { seq, hash })
    };
    read().ok_or_else(|| "expected NUMBER:HASH, the hash as 64 hexadecimal digits".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use stelia_ledger::entry::Entry;
    use stelia_ledger::ring::{Limits, Ring as Writer};
    use tempfile::TempDir;

    use super::*;

    const MINUTE: u64 = 60_000_000;

    /// A VM on CPU 2, read at minute 1 and at minute 2; meanwhile three other tasks ran.
    fn ring() -> (TempDir, String) {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("ledger");
        let limits = Limits {
            bytes: 1 << 20,
            segment_bytes: 1 << 16,
        };
        let (mut ring, _) = Writer::open(&folder, limits).unwrap();
        let opened = json!({"event": "opened", "seat": 1, "vm": "aaa", "name": "team-a/web", "cpus": "2",
            "threads": [{"id": 10, "start": 1}]});
        let entries = [
            json!({"seq": 0, "at": MINUTE, "up": MINUTE, "events": [{"event": "boot", "id": "b"}, opened],
                "readings": [{"s": 1, "n": [100, 90, 0, 5, 6, 0], "f": true}]}),
            json!({"seq": 0, "at": 2 * MINUTE, "up": 2 * MINUTE, "readings": [{"s": 1, "n": [113, 100, 0, 50, 66, 0]}]}),
        ];
        let mut hash = String::new();
        for entry in entries {
            let mut entry: Entry = serde_json::from_value(entry).unwrap();
            hash = ring.append(&mut entry).unwrap().hash;
        }
        (directory, hash)
    }

    #[test]
    fn a_copied_ring_has_its_accounts() {
        let (directory, hash) = ring();
        let folder = directory.path().join("ledger");
        let accounts = accounts_of(&folder, 0, 3 * MINUTE).unwrap();
        let [account] = accounts.as_slice() else {
            panic!("{accounts:?}")
        };
        assert_eq!((account.name.as_str(), account.covered_us), ("team-a/web", MINUTE));
        let other = account.totals.other_tasks;
        assert_eq!((other.least, other.most, account.totals.delay_ns), (3, 3, 60));
        assert_eq!(account.hash, hash);

        let known = |hash: &str| expected(&format!("{}:{hash}", account.seq)).unwrap();
        assert!(verdict(&folder, &[], Some(&known(&hash))).unwrap().is_good());
        assert!(!verdict(&folder, &[], Some(&known(&"0".repeat(64)))).unwrap().is_good());
    }

    #[test]
    fn of_a_ring_that_was_changed_no_account_is_made() {
        let (directory, _) = ring();
        let folder = directory.path().join("ledger");
        let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let file = files
            .into_iter()
            .find(|path| path.extension().is_some_and(|end| end == "ledger"));
        let file = file.unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replace("113", "110")).unwrap();
        let failure = accounts_of(&folder, 0, 0).unwrap_err();
        assert_eq!(failure.exit_code(), 1);
        assert!(failure.to_string().contains("no account is made of it"), "{failure}");
        assert!(!verdict(&folder, &[], None).unwrap().is_good());
    }

    #[test]
    fn a_folder_without_a_ledger_is_not_a_good_one() {
        let empty = tempfile::tempdir().unwrap();
        for refused in [
            verdict(empty.path(), &[], None).map(|_| ()),
            accounts_of(empty.path(), 0, 0).map(|_| ()),
        ] {
            assert!(refused.unwrap_err().to_string().contains("there is no ledger here"));
        }
        assert!(verdict(Path::new("/nonexistent"), &[], None).is_err());
    }

    #[test]
    fn what_is_expected_is_a_number_and_a_hash() {
        let hash = "8F3A".repeat(16);
        assert_eq!(expected(&format!("7:{hash}")).unwrap().hash, hash.to_lowercase());
        for text in [
            "",
            "7",
            "7:8f3a",
            &format!("x:{hash}"),
            &format!("7:{}", "g".repeat(64)),
        ] {
            assert!(expected(text).is_err(), "{text}");
        }
    }
}
