//! The report on one VM as a page for the customer: no script, nothing from elsewhere, and a policy that forbids both. A browser's print
//! makes a clean document of it. The page itself is `templates/ledger.html`.

use askama::Template;
use stelia_ledger::account::{Account, Day};
use stelia_ledger::day::{DAY_US, Month};
use stelia_ledger::verdict::{SignedHead, Verdict};

use super::account::VmAccount;
use super::rows::{self, Section};
use super::source::Source;
use super::{proof, when};
use crate::shared::daemon::{Failure, Pod};
use crate::shared::kernel::{Roots, host_name};
use crate::shared::output::{Meaning, counted, now};

/// Months that are drawn, of a longer time the last ones.
const MONTHS: u64 = 13;

/// What the template writes.
#[derive(Template)]
#[template(path = "ledger.html")]
struct Page<'a> {
    /// Empty where it cannot be read, and of a copy.
    host: &'a str,
    made_us: u64,
    pod: &'a Pod,
    account: &'a Account,
    period: String,
    months: Vec<Calendar<'a>>,
    sections: Vec<Section>,
    /// What is wrong with the ledger; empty: nothing.
    faults: String,
    /// The node's public key, base64; empty where it is not known.
    key: &'a str,
    /// The first signature that covers all of the account, else the last one that there is.
    signed: Option<&'a SignedHead>,
}

/// # Errors
/// No such VM, or there is no answer.
pub(super) async fn html(
    source: &Source<'_>,
    vm: &str,
    (since, until): (u64, u64),
    roots: &Roots,
) -> Result<String, Failure> {
    let account = source.one(vm, since, until).await?;
    let verdict = source.verdict().await?;
    let (key, host) = match source {
        Source::Daemon(client) => {
            let key = proof::key(client).await.map(|key| key.key);
            (key.unwrap_or_default(), host_name(&roots.proc))
        }
        Source::Copy(_) => Default::default(),
    };
    let page = page(&account, &verdict, &key, &host, now());
    page.map_err(|cause| Failure::Other(format!("write the report: {cause}")))
}

/// The page of an account, for tests in a browser.
///
/// # Errors
/// The page cannot be written.
pub fn page_of(account: Account, verdict: &Verdict, key: &str, host: &str, made_us: u64) -> askama::Result<String> {
    page(&VmAccount::of(account), verdict, key, host, made_us)
}

fn page(one: &VmAccount, verdict: &Verdict, key: &str, host: &str, made_us: u64) -> askama::Result<String> {
    let VmAccount { pod, account } = one;
    let bad = verdict.heads.iter().filter(|head| !head.good).count();
    // A bad signature is a fault too.
    let faults = match bad.max(verdict.faults.len()) as u64 {
        0 => String::new(),
        faults => counted(faults, "fault"),
    };
    let covering = verdict.heads.iter().find(|head| head.seq >= account.seq);
    let page = Page {
        host,
        made_us,
        pod,
        account,
        period: rows::between(account.since_us, account.until_us),
        months: months(account),
        sections: rows::sections(account, false),
        faults,
        key,
        signed: covering.or(verdict.heads.last()),
    };
    page.render()
}

impl Page<'_> {
    /// The class of the headline.
    fn look(&self) -> &'static str {
        let totals = &self.account.totals;
        match (
            self.account.covered_us,
            totals.other_tasks.most,
            rows::total(&totals.devices),
        ) {
            (0, ..) => "unknown",
            (_, 0, 0) => "zero",
            _ => "some",
        }
    }

    fn covered(&self) -> String {
        rows::covered(self.account.promised_us, self.account.covered_us)
    }

    fn worst(&self) -> Option<String> {
        let day = rows::worst_day(&self.account.days)?;
        Some(format!("{}: {}", day.day, rows::counts(day.other_tasks, day.devices)))
    }

    fn made(&self) -> String {
        rows::clock(self.made_us)
    }
}

/// A month as a calendar, from a Monday on.
struct Calendar<'a> {
    name: String,
    cells: Vec<Option<Cell<'a>>>,
}

/// A day, which says by text and shape what its colour says.
struct Cell<'a> {
    number: u64,
    name: String,
    /// The class: `zero` is covered whole and nothing ran; `part`: nothing ran in what is covered; `some`; `unknown`; `outside`: not asked
    /// for, or not over yet.
    look: &'static str,
    /// `None`: no reading covers it.
    day: Option<&'a Day>,
}

