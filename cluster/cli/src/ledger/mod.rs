//! `ledger`: the accounts of a VM in the copied ledgers of several nodes, merged into one, with what is missing.

mod missing;
mod rings;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde::Serialize;
use stelia_ledger::account::{Account, Day, MergedAccount, NodeAccount, grouped, share, total};
use stelia_ledger::day::{DAY_US, day};
use stelia_table::{Column, Meaning, Render, TextStyle, column, counted, printable, properties, table};

use crate::reasons::{Refusal, groups, table_of};
use crate::vms::Pattern;
pub use rings::{NodeKey, RingCopy, of_argument};

/// The account of a VM, merged.
#[derive(Debug, Clone, Serialize)]
pub struct Ledger {
    /// The period, microseconds since the epoch.
    pub since_us: u64,
    pub until_us: u64,
    #[serde(flatten)]
    pub merged: MergedAccount,
    pub rings: Vec<RingCopy>,
    /// What is not in the sums, or may not be, as sentences.
    pub missing: Vec<String>,
}

/// The columns of the parts: of each the account of one pod on one node.
pub const COLUMNS: [Column<NodeAccount>; 9] = [
    column("NODE", |part: &NodeAccount| part.node.clone())
        .yields(1)
        .shortens(),
    column("POD", |part: &NodeAccount| printable(&part.account.name))
        .yields(1)
        .shortens(),
    column("POD UID", |part: &NodeAccount| printable(&part.account.vm)).wide(),
    column("FIRST DAY", |part: &NodeAccount| {
        days_with(part).next().unwrap_or_default()
    })
    .whole(),
    column("LAST DAY", |part: &NodeAccount| {
        days_with(part).next_back().unwrap_or_default()
    })
    .whole(),
    amount("CPU HOURS", |part| hours(part.account.promised_us)),
    amount("COVERED", |part| {
        share(part.account.promised_us, part.account.covered_us)
    }),
    amount("OTHER TASKS", |part| part.account.totals.other_tasks.to_string())
        .means(|part| zero(part.account.totals.other_tasks.most)),
    amount("OTHER DEVICES", |part| grouped(total(&part.account.totals.devices)))
        .means(|part| zero(total(&part.account.totals.devices))),
];

const fn amount(heading: &'static str, cell: fn(&NodeAccount) -> String) -> Column<NodeAccount> {
    column(heading, cell).right().whole()
}

/// The days on which the pod had CPUs of its own.
fn days_with(part: &NodeAccount) -> impl DoubleEndedIterator<Item = String> {
    let days = part.account.days.iter().filter(|day| day.promised_us > 0);
    days.map(|day| day.day.clone())
}

const DAYS: [Column<Day>; 5] = [
    column("DAY", |day: &Day| day.day.clone()),
    column("CPU HOURS", |day: &Day| hours(day.promised_us)).right(),
    column("COVERED", |day: &Day| share(day.promised_us, day.covered_us)).right(),
    column("OTHER TASKS", |day: &Day| day.other_tasks.to_string()).right(),
    column("OTHER DEVICES", |day: &Day| grouped(day.devices)).right(),
];

fn zero(count: u64) -> Meaning {
    match count {
        0 => Meaning::Good,
        _ => Meaning::Attention,
    }
}

