//! `ledger`: who ran on the VMs' CPUs, when and for how long, and whether the record of it is what was written.

mod account;
mod html;
mod options;
mod rows;
mod verification;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use stelia_api::client::{Dict, InstanceProxy};
use stelia_api::instance_path;
use stelia_kubelet::PodUid;
use stelia_ledger::account::{Account, accounts};
use stelia_ledger::day::DAY_US;
use stelia_ledger::ring::read;
use stelia_ledger::ring::verify::{Ring, verify};
use stelia_ledger::verdict::Verdict;
use zbus::Variant;
use zbus::proxy::CacheProperties;

use crate::shared::daemon::{Client, Failure, Pod, Pods, VmPattern, is_glob, named_pod, none_among, parse};
use crate::shared::kernel::Roots;
use crate::shared::output::{OutputOptions, now};
use account::{All, VmAccount, Watched};
pub use html::page_of;
use options::About;
pub(crate) use options::LedgerOptions;
use verification::{Key, Verification};

/// The ledger files, below the root directory (systemd's `StateDirectory=` of the daemon).
const FILES: &str = "var/lib/stelia/ledger";

/// Since when and until when, microseconds since the epoch; 0: the beginning of the ledger files, now.
type Period = (u64, u64);

/// Where accounts come from: the daemon, which looks at the counters for it, or copied ledger files, which are read here without one.
pub(crate) enum LedgerReader {
    Daemon(Client),
    Copy(PathBuf),
}

/// Returns what is to be printed.
///
/// # Errors
/// [`Failure::Partial`] where the ledger files have faults, any other [`Failure`] where there is no answer.
pub(crate) async fn run(
    asked: &LedgerOptions,
    client: impl AsyncFnOnce() -> Result<Client, Failure>,
    roots: &Roots,
    output_options: OutputOptions,
) -> Result<String, Failure> {
    let directory = match &asked.about {
        Some(About::Verify { directory, .. }) => directory,
        _ => &asked.directory,
    };
    let reader = match directory {
        Some(directory) => LedgerReader::Copy(directory.clone()),
        None => LedgerReader::Daemon(client().await?),
    };
    let (vm, period) = match (&asked.about, &reader, &asked.vm) {
        (Some(About::Key), LedgerReader::Daemon(client), _) => {
            return output_options.print(&Key::of(client).await?);
        }
        (Some(About::Verify { key, expect, .. }), ..) => {
            return output_options.print(&reader.verification(key, expect.as_ref()).await?);
        }
        (_, _, None) => return output_options.print(&reader.all(asked.period(now())?).await?),
        (_, _, Some(vm)) => (vm, asked.period(now())?),
    };
    match (&reader, asked.watch) {
        (LedgerReader::Daemon(client), Some(time)) => output_options.print(&watch(client, vm.as_str(), time).await?),
        _ if asked.html => html::report(&reader, vm.as_str(), period, roots).await,
        _ if is_glob(vm.as_str()) => output_options.print(&reader.all(period).await?.fitting(vm)?),
        _ => output_options.print(&reader.one(vm.as_str(), period).await?),
    }
}

impl LedgerReader {
    /// The daemon; without one the files below `root`, which only root may read.
    pub(crate) fn of_node(client: Option<&Client>, root: &Path) -> Self {
        client.map_or_else(|| Self::Copy(root.join(FILES)), |client| Self::Daemon(client.clone()))
    }

    /// The accounts of every VM that had exclusive CPUs in this period: the broken guarantees first, then by name.
    pub(crate) async fn all(&self, (since, until): Period) -> Result<All, Failure> {
        let accounts: Vec<Account> = match self {
            Self::Daemon(client) => answered(client, client.manager().ledger("", since, until, Dict::new())).await?,
            Self::Copy(directory) => of_copy(directory, (since, until))?,
        };
        let mut all: Vec<VmAccount> = accounts.into_iter().map(VmAccount::of).collect();
        all.sort_by_cached_key(|one| (!rows::is_broken(&one.sums()), one.pod.to_string()));
        Ok(All(all))
    }

    /// The account of one VM: from its own object, which a pod may also call, or from the ledger files if the VM ended.
    async fn one(&self, vm: &str, period: Period) -> Result<VmAccount, Failure> {
        let Self::Daemon(client) = self else {
            return self.all(period).await?.one(vm);
        };
        let found = match client.find(vm).await {
            Err(Failure::NoSuchInstance(_)) => return self.all(period).await?.one(vm),
            found => found?,
        };
        let object = instance(client, &found.instance.pod).await?;
        let mut account: Account = answered(client, object.ledger(period.0, period.1, Dict::new())).await?;
        account.vm = found.pod.pod_uid.clone();
        if found.pod.is_named() {
            account.name = found.pod.to_string();
        }
        Ok(VmAccount::of(account))
    }

