//! What is printed of accounts, here and by other commands.

use serde::Serialize;
use stelia_api::attribution::Attribution;
use stelia_ledger::account::{Account, Day, total};

use super::rows::{self, Section};
use crate::shared::daemon::Pod;
use crate::shared::output::{Render, TextStyle, counted, paragraph, printable, properties, table};

/// What the daemon says of a VM, with the names that every answer has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Named<T> {
    #[serde(flatten)]
    pub pod: Pod,
    #[serde(flatten)]
    pub said: T,
}

pub(crate) type VmAccount = Named<Account>;
/// `--watch`: what ran on a VM's CPUs while the kernel was traced.
pub(super) type Watched = Named<Attribution>;

impl VmAccount {
    /// By the name that the ledger has.
    pub(super) fn of(said: Account) -> Self {
        let (namespace, name) = said.name.split_once('/').unwrap_or_default();
        let pod = Pod {
            pod_uid: said.vm.clone(),
            pod_namespace: namespace.to_owned(),
            pod_name: name.to_owned(),
        };
        Self { pod, said }
    }

    /// The sums of the whole time, by the pod's name.
    pub(super) fn sums(&self) -> Day {
        let Account { totals, .. } = &self.said;
        Day {
            day: self.pod.to_string(),
            promised_us: self.said.promised_us,
            covered_us: self.said.covered_us,
            other_tasks: totals.other_tasks,
            devices: total(&totals.devices),
            delay_ns: totals.delay_ns,
        }
    }

    pub(super) fn period(&self) -> String {
        rows::between(self.said.since_us, self.said.until_us)
    }

    /// What to do about a broken guarantee: what names who broke it, if the VM still runs.
    fn fix(&self) -> String {
        let (sums, pod) = (self.sums(), &self.pod);
        let commands = [
            (sums.other_tasks.least, format!("steliactl ledger {pod} --watch 10s")),
            (sums.devices, format!("steliactl noise {pod}")),
        ];
        let fixes = commands
            .into_iter()
            .filter(|(count, _)| *count > 0 && rows::is_broken(&sums));
        fixes.map(|(_, command)| command).collect::<Vec<_>>().join("; ")
    }
}

impl Render for VmAccount {
    fn text(&self, style: TextStyle) -> String {
        let (account, mut parts) = (&self.said, Vec::new());
        if style.legend {
            let (_, word, counts) = rows::guarantee(&self.sums());
            let mut facts = vec![
                ("Guarantee", format!("{word}: {counts}")),
                ("Fix", self.fix()),
                ("Covered", rows::coverage(account)),
                ("Period", format!("{} UTC", self.period())),
                ("Last entry", account.seq.to_string()),
                ("Its hash", account.hash.clone()),
            ];
            facts.retain(|(_, fact)| !fact.is_empty());
            parts.push(paragraph(&printable(&self.pod.in_full()), style) + &properties(facts, style));
        }
        parts.extend(rows::sections(account).iter().map(|one| one.text(style)));
        parts.retain(|part| !part.is_empty());
        parts.join("\n")
    }
}

impl Render for Watched {
    fn text(&self, style: TextStyle) -> String {
        let pod = Some(printable(&self.pod.to_string()) + "\n").filter(|_| style.legend);
        pod.unwrap_or_default() + &rows::ran(&self.said).text(style)
    }
}

impl Section {
    /// Empty if there is nothing in it.
    fn text(&self, style: TextStyle) -> String {
        let missing = self.missing.iter().map(|one| paragraph(&printable(one), style));
        let rows = Some(self.grid.text(style)).filter(|_| !self.grid.rows.is_empty());
        let text: String = rows.into_iter().chain(missing).collect();
        if !style.legend || text.is_empty() {
            return text;
        }
        let about = Some(self.about).filter(|about| !about.is_empty());
        let about = about.map(|about| paragraph(about, style)).unwrap_or_default();
        format!("{}:\n{about}{text}", printable(&self.title))
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
        if let (true, Some(first)) = (style.legend, self.0.first()) {
            let broken = sums.iter().filter(|one| rows::is_broken(one)).count();
            let (all, period) = (counted(sums.len() as u64, "VM"), first.period());
            let next = if broken > 0 { " (steliactl ledger VM)" } else { "" };
            let summary = format!("{broken} of {all} above the guaranteed 0{next}. Counted {period} UTC.");
            text += &format!("\n{}", paragraph(&summary, style));
        }
        text
    }
}
