//! Text and JSON. Names are set by pods and may contain anything: control characters are replaced before they reach a
//! terminal.

use std::fmt::Display;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use serde_json::{Map, Value};
use stelia_api::client::OwnedDict;
use zbus::Variant;

use crate::cli::Json;
use crate::client::Failure;

/// How an answer is printed, from the command line's options.
#[derive(Debug, Clone, Copy)]
pub(crate) struct How {
    pub json: Json,
    /// Whether to print header lines.
    pub legend: bool,
}

impl How {
    /// JSON even where the command line asks for text.
    pub(crate) fn as_json(self) -> Self {
        let json = if self.json.is_on() { self.json } else { Json::Pretty };
        Self { json, ..self }
    }

    /// Formats the answer as text or JSON.
    ///
    /// # Errors
    /// [`Failure::Partial`] where the answer itself means failure.
    pub(crate) fn print(self, answer: &impl Render) -> Result<String, Failure> {
        let printed = match self.json.is_on() {
            true => to_json(self.json, answer),
            false => answer.text(self.legend),
        };
        match answer.failure() {
            None => Ok(printed),
            Some(reason) => Err(Failure::Partial { printed, reason }),
        }
    }
}

/// A command's answer: it serializes for programs and renders as text for people.
pub(crate) trait Render: Serialize {
    fn text(&self, legend: bool) -> String;

    /// Why the exit code is 1 although there is an answer.
    fn failure(&self) -> Option<String> {
        None
    }
}

/// A column of a table with rows of type `T`.
pub(crate) struct Column<T> {
    name: &'static str,
    right: bool,
    cell: fn(&T) -> String,
}

pub(crate) const fn column<T>(name: &'static str, cell: fn(&T) -> String) -> Column<T> {
    let right = false;
    Column { name, right, cell }
}

impl<T> Column<T> {
    /// Aligned to the right.
    pub(crate) const fn right(self) -> Self {
        Self { right: true, ..self }
    }
}

/// A table with these columns. No cell is empty, so that awk finds each column.
pub(crate) fn list<'a, T: 'a>(columns: &[Column<T>], rows: impl IntoIterator<Item = &'a T>, legend: bool) -> String {
    let header: Vec<&str> = columns.iter().map(|column| column.name).collect();
    let cells = |row| columns.iter().map(|column| or_dash(&(column.cell)(row))).collect();
    let right = columns.iter().position(|column| column.right);
    table(&header, rows.into_iter().map(cells).collect(), legend, right)
}

/// `Name: value`, one per line.
pub(crate) fn properties<N: Display>(rows: impl IntoIterator<Item = (N, String)>) -> String {
    let rows = rows.into_iter();
    let rows = rows.map(|(name, value)| vec![printable(&format!("{name}:")), or_dash(&value)]);
    table(&[], rows.collect(), false, None)
}

/// Columns two blanks apart, without lines, for pipes. Without rows only the header is printed.
pub(crate) fn table(header: &[&str], rows: Vec<Vec<String>>, legend: bool, right: Option<usize>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if legend {
        table.set_header(header);
    }
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    if let Some(column) = right.and_then(|index| table.column_mut(index)) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let text = table.trim_fmt();
    if text.is_empty() { text } else { text + "\n" }
}

/// `text` with every control character replaced, so that a thread's name cannot control a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .map(|char| if char.is_control() { '?' } else { char })
        .collect()
}

pub(crate) fn or_dash(text: &str) -> String {
    if text.is_empty() {
        "-".to_owned()
    } else {
        printable(text)
    }
}

/// The width from COLUMNS, else the terminal's, else 80.
pub(crate) fn width() -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let terminal = || {
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
        (size.ws_col > 0).then_some(usize::from(size.ws_col))
    };
    columns.or_else(terminal).unwrap_or(80)
}

/// Whether standard output is a terminal and NO_COLOR is not set (no-color.org).
pub(crate) fn coloured() -> bool {
    use std::io::IsTerminal;
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) && std::io::stdout().is_terminal()
}

/// JSON with a newline at its end; on one line with `short`.
pub(crate) fn to_json(json: Json, value: &impl Serialize) -> String {
    let text = match json {
        Json::Short => serde_json::to_string(value),
        Json::Pretty | Json::Off => serde_json::to_string_pretty(value),
    };
    text.unwrap_or_default() + "\n"
}

/// JSON text, reformatted; text that is not JSON is returned unchanged.
pub(crate) fn json_text(json: Json, text: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(value) => to_json(json, &value),
        Err(_) => printable(text) + "\n",
    }
}

/// A D-Bus dictionary as a JSON object.
pub fn json_of(dict: &OwnedDict) -> Map<String, Value> {
    dict.iter().map(|(name, value)| (name.clone(), json(value))).collect()
}

/// A string member; empty when it is absent or not a string.
pub(crate) fn text_of<'a>(object: &'a Map<String, Value>, name: &str) -> &'a str {
    object.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The strings of an array; empty when it is absent.
pub(crate) fn texts_of<'a>(object: &'a Map<String, Value>, name: &str) -> impl Iterator<Item = &'a str> {
    let array = object.get(name).and_then(Value::as_array);
    array.into_iter().flatten().filter_map(Value::as_str)
}

/// The members, one per line: those of `order` first, then those that a newer daemon adds, by name.
pub(crate) fn members(object: &Map<String, Value>, order: &[&str]) -> String {
    let mut members: Vec<(&String, &Value)> = object.iter().collect();
    members.sort_by_key(|(name, _)| order.iter().position(|known| known == name).unwrap_or(order.len()));
    properties(members.into_iter().map(|(name, value)| match value.as_u64() {
        Some(usec) if name.ends_with("Timestamp") => (name, time(usec)),
        _ => (name, human(value)),
    }))
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

pub(crate) fn human(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(human).collect::<Vec<_>>().join("; "),
        other => other.to_string(),
    }
}

/// Microseconds since the epoch.
pub(crate) fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// Microseconds since the epoch as UTC, ISO 8601; 0 is "not yet".
pub(crate) fn time(usec: u64) -> String {
    if usec == 0 {
        return String::new();
    }
    let seconds = usec / 1_000_000;
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!(
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:06}Z",
        usec % 1_000_000
    )
}

/// The Gregorian date a number of days after 1970-01-01.
fn date(mut days: u64) -> (u64, u64, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    // The calendar repeats after 400 years; without this an absurd value would keep the loop running.
    let mut year = 1970 + days / 146_097 * 400;
    days %= 146_097;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc() {
        assert_eq!(time(0), "");
        assert_eq!(time(951_827_696_000_007), "2000-02-29T12:34:56.000007Z");
        assert_eq!(time(1_735_689_599_000_000), "2024-12-31T23:59:59.000000Z");
        assert_eq!(time(u64::MAX), "586524-01-19T08:01:49.551615Z");
    }

    #[test]
    fn a_name_cannot_steer_the_terminal() {
        assert_eq!(printable("a\x1b[2J\nb"), "a?[2J?b");
    }

    #[test]
    fn what_is_no_json_is_printed_all_the_same() {
        assert_eq!(json_text(Json::Off, "{\"a\":1}"), "{\n  \"a\": 1\n}\n");
        assert_eq!(json_text(Json::Short, "{ \"a\": 1 }"), "{\"a\":1}\n");
        assert_eq!(json_text(Json::Pretty, "oops"), "oops\n");
    }
}