/// With one digit behind the point.
fn hours(us: u64) -> String {
    let tenths = us / 360_000_000;
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// `2026-10-31 12:05`.
fn clock(us: u64) -> String {
    let minutes = us % DAY_US / 60_000_000;
    format!("{} {:02}:{:02}", day(us), minutes / 60, minutes % 60)
}

/// `namespace/name`, or a name whose namespace is not known.
fn name_of(account: &Account) -> (&str, &str) {
    account.name.split_once('/').unwrap_or(("", account.name.as_str()))
}

fn is_of(pattern: &Pattern, account: &Account) -> bool {
    let (namespace, name) = name_of(account);
    pattern.fits(namespace, name, &account.vm)
}

fn fits(patterns: &[Pattern], account: &Account) -> bool {
    patterns.iter().any(|pattern| is_of(pattern, account))
}

/// Whether a ring has a VM that a pattern fits.
pub fn has_vm(rings: &[RingCopy], patterns: &[Pattern]) -> bool {
    let mut accounts = rings.iter().flat_map(|ring| &ring.accounts);
    accounts.any(|account| fits(patterns, account))
}

/// Why one of the patterns may mean VMs of several tenants: it has no namespace and no wildcard, and fits pods of several namespaces.
pub fn ambiguous(rings: &[RingCopy], patterns: &[Pattern]) -> Option<String> {
    patterns.iter().find_map(|pattern| {
        let named = pattern.bare()?;
        let accounts = rings.iter().flat_map(|ring| &ring.accounts);
        let fitting = accounts.filter(|account| is_of(pattern, account));
        let namespaces: BTreeSet<&str> = fitting.map(|account| name_of(account).0).collect();
        let mut namespaces = namespaces.into_iter().filter(|namespace| !namespace.is_empty());
        let (one, two) = (namespaces.next()?, namespaces.next()?);
        let such = format!("{named} is in several namespaces, such as {one} and {two}");
        Some(format!("{such}: give NAMESPACE/NAME or the whole UID"))
    })
}

/// Limit of the causes that are named.
const MAX_CAUSES: usize = 3;

/// That no ring has a VM in a period, and why rings are not counted: the VM may be in those.
pub fn absent(rings: &[RingCopy], period: (u64, u64)) -> String {
    let problems = rings.iter().filter_map(|ring| {
        let place = format!("{} ({})", ring.node, ring.directory.display());
        Some((place, Refusal::new(ring.problem.clone()?, "")))
    });
    let problems: Vec<(String, Refusal)> = problems.collect();
    let causes = groups(problems.iter().map(|(place, problem)| (place.as_str(), problem)));
    let mut text = match causes.as_slice() {
        [] => "no ring has such a VM".to_owned(),
        _ => "no counted ring has such a VM".to_owned(),
    };
    if period != (0, u64::MAX) {
        text += &format!(" {}", in_words(period));
    }
    let named = causes.iter().take(MAX_CAUSES);
    text.extend(named.map(|cause| format!("; {}: {}", cause.such_as(), cause.reason)));
    let more: u64 = causes.iter().skip(MAX_CAUSES).map(|cause| cause.nodes).sum();
    if more > 0 {
        text += &format!("; {} not counted for other causes", counted(more, "more ring"));
    }
    text
}

/// `2026-10-01 00:00 to 2026-11-01 00:00 (UTC)`.
fn in_words((since_us, until_us): (u64, u64)) -> String {
    match (since_us, until_us) {
        (0, until) => format!("until {} (UTC)", clock(until)),
        (since, until) => format!("from {} to {} (UTC)", clock(since), clock(until)),
    }
}

impl Ledger {
    /// The account of the VMs that a pattern fits. `now_us` bounds a period that has not ended.
    pub fn of(rings: Vec<RingCopy>, patterns: &[Pattern], (since_us, until_us): (u64, u64), now_us: u64) -> Self {
        let of_ring = |ring: &RingCopy| {
            let fitting = ring.accounts.iter().filter(|account| fits(patterns, account));
            let parts = fitting.map(|account| NodeAccount {
                node: ring.node.clone(),
                directory: ring.directory.display().to_string(),
                // The realtime clock may have been set back.
                from_us: ring.verdict.first_us.min(ring.verdict.last_us),
                until_us: ring.verdict.last_us.max(ring.verdict.first_us),
                account: account.clone(),
            });
            parts.collect::<Vec<_>>()
        };
        let until_us = until_us.min(now_us);
        let found: Vec<NodeAccount> = rings.iter().flat_map(of_ring).collect();
        let mut ledger = Self {
            since_us,
            until_us,
            merged: MergedAccount::of(found, since_us, until_us),
            rings,
            missing: Vec::new(),
        };
        ledger.missing = missing::sentences(&ledger);
        ledger
    }
}

impl Render for Ledger {
    fn text(&self, style: TextStyle) -> String {
        let merged = &self.merged;
        let nodes: BTreeSet<&str> = merged.parts.iter().map(|part| part.node.as_str()).collect();
        let pods: BTreeSet<&str> = merged.parts.iter().map(|part| part.account.vm.as_str()).collect();
        let delay_ms = merged.totals.delay_ns / 1_000_000;
        let (all, read) = (hours(merged.promised_us), share(merged.promised_us, merged.covered_us));
        // A share of what the rings have says nothing about what they lack.
        let lack = if self.missing.is_empty() {
            ""
        } else {
            "; more may be missing, as below"
        };
        let nodes = counted(nodes.len() as u64, "node");
        let lines = [
            ("Period", in_words((self.since_us, self.until_us))),
            ("Pods", format!("{} on {nodes}", pods.len())),
            ("CPU hours", format!("{all}, {read} with readings{lack}")),
            ("Other tasks", merged.totals.other_tasks.to_string()),
            ("Other devices", grouped(total(&merged.totals.devices))),
            ("Lost at most", format!("{}.{:03} s", delay_ms / 1000, delay_ms % 1000)),
        ];
        let mut parts = vec![properties(lines, style), table(&COLUMNS, &merged.parts, style)];
        if style.wide {
            parts.push(table(&DAYS, &merged.days, style));
        }
        let notes = missing::notes(self);
        let reasons = notes.iter().map(|note| (note.place.as_str(), &note.reason));
        parts.push(table_of(&groups(reasons), "RINGS", style));
        parts.retain(|part| !part.is_empty());
        parts.join("\n")
    }

    fn failure(&self) -> Option<String> {
        let wrong = self.rings.iter().filter(|ring| ring.problem.is_some()).count();
        (wrong > 0).then(|| format!("{wrong} of {} rings cannot be counted", self.rings.len()))
    }
}
