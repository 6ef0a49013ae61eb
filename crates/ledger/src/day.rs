//! Converts times to dates and months of UTC.

use std::fmt;
use std::str::FromStr;

/// An hour, microseconds.
pub const HOUR_US: u64 = 3_600 * 1_000_000;
/// A day, microseconds.
pub const DAY_US: u64 = 24 * HOUR_US;
/// Days from 0000-03-01 to 1970-01-01. In a year that begins in March, the leap day is the last day.
const DAYS_TO_1970: u64 = 719_468;
const DAYS_OF_400_YEARS: u64 = 146_097;

/// A date of the Gregorian calendar, without leap seconds, as POSIX counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Date {
    pub year: u64,
    /// 1 to 12.
    pub month: u64,
    /// From 1.
    pub day: u64,
}

impl Date {
    /// The date `days` days after 1970-01-01.
    pub fn from_days(days: u64) -> Self {
        let days = days + DAYS_TO_1970;
        let (era, day_of_era) = (days / DAYS_OF_400_YEARS, days % DAYS_OF_400_YEARS);
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let month = if month_from_march < 10 {
            month_from_march + 3
        } else {
            month_from_march - 9
        };
        Self {
            year: era * 400 + year_of_era + u64::from(month <= 2),
            month,
            day: day_of_year - (153 * month_from_march + 2) / 5 + 1,
        }
    }

    /// The date at `us` microseconds since the epoch.
    pub fn of(us: u64) -> Self {
        Self::from_days(us / DAY_US)
    }

    /// Days since 1970-01-01; 0 for an earlier date.
    pub fn days(self) -> u64 {
        let year = self.year.saturating_sub(u64::from(self.month <= 2));
        let (era, year_of_era) = (year / 400, year % 400);
        let month_from_march = (self.month + 9) % 12;
        let day_of_year = (153 * month_from_march + 2) / 5 + self.day - 1;
        let day_of_era = 365 * year_of_era + year_of_era / 4 - year_of_era / 100 + day_of_year;
        (era * DAYS_OF_400_YEARS + day_of_era).saturating_sub(DAYS_TO_1970)
    }
}

/// `2026-10-31`.
impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

/// The UTC day at `us` microseconds since the epoch, as `2026-10-31`.
pub fn day(us: u64) -> String {
    Date::of(us).to_string()
}

/// The day whose head is to be signed now: that of the last entry, once the clock shows another day. An earlier day counts as
/// another one, so that days are signed after the clock was set to a wrong day and back.
pub fn day_to_sign(last_us: u64, now_us: u64) -> Option<String> {
    let last = day(last_us);
    (last != day(now_us)).then_some(last)
}

/// 9999-01-01, microseconds: no later month is known.
const END: u64 = 253_370_764_800 * 1_000_000;

/// A month of UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Month {
    year: u64,
    /// 1 to 12.
    month: u64,
}

impl Month {
    /// `2026-10`; `None` of anything that is not a month from 1970 to 9998.
    pub fn parse(text: &str) -> Option<Self> {
        let (year, month) = text.split_once('-')?;
        let (year, month) = (digits(year, 4)?, digits(month, 2)?);
        ((1970..=9998).contains(&year) && (1..=12).contains(&month)).then_some(Self { year, month })
    }

    /// The month that this time is in.
    pub fn of(us: u64) -> Self {
        let Date { year, month, .. } = Date::of(us.min(END - 1));
        Self { year, month }
    }

    /// The month after it.
    pub fn next(self) -> Self {
        match self.month {
            12 => Self {
                year: self.year + 1,
                month: 1,
            },
            month => Self {
                month: month + 1,
                ..self
            },
        }
    }

    /// When its first day begins.
    pub fn begins(self) -> u64 {
        let Self { year, month } = self;
        Date { year, month, day: 1 }.days() * DAY_US
    }

    /// When the next one begins.
    pub fn ends(self) -> u64 {
        self.next().begins()
    }

    /// When its first day begins, and when the next month does.
    pub fn period(self) -> (u64, u64) {
        (self.begins(), self.ends())
    }
}

impl FromStr for Month {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text).ok_or("expected a month, such as 2026-10")
    }
}

/// `2026-10`.
impl fmt::Display for Month {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}", self.year, self.month)
    }
}

/// A number of exactly so many decimal digits.
pub fn digits(text: &str, count: usize) -> Option<u64> {
    (text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(seconds: u64) -> u64 {
        seconds * 1_000_000
    }

    #[test]
    fn days_are_those_that_date_prints() {
        // date -u -d @SECONDS +%F
        for (seconds, expected) in [
            (0, "1970-01-01"),
            (86_399, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_709_164_800, "2024-02-29"),
            (1_793_404_800, "2026-10-31"),
            (1_798_761_599, "2026-12-31"),
            (1_798_761_600, "2027-01-01"),
            (4_107_542_400, "2100-03-01"),
        ] {
            assert_eq!(day(us(seconds)), expected, "{seconds}");
        }
    }

    #[test]
    fn a_date_is_as_many_days_after_1970_as_it_is_made_of() {
        for days in (0..4_000_000).step_by(97).chain([58, 59, 60, 146_096, 146_097]) {
            assert_eq!(Date::from_days(days).days(), days);
        }
        let before = Date {
            year: 1969,
            month: 12,
            day: 31,
        };
        assert_eq!(before.days(), 0);
    }

    #[test]
    fn a_day_has_ended_when_the_clock_shows_another_one() {
        let (first, second) = (us(86_399), us(86_400));
        assert_eq!(day_to_sign(first, first), None);
        assert_eq!(day_to_sign(first, second).as_deref(), Some("1970-01-01"));
        assert_eq!(
            day_to_sign(second, first).as_deref(),
            Some("1970-01-02"),
            "the clock was set back: what was written in that day ends there"
        );
    }

    #[test]
    fn a_month_knows_when_it_begins_and_ends() {
        let month = |text: &str| Month::parse(text).unwrap();
        assert_eq!(
            month("2026-10").period(),
            (1_790_812_800_000_000, 1_793_491_200_000_000)
        );
        assert_eq!(month("2026-12").next().to_string(), "2027-01");
        let february = month("2024-02");
        assert_eq!(february.ends() - february.begins(), 29 * DAY_US);
        assert_eq!(Month::of(u64::MAX).to_string(), "9998-12");
        for wrong in [
            "",
            "2026",
            "2026-13",
            "2026-1",
            "26-10",
            "2026-00",
            "1969-12",
            "2026-10-01",
            "+026-10",
        ] {
            assert_eq!(Month::parse(wrong), None, "{wrong}");
        }
    }
}
