//! Kubernetes' quantities (`resource.Quantity`).

/// Bytes in the canonical form: the largest binary suffix that leaves a whole number.
pub(crate) fn of_bytes(bytes: u64) -> String {
    const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let (mut number, mut at) = (bytes, 0);
    while number != 0 && number % 1024 == 0 && at + 1 < SUFFIXES.len() {
        (number, at) = (number / 1024, at + 1);
    }
    format!("{number}{}", SUFFIXES[at])
}

#[cfg(test)]
mod tests {
    use super::of_bytes;

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
        }
    }
}
