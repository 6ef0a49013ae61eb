//! Times as people type them, always UTC: the forms of journalctl(1), and a month.

use stelia_ledger::day::{DAY_US, Month, digits};

const SECOND: u64 = 1_000_000;

/// A time, microseconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct When(pub u64);

/// `now`, `today`, `yesterday`, `month` (its first day), `-7d`, `2026-10`, `2026-10-01`, `2026-10-01 12:30[:15[.25]]`, as in RFC 3339 with a
/// `T`, and `Z` or `UTC` at the end. A day and a month are their beginning, and parts of a second are left out.
///
/// # Errors
/// It is none of these, or before 1970.
pub(crate) fn when(text: &str, now: u64) -> Result<When, String> {
    let text = text.trim();
    let today = now - now % DAY_US;
    let at = match text {
        "now" => Some(now),
        "today" => Some(today),
        "yesterday" => today.checked_sub(DAY_US),
        "month" => Some(Month::of(now).begins()),
        _ => match text.strip_prefix('-') {
            Some(back) => {
                let back = humantime::parse_duration(back).ok();
                back.and_then(|back| now.checked_sub(u64::try_from(back.as_micros()).ok()?))
            }
            None => Month::parse(text).map(Month::begins).or_else(|| stamp(text)),
        },
    };
    at.map(When).ok_or_else(|| {
        "expected a time in UTC: 2026-10-01, \"2026-10-01 12:30\", 2026-10, today, yesterday, month or -7d".to_owned()
    })
}

/// A date, with or without a time of day.
fn stamp(text: &str) -> Option<u64> {
    let (day, rest) = text.split_at_checked(10)?;
    let (month, day) = day.rsplit_once('-')?;
    let (month, day) = (Month::parse(month)?, digits(day, 2)?);
    if !(1..=month.days()).contains(&day) {
        return None;
    }
    let midnight = month.begins() + (day - 1) * DAY_US;
    if rest.is_empty() {
        return Some(midnight);
    }
    let clock = rest.strip_prefix(['T', 't', ' '])?;
    let clock = clock
        .strip_suffix("UTC")
        .or(clock.strip_suffix(['Z', 'z']))
        .unwrap_or(clock);
    let (clock, fraction) = clock.trim_end().split_once('.').unwrap_or((clock.trim_end(), "0"));
    let is_number = !fraction.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit());
    let mut parts = clock.split(':');
    let (hour, minute) = (digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    let second = digits(parts.next().unwrap_or("00"), 2)?;
    let fits = is_number && parts.next().is_none() && hour < 24 && minute < 60 && second < 60;
    fits.then_some(midnight + (hour * 3_600 + minute * 60 + second) * SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::output::time;

    /// 2026-10-14T05:06:07Z.
    const NOW: u64 = 1_791_954_367_000_000;

    fn read(text: &str) -> String {
        when(text, NOW).map_or_else(|_| "refused".to_owned(), |at| time(at.0).replace(".000000Z", ""))
    }

    #[test]
    fn the_forms_of_journalctl_and_a_month_are_understood_in_utc() {
        assert_eq!(read("now"), "2026-10-14T05:06:07");
        for (text, expected) in [
            ("today", "2026-10-14T00:00:00"),
            ("yesterday", "2026-10-13T00:00:00"),
            ("month", "2026-10-01T00:00:00"),
            ("-7d", "2026-10-07T05:06:07"),
            ("-1h30min", "2026-10-14T03:36:07"),
            ("2026-10", "2026-10-01T00:00:00"),
            ("2026-02-28", "2026-02-28T00:00:00"),
            ("2024-02-29", "2024-02-29T00:00:00"),
            ("2026-10-01 12:30", "2026-10-01T12:30:00"),
            ("2026-10-01T12:30:15Z", "2026-10-01T12:30:15"),
            ("2026-10-01 12:30:15 UTC", "2026-10-01T12:30:15"),
            ("2026-10-01T12:30:15.25Z", "2026-10-01T12:30:15"),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "-",
            "ago",
            "noon",
            "7d",
            "-7q",
            "-d",
            "@1790000000",
            "7d ago",
            "@-1",
            "2026-13",
            "2026-02-29",
            "2026-10-32",
            "2026-10-00",
            "1969-12-31",
            "2026-10-01 24:00",
            "2026-10-01 12",
            "2026-10-01 12:30:15.",
            "2026-10-01 12:30 CET",
            "2026-10-01T12:30+2",
            "20261001",
            "-99999999999999999999y",
            "-18446744073709551615y",
            "2026-10-0é",
            "1970-01-01T00:00:00+01:00",
        ] {
            assert_eq!(read(text), "refused", "{text}");
        }
    }
}
