//! The report on one VM as a page for the customer: no script, nothing from elsewhere, and a policy that forbids both. A browser's print
//! makes a clean document of it. The page itself is `templates/ledger.html`.

use askama::Template;
use stelia_ledger::account::Account;
use stelia_ledger::verdict::{SignedHead, Verdict};

use super::account::VmAccount;
use super::rows::{self, Section};
use super::verification::{self, Key, Verification};
use super::{LedgerReader, Period};
use crate::shared::daemon::Failure;
use crate::shared::kernel::{Roots, host_name};
use crate::shared::located::clock;
use crate::shared::output::{Meaning, now};

/// What the template writes.
#[derive(Template)]
#[template(path = "ledger.html")]
struct Page<'a> {
    /// Empty where it cannot be read, and of a copy.
    host: &'a str,
    made: String,
    one: &'a VmAccount,
    /// The class of the headline, and what it says of the guarantee.
    guarantee: (&'static str, &'static str, String),
    sections: Vec<Section>,
    verdict: &'a Verdict,
    /// The node's public key, base64; empty where it is not known.
    key: &'a str,
    /// The first signature that covers all of the account, else the last one that there is.
    signed: Option<&'a SignedHead>,
}

/// The page about a VM.
pub(super) async fn report(reader: &LedgerReader, vm: &str, period: Period, roots: &Roots) -> Result<String, Failure> {
    let account = reader.one(vm, period).await?.said;
    let Verification(verdict) = reader.verification(&[], None).await?;
    let (key, host) = match reader {
        LedgerReader::Daemon(client) => (Key::of(client).await.ok(), host_name(&roots.proc)),
        LedgerReader::Copy(_) => Default::default(),
    };
    let page = page_of(account, &verdict, &key.unwrap_or_default().key, &host, now());
    page.map_err(|cause| Failure::Other(format!("write the report: {cause}")))
}

/// The page of an account.
pub fn page_of(account: Account, verdict: &Verdict, key: &str, host: &str, made_us: u64) -> askama::Result<String> {
    let one = &VmAccount::of(account);
    let mut sections = rows::sections(&one.said);
    sections.insert(1, rows::days(&one.said));
    let covering = verdict.heads.iter().find(|head| head.seq >= one.said.seq);
    let page = Page {
        host,
        made: clock(made_us),
        one,
        guarantee: rows::guarantee(&one.sums()),
        sections,
        verdict,
        key,
        signed: covering.or(verdict.heads.last()),
    };
    page.render()
}
