//! The days of an account as a calendar, in SVG: a cell a day, which says by text and shape what its colour says.

use std::fmt::Write as _;

use stelia_ledger::account::{Account, Day};
use stelia_ledger::day::{DAY_US, Month};

use super::words;

const CELL: (u64, u64) = (112, 54);
const GAP: u64 = 4;
const TOP: u64 = 44;
/// Months that are drawn, of a longer time the last ones.
const MONTHS: u64 = 13;
const WEEKDAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// What the readings of a day show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Occupancy {
    /// All of it is covered, and nothing ran.
    Zero,
    /// Nothing ran in what is covered.
    ZeroInPart,
    Some,
    /// No reading.
    Unknown,
    /// Not asked for, or not over yet.
    Outside,
}

impl Occupancy {
    fn class(self) -> &'static str {
        match self {
            Self::Zero => "zero",
            Self::ZeroInPart => "part",
            Self::Some => "some",
            Self::Unknown => "unknown",
            Self::Outside => "outside",
        }
    }
}

/// A picture for each month that the account touches.
pub(super) fn months(account: &Account) -> String {
    let until = account.until_us.saturating_sub(1);
    let first = account
        .days
        .first()
        .and_then(|day| day.day.get(..7).and_then(Month::parse));
    let first = match account.since_us {
        // The ring's beginning.
        0 => first.unwrap_or(Month::of(until)),
        since => Month::of(since),
    };
    let last = Month::of(until);
    let first = first.max(last.back(MONTHS - 1));
    let months = std::iter::successors(Some(first), |month| Some(month.next()));
    months
        .take_while(|month| *month <= last)
        .map(|month| picture(month, account))
        .collect()
}

fn picture(month: Month, account: &Account) -> String {
    let weeks = (month.first_weekday() + month.days()).div_ceil(7);
    let (width, height) = (7 * (CELL.0 + GAP) - GAP, TOP + weeks * (CELL.1 + GAP) - GAP);
    let mut out = format!(
        "<svg class=\"calendar\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" role=\"img\" aria-label=\"The days of {month}\">\n<text class=\"month\" x=\"0\" y=\"16\">{month}</text>\n"
    );
    for (column, name) in (0..).zip(WEEKDAYS) {
        let x = column * (CELL.0 + GAP) + 1;
        let _ = writeln!(out, "<text class=\"weekday\" x=\"{x}\" y=\"36\">{name}</text>");
    }
    for day in 1..=month.days() {
        let place = month.first_weekday() + day - 1;
        let at = (place % 7 * (CELL.0 + GAP), TOP + place / 7 * (CELL.1 + GAP));
        cell(&mut out, at, day, &month.day(day), account);
    }
    out + "</svg>\n"
}

