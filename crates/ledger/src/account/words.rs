//! The numbers of an account as people read them.

use std::collections::BTreeMap;
use std::fmt;

use super::Range;

/// 5,400,000,000.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&[u8]> = digits.as_bytes().rchunks(3).rev().collect();
    String::from_utf8_lossy(&groups.join(&b',')).into_owned()
}

/// The share in hundredths of a percent, rounded down: 100% is all of it. Empty where there is nothing.
pub fn share(all: u64, part: u64) -> String {
    if all == 0 {
        return String::new();
    }
    match u128::from(part.min(all)) * 10_000 / u128::from(all) {
        10_000 => "100%".to_owned(),
        parts => format!("{}.{:02}%", parts / 100, parts % 100),
    }
}

/// All counts of a class.
pub fn total(names: &BTreeMap<String, u64>) -> u64 {
    names.values().fold(0, |all: u64, count| all.saturating_add(*count))
}

/// `12`, or `3–7`.
impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.least != self.most {
            write!(f, "{}–", grouped(self.least))?;
        }
        f.write_str(&grouped(self.most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_exactly_is_an_interval() {
        for (least, most, words) in [(3, 3, "3"), (0, 1, "0–1"), (3, 7_000, "3–7,000")] {
            assert_eq!(Range { least, most }.to_string(), words);
        }
    }

    #[test]
    fn all_but_a_microsecond_of_a_year_is_not_all() {
        assert_eq!(share(31_557_600_000_000, 31_557_599_999_999), "99.99%");
        assert_eq!((share(7, 7), share(0, 0)), ("100%".to_owned(), String::new()));
    }
}
