//! What the targets share.

use std::fmt::{Debug, Display};

use stelia_kubelet::CheckpointError;
use stelia_kubelet::cpu_manager_state::MAX_BYTES;

/// The limit in bytes of any error's text, however long the input is.
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
fn with_checksum(file: &[u8], found: u32, computed: u32) -> Option<Vec<u8>> {
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

/// Reads a checkpoint of kubelet's and gives the result to `check`. Where only the checksum is wrong, the file with the right
/// checksum is read as well.
pub fn checkpoint<T: PartialEq + Debug>(
    file: &[u8],
    parse: fn(&[u8]) -> Result<T, CheckpointError>,
    check: impl Fn(&T),
) {
    let understood = |state: T, file: &[u8]| {
        assert!(file.len() <= MAX_BYTES && !file.trim_ascii().is_empty());
        let padded = [b" \n".as_slice(), file, b"\n".as_slice()].concat();
        same(&parse(&padded).as_ref(), &Ok(&state), "blanks around it");
        check(&state);
    };
    let refused = match parse(file) {
        Ok(state) => return understood(state, file),
        Err(error) => error,
    };
    fits(&refused);
    let CheckpointError::Checksum { found, computed } = refused else {
        return;
    };
    assert_ne!(found, computed);
    let Some(repaired) = with_checksum(file, found, computed) else {
        return;
    };
    match parse(&repaired) {
        Ok(state) => understood(state, &repaired),
        Err(error) => {
            fits(&error);
            // The checksum computed is of the same schema, so this schema must not find it wrong again.
            assert!(!matches!(error, CheckpointError::Checksum { .. }), "{error}");
        }
    }
}

/// Like `assert_eq!`, with what was compared in the message.
pub fn same<T: PartialEq + Debug>(one: &T, other: &T, what: &str) {
    assert!(one == other, "{what}:\n{one:?}\n{other:?}");
}
