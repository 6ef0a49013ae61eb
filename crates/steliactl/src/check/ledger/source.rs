//! Where accounts come from: the daemon, which looks at the counters for it, or copied ledger files, which are read here without one.

use std::collections::BTreeSet;
use std::path::Path;

use serde::de::DeserializeOwned;
use stelia_api::client::{Dict, InstanceProxy};
use stelia_ledger::account::{Account, accounts};
use stelia_ledger::day::DAY_US;
use stelia_ledger::ring::read;
use stelia_ledger::ring::verify::{Ring, verify};
use stelia_ledger::verdict::Verdict;

use super::account::{All, Brief, VmAccount};
use crate::shared::daemon::{Client, Failure, VmPattern, named_pod, none_among};
use crate::shared::output::now;

pub(super) enum Source<'a> {
    Daemon(Client),
    Copy(&'a Path),
}

impl Source<'_> {
    /// The accounts of every VM that had exclusive CPUs in this period, by name. `until` is 0 for now.
    pub(super) async fn all(&self, since: u64, until: u64) -> Result<Vec<VmAccount>, Failure> {
        let accounts = match self {
            Self::Daemon(client) => of_daemon(client, since, until).await?,
            Self::Copy(directory) => accounts_of(directory, since, until)?,
        };
        let mut all: Vec<VmAccount> = accounts.into_iter().map(VmAccount::of).collect();
        all.sort_by_cached_key(|one| (one.pod.to_string(), one.pod.pod_uid.clone()));
        Ok(all)
    }

    /// The account of one VM: from its own object, which a pod may also call, or from the ledger files if the VM ended.
    pub(super) async fn one(&self, vm: &str, since: u64, until: u64) -> Result<VmAccount, Failure> {
        let Self::Daemon(client) = self else {
            return pick(self.all(since, until).await?, vm);
        };
        let found = match client.find(vm).await {
            Ok(found) => found,
            Err(Failure::NoSuchInstance(_)) => return pick(self.all(since, until).await?, vm),
            Err(failure) => return Err(failure),
        };
        let object = instance(client, &found.path).await?;
        let text = client
            .answer_while_alive(object.ledger(since, until, Dict::new()))
            .await?;
        let mut account = VmAccount::of(understood(&text)?);
        if found.pod.is_named() || !account.pod.is_named() {
            account.pod = found.pod;
        }
        Ok(account)
    }

    /// The accounts whose VM fits a pattern.
    ///
    /// # Errors
    /// It is no pattern, or none fits.
    pub(super) async fn fitting(&self, pattern: &str, since: u64, until: u64) -> Result<All, Failure> {
        let accounts = self.all(since, until).await?;
        let parsed: VmPattern = pattern
            .parse()
            .map_err(|cause| Failure::Usage(format!("{pattern}: {cause}")))?;
        let (fitting, others): (Vec<_>, Vec<_>) = accounts.into_iter().partition(|one| parsed.selects(&one.pod));
        if fitting.is_empty() {
            return Err(none_among(parsed.as_str(), others.iter().map(|one| &one.pod)));
        }
        Ok(All(fitting))
    }

    /// What checking the ledger files showed.
    pub(super) async fn verdict(&self) -> Result<Verdict, Failure> {
        match self {
            Self::Daemon(client) => {
                let text = client
                    .answer_while_alive(client.manager().verify_ledger(Dict::new()))
                    .await?;
                understood(&text)
            }
            Self::Copy(directory) => verdict(directory, &[], None),
        }
    }
}

/// The proxy of a VM's object.
pub(super) async fn instance<'a>(
    client: &Client,
    path: &'a zbus::OwnedObjectPath,
) -> Result<InstanceProxy<'a>, Failure> {
    let proxy = InstanceProxy::builder(client.connection())
        .cache_properties(zbus::proxy::CacheProperties::No)
        .path(path)
        .build()
        .await?;
    Ok(proxy)
}

/// A JSON answer of the daemon.
pub(super) fn understood<T: DeserializeOwned>(text: &str) -> Result<T, Failure> {
    serde_json::from_str(text)
        .map_err(|cause| Failure::Other(format!("the daemon's answer about the ledger is not valid: {cause}")))
}

async fn of_daemon(client: &Client, since: u64, until: u64) -> Result<Vec<Account>, Failure> {
    let text = client.answer_while_alive(client.manager().ledger("", since, until, Dict::new()));
    understood(&text.await?)
}

