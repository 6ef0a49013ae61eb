//! UTC days, and which of them has no signed head yet.

const DAY_US: u64 = 86_400 * 1_000_000;

/// `2026-10-31` of microseconds since the epoch. Days are those of the Gregorian calendar, without leap seconds, as POSIX counts.
pub fn day(us: u64) -> String {
    // Days since 0000-03-01: then the leap day is a year's last.
    let days = us / DAY_US + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
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
