#![doc = include_str!("../README.md")]

mod completion;
mod examples;
mod fit;
mod form;
mod layout;
mod shrink;
mod terminal;
#[cfg(feature = "testing")]
pub mod testing;

pub use completion::completion_script;
pub use examples::{examples_of, with_examples};
pub use fit::{cut, shorten, wrap};
pub use form::{Form, OutputOptions, PrintError, Render};
pub use layout::{Cell, Column, Grid, Meaning, TextStyle, column, paragraph, properties, table, width};
pub use terminal::coloured;

/// `text` with every character replaced that controls a terminal, changes the direction of writing, or is none in XML: names are text of
/// others.
pub fn printable(text: &str) -> String {
    let is_foreign = |char: char| {
        char.is_control()
            || matches!(char, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}')
    };
    text.chars()
        .map(|char| if is_foreign(char) { '?' } else { char })
        .collect()
}

/// The current time, microseconds since the epoch.
pub fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// "1 instance", "2 instances".
pub fn counted(count: u64, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}
