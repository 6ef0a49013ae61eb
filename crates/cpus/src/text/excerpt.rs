//! The excerpt of a foreign text in an error: enough to find it, and never more than fits a line.

use std::error::Error;

/// Longest excerpt of a name or value, in bytes as `{:?}` prints it, quotes aside.
const QUOTED: usize = 64;
/// Longest text of another library's error, in bytes.
const CAUSE: usize = 400;

/// The beginning of a text, for printing with `{:?}`: what that makes of it has at most 64 bytes and the quotes.
pub fn excerpt(text: &str) -> String {
    let mut left = QUOTED;
    let fits = |character: &char| {
        // As text is escaped, where a single quote stays as it is.
        let length = match character {
            '\'' => 1,
            _ => character.escape_debug().map(char::len_utf8).sum::<usize>(),
        };
        let fits = length <= left;
        left = left.saturating_sub(length);
        fits
    };
    text.chars().take_while(fits).collect()
}

/// The beginning of a name, for printing without quotes: escaped as `{:?}` does, so it stays on its line.
pub fn name(text: &str) -> String {
    excerpt(text).escape_debug().to_string()
}

/// A library's error as one line. It may quote what it read, of whatever length and with line feeds: of a long text the
/// middle is left out, because it ends with the place.
pub fn cause(error: &impl ToString) -> String {
    let mut text = String::new();
    for character in error.to_string().chars() {
        if character.is_control() {
            text.extend(character.escape_debug());
        } else {
            text.push(character);
        }
    }
    if text.len() <= CAUSE {
        return text;
    }
    let half = CAUSE / 2 - '…'.len_utf8();
    let whole = |index: &usize| text.is_char_boundary(*index);
    let head = (0..=half).rev().find(whole).unwrap_or(0);
    let tail = (text.len() - half..text.len()).find(whole).unwrap_or(text.len());
    format!("{}…{}", &text[..head], &text[tail..])
}

/// An error and what caused it, apart by colons. A cause whose text is there already is left out.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let line = cause.to_string();
        if !text.contains(&line) {
            text = format!("{text}: {line}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_fits_however_its_characters_are_printed() {
        for text in ["a", "é", "\u{10ffff}", "\0", "\"", "'", "\n"] {
            let shown = format!("{:?}", excerpt(&text.repeat(100)));
            assert!((50..=QUOTED + 2).contains(&shown.len()), "{shown}");
        }
        assert_eq!(excerpt("cpu-manager"), "cpu-manager");
        assert_eq!(name("a\nb"), "a\\nb");
    }

    #[test]
    fn a_cause_keeps_its_beginning_and_its_end() {
        let long = format!("unknown key {} at line 3", "é".repeat(1000));
        let shown = cause(&long);
        assert!(shown.len() <= CAUSE, "{}", shown.len());
        assert!(
            shown.starts_with("unknown key é") && shown.ends_with("é at line 3"),
            "{shown}"
        );
        assert_eq!(cause(&"as it \"is\""), "as it \"is\"");
        assert_eq!(cause(&"a\nb"), "a\\nb");
    }
}
