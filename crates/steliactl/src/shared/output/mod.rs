//! How answers are written: as text, of which most is tables, or as JSON and YAML. Names are set by pods and may contain
//! anything: control characters are replaced before they reach a terminal.

#[cfg(test)]
pub(crate) mod manual;
pub(crate) mod pager;

use std::fmt;
use std::io::{self, Write};

use askama::filters::{Escaper, Html};
use serde_json::{Map, Value};
use stelia_api::client::OwnedDict;
use stelia_ledger::day::Date;
use unicode_width::UnicodeWidthStr;
use zbus::Variant;

pub(crate) use stelia_table::{
    Column, Form, Grid, Meaning, OutputOptions, Render, TextStyle, coloured, column, counted, cut, is_utf8, now,
    paragraph, printable, properties, shorten, table, to_ascii, width, wrap,
};

/// How many columns a text takes.
pub(crate) fn columns(text: &str) -> usize {
    text.width()
}

/// Says something on standard error, which may be closed, beside an answer that is whole.
pub(crate) fn note(text: &str) {
    let text = printable(text);
    let text = if is_utf8() { text } else { to_ascii(&text) };
    let _ = writeln!(io::stderr(), "steliactl: {text}");
}

pub(crate) fn or_dash(text: &str) -> String {
    if text.is_empty() {
        "-".to_owned()
    } else {
        printable(text)
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

/// A D-Bus dictionary as a JSON object.
pub fn json_of(dict: &OwnedDict) -> Map<String, Value> {
    dict.iter().map(|(name, value)| (name.clone(), json(value))).collect()
}

/// D-Bus properties under the names of this program's JSON: `FloatCPUs` is `float_cpus`, `RegisteredTimestamp`, which is in
/// microseconds, `registered_us`.
pub(crate) fn snake_case(properties: &Map<String, Value>) -> Map<String, Value> {
    let snake = |name: &str| {
        let (name, unit) = match name.strip_suffix("Timestamp") {
            Some(name) => (name, "_us"),
            None => (name, ""),
        };
        let mut snake = String::new();
        let mut after_small = false;
        // The plural of an acronym is one word.
        for char in name.replace("CPUs", "Cpus").chars() {
            if after_small && char.is_ascii_uppercase() {
                snake.push('_');
            }
            after_small = char.is_ascii_lowercase();
            snake.push(char.to_ascii_lowercase());
        }
        snake + unit
    };
    let members = properties.iter();
    members.map(|(name, value)| (snake(name), value.clone())).collect()
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

/// The least width of a value on a terminal.
const MIN_VALUE_WIDTH: usize = 24;

/// The members, one per line: those of `order` first, then the others by name. A value is wrapped to the terminal,
/// except where a path would be broken.
pub(crate) fn members(object: &Map<String, Value>, order: &[&str], style: TextStyle) -> String {
    let mut members: Vec<(&String, &Value)> = object.iter().collect();
    members.sort_by_key(|(name, _)| order.iter().position(|known| known == name).unwrap_or(order.len()));
    let rows = members.into_iter().map(|(name, value)| match value.as_u64() {
        Some(usec) if name.ends_with("Timestamp") => (format!("{name}:"), time(usec)),
        _ => (format!("{name}:"), human(value)),
    });
    let rows: Vec<(String, String)> = rows.collect();
    let names = rows.iter().map(|(name, _)| columns(name)).max().unwrap_or(0);
    let room = style
        .width
        .map(|width| width.saturating_sub(names + 2).max(MIN_VALUE_WIDTH));
    let mut text = String::new();
    for (name, value) in &rows {
        let meaning = if value.is_empty() {
            Meaning::Absent
        } else {
            Meaning::Plain
        };
        let value = or_dash(value);
        let lines = room.map_or_else(|| vec![value.clone()], |room| wrap_words(&value, room));
        let mut name = name.as_str();
        for line in lines {
            text += &format!("{name:names$}  {}\n", meaning.paint(&line, style));
            name = "";
        }
    }
    text
}

/// The text on lines of this width; on one line where a word, such as a path, would be broken.
pub(crate) fn wrap_words(text: &str, width: usize) -> Vec<String> {
    if text.split(' ').all(|word| columns(word) <= width) {
        wrap(text, width)
    } else {
        vec![text.to_owned()]
    }
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

/// Microseconds since the epoch as UTC, ISO 8601; 0 is "not yet".
pub(crate) fn time(usec: u64) -> String {
    if usec == 0 {
        return String::new();
    }
    let seconds = usec / 1_000_000;
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!(
        "{}T{hour:02}:{minute:02}:{second:02}.{:06}Z",
        Date::of(usec),
        usec % 1_000_000
    )
}

/// A time, followed by how long ago that is.
pub(crate) fn ago(usec: u64, now: u64) -> String {
    let seconds = now.saturating_sub(usec) / 1_000_000;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    let since = match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, minutes) => format!("{minutes}min {}s", seconds % 60),
        (0, hours, minutes) => format!("{hours}h {minutes}min"),
        (days, hours, _) => format!("{days}d {hours}h"),
    };
    format!("{} ({since} ago)", time(usec))
}

/// Escapes every value in a page or a picture ([`askama`], `askama.toml`), and replaces the characters that [`printable`] does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Markup;

impl Escaper for Markup {
    fn write_escaped_str<W: fmt::Write>(&self, dest: W, text: &str) -> fmt::Result {
        Html.write_escaped_str(dest, &printable(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fixtures::columns;

    #[test]
    fn ages_are_short() {
        let age = |seconds: u64| {
            let text = ago(1_000_000, 1_000_000 + seconds * 1_000_000);
            text.split_once('(').unwrap().1.trim_end_matches(" ago)").to_owned()
        };
        assert_eq!([5, 65, 3_660, 90_000].map(age), ["5s", "1min 5s", "1h 1min", "1d 1h"]);
        // The clock was set back.
        assert!(ago(2_000_000, 0).ends_with("(0s ago)"));
    }

    #[test]
    fn a_value_is_wrapped_and_a_path_is_never_broken() {
        let path = format!("/kubepods.slice/cri-containerd-{}.scope", "0".repeat(64));
        let object = [
            ("ControlGroup", Value::from(path.clone())),
            ("Degraded", Value::from("CPU 20 is offline; CPU 21 is offline")),
            ("Qos", Value::from("")),
        ];
        let object = object
            .map(|(name, value)| (name.to_owned(), value))
            .into_iter()
            .collect();
        let style = columns(40);
        assert_eq!(
            members(&object, &["Qos"], style),
            format!(
                "Qos:           -\nControlGroup:  {path}\nDegraded:      CPU 20 is offline; CPU 21\n               is offline\n"
            )
        );
    }
}