    /// Whether the ledger files are what was written. `keys` are those that signatures of a copy must be of; without any, those that it names.
    /// `expected` is an entry's number and hash that are known from elsewhere.
    pub(crate) async fn verification(
        &self,
        keys: &[String],
        expected: Option<&(u64, String)>,
    ) -> Result<Verification, Failure> {
        let verdict = match self {
            Self::Daemon(client) => answered(client, client.manager().verify_ledger(Dict::new())).await?,
            Self::Copy(directory) => verdict(directory, keys, expected)?,
        };
        Ok(Verification(verdict))
    }
}

impl All {
    /// Like [`Client::find`], among VMs that may have ended: if several have one name, only the UID is unambiguous.
    fn one(self, asked: &str) -> Result<VmAccount, Failure> {
        let pods = self.0.iter().map(|one| one.pod.clone()).collect();
        let pod = named_pod(&pods, asked)?;
        let found = self.0.into_iter().find(|one| one.pod == pod);
        found.ok_or_else(|| none_among(asked, []))
    }

    /// Those whose VM fits a pattern.
    fn fitting(self, pattern: &VmPattern) -> Result<Self, Failure> {
        let is_selected = |one: &VmAccount| one.pod.fits(pattern, &Pods::default());
        let (fitting, others): (Vec<_>, Vec<_>) = self.0.into_iter().partition(is_selected);
        if fitting.is_empty() {
            return Err(none_among(pattern.as_str(), others.iter().map(|one| &one.pod)));
        }
        Ok(Self(fitting))
    }
}

/// The last 24 hours.
pub(crate) fn last_24_hours() -> Period {
    (now().saturating_sub(DAY_US), 0)
}

/// What ran in the last 24 hours above the guaranteed 0, by VM; of these VMs or all.
///
/// # Errors
/// The daemon cannot read the ledger, or does not answer.
pub(super) async fn above_guarantee(
    client: &Client,
    selected: Option<&BTreeSet<String>>,
) -> Result<Vec<(Pod, String)>, Failure> {
    let All(all) = LedgerReader::Daemon(client.clone()).all(last_24_hours()).await?;
    let has = |one: &&VmAccount| selected.is_none_or(|selected| selected.contains(&one.pod.pod_uid));
    let sums = all.iter().filter(has).map(|one| (one.pod.clone(), one.sums()));
    let broken = sums.filter(|(_, sums)| rows::is_broken(sums));
    Ok(broken.map(|(pod, sums)| (pod, rows::counts(&sums))).collect())
}

/// What runs on a VM's CPUs for this long.
///
/// # Errors
/// No such VM, or the kernel's tracing cannot be used.
async fn watch(client: &Client, vm: &str, time: Duration) -> Result<Watched, Failure> {
    let found = client.find(vm).await?;
    let object = instance(client, &found.instance.pod).await?;
    let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    let options = Dict::from([("seconds", Variant::from(seconds))]);
    let said = answered(client, object.attribute(options)).await?;
    let pod = found.pod;
    Ok(Watched { pod, said })
}

/// The proxy of a VM's object.
async fn instance(client: &Client, pod: &PodUid) -> Result<InstanceProxy<'static>, Failure> {
    let proxy = InstanceProxy::builder(client.connection()).cache_properties(CacheProperties::No);
    Ok(proxy.path(instance_path(pod)).build().await?)
}

/// A JSON answer of the daemon, which may take long.
async fn answered<T: DeserializeOwned>(
    client: &Client,
    call: impl Future<Output = zbus::Result<String>>,
) -> Result<T, Failure> {
    parse("Ledger", &client.answer_while_alive(call).await?)
}

/// The accounts of all VMs in copied ledger files.
///
/// # Errors
/// The folder cannot be read, has no ledger files, or a line or a signature is not what was written: of a part no account is made.
fn of_copy(directory: &Path, (since, until): Period) -> Result<Vec<Account>, Failure> {
    let mut fault = verdict(directory, &[], None)?.faults.into_iter().next();
    let entries = read::entries(directory, Some(since)).map_err(|cause| Failure::Other(cause.to_string()))?;
    let good = entries.map_while(|next| next.map_err(|found| fault = Some(found)).ok());
    let made = accounts(good, since, if until == 0 { now() } else { until }, None);
    if let Some(fault) = fault {
        let fix = "list all faults: steliactl ledger verify --directory";
        let text = format!("{fault}: no account is made of it ({fix})");
        return Err(Failure::about(directory, &text));
    }
    Ok(made.into_values().collect())
}

/// # Errors
/// The folder cannot be read, or has no ledger files.
fn verdict(directory: &Path, keys: &[String], expected: Option<&(u64, String)>) -> Result<Verdict, Failure> {
    let expected = expected.map(|(seq, hash)| (*seq, hash.as_str()));
    let verdict = verify(Ring::Directory(directory), keys, expected);
    let verdict = verdict.map_err(|cause| Failure::Other(cause.to_string()))?;
    if verdict.segments == 0 {
        return Err(Failure::about(directory, &"no ledger files here (NUMBER.ledger)"));
    }
    Ok(verdict)
}
