//! Accounts: of the daemon, which looks at the counters for it, or of a copied ring.

use std::collections::BTreeSet;
use std::path::Path;

use serde::de::DeserializeOwned;
use stelia_api::client::{Dict, InstanceProxy};
use stelia_ledger::account::Account;
use stelia_ledger::day::DAY_US;
use stelia_ledger::verdict::Verdict;

use super::brief::Brief;
use super::{VmAccount, offline, proof};
use crate::shared::daemon::{Client, Failure, fitting, perhaps_meant, uid_prefix_note};
use crate::shared::output::{note, now};

/// Where accounts come from.
pub(super) enum Source<'a> {
    Daemon(Client),
    Copy(&'a Path),
}

impl Source<'_> {
    /// The accounts of every VM that had exclusive CPUs in this period, by name.
    pub(super) async fn all(&self, since: u64, until: u64) -> Result<Vec<VmAccount>, Failure> {
        let accounts = match self {
            Self::Daemon(client) => of_daemon(client, "", since, until).await?,
            Self::Copy(directory) => offline::accounts_of(directory, since, until)?,
        };
        let mut all: Vec<VmAccount> = accounts.into_iter().map(VmAccount::of).collect();
        all.sort_by(|a, b| (a.pod.to_string(), &a.pod.pod_uid).cmp(&(b.pod.to_string(), &b.pod.pod_uid)));
        Ok(all)
    }

    /// The account of one VM: from the instance's own object, which a pod may also call, or from the ring if the VM ended.
    pub(super) async fn one(&self, vm: &str, since: u64, until: u64) -> Result<VmAccount, Failure> {
        if let Self::Daemon(client) = self {
            match client.find(vm).await {
                Ok(found) => {
                    let object = instance(client, &found.path).await?;
                    let text = client
                        .answer_while_alive(object.ledger(since, until, Dict::new()))
                        .await?;
                    let account: Account = understood(&text)?;
                    let vm_account = VmAccount::of(account);
                    return Ok(if found.pod.is_named() || !vm_account.pod.is_named() {
                        VmAccount {
                            pod: found.pod,
                            ..vm_account
                        }
                    } else {
                        vm_account
                    });
                }
                Err(Failure::NoSuchInstance(_)) => {}
                Err(failure) => return Err(failure),
            }
        }
        pick(self.all(since, until).await?, vm)
    }

    /// What checking the ring showed.
    pub(super) async fn verdict(&self) -> Result<Verdict, Failure> {
        match self {
            Self::Daemon(client) => proof::online(client).await,
            Self::Copy(directory) => offline::verdict(directory, &[], None),
        }
    }

    /// The node's public key; empty where it is not known.
    pub(super) async fn key(&self) -> String {
        match self {
            Self::Daemon(client) => proof::key(client).await.map(|key| key.key).unwrap_or_default(),
            Self::Copy(_) => String::new(),
        }
    }
}

/// The proxy of an instance's object.
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
    serde_json::from_str(text).map_err(|cause| {
        Failure::Other(format!(
            "the daemon's answer about the ledger is not understood: {cause}"
        ))
    })
}

async fn of_daemon(client: &Client, pod: &str, since: u64, until: u64) -> Result<Vec<Account>, Failure> {
    let text = client.answer_while_alive(client.manager().ledger(pod, since, until, Dict::new()));
    let text = text.await?;
    // For one VM the text is an object, not a list.
    Ok(if text.trim_start().starts_with('{') {
        vec![understood(&text)?]
    } else {
        understood(&text)?
    })
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
    let accounts = of_daemon(client, "", since, 0).await?.into_iter().map(VmAccount::of);
    let accounts = accounts.filter(|one| selected.is_none_or(|selected| selected.contains(&one.pod.pod_uid)));
    Ok(accounts.map(Brief::of).collect())
}

/// Like [`Client::find`], among VMs that may have ended: if several have one name, only the UID is unambiguous.
///
/// # Errors
/// Nothing fits, or more than one VM does.
fn pick(all: Vec<VmAccount>, asked: &str) -> Result<VmAccount, Failure> {
    let meant = perhaps_meant(asked, all.iter().map(|vm_account| &vm_account.pod));
    let mut fitting = fitting(all, |vm_account| &vm_account.pod, asked);
    if fitting.len() > 1 {
        let uids: Vec<String> = fitting.iter().map(|vm_account| vm_account.pod.in_full()).collect();
        return Err(Failure::Usage(format!(
            "more than one VM of the ledger fits {asked}: {}",
            uids.join(", ")
        )));
    }
    let none = || {
        Failure::NoSuchInstance(format!(
            "{asked} had no CPUs of its own on this node in this time{meant}"
        ))
    };
    let found = fitting.pop().ok_or_else(none)?;
    if let Some(text) = uid_prefix_note(&found.pod, asked) {
        note(&text);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(uid("cc"), Ok("ccc".to_owned()));
        assert_eq!(uid("aaa2"), Ok("aaa2".to_owned()));
        assert_eq!(
            [uid("web"), uid("aaa"), uid("nobody"), uid("")],
            [Err(2), Err(2), Err(3), Err(3)]
        );
        let near = pick(all(), "we").unwrap_err().to_string();
        assert!(near.ends_with("in this time; did you mean t/web?"), "{near}");
        let text = pick(all(), "web").unwrap_err().to_string();
        assert!(text.ends_with("fits web: t/web (aaa1), t/web (aaa2)"), "{text}");
    }

    #[test]
    fn an_answer_of_another_kind_is_not_taken_for_an_empty_account() {
        assert!(understood::<Vec<Account>>("{}").is_err());
        assert!(understood::<Vec<Account>>("[]").is_ok());
    }
}
