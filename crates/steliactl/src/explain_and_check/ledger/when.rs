//! Times as people type them, always UTC: the forms of journalctl(1), and a month.

use stelia_ledger::day::{DAY_US, Month, digits};

const SECOND: u64 = 1_000_000;

/// A time, microseconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct When(pub u64);

/// `now`, `today`, `yesterday`, `month` (its first day), `-7d`, `7d ago`, `@1790000000`, `2026-10`, `2026-10-01`,
/// `2026-10-01 12:30[:15]`, as in RFC 3339 with a `T`, and `Z`, `UTC` or `+02:00` at the end. A day and a month are their beginning.
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
        _ => match (
            text.strip_prefix('-').or(text.strip_suffix("ago")),
            text.strip_prefix('@'),
        ) {
            (Some(back), _) => span(back).and_then(|back| now.checked_sub(back)),
            (None, Some(seconds)) => seconds
                .parse()
                .ok()
                .and_then(|seconds: u64| seconds.checked_mul(SECOND)),
            (None, None) => Month::parse(text).map(Month::begins).or_else(|| stamp(text)),
        },
    };
    at.map(When).ok_or_else(|| {
        "expected a time in UTC: 2026-10-01, \"2026-10-01 12:30\", 2026-10, today, yesterday, month or -7d".to_owned()
    })
}

/// A length of time in microseconds: `60s`, `1h30min`, `7d`; a bare number is seconds. The units are systemd.time(7)'s, without those
/// below a second.
pub(crate) fn span(text: &str) -> Option<u64> {
    let mut rest = text.trim();
    let mut sum = None;
    while !rest.is_empty() {
        let (number, after) = split(rest, |char| char.is_ascii_digit());
        let (unit, after) = split(after.trim_start(), |char| char.is_ascii_alphabetic());
        let seconds = match unit {
            "" | "s" | "sec" | "second" | "seconds" => 1,
            "m" | "min" | "minute" | "minutes" => 60,
            "h" | "hr" | "hour" | "hours" => 3_600,
            "d" | "day" | "days" => 86_400,
            "w" | "week" | "weeks" => 7 * 86_400,
            "M" | "month" | "months" => 2_629_800,
            "y" | "year" | "years" => 31_557_600,
            _ => return None,
        };
        let part = number.parse::<u64>().ok()?.checked_mul(seconds * SECOND)?;
        sum = Some(part.checked_add(sum.unwrap_or(0))?);
        rest = after.trim_start();
    }
    sum
}

/// The beginning whose characters are such, and the rest.
fn split(text: &str, is_such: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|char| !is_such(char)).unwrap_or(text.len()))
}

/// A date, with or without a time of day and a zone.
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
    let (clock, zone) = split(rest.strip_prefix(['T', 't', ' '])?, |char| {
        char.is_ascii_digit() || ":.".contains(char)
    });
    let at = midnight.checked_add(time_of_day(clock)?)?;
    let zone = zone.trim_start();
    let Some(offset) = zone.strip_prefix(['+', '-']) else {
        return matches!(zone, "" | "Z" | "z" | "UTC").then_some(at);
    };
    let (hours, minutes) = offset.split_once(':')?;
    let offset = of_clock(hours, minutes, "00")?;
    if zone.starts_with('+') {
        at.checked_sub(offset)
    } else {
        at.checked_add(offset)
    }
}

/// `12:30`, `12:30:15`, `12:30:15.25`; microseconds.
fn time_of_day(text: &str) -> Option<u64> {
    let mut parts = text.splitn(3, ':');
    let (hours, minutes) = (parts.next()?, parts.next()?);
    let second = parts.next().unwrap_or("00");
    let (second, fraction) = second.split_once('.').unwrap_or((second, "0"));
    if fraction.is_empty() || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let micros: String = fraction.chars().chain(std::iter::repeat('0')).take(6).collect();
    Some(of_clock(hours, minutes, second)? + micros.parse::<u64>().ok()?)
}

/// Two digits each; microseconds.
fn of_clock(hours: &str, minutes: &str, seconds: &str) -> Option<u64> {
    let [hours, minutes, seconds] = [digits(hours, 2)?, digits(minutes, 2)?, digits(seconds, 2)?];
    (hours < 24 && minutes < 60 && seconds < 60).then_some((hours * 3_600 + minutes * 60 + seconds) * SECOND)
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
            ("2 hours 5 min ago", "2026-10-14T03:01:07"),
            ("@1790000000", "2026-09-21T14:13:20"),
            ("2026-10", "2026-10-01T00:00:00"),
            ("2026-02-28", "2026-02-28T00:00:00"),
            ("2024-02-29", "2024-02-29T00:00:00"),
            ("2026-10-01 12:30", "2026-10-01T12:30:00"),
            ("2026-10-01T12:30:15Z", "2026-10-01T12:30:15"),
            ("2026-10-01 12:30:15 UTC", "2026-10-01T12:30:15"),
            ("2026-10-01T01:30:00+02:00", "2026-09-30T23:30:00"),
            ("2026-10-01T23:30:00-01:00", "2026-10-02T00:30:00"),
            ("2026-10-01T12:30:15.25Z", "2026-10-01T12:30:15.250000Z"),
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
            "@",
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

    #[test]
    fn spans_add_up() {
        assert_eq!(
            ["60", "60s", "2min", "1h 30min"].map(|text| span(text).map(|us| us / SECOND)),
            [Some(60), Some(60), Some(120), Some(5400)]
        );
        assert_eq!([span(""), span("s"), span("1.5h")], [None; 3]);
    }
}
