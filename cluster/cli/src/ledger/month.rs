//! A month of UTC, as `--month` takes it.

use stelia_ledger::day::Date;

use super::DAY_US;

/// A month of UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Month {
    year: u64,
    /// 1 to 12.
    month: u64,
}

impl Month {
    /// `2026-10`.
    ///
    /// # Errors
    /// It is not a month from 1970 to 9998.
    pub fn parse(text: &str) -> Result<Self, String> {
        let number = |text: &str, digits: usize| {
            let is_one = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u64>().ok().filter(|_| is_one)
        };
        let parsed = text.split_once('-').and_then(|(year, month)| {
            let (year, month) = (number(year, 4)?, number(month, 2)?);
            ((1970..=9998).contains(&year) && (1..=12).contains(&month)).then_some(Self { year, month })
        });
        parsed.ok_or_else(|| "expected a month, such as 2026-10".to_owned())
    }

    /// The month's first instant and that of the next one, microseconds since the epoch.
    pub fn period(self) -> (u64, u64) {
        let begins = |year, month| Date { year, month, day: 1 }.days() * DAY_US;
        let next = match self.month {
            12 => begins(self.year + 1, 1),
            month => begins(self.year, month + 1),
        };
        (begins(self.year, self.month), next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_is_from_its_first_instant_to_the_next_ones() {
        let (since, until) = Month::parse("2026-10").unwrap().period();
        assert_eq!((since, (until - since) / DAY_US), (1_790_812_800_000_000, 31));
        let (since, until) = Month::parse("2028-02").unwrap().period();
        assert_eq!((until - since) / DAY_US, 29);
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
            assert!(Month::parse(wrong).is_err(), "{wrong}");
        }
    }
}
