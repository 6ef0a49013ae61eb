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
pub use form::{Form, OutputOptions, PrintError, Render, WriteError};
pub use layout::{Column, Meaning, TextStyle, column, paragraph, properties, table, width};
pub use terminal::{coloured, is_utf8, to_ascii};

/// `text` with every control character replaced, so that a name cannot control a terminal.
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|char| if char.is_control() { '?' } else { char })
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