fn cell(out: &mut String, (x, y): (u64, u64), number: u64, name: &str, account: &Account) {
    let day = account.days.iter().find(|day| day.day == name);
    let occupancy = occupancy(day, name, account);
    let (line, small, title) = labels(occupancy, day, name);
    let (width, height) = (CELL.0 - 1, CELL.1 - 1);
    let number = number.to_string();
    let _ = write!(
        out,
        "<g class=\"{}\"><title>{title}</title><rect x=\"{x}.5\" y=\"{y}.5\" width=\"{width}\" height=\"{height}\" rx=\"4\"/>",
        occupancy.class()
    );
    let texts = [
        ("number", x + 7, y + 17, &number),
        ("count", x + width - 6, y + 20, &line),
        ("small", x + 7, y + 44, &small),
    ];
    for (class, x, y, text) in texts.iter().filter(|(.., text)| !text.is_empty()) {
        let _ = write!(out, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{text}</text>");
    }
    out.push_str("</g>\n");
}

fn occupancy(day: Option<&Day>, name: &str, account: &Account) -> Occupancy {
    match day {
        Some(day) if day.other_tasks.most > 0 || day.devices > 0 => Occupancy::Some,
        Some(day) if day.covered_us == 0 => Occupancy::Unknown,
        Some(day) if day.covered_us < day.promised_us => Occupancy::ZeroInPart,
        Some(_) => Occupancy::Zero,
        None => match super::when::when(name, 0) {
            Ok(begins) if begins.0 < account.until_us && begins.0 + DAY_US > account.since_us => Occupancy::Unknown,
            _ => Occupancy::Outside,
        },
    }
}

/// The count in the cell, the small text below it, and the title. Names that others set are in none of them.
fn labels(occupancy: Occupancy, day: Option<&Day>, name: &str) -> (String, String, String) {
    let Some(day) = day.filter(|_| occupancy != Occupancy::Unknown && occupancy != Occupancy::Outside) else {
        let label = match occupancy {
            Occupancy::Outside => "",
            _ => "no data",
        };
        let title = match occupancy {
            Occupancy::Outside => "not part of this report",
            _ => "no reading covers this day",
        };
        return (String::new(), label.to_owned(), format!("{name}: {title}"));
    };
    let covered = words::covered(day.promised_us, day.covered_us);
    let title = format!(
        "{name}: other tasks {}, interrupts of other devices {}, {covered} covered",
        words::range(day.other_tasks),
        words::grouped(day.devices)
    );
    let line = match occupancy {
        Occupancy::Some => short(day.other_tasks.most.saturating_add(day.devices)),
        _ => "0".to_owned(),
    };
    let small = match occupancy {
        Occupancy::Zero => String::new(),
        Occupancy::Some if day.covered_us >= day.promised_us => kinds(day).to_owned(),
        Occupancy::Some => format!("{}, {covered}", kinds(day)),
        _ => format!("{covered} covered"),
    };
    (line, small, title)
}

fn kinds(day: &Day) -> &'static str {
    match (day.other_tasks.most > 0, day.devices > 0) {
        (true, false) => "tasks",
        (false, true) => "devices",
        _ => "both",
    }
}

/// Fits a cell: 5,300,000 is 5.3M; rounded up.
fn short(count: u64) -> String {
    let tenths = |unit: u64, name: char| {
        let tenths = count.div_ceil(unit / 10);
        format!("{}.{}{name}", tenths / 10, tenths % 10)
    };
    match count {
        0..10_000 => words::grouped(count),
        10_000..1_000_000 => tenths(1_000, 'k'),
        1_000_000..1_000_000_000 => tenths(1_000_000, 'M'),
        _ => tenths(1_000_000_000, 'G'),
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
        let account = Account {
            since_us: october.begins(),
            until_us: october.begins() + 3 * DAY_US,
            ..Account::default()
        };
        let occupancy = |name| occupancy(None, name, &account);
        assert_eq!(
            [
                occupancy("2026-10-01"),
                occupancy("2026-10-03"),
                occupancy("2026-10-04"),
                occupancy("2026-09-30")
            ],
            [
                Occupancy::Unknown,
                Occupancy::Unknown,
                Occupancy::Outside,
                Occupancy::Outside
            ]
        );
        let none = Day {
            day: "2026-10-02".into(),
            promised_us: 5,
            ..Day::default()
        };
        assert_eq!(
            super::occupancy(Some(&none), "2026-10-02", &account),
            Occupancy::Unknown
        );
        let drawn = months(&account);
        assert_eq!(drawn.matches("no data").count(), 3);
    }

    #[test]
    fn a_long_time_is_drawn_by_its_last_months() {
        let account = Account {
            since_us: 1,
            until_us: Month::parse("2026-10").unwrap().begins(),
            ..Account::default()
        };
        let drawn = months(&account);
        assert_eq!(drawn.matches("<svg").count() as u64, MONTHS);
        assert!(drawn.contains(">2026-09<") && !drawn.contains(">2026-10<"));
        // The picture is bounded, whatever times a ring claims.
        let absurd = Account {
            since_us: 0,
            until_us: u64::MAX,
            ..account
        };
        assert!(months(&absurd).len() < 1 << 20);
    }
}
