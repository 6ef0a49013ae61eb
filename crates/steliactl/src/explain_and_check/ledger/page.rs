//! The report on one VM as a page for the customer: no script, nothing from elsewhere, and a policy that forbids both. A browser's print
//! makes a clean document of it. The page itself is `templates/ledger.html`.

use askama::Template;
use serde::Serialize;
use stelia_ledger::account::Account;
use stelia_ledger::day::{DAY_US, Month};
use stelia_ledger::verdict::{SignedHead, Verdict};

use super::account::VmAccount;
use super::proof;
use super::rows::{self, Row, Section};
use super::source::Source;
use super::when::when;
use crate::shared::daemon::Failure;
use crate::shared::kernel::{Roots, host_name};
use crate::shared::output::{Meaning, counted, now};

/// Months that are drawn, of a longer time the last ones.
const MONTHS: u64 = 13;

/// The account of one VM, and what proves it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Report {
    /// The node's host name; empty where it cannot be read, and of a copy.
    host: String,
    /// When the report was made, microseconds since the epoch.
    made_us: u64,
    #[serde(flatten)]
    vm_account: VmAccount,
    proof: ReportProof,
}

/// What proves the account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct ReportProof {
    /// Whether every line of the ledger was what was written when the report was made, and every signature good.
    good: bool,
    /// What was not.
    faults: u64,
    /// The node's public key, base64; empty where it is not known.
    key: String,
    /// The first signature that covers all of the account, else the last one that there is.
    head: Option<SignedHead>,
    /// Whether that one covers all of the account.
    covers: bool,
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
    let verdict = source.verdict().await?;
    let (key, host) = match source {
        Source::Daemon(client) => {
            let key = proof::key(client).await.map(|key| key.key);
            (key.unwrap_or_default(), host_name(&roots.proc))
        }
        Source::Copy(_) => (String::new(), String::new()),
    };
    Ok(Report::of(vm_account, verdict, key, host, now()))
}

/// The page of an account, for tests in a browser.
///
/// # Errors
/// The page cannot be written.
pub fn page_of(
    account: Account,
    verdict: Verdict,
    key: &str,
    host: &str,
    made_us: u64,
) -> Result<String, askama::Error> {
    Report::of(
        VmAccount::of(account),
        verdict,
        key.to_owned(),
        host.to_owned(),
        made_us,
    )
    .page()
}

impl Report {
    pub(super) fn of(vm_account: VmAccount, verdict: Verdict, key: String, host: String, made_us: u64) -> Self {
        let seq = vm_account.account.seq;
        let bad = verdict.heads.iter().filter(|head| !head.good).count();
        let covering = verdict.heads.iter().find(|head| head.seq >= seq);
        let proof = ReportProof {
            good: proof::is_good(&verdict),
            // A bad signature is a fault too.
            faults: bad.max(verdict.faults.len()) as u64,
            key,
            covers: covering.is_some(),
            head: covering.or(verdict.heads.last()).cloned(),
        };
        Self {
            host,
            made_us,
            vm_account,
            proof,
        }
    }

    pub(super) fn page(&self) -> Result<String, askama::Error> {
        let VmAccount { pod, account } = &self.vm_account;
        let (totals, proof) = (&account.totals, &self.proof);
        let worst = rows::worst_day(&account.days).map(|day| {
            let tasks = rows::range(day.other_tasks);
            let devices = rows::grouped(day.devices);
            format!("{}: other tasks {tasks}, other devices' interrupts {devices}", day.day)
        });
        let kind = if account.is_container { "Container" } else { "VM" };
        let facts = vec![
            (kind, pod.to_string()),
            ("Pod UID", pod.pod_uid.clone()),
            ("Host", self.host.clone()),
            ("Time covered", rows::covered(account.promised_us, account.covered_us)),
            ("Worst day", worst.unwrap_or_default()),
            ("Report made", rows::clock(self.made_us)),
        ];
        let mut keys = vec![
            ("Last entry", account.seq.to_string()),
            ("Its hash", account.hash.clone()),
            ("Node's public key", proof.key.clone()),
        ];
        match &proof.head {
            Some(head) => keys.extend([
                ("Signed", format!("{}, up to entry {}", head.day, head.seq)),
                ("Signed hash", head.hash.clone()),
                ("Signed with", head.key.clone()),
                ("Signature", head.signature.clone()),
            ]),
            None => keys.push(("Signature", "none yet: a day is signed when it is over".to_owned())),
        }
        let is_zero = totals.other_tasks.most == 0 && rows::total(&totals.devices) == 0;
        let look = match (account.covered_us, is_zero) {
            (0, _) => "unknown",
            (_, true) => "zero",
            (_, false) => "some",
        };
        let page = Page {
            vm: pod.to_string(),
            period: rows::between(account.since_us, account.until_us),
            headline: rows::headline(account),
            look,
            facts,
            months: months(account),
            classes: rows::classes(totals),
            sections: rows::sections(account),
            proof,
            faults: counted(proof.faults, "fault"),
            keys,
            account,
        };
        page.render()
    }
}

