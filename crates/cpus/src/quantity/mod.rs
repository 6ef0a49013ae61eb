//! Kubernetes' quantities (`resource.Quantity`): of anything, read, and of bytes, in the canonical form.

pub mod bytes;

use std::fmt;
use std::str::FromStr;

use crate::text::excerpt::excerpt;

/// A quantity that is not negative, in billionths, which is as fine as Kubernetes keeps them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantity(u128);

/// A text is not a quantity, a negative one, or one larger than 2⁶³ − 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// It does not read as one.
    #[error("{0:?} is not a quantity, such as 2, 500m or 1Gi")]
    Malformed(String),
    /// A request or limit must not be.
    #[error("{0:?} is negative")]
    Negative(String),
    /// Kubernetes would keep it as 2⁶³ − 1, which nobody means.
    #[error("{0:?} is more than 2⁶³ − 1")]
    TooLarge(String),
}

const UNIT: u128 = 1_000_000_000;
/// Digits of a number that is not too large, leading zeros included.
const MAX_DIGITS: usize = 64;

impl Quantity {
    /// The quantity of this many whole units.
    pub const fn units(count: u64) -> Self {
        Self(count as u128 * UNIT)
    }

    /// In units, rounded up.
    pub fn value(self) -> u64 {
        u64::try_from(self.0.div_ceil(UNIT)).unwrap_or(u64::MAX)
    }

    /// In thousandths, rounded up.
    pub fn milli(self) -> u64 {
        u64::try_from(self.0.div_ceil(UNIT / 1000)).unwrap_or(u64::MAX)
    }

    /// Whether it is a whole number of units.
    pub fn is_whole(self) -> bool {
        self.0.is_multiple_of(UNIT)
    }

    /// Whether it is nothing.
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The sum; what is too large stays the largest.
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl fmt::Display for Quantity {
    /// Whole units, else thousandths, rounded up.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_whole() {
            self.value().fmt(f)
        } else {
            write!(f, "{}m", self.milli())
        }
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    /// A sign, digits with a fraction, and a suffix: `n u m k M G T P E`, `Ki Mi Gi Ti Pi Ei`, or an exponent such as `e3`.
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let malformed = || QuantityError::Malformed(excerpt(text));
        let (negative, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (number, suffix) = unsigned.split_at(end.unwrap_or(unsigned.len()));
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if fraction.contains('.') || whole.is_empty() && fraction.is_empty() {
            return Err(malformed());
        }
        let scale = Scale::parse(suffix).ok_or_else(malformed)?;
        let digits = format!("{whole}{fraction}");
        let digits = digits.trim_start_matches('0');
        if digits.is_empty() {
            return Ok(Self::default());
        }
        if negative {
            return Err(QuantityError::Negative(excerpt(text)));
        }
        let too_large = || QuantityError::TooLarge(excerpt(text));
        if digits.len() > MAX_DIGITS {
            return Err(malformed());
        }
        let billionths = scale.billionths(digits, fraction.len()).ok_or_else(too_large)?;
        if billionths <= i64::MAX as u128 * UNIT {
            Ok(Self(billionths))
        } else {
            Err(too_large())
        }
    }
}

/// What a suffix multiplies by.
#[derive(Debug, Clone, Copy)]
enum Scale {
    /// Powers of ten.
    Ten(i32),
    /// Powers of two.
    Two(u32),
}

impl Scale {
    fn parse(suffix: &str) -> Option<Self> {
        let decimal = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
        if let Some(at) = decimal.iter().position(|known| *known == suffix) {
            return Some(Self::Ten(at as i32 * 3 - 9));
        }
        let binary = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        if let Some(at) = binary.iter().position(|known| *known == suffix) {
            return Some(Self::Two((at as u32 + 1) * 10));
        }
        let exponent = suffix.strip_prefix(['e', 'E'])?;
        let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        let plain = !digits.is_empty() && digits.len() <= 3 && digits.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| exponent.parse().ok().map(Self::Ten))?
    }

    /// A number of these digits, the last `fraction` of them behind the point, in billionths, rounded up; none where it does
    /// not fit.
    fn billionths(self, digits: &str, fraction: usize) -> Option<u128> {
        let point = i32::try_from(fraction).ok()?;
        let (power, factor) = match self {
            Self::Ten(power) => (9 + power - point, 1),
            Self::Two(bits) => (9 - point, 1u128 << bits),
        };
        // What is finer than a number of 38 digits can hold is cut off before it is rounded up.
        let (kept, cut) = digits.split_at(digits.len().min(30));
        let rest = u128::from(cut.bytes().any(|digit| digit != b'0'));
        let number = (kept.parse::<u128>().ok()? + rest).checked_mul(factor);
        let power = power + i32::try_from(cut.len()).ok()?;
        let ten = 10u128.checked_pow(power.unsigned_abs());
        if power >= 0 {
            number?.checked_mul(ten?)
        } else {
            ten.map_or(Some(1), |divisor| Some(number?.div_ceil(divisor)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn milli(text: &str) -> u64 {
        text.parse::<Quantity>().unwrap().milli()
    }

    #[test]
    fn every_suffix_is_read() {
        for (text, units) in [
            ("0", 0),
            ("-0", 0),
            ("2", 2),
            ("+2.000", 2),
            ("2000m", 2),
            ("1e3", 1000),
            ("5E-1", 1),
            ("1k", 1000),
            ("1E", 1_000_000_000_000_000_000),
            ("1.5Gi", 3 << 29),
            ("0.5Ki", 512),
            (".5Ki", 512),
            ("1.", 1),
            ("7Ei", 7 << 60),
            ("9223372036854775807", i64::MAX as u64),
            ("0.0000000000000000000000000000000000000000001", 1),
            ("1u", 1),
        ] {
            assert_eq!(text.parse::<Quantity>().unwrap().value(), units, "{text}");
        }
        assert_eq!(
            (milli("0.1"), milli("500m"), milli("0.0001"), milli("1.0005")),
            (100, 500, 1, 1001)
        );
        assert_eq!("1500m".parse::<Quantity>().unwrap().to_string(), "1500m");
        assert_eq!("1Ki".parse::<Quantity>().unwrap().to_string(), "1024");
    }

    #[test]
    fn anything_else_is_refused_by_its_name() {
        for text in [
            "", "m", ".", "1.2.3", "1 Gi", "0x10", "1gi", "1ki", "1KiB", "1e", "1e9999", "e3", "inf", "NaN", "２",
            "1\0",
        ] {
            assert_eq!(
                text.parse::<Quantity>(),
                Err(QuantityError::Malformed(text.to_owned())),
                "{text}"
            );
        }
        assert_eq!("-1".parse::<Quantity>(), Err(QuantityError::Negative("-1".to_owned())));
        for text in [
            "9223372036854775808",
            "8Ei",
            "10E",
            "1e20",
            "1e999",
            "99999999999999999999999999999999999999Ei",
        ] {
            assert_eq!(
                text.parse::<Quantity>(),
                Err(QuantityError::TooLarge(text.to_owned())),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_fall(text in "[-+0-9.eEKMGikmun]{0,60}") {
            let _ = text.parse::<Quantity>();
        }

        #[test]
        fn thousandths_are_exact(number in 0u64..1 << 50) {
            prop_assert_eq!(milli(&format!("{number}m")), number);
            prop_assert_eq!(milli(&format!("{}.{:03}", number / 1000, number % 1000)), number);
        }
    }
}
