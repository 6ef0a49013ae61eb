//! The report on one VM as a page for the customer: no script, nothing from elsewhere, and a policy that forbids both. A browser's print
//! makes a clean document of it. The page itself is `templates/ledger.html`.

use askama::Template;
use stelia_ledger::account::{Account, Day, grouped, share};
use stelia_ledger::day::{DAY_US, Month};
use stelia_ledger::verdict::{SignedHead, Verdict};

use super::account::VmAccount;
use super::rows::{self, Section};
use super::{LedgerReader, Period, verification};
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
    made: String,
    pod: &'a Pod,
    account: &'a Account,
    period: String,
    /// The class of the headline, and what it says of the guarantee.
    guarantee: (&'static str, &'static str, String),
    months: Vec<Calendar>,
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
pub(super) async fn report(reader: &LedgerReader, vm: &str, period: Period, roots: &Roots) -> Result<String, Failure> {
    let account = reader.one(vm, period).await?;
    let verdict = reader.verdict().await?;
    let (mut key, mut host) = Default::default();
    if let LedgerReader::Daemon(client) = reader {
        key = verification::key(client).await.map(|key| key.key).unwrap_or_default();
        host = host_name(&roots.proc);
    }
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
    let faults = counted(verdict.faults.len().max(1) as u64, "fault");
    let covering = verdict.heads.iter().find(|head| head.seq >= account.seq);
    let page = Page {
        host,
        made: rows::clock(made_us),
        pod,
        account,
        period: rows::between(account.since_us, account.until_us),
        guarantee: rows::guarantee(&one.sums()),
        months: months(account),
        sections: rows::sections(account),
        faults: Some(faults).filter(|_| !verdict.is_good()).unwrap_or_default(),
        key,
        signed: covering.or(verdict.heads.last()),
    };
    page.render()
}

/// A month as a calendar, from a Monday on.
struct Calendar {
    month: Month,
    cells: Vec<Option<Cell>>,
}

/// A day, which says by text and shape what its colour says.
struct Cell {
    number: u64,
    /// The class: `zero` is covered whole and nothing ran; `part`: nothing ran in what is covered; `some`; `unknown`; `outside`: not asked
    /// for, or not over yet.
    look: &'static str,
    title: String,
    count: String,
    /// What ran, and how much is covered.
    small: String,
}

/// A calendar for each month that the account touches.
fn months(account: &Account) -> Vec<Calendar> {
    let last = Month::of(account.until_us.saturating_sub(1));
    let first_day = account.days.first().and_then(|day| Month::parse(day.day.get(..7)?));
    let first = match account.since_us {
        // The beginning of the ledger files.
        0 => first_day.unwrap_or(last),
        since => Month::of(since),
    };
    let first = first.max(last.back(MONTHS - 1));
    let months = std::iter::successors(Some(first), |month| Some(month.next()));
    let months = months.take_while(|month| *month <= last).map(|month| {
        let before = (0..month.first_weekday()).map(|_| None);
        let days = (1..=month.days()).map(|number| Some(cell(month, number, account)));
        let cells = before.chain(days).collect();
        Calendar { month, cells }
    });
    months.collect()
}

fn cell(month: Month, number: u64, account: &Account) -> Cell {
    let (name, begins) = (month.day(number), month.begins() + (number - 1) * DAY_US);
    let cell = |look, title: &str, count, small: &[&str]| Cell {
        number,
        look,
        title: format!("{name}: {title}"),
        count,
        small: small.join(", "),
    };
    let ran = |day: &Day| day.other_tasks.most.saturating_add(day.devices);
    let day = account.days.iter().find(|day| day.day == name);
    let Some(day) = day.filter(|day| day.covered_us > 0 || ran(day) > 0) else {
        let is_asked_for = begins < account.until_us && begins + DAY_US > account.since_us;
        return if is_asked_for {
            cell("unknown", "no reading covers this day", String::new(), &["no data"])
        } else {
            cell("outside", "not part of this report", String::new(), &[])
        };
    };
    let covered = share(day.promised_us, day.covered_us);
    let title = format!("{}, {covered} covered", rows::counts(day));
    let is_part = day.covered_us < day.promised_us;
    let (look, kinds) = match (day.other_tasks.most > 0, day.devices > 0) {
        (true, true) => ("some", Some("both")),
        (true, false) => ("some", Some("tasks")),
        (false, true) => ("some", Some("devices")),
        (false, false) => (if is_part { "part" } else { "zero" }, None),
    };
    let small: Vec<&str> = kinds.into_iter().chain(is_part.then_some(covered.as_str())).collect();
    cell(look, &title, short(ran(day)), &small)
}

/// Fits a cell: 5,300,000 is 5.3M; rounded up.
fn short(count: u64) -> String {
    const UNITS: [(u64, char); 3] = [(1_000_000_000, 'G'), (1_000_000, 'M'), (1_000, 'k')];
    match UNITS.iter().find(|(unit, _)| count >= *unit) {
        Some((unit, name)) if count >= 10_000 => rows::tenths(count, *unit) + &name.to_string(),
        _ => grouped(count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_fits_its_cell_and_is_not_rounded_down() {
        let counts = [0, 9_999, 10_000, 999_950, 5_300_001, 5_400_000_000];
        assert_eq!(counts.map(short), ["0", "9,999", "10k", "1000k", "5.4M", "5.4G"]);
    }

    #[test]
    fn a_day_without_a_reading_is_not_called_zero() {
        let october = Month::parse("2026-10").unwrap();
        let mut account = Account {
            since_us: october.begins(),
            until_us: october.begins() + 3 * DAY_US,
            ..Account::default()
        };
        let looks = [(october, 1), (october, 3), (october, 4), (october.back(1), 30)];
        let looks = looks.map(|(month, number)| cell(month, number, &account).look);
        assert_eq!(looks, ["unknown", "unknown", "outside", "outside"]);
        account.days.push(Day {
            day: "2026-10-02".into(),
            promised_us: 5,
            ..Day::default()
        });
        assert_eq!(cell(october, 2, &account).look, "unknown");
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
            (drawn.len() as u64, drawn.last().unwrap().month.to_string().as_str()),
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
