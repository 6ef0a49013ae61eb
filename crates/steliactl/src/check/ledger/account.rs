//! What is printed of accounts, here and by other commands.

use std::time::Duration;

use serde::Serialize;
use stelia_api::attribution::Attribution;
use stelia_api::client::Dict;
use stelia_ledger::account::{Account, Day, total};
use zbus::Variant;

use super::rows::{self, Section};
use super::{answered, instance};
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
        let pod = Pod {
            pod_uid: account.vm.clone(),
            pod_namespace: namespace.to_owned(),
            pod_name: name.to_owned(),
        };
        Self { pod, account }
    }

    /// What names who broke the guarantee, if the VM still runs.
    fn fixes(&self) -> Option<(&'static str, String)> {
        let (sums, pod) = (self.sums(), &self.pod);
        let tasks = (sums.other_tasks.least > 0).then(|| format!("steliactl ledger {pod} --watch 10s"));
        let devices = (sums.devices > 0).then(|| format!("steliactl noise {pod}"));
        let fixes: Vec<String> = tasks.into_iter().chain(devices).collect();
        rows::is_broken(&sums).then(|| ("Fix", fixes.join("; ")))
    }

    /// The sums of the whole time, by the pod's name.
    pub(super) fn sums(&self) -> Day {
        let Account { totals, .. } = &self.account;
        Day {
            day: self.pod.to_string(),
            promised_us: self.account.promised_us,
            covered_us: self.account.covered_us,
            other_tasks: totals.other_tasks,
            devices: total(&totals.devices),
            delay_ns: totals.delay_ns,
        }
    }
}

impl Render for VmAccount {
    fn text(&self, style: TextStyle) -> String {
        let account = &self.account;
        let mut parts = Vec::new();
        if style.legend {
            let period = rows::between(account.since_us, account.until_us);
            let (_, word, counts) = rows::guarantee(&self.sums());
            let mut facts = vec![("Guarantee", format!("{word}: {counts}"))];
            facts.extend(self.fixes());
            facts.extend(rows::coverage(account));
            facts.push(("Period", format!("{period} UTC")));
            facts.push(("Last entry", account.seq.to_string()));
            facts.push(("Its hash", account.hash.clone()));
            parts.push(paragraph(&printable(&self.pod.in_full()), style) + &properties(facts, style));
        }
        let sections = rows::sections(account);
        parts.extend(sections.iter().map(|one| one.text(style)));
        parts.retain(|part| !part.is_empty());
        parts.join("\n")
    }

    fn names(&self) -> Vec<String> {
        vec![self.pod.to_string()]
    }
}

impl Section {
    /// Empty if there is nothing in it.
    fn text(&self, style: TextStyle) -> String {
        let missing = self.missing.iter().map(|one| paragraph(&printable(one), style));
        let mut text = missing.collect::<String>();
        if !self.grid.rows.is_empty() {
            text.insert_str(0, &self.grid.text(style));
        }
        if style.legend && !text.is_empty() {
            let about = Some(self.about).filter(|about| !about.is_empty());
            let about = about.map(|about| paragraph(about, style)).unwrap_or_default();
            text.insert_str(0, &format!("{}:\n{about}", printable(&self.title)));
        }
        text
    }
}

/// Those of several VMs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct All(pub Vec<VmAccount>);

impl Render for All {
    fn text(&self, style: TextStyle) -> String {
        let sums: Vec<Day> = self.0.iter().map(VmAccount::sums).collect();
        if sums.is_empty() {
            return "No VM had CPUs of its own in this period.\n".to_owned();
        }
        let mut text = table(&rows::SUMS, &sums, style);
        if let (true, [VmAccount { account, .. }, ..]) = (style.legend, self.0.as_slice()) {
            let broken = sums.iter().filter(|one| rows::is_broken(one)).count();
            let (all, period) = (
                counted(sums.len() as u64, "VM"),
                rows::between(account.since_us, account.until_us),
            );
            let next = if broken > 0 { " (steliactl ledger VM)" } else { "" };
            let summary = format!("{broken} of {all} above the guaranteed 0{next}. Counted {period} UTC.");
            text += &format!("\n{}", paragraph(&summary, style));
        }
        text
    }

    fn names(&self) -> Vec<String> {
        self.0.iter().map(|one| one.pod.to_string()).collect()
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
    let options = Dict::from([("seconds", Variant::from(seconds))]);
    let attribution = answered(client, object.attribute(options)).await?;
    let pod = found.pod;
    Ok(Watched { pod, attribution })
}

impl Render for Watched {
    fn text(&self, style: TextStyle) -> String {
        let pod = printable(&self.pod.to_string()) + "\n";
        let ran = rows::ran(&self.attribution).text(style);
        if style.legend { pod + &ran } else { ran }
    }
}