#[derive(Template)]
#[template(path = "ledger.html")]
struct Page<'a> {
    vm: String,
    period: String,
    headline: String,
    /// The class of the headline.
    look: &'static str,
    facts: Vec<(&'static str, String)>,
    months: Vec<Calendar>,
    classes: Vec<Row>,
    sections: Vec<Section>,
    proof: &'a ReportProof,
    faults: String,
    keys: Vec<(&'static str, String)>,
    account: &'a Account,
}

/// A month as a calendar.
struct Calendar {
    name: String,
    /// From a Monday on.
    days: Vec<Option<DayCell>>,
}

impl Calendar {
    fn weeks(&self) -> impl Iterator<Item = &[Option<DayCell>]> {
        self.days.chunks(7)
    }
}

/// A day, which says by text and shape what its colour says.
struct DayCell {
    number: u64,
    /// The class: `zero` is covered whole and nothing ran, `part` nothing ran in what is covered; `some`, `unknown`, and `outside`, which
    /// was not asked for or is not over yet.
    look: &'static str,
    count: String,
    small: String,
    title: String,
}

/// A calendar for each month that the account touches.
fn months(account: &Account) -> Vec<Calendar> {
    let last = Month::of(account.until_us.saturating_sub(1));
    let first = match account.since_us {
        // The beginning of the ledger files.
        0 => {
            let day = account.days.first();
            day.and_then(|day| day.day.get(..7).and_then(Month::parse))
                .unwrap_or(last)
        }
        since => Month::of(since),
    };
    let first = first.max(last.back(MONTHS - 1));
    let months = std::iter::successors(Some(first), |month| Some(month.next()));
    let months = months.take_while(|month| *month <= last).map(|month| {
        let before = (0..month.first_weekday()).map(|_| None);
        let days = (1..=month.days()).map(|day| Some(cell(day, &month.day(day), account)));
        Calendar {
            name: month.to_string(),
            days: before.chain(days).collect(),
        }
    });
    months.collect()
}

fn cell(number: u64, name: &str, account: &Account) -> DayCell {
    let cell = |look, count: String, small: String, title: String| DayCell {
        number,
        look,
        count,
        small,
        title: format!("{name}: {title}"),
    };
    let begins = when(name, 0).map_or(u64::MAX, |begins| begins.0);
    let is_asked_for = begins < account.until_us && begins.saturating_add(DAY_US) > account.since_us;
    let day = account.days.iter().find(|day| day.day == name);
    let Some(day) = day.filter(|day| day.covered_us > 0 || day.other_tasks.most > 0 || day.devices > 0) else {
        return if day.is_some() || is_asked_for {
            cell(
                "unknown",
                String::new(),
                "no data".to_owned(),
                "no reading covers this day".to_owned(),
            )
        } else {
            cell(
                "outside",
                String::new(),
                String::new(),
                "not part of this report".to_owned(),
            )
        };
    };
    let covered = rows::covered(day.promised_us, day.covered_us);
    let tasks = rows::range(day.other_tasks);
    let devices = rows::grouped(day.devices);
    let title = format!("other tasks {tasks}, interrupts of other devices {devices}, {covered} covered");
    let kinds = match (day.other_tasks.most > 0, day.devices > 0) {
        (true, true) => "both",
        (true, false) => "tasks",
        (false, true) => "devices",
        (false, false) if day.covered_us >= day.promised_us => {
            return cell("zero", "0".to_owned(), String::new(), title);
        }
        (false, false) => return cell("part", "0".to_owned(), format!("{covered} covered"), title),
    };
    let small = if day.covered_us >= day.promised_us {
        kinds.to_owned()
    } else {
        format!("{kinds}, {covered}")
    };
    cell(
        "some",
        short(day.other_tasks.most.saturating_add(day.devices)),
        small,
        title,
    )
}

/// Fits a cell: 5,300,000 is 5.3M; rounded up.
fn short(count: u64) -> String {
    let tenths = |unit: u64, name: char| {
        let tenths = count.div_ceil(unit / 10);
        format!("{}.{}{name}", tenths / 10, tenths % 10)
    };
    match count {
        0..10_000 => rows::grouped(count),
        10_000..1_000_000 => tenths(1_000, 'k'),
        1_000_000..1_000_000_000 => tenths(1_000_000, 'M'),
        _ => tenths(1_000_000_000, 'G'),
    }
}

#[cfg(test)]
mod tests {
    use stelia_ledger::account::Day;

    use super::*;

    #[test]
    fn a_count_fits_its_cell_and_is_not_rounded_down() {
        let counts = [0, 9_999, 10_000, 999_950, 5_300_001, 5_400_000_000];
        assert_eq!(counts.map(short), ["0", "9,999", "10.0k", "1000.0k", "5.4M", "5.4G"]);
    }

    #[test]
    fn a_day_without_a_reading_is_not_called_zero() {
        let october = Month::parse("2026-10").unwrap();
        let mut account = Account {
            since_us: october.begins(),
            until_us: october.begins() + 3 * DAY_US,
            ..Account::default()
        };
        let days = ["2026-10-01", "2026-10-03", "2026-10-04", "2026-09-30"];
        let looks = days.map(|name| cell(1, name, &account).look);
        assert_eq!(looks, ["unknown", "unknown", "outside", "outside"]);
        account.days.push(Day {
            day: "2026-10-02".into(),
            promised_us: 5,
            ..Day::default()
        });
        assert_eq!(cell(2, "2026-10-02", &account).look, "unknown");
    }

    #[test]
    fn a_long_time_is_drawn_by_its_last_months() {
        let account = Account {
            since_us: 1,
            until_us: Month::parse("2026-10").unwrap().begins(),
            ..Account::default()
        };
        let drawn = months(&account);
        assert_eq!(
            (drawn.len() as u64, drawn.last().unwrap().name.as_str()),
            (MONTHS, "2026-09")
        );
        // The picture is bounded, whatever times a ledger claims.
        let absurd = Account {
            since_us: 0,
            until_us: u64::MAX,
            ..account
        };
        assert_eq!(months(&absurd).len(), 1);
    }
}