impl Cell<'_> {
    fn title(&self) -> String {
        match (self.day, self.look) {
            (None, "outside") => format!("{}: not part of this report", self.name),
            (None, _) => format!("{}: no reading covers this day", self.name),
            (Some(day), _) => {
                let counts = rows::counts(day.other_tasks, day.devices);
                let covered = rows::covered(day.promised_us, day.covered_us);
                format!("{}: {counts}, {covered} covered", self.name)
            }
        }
    }

    fn count(&self) -> String {
        let day = self.day;
        day.map_or(String::new(), |day| {
            short(day.other_tasks.most.saturating_add(day.devices))
        })
    }

    /// What ran, and how much is covered.
    fn small(&self) -> String {
        let kinds = match self.day.map(|day| (day.other_tasks.most > 0, day.devices > 0)) {
            None if self.look == "unknown" => "no data",
            None | Some((false, false)) => "",
            Some((true, true)) => "both",
            Some((true, false)) => "tasks",
            Some((false, true)) => "devices",
        };
        let part = self.day.filter(|day| day.covered_us < day.promised_us);
        let part = part.map(|day| rows::covered(day.promised_us, day.covered_us));
        let texts = [kinds.to_owned(), part.unwrap_or_default()];
        let texts: Vec<String> = texts.into_iter().filter(|text| !text.is_empty()).collect();
        texts.join(", ")
    }
}

/// A calendar for each month that the account touches.
fn months(account: &Account) -> Vec<Calendar<'_>> {
    let last = Month::of(account.until_us.saturating_sub(1));
    let first = match (account.since_us, account.days.first()) {
        // The beginning of the ledger files.
        (0, day) => day
            .and_then(|day| day.day.get(..7).and_then(Month::parse))
            .unwrap_or(last),
        (since, _) => Month::of(since),
    };
    let first = first.max(last.back(MONTHS - 1));
    let months = std::iter::successors(Some(first), |month| Some(month.next()));
    let months = months.take_while(|month| *month <= last).map(|month| {
        let before = (0..month.first_weekday()).map(|_| None);
        let days = (1..=month.days()).map(|day| Some(cell(day, month.day(day), account)));
        let (name, cells) = (month.to_string(), before.chain(days).collect());
        Calendar { name, cells }
    });
    months.collect()
}

fn cell(number: u64, name: String, account: &Account) -> Cell<'_> {
    let begins = when::when(&name, 0).map_or(u64::MAX, |begins| begins.0);
    let is_asked_for = begins < account.until_us && begins.saturating_add(DAY_US) > account.since_us;
    let day = account.days.iter().find(|day| day.day == name);
    let look = match day {
        None if is_asked_for => "unknown",
        None => "outside",
        Some(day) if day.other_tasks.most > 0 || day.devices > 0 => "some",
        Some(day) if day.covered_us == 0 => "unknown",
        Some(day) if day.covered_us < day.promised_us => "part",
        Some(_) => "zero",
    };
    let day = day.filter(|_| look != "unknown");
    Cell {
        number,
        name,
        look,
        day,
    }
}

/// Fits a cell: 5,300,000 is 5.3M; rounded up.
fn short(count: u64) -> String {
    const UNITS: [(u64, char); 3] = [(1_000_000_000, 'G'), (1_000_000, 'M'), (1_000, 'k')];
    match UNITS.iter().find(|(unit, _)| count >= *unit) {
        Some((unit, name)) if count >= 10_000 => {
            let tenths = count.div_ceil(unit / 10);
            format!("{}.{}{name}", tenths / 10, tenths % 10)
        }
        _ => rows::grouped(count),
    }
}

#[cfg(test)]
mod tests {
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
        let looks = days.map(|name| cell(1, name.to_owned(), &account).look);
        assert_eq!(looks, ["unknown", "unknown", "outside", "outside"]);
        account.days.push(Day {
            day: "2026-10-02".into(),
            promised_us: 5,
            ..Day::default()
        });
        assert_eq!(cell(2, "2026-10-02".to_owned(), &account).look, "unknown");
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
