//! What is printed of accounts, here and by other commands.

use std::time::Duration;

use serde::Serialize;
use stelia_api::attribution::Attribution;
use stelia_api::client::Dict;
use stelia_ledger::account::{Account, Range, total};
use zbus::Variant;

use super::rows::{self, Section};
use super::{instance, understood};
use crate::shared::daemon::{Client, Failure, Pod};
use crate::shared::output::{Render, TextStyle, counted, paragraph, printable, properties, table};

/// A VM's account, with the names that every answer has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct VmAccount {
    #[serde(flatten)]
    pub pod: Pod,
    #[serde(flatten)]
    pub account: Account,
}

impl VmAccount {
    /// By the name that the ledger has.
    pub(super) fn of(account: Account) -> Self {
        let (namespace, name) = account.name.split_once('/').unwrap_or_default();
        Self {
            pod: Pod {
                pod_uid: account.vm.clone(),
                pod_namespace: namespace.to_owned(),
                pod_name: name.to_owned(),
            },
            account,
        }
    }
}

impl Render for VmAccount {
    fn text(&self, style: TextStyle) -> String {
        let account = &self.account;
        let mut parts = Vec::new();
        if style.legend {
            let mut facts = vec![("Guarantee", rows::guarantee(account).1)];
            facts.extend(rows::facts(account));
            facts.push((
                "Period",
                format!("{} UTC", rows::between(account.since_us, account.until_us)),
            ));
            facts.push(("Last entry", account.seq.to_string()));
            facts.push(("Its hash", account.hash.clone()));
            parts.push(paragraph(&printable(&self.pod.in_full()), style) + &properties(facts, style));
        }
        let sections = rows::sections(account, style.wide);
        parts.extend(
            sections
                .iter()
                .map(|one| one.text(style))
                .filter(|text| !text.is_empty()),
        );
        parts.join("\n")
    }

    fn names(&self) -> Vec<String> {
        vec![self.pod.to_string()]
    }
}

impl Section {
    /// Empty if there is nothing in it.
    fn text(&self, style: TextStyle) -> String {
        if self.grid.rows.is_empty() && self.missing.is_empty() {
            return String::new();
        }
        let title = format!("{}:\n", printable(&self.title));
        let mut text = if style.legend { title } else { String::new() };
        if !self.grid.rows.is_empty() {
            text += &self.grid.text(style);
        }
        let missing = self.missing.iter().map(|one| paragraph(&printable(one), style));
        text + &missing.collect::<String>()
    }
}

/// Those of several VMs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct All(pub Vec<VmAccount>);

impl Render for All {
    fn text(&self, style: TextStyle) -> String {
        let Self(all) = self;
        if all.is_empty() {
            return "No VM had CPUs of its own in this period.\n".to_owned();
        }
        let mut text = table(&rows::ALL, all, style);
        let broken = all.iter().filter(|one| rows::is_broken(&one.account)).count();
        if style.legend && broken > 0 {
            let all = counted(all.len() as u64, "VM");
            text += &format!("\n{all}, {broken} with a broken guarantee.  steliactl ledger VM\n");
        }
        text
    }

    fn names(&self) -> Vec<String> {
        self.0.iter().map(|one| one.pod.to_string()).collect()
    }
}

/// What other commands show of an account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Brief {
    #[serde(flatten)]
    pub pod: Pod,
    pub other_tasks: Range,
    /// Interrupts of other devices.
    pub devices: u64,
    pub promised_us: u64,
    pub covered_us: u64,
}

impl Brief {
    pub(super) fn of(VmAccount { pod, account }: VmAccount) -> Self {
        Self {
            pod,
            other_tasks: account.totals.other_tasks,
            devices: total(&account.totals.devices),
            promised_us: account.promised_us,
            covered_us: account.covered_us,
        }
    }

    /// What is above the guaranteed 0. A lower bound of 0 proves nothing, nor does a time that no reading covers.
    pub(crate) fn above_promise(&self) -> Option<String> {
        let is_above = self.covered_us > 0 && (self.other_tasks.least > 0 || self.devices > 0);
        is_above.then(|| rows::counts(self.other_tasks, self.devices))
    }
}

/// `--watch`: what ran on a VM's CPUs while the kernel was traced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Watched {
    #[serde(flatten)]
    pub pod: Pod,
    #[serde(flatten)]
    pub attribution: Attribution,
}

/// Answers when the time is over.
///
/// # Errors
/// No such VM, or the kernel's tracing cannot be used.
pub(super) async fn watch(client: &Client, vm: &str, time: Duration) -> Result<Watched, Failure> {
    let found = client.find(vm).await?;
    let object = instance(client, &found.path).await?;
    let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    let answer = object.attribute(Dict::from([("seconds", Variant::from(seconds))]));
    Ok(Watched {
        pod: found.pod,
        attribution: understood(&client.answer_while_alive(answer).await?)?,
    })
}

impl Render for Watched {
    fn text(&self, style: TextStyle) -> String {
        let ran = rows::ran(&self.attribution).text(style);
        if style.legend {
            format!("{}\n{ran}", printable(&self.pod.to_string()))
        } else {
            ran
        }
    }
}
