//! The report of one VM: its account, and what proves it.

use serde::Serialize;
use stelia_ledger::account::Account;
use stelia_ledger::verdict::{SignedHead, Verdict};

use super::query::Source;
use super::{VmAccount, html, proof};
use crate::shared::daemon::Failure;
use crate::shared::kernel::Roots;
use crate::shared::kernel::host_name;
use crate::shared::output::now;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Report {
    /// The node's host name; empty where it cannot be read, and of a copied ring.
    pub host: String,
    /// When the report was made, microseconds since the epoch.
    pub made_us: u64,
    #[serde(flatten)]
    pub vm_account: VmAccount,
    pub proof: ReportProof,
}

/// What proves the account.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct ReportProof {
    /// Whether every line of the ring was what was written when the report was made, and every signature good.
    pub good: bool,
    /// What was not.
    pub faults: u64,
    /// The node's public key, base64; empty where it is not known.
    pub key: String,
    /// The first signed head that covers all of the account, else the last one that there is.
    pub head: Option<SignedHead>,
    /// Whether that head covers all of the account.
    pub covers: bool,
}

impl ReportProof {
    fn of(verdict: Verdict, key: String, seq: u64) -> Self {
        let good = proof::is_good(&verdict);
        let bad = verdict.heads.iter().filter(|head| !head.good).count();
        // A bad head is a fault too.
        let bad = bad.max(verdict.faults.len());
        let heads = verdict.heads;
        let covering = heads.iter().find(|head| head.seq >= seq).cloned();
        Self {
            good,
            faults: bad as u64,
            key,
            covers: covering.is_some(),
            head: covering.or_else(|| heads.last().cloned()),
        }
    }
}

/// # Errors
/// No such VM, or there is no answer.
pub(super) async fn gather(
    source: &Source<'_>,
    vm: &str,
    since: u64,
    until: u64,
    roots: &Roots,
) -> Result<Report, Failure> {
    let vm_account = source.one(vm, since, until).await?;
    let proof = ReportProof::of(source.verdict().await?, source.key().await, vm_account.account.seq);
    Ok(Report {
        host: match source {
            Source::Daemon(_) => host_name(&roots.proc),
            Source::Copy(_) => String::new(),
        },
        made_us: now(),
        vm_account,
        proof,
    })
}

/// The page of an account, for tests in a browser.
pub fn page_of(account: Account, verdict: Verdict, key: &str, host: &str, made_us: u64) -> String {
    html::page(&of(account, verdict, key, host, made_us))
}

pub(super) fn of(account: Account, verdict: Verdict, key: &str, host: &str, made_us: u64) -> Report {
    let proof = ReportProof::of(verdict, key.to_owned(), account.seq);
    Report {
        host: host.to_owned(),
        made_us,
        vm_account: VmAccount::of(account),
        proof,
    }
}
