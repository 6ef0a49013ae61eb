//! Base64, read only: Go writes bytes so.

/// The bytes of a padded text in the standard alphabet.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let (groups, []) = text.as_bytes().as_chunks::<4>() else {
        return None;
    };
    let mut bytes = Vec::with_capacity(groups.len() * 3);
    for (at, group) in groups.iter().enumerate() {
        let padding = group.iter().rev().take_while(|sign| **sign == b'=').count();
        if padding > 2 || padding > 0 && at + 1 != groups.len() {
            return None;
        }
        let (signs, _) = group.split_at(4 - padding);
        let value = signs
            .iter()
            .try_fold(0u32, |value, sign| Some(value << 6 | digit(*sign)?))?;
        let [_, first, second, third] = (value << (6 * padding)).to_be_bytes();
        bytes.extend_from_slice([first, second, third].get(..3 - padding)?);
    }
    Some(bytes)
}

fn digit(sign: u8) -> Option<u32> {
    let digit = match sign {
        b'A'..=b'Z' => sign - b'A',
        b'a'..=b'z' => sign - b'a' + 26,
        b'0'..=b'9' => sign - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(digit))
}

#[cfg(test)]
mod tests {
    use super::decode;

    /// RFC 4648's own examples.
    #[test]
    fn a_text_gives_its_bytes() {
        for (text, bytes) in [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYmFy", "foobar"),
        ] {
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()));
        }
        assert_eq!(decode("+/+/"), Some(vec![0xfb, 0xff, 0xbf]));
    }

    #[test]
    fn anything_else_gives_none() {
        for text in ["Z", "Zm9", "Zg==Zg==", "Z===", "====", "Zm 9", "Zm9-"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
