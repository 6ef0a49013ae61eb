//! How answers are written: as text, of which most is tables, or as JSON. Names are set by pods and may contain
//! anything: control characters are replaced before they reach a terminal.

pub(crate) mod blocks;
#[cfg(test)]
pub(crate) mod manual;

use std::fmt;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::time::{Duration, UNIX_EPOCH};

use askama::filters::{Escaper, Html};
use serde_json::{Map, Value};
use stelia_api::client::OwnedDict;
use unicode_width::UnicodeWidthStr;
use zbus::Variant;

pub(crate) use blocks::{Block, FAIL, Fact, NOTE, facts};
pub(crate) use stelia_table::{
    Column, Form, Grid, Meaning, OutputOptions, Render, TextStyle, column, counted, cut, now, paragraph, printable,
    properties, table, width,
};

/// How many columns a text takes.
pub(crate) fn columns(text: &str) -> usize {
    text.width()
}

/// Writes a text to standard output at once; returns whether that still has a reader, as not for `steliactl list | head`.
pub(crate) fn write(text: &str) -> io::Result<bool> {
    let mut out = io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        other => other.map(|()| true),
    }
}

/// Says something on standard error, which may be closed, besides a whole answer.
pub(crate) fn note(text: &str) {
    tell(&format!("steliactl: {}", printable(text)));
}

/// Says a line on standard error, on a terminal as several.
pub(crate) fn tell(line: &str) {
    let mut stderr = io::stderr();
    let style = TextStyle {
        width: stderr.is_terminal().then(width),
        ..TextStyle::default()
    };
    let _ = stderr.write_all(paragraph(line, style).as_bytes());
}

/// Says on the line of a terminal what is being done; what is said next replaces it, and an empty text erases it.
pub(crate) fn progress(text: &str) {
    let mut stderr = io::stderr();
    if stderr.is_terminal() {
        let _ = write!(stderr, "\r\x1b[K{text}");
    }
}

/// A table below its heading; without a legend there is no heading.
pub(crate) fn headed(heading: &str, style: TextStyle, table: String) -> String {
    if style.legend {
        format!("\n{heading}\n{table}")
    } else {
        table
    }
}

/// Whether a text, which may be wrapped, has this sentence.
pub(crate) fn has_sentence(text: &str, sentence: &str) -> bool {
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    plain(text).contains(&plain(sentence))
}

/// A D-Bus dictionary as a JSON object.
pub fn json_of(dict: &OwnedDict) -> Map<String, Value> {
    dict.iter().map(|(name, value)| (name.clone(), json(value))).collect()
}

/// What a name is sorted by: web-2 is before web-19.
pub(crate) fn natural(name: &str) -> Vec<(usize, String)> {
    let bytes = name.as_bytes();
    let runs = bytes.chunk_by(|a, b| a.is_ascii_digit() == b.is_ascii_digit());
    // A longer number is greater, and text is after numbers.
    let is_number = |run: &[u8]| run.first().is_some_and(u8::is_ascii_digit);
    let rank = |run: &[u8]| if is_number(run) { run.len() } else { usize::MAX };
    runs.map(|run| (rank(run), String::from_utf8_lossy(run).into_owned()))
        .collect()
}

/// "a, b, c, …": at most so many. Where one more would be named, all are: "…" takes as much room as a name.
pub(crate) fn some_of(names: impl IntoIterator<Item = String>, most: usize) -> String {
    let mut names: Vec<String> = names.into_iter().collect();
    names.sort_by_cached_key(|name| natural(name));
    names.dedup();
    if names.len() > most + 1 {
        names.truncate(most);
        names.push("…".to_owned());
    }
    names.join(", ")
}

pub(crate) fn json(value: &Variant<'_>) -> Value {
    match value {
        Variant::U8(number) => (*number).into(),
        Variant::Bool(yes) => (*yes).into(),
        Variant::I16(number) => (*number).into(),
        Variant::U16(number) => (*number).into(),
        Variant::I32(number) => (*number).into(),
        Variant::U32(number) => (*number).into(),
        Variant::I64(number) => (*number).into(),
        Variant::U64(number) => (*number).into(),
        Variant::F64(number) => (*number).into(),
        Variant::Str(text) => text.as_str().into(),
        Variant::Signature(signature) => signature.to_string().into(),
        Variant::ObjectPath(path) => path.as_str().into(),
        Variant::Variant(inner) => json(inner),
        Variant::Array(items) => items.inner().iter().map(json).collect(),
        Variant::Dict(dict) => dict
            .iter()
            .map(|(name, value)| (human(&json(name)), json(value)))
            .collect(),
        Variant::Structure(structure) => structure.fields().iter().map(json).collect(),
        Variant::Fd(_) => Value::Null,
    }
}

/// A text as it is, anything else as JSON.
pub(crate) fn human(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Microseconds since the epoch as UTC, ISO 8601; 0 is "not yet".
pub(crate) fn time(usec: u64) -> String {
    match usec {
        0 => String::new(),
        usec => humantime::format_rfc3339_micros(UNIX_EPOCH + Duration::from_micros(usec)).to_string(),
    }
}

/// Escapes every value in a page or a picture ([`askama`], `askama.toml`), and replaces the characters that [`printable`] does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Markup;

impl Escaper for Markup {
    fn write_escaped_str<W: fmt::Write>(&self, dest: W, text: &str) -> fmt::Result {
        Html.write_escaped_str(dest, &printable(text))
    }
}
