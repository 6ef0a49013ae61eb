//! How answers are written: as text, of which most is tables, or as JSON and YAML. Names are set by pods and may contain
//! anything: control characters are replaced before they reach a terminal.

pub(crate) mod blocks;
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
    Column, Form, Grid, Meaning, OutputOptions, Render, TextStyle, column, counted, cut, is_utf8, now, paragraph,
    printable, properties, table, to_ascii, width, wrap,
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

/// A name, what it says, and what that means.
pub(crate) type Fact = (String, String, Meaning);

/// Facts, one below the other; a text goes on below itself where it is longer than the terminal is wide.
pub(crate) fn facts(facts: &[Fact], style: TextStyle) -> String {
    let widest = facts.iter().map(|(name, ..)| columns(name)).max().unwrap_or(0);
    let lines = facts.iter();
    lines
        .map(|(name, text, meaning)| hanging(name, widest + 2, *meaning, text, style))
        .collect()
}

/// The least width of a text beside a label on a terminal.
const MIN_VALUE_WIDTH: usize = 24;

/// A path that is longer is shortened on a terminal.
const MAX_PATH_WIDTH: usize = 44;

/// A label with a text beside it, whose lines all begin in column `indent`. On a terminal long paths lose their middle.
pub(crate) fn hanging(label: &str, indent: usize, meaning: Meaning, text: &str, style: TextStyle) -> String {
    let text = printable(text);
    let lines = match style.width {
        None => vec![text],
        Some(width) => {
            let room = width.saturating_sub(indent).max(MIN_VALUE_WIDTH);
            let most = room.min(MAX_PATH_WIDTH);
            let words: Vec<String> = text.split(' ').map(|word| without_middle(word, most)).collect();
            wrap(&words.join(" "), room)
        }
    };
    let blanks = " ".repeat(indent.saturating_sub(columns(label)));
    let between = format!("\n{}", " ".repeat(indent));
    format!("{}{blanks}{}\n", meaning.paint(label, style), lines.join(&between))
}

/// A path of at most this many characters; any other word as it is.
fn without_middle(word: &str, most: usize) -> String {
    let characters = word.chars().count();
    if !word.starts_with('/') || characters <= most {
        return word.to_owned();
    }
    let beginning: String = word.chars().take(most / 3).collect();
    let end: String = word.chars().skip(characters - (most - most / 3 - 1)).collect();
    format!("{beginning}…{end}")
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

/// A value on one line; the members of a structure in a list stand beside each other.
pub(crate) fn human(value: &Value) -> String {
    let joined = |items: &[Value], between| items.iter().map(human).collect::<Vec<_>>().join(between);
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) if items.iter().any(Value::is_array) => {
            let inner = |item: &Value| item.as_array().map_or_else(|| human(item), |items| joined(items, " "));
            items.iter().map(inner).collect::<Vec<_>>().join("; ")
        }
        Value::Array(items) => joined(items, "; "),
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
    fn a_fact_goes_on_below_itself() {
        let fact = |name: &str, text: &str| (name.to_owned(), text.to_owned(), Meaning::Plain);
        let all = [
            fact("  Problem", "CPU 20 is offline; CPU 21 is offline"),
            fact("", "and"),
        ];
        assert_eq!(
            facts(&all, columns(40)),
            "  Problem  CPU 20 is offline; CPU 21 is\n           offline\n           and\n"
        );
    }
}