/// Accounts of the last 24 hours, of these VMs or all.
///
/// # Errors
/// The daemon cannot read the ledger, or does not answer.
pub(crate) async fn last_day(client: &Client, selected: Option<&BTreeSet<String>>) -> Result<Vec<Brief>, Failure> {
    since(client, selected, now().saturating_sub(DAY_US)).await
}

/// The same since another time, microseconds since the epoch.
///
/// # Errors
/// As [`last_day`].
pub(crate) async fn since(
    client: &Client,
    selected: Option<&BTreeSet<String>>,
    since: u64,
) -> Result<Vec<Brief>, Failure> {
    let accounts = of_daemon(client, since, 0).await?.into_iter().map(VmAccount::of);
    let accounts = accounts.filter(|one| selected.is_none_or(|selected| selected.contains(&one.pod.pod_uid)));
    Ok(accounts.map(Brief::of).collect())
}

/// Like [`Client::find`], among VMs that may have ended: if several have one name, only the UID is unambiguous.
///
/// # Errors
/// Nothing fits, or more than one VM does.
fn pick(all: Vec<VmAccount>, asked: &str) -> Result<VmAccount, Failure> {
    let pod = named_pod(all.iter().map(|one| one.pod.clone()).collect(), asked)?;
    let found = all.into_iter().find(|one| one.pod == pod);
    found.ok_or_else(|| none_among(asked, []))
}

/// The accounts of all VMs in copied ledger files.
///
/// # Errors
/// The folder cannot be read, has no ledger files, or a line is not what was written: of a part no account is made.
fn accounts_of(directory: &Path, since: u64, until: u64) -> Result<Vec<Account>, Failure> {
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
                "{}, line {}: {}: no account is made of it (list all faults: steliactl ledger verify --directory)",
                fault.segment, fault.line, fault.text
            ),
        )),
    }
}

/// `keys` are those that signatures must be of; without any, those that the copy names. `expected` is an entry's number and hash that are
/// known from elsewhere.
///
/// # Errors
/// The folder cannot be read, or has no ledger files.
pub(super) fn verdict(directory: &Path, keys: &[String], expected: Option<&Expected>) -> Result<Verdict, Failure> {
    let expected = expected.map(|known| (known.seq, known.hash.as_str()));
    let verdict = verify(Ring::Directory(directory), keys, expected);
    let verdict = verdict.map_err(|cause| Failure::Other(cause.to_string()))?;
    if verdict.segments == 0 {
        return Err(Failure::about(directory, &"no ledger files here (NUMBER.ledger)"));
    }
    Ok(verdict)
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
            assert!(refused.unwrap_err().to_string().contains("no ledger files here"));
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

    fn vm_account(uid: &str, name: &str) -> VmAccount {
        VmAccount::of(Account {
            vm: uid.to_owned(),
            name: name.to_owned(),
            ..Account::default()
        })
    }

    #[test]
    fn a_vm_that_ended_is_found_by_its_name_and_of_several_by_the_uid() {
        let all = || {
            vec![
                vm_account("aaa1", "t/web"),
                vm_account("aaa2", "t/web"),
                vm_account("bbb", "t/db"),
                vm_account("ccc", ""),
            ]
        };
        let uid = |asked| {
            pick(all(), asked)
                .map(|vm_account| vm_account.pod.pod_uid)
                .map_err(|failure| failure.exit_code())
        };
        assert_eq!(uid("t/db"), Ok("bbb".to_owned()));
        assert_eq!(uid("db"), Ok("bbb".to_owned()));
        assert_eq!(uid("ccc"), Ok("ccc".to_owned()));
        assert_eq!(uid("aaa2"), Ok("aaa2".to_owned()));
        assert_eq!(
            [uid("web"), uid("aaa"), uid("nobody"), uid("")],
            [Err(2), Err(3), Err(3), Err(3)]
        );
        let near = pick(all(), "we").unwrap_err().to_string();
        assert!(near.ends_with("; did you mean t/web?"), "{near}");
        let text = pick(all(), "web").unwrap_err().to_string();
        assert!(text.ends_with("web: t/web (aaa1), t/web (aaa2)"), "{text}");
    }

    #[test]
    fn an_answer_of_another_kind_is_not_taken_for_an_empty_account() {
        assert!(understood::<Vec<Account>>("{}").is_err());
        assert!(understood::<Vec<Account>>("[]").is_ok());
    }
}
