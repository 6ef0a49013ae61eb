//! UTC days as dates, and which of them has no signed head yet.

use std::fmt;

const DAY_US: u64 = 86_400 * 1_000_000;
/// Days from 0000-03-01 to 1970-01-01. Counted from a first of March, the leap day is the last one of its year.
const MARCH_OF_YEAR_0: u64 = 719_468;
/// Days after which the calendar repeats.
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
    pub fn of_days(days: u64) -> Self {
        let days = days + MARCH_OF_YEAR_0;
        let (era, of_era) = (days / DAYS_OF_400_YEARS, days % DAYS_OF_400_YEARS);
        let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted = (5 * of_year + 2) / 153;
        let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
        Self {
            year: era * 400 + year_of_era + u64::from(month <= 2),
            month,
            day: of_year - (153 * shifted + 2) / 5 + 1,
        }
    }

    /// The date of microseconds since the epoch.
    pub fn of(us: u64) -> Self {
        Self::of_days(us / DAY_US)
    }

    /// Days since 1970-01-01; 0 for an earlier date.
    pub fn days(self) -> u64 {
        let year = self.year.saturating_sub(u64::from(self.month <= 2));
        let (era, year_of_era) = (year / 400, year % 400);
        let shifted = (self.month + 9) % 12;
        let of_year = (153 * shifted + 2) / 5 + self.day - 1;
        let of_era = 365 * year_of_era + year_of_era / 4 - year_of_era / 100 + of_year;
        (era * DAYS_OF_400_YEARS + of_era).saturating_sub(MARCH_OF_YEAR_0)
    }
}

/// `2026-10-31`.
impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

/// The UTC day of microseconds since the epoch, as `2026-10-31`.
pub fn day(us: u64) -> String {
    Date::of(us).to_string()
}

/// The day whose head is to be signed now: that of the last entry, once the clock shows another day. Days are compared for being the same
/// only: a clock that was set to a wrong day, and back, must not keep the days after it from being signed.
pub fn ended(last_us: u64, now_us: u64) -> Option<String> {
    let last = day(last_us);
    (last != day(now_us)).then_some(last)
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
            assert_eq!(Date::of_days(days).days(), days);
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
        assert_eq!(ended(first, first), None);
        assert_eq!(ended(first, second).as_deref(), Some("1970-01-01"));
        assert_eq!(
            ended(second, first).as_deref(),
            Some("1970-01-02"),
            "the clock was set back: what was written in that day ends there"
        );
    }
}
