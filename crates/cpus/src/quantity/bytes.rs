//! Bytes as Kubernetes writes them: `2Mi`.

const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// Bytes in the canonical form: the largest binary suffix that leaves a whole number.
pub fn of_bytes(bytes: u64) -> String {
    let (mut number, mut at) = (bytes, 0);
    while number != 0 && number % 1024 == 0 && at + 1 < SUFFIXES.len() {
        (number, at) = (number / 1024, at + 1);
    }
    format!("{number}{}", SUFFIXES[at])
}

/// Bytes of a whole number with a binary suffix, as [`of_bytes`] writes it; `None` for another text.
pub fn to_bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let suffix = text.strip_prefix(digits)?;
    let power = SUFFIXES.iter().position(|known| *known == suffix)?;
    let number: u64 = digits.parse().ok()?;
    number.checked_mul(1 << (10 * power))
}

#[cfg(test)]
mod tests {
    use super::{of_bytes, to_bytes};

    #[test]
    fn what_is_no_quantity_of_bytes_is_none() {
        for text in [
            "",
            "Ki",
            "1k",
            "1.5Ki",
            "-1",
            "1 Ki",
            "16Ei",
            "99999999999999999999",
            "1Kii",
        ] {
            assert_eq!(to_bytes(text), None, "{text}");
        }
    }

    #[test]
    fn a_quantity_has_the_largest_suffix_that_loses_nothing() {
        for (bytes, text) in [
            (0, "0"),
            (1, "1"),
            (1023, "1023"),
            (1536, "1536"),
            (2 << 20, "2Mi"),
            (1 << 30, "1Gi"),
            ((1 << 30) + 4096, "1048580Ki"),
            (1 << 63, "8Ei"),
            (u64::MAX, "18446744073709551615"),
        ] {
            assert_eq!(of_bytes(bytes), text);
            assert_eq!(to_bytes(text), Some(bytes));
        }
    }
}
