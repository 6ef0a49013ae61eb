//! An account of one VM, and what is printed of one, of several, and by other commands.

use std::time::Duration;

use serde::Serialize;
use stelia_api::attribution::Attribution;
use stelia_api::client::Dict;
use stelia_ledger::account::{Account, Range};
use zbus::Variant;

use super::rows::{self, Section};
use super::source;
use crate::shared::daemon::{Client, Failure, Pod};
use crate::shared::output::{Render, TextStyle, paragraph, printable, properties, table};

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
            let facts = [
                (
                    "Period",
                    format!("{} UTC", rows::between(account.since_us, account.until_us)),
                ),
                ("Last entry", format!("{}, hash {}", account.seq, account.hash)),
            ];
            let subject = format!("{}\n{}", printable(&self.pod.in_full()), rows::headline(account));
            parts.push(paragraph(&subject, style));
            parts.push(properties(facts, style));
        }
        let sections = rows::sections(account, style.wide);
        parts.extend(sections.iter().filter_map(|one| section(one, style)));
        parts.join("\n")
    }

    fn names(&self) -> Vec<String> {
        vec![self.pod.to_string()]
    }
}

/// `None` if there is nothing in it.
fn section(one: &Section, style: TextStyle) -> Option<String> {
    if one.grid.rows.is_empty() && one.missing.is_empty() {
        return None;
    }
    let mut text = String::new();
    if style.legend {
        text += &format!("{}:\n", printable(&one.title));
    }
    if !one.grid.rows.is_empty() {
        text += &one.grid.text(style);
    }
    for missing in &one.missing {
        text += &paragraph(&printable(missing), style);
    }
    Some(text)
}

/// Those of several VMs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(super) struct All(pub Vec<VmAccount>);

impl Render for All {
    fn text(&self, style: TextStyle) -> String {
        if self.0.is_empty() {
            "No VM had CPUs of its own in this period.\n".to_owned()
        } else {
            table(&rows::ALL, &self.0, style)
        }
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
            devices: rows::total(&account.totals.devices),
            promised_us: account.promised_us,
            covered_us: account.covered_us,
        }
    }

    /// What is above the guaranteed 0. A lower bound of 0 proves nothing, nor does a time that no reading covers.
    pub(crate) fn above_promise(&self) -> Option<String> {
        let tasks = (self.other_tasks.least > 0).then(|| format!("other tasks {}", rows::range(self.other_tasks)));
        let devices = (self.devices > 0).then(|| format!("other devices' interrupts {}", rows::grouped(self.devices)));
        let above: Vec<String> = tasks.into_iter().chain(devices).collect();
        (self.covered_us > 0 && !above.is_empty()).then(|| above.join(", "))
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
    let object = source::instance(client, &found.path).await?;
    let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    let options = Dict::from([("seconds", Variant::from(seconds))]);
    let text = client.answer_while_alive(object.attribute(options)).await?;
    Ok(Watched {
        pod: found.pod,
        attribution: source::understood(&text)?,
    })
}

impl Render for Watched {
    fn text(&self, style: TextStyle) -> String {
        let ran = section(&rows::ran(&self.attribution), style).unwrap_or_default();
        if style.legend {
            format!("{}\n{ran}", printable(&self.pod.to_string()))
        } else {
            ran
        }
    }
}
