//! What the targets share.

use std::fmt::{Debug, Display};

/// No error about a text of somebody else's is longer than this, in bytes, however long the text is.
pub const LONGEST_ERROR: usize = 1000;

/// An error's text is one line that fits a journal entry or a D-Bus error.
pub fn fits(error: &impl Display) {
    let text = error.to_string();
    assert!(
        !text.is_empty() && text.len() < LONGEST_ERROR,
        "{} bytes: {text}",
        text.len()
    );
    assert!(!text.contains(['\n', '\0']), "{text:?}");
}

/// The file with the checksum that its content gives in place of the one it has: hardly any mutation keeps a checksum, and
/// what comes after it is worth reaching. `None` where the number does not stand behind a checksum's key.
pub fn with_checksum(file: &[u8], found: u32, computed: u32) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(file).ok()?;
    let found = found.to_string();
    let keys = ["\"checksum\"", "\"dataChecksum\"", "\"Checksum\""];
    let (start, end) = keys
        .iter()
        .flat_map(|key| text.match_indices(key))
        .find_map(|(at, key)| {
            let value = text[at + key.len()..].trim_start().strip_prefix(':')?.trim_start();
            let start = text.len() - value.len();
            let digits = value.bytes().take_while(u8::is_ascii_digit).count();
            (value[..digits] == found).then_some((start, start + digits))
        })?;
    Some(format!("{}{computed}{}", &text[..start], &text[end..]).into_bytes())
}

/// Both are the same, or the input that told them apart is shown.
pub fn same<T: PartialEq + Debug>(one: &T, other: &T, what: &str) {
    assert!(one == other, "{what}:\n{one:?}\n{other:?}");
}
