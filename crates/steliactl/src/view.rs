//! Text and JSON. Names come from pods and may hold anything: nothing is printed to a terminal as it comes.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use serde_json::{Map, Value};
use stelia_api::client::OwnedDict;
use zbus::Variant;

use crate::cli::Json;
use crate::client::InstanceSummary;
use crate::locality::Seen;
use crate::threads::Process;

/// The contract's properties in the order a reader wants them; what a newer daemon adds follows by name.
const PROPERTY_ORDER: [&str; 15] = [
    "PodUID",
    "Container",
    "State",
    "Qos",
    "Degraded",
    "ExclusiveCPUs",
    "FloatCPUs",
    "MemoryNodes",
    "Partition",
    "Placement",
    "Unit",
    "ControlGroup",
    "OriginControlGroup",
    "RegisteredTimestamp",
    "IsolatedTimestamp",
];
/// The report of a pass, in the contract's order.
const REPORT_ORDER: [&str; 6] = ["pass", "steps", "writes", "moves", "repaired", "degraded"];

/// `text` with every control character replaced, so that a thread's name cannot steer a terminal.
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|char| if char.is_control() { '?' } else { char })
        .collect()
}

/// The terminal's width as COLUMNS says it, or as it is, or 80.
pub(super) fn width() -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let terminal = || {
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
        (size.ws_col > 0).then_some(usize::from(size.ws_col))
    };
    columns.or_else(terminal).unwrap_or(80)
}

/// Whether standard output is a terminal and nobody said NO_COLOR (no-color.org).
pub(super) fn coloured() -> bool {
    use std::io::IsTerminal;
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) && std::io::stdout().is_terminal()
}

/// A string property; empty when it is absent or no string.
pub fn text_of<'a>(dict: &'a OwnedDict, name: &str) -> &'a str {
    match dict.get(name).map(|value| &**value) {
        Some(Variant::Str(text)) => text.as_str(),
        _ => "",
    }
}

/// `list`.
pub fn instances(instances: &[InstanceSummary], legend: bool) -> String {
    let rows = instances.iter().map(|instance| {
        let cells = [
            &instance.pod_uid,
            &instance.container,
            &instance.state,
            &instance.exclusive_cpus,
            &instance.float_cpus,
            &instance.degraded.join("; "),
        ];
        cells.map(|cell| or_dash(cell)).to_vec()
    });
    table(
        &["POD UID", "CONTAINER", "STATE", "CPUS", "FLOAT", "DEGRADED"],
        rows.collect(),
        legend,
        None,
    )
}

/// The properties of an instance, one a line.
pub fn properties(properties: &OwnedDict) -> String {
    let rows = ordered(properties, &PROPERTY_ORDER).into_iter().map(|(name, value)| {
        let text = match value {
            Variant::U64(usec) if name.ends_with("Timestamp") => time(*usec),
            value => human(&json(value)),
        };
        vec![format!("{name}:"), or_dash(&text)]
    });
    table(&[], rows.collect(), false, None)
}

/// The report of a pass, one number a line.
pub fn report(report: &OwnedDict) -> String {
    let rows = ordered(report, &REPORT_ORDER).into_iter();
    table(
        &[],
        rows.map(|(name, value)| vec![format!("{name}:"), or_dash(&human(&json(value)))])
            .collect(),
        false,
        None,
    )
}

/// The threads of an instance, a table a process.
pub fn processes(processes: &[Process], legend: bool) -> String {
    let mut text = String::new();
    for process in processes {
        if legend {
            let inner = process
                .container_pid
                .map(|pid| format!(", {pid} in the container"))
                .unwrap_or_default();
            text += &format!("\n{} (pid {}{inner})\n", printable(&process.name), process.pid);
        }
        let rows = process.threads.iter().map(|thread| {
            vec![
                thread.tid.to_string(),
                or_dash(&thread.name),
                or_dash(&thread.cgroup),
                or_dash(&thread.allowed_cpus),
                format!(
                    "{}.{:02}s",
                    thread.cpu_time_usec / 1_000_000,
                    thread.cpu_time_usec / 10_000 % 100
                ),
            ]
        });
        text += &table(
            &["TID", "THREAD_NAME", "CGROUP", "ALLOWED_CPUS", "CPU TIME"],
            rows.collect(),
            legend,
            Some(4),
        );
    }
    text
}

/// `show --json`: the properties under the contract's names, where memory and devices are as far as that is known, and the
/// processes.
pub fn instance_json(json: Json, properties: &OwnedDict, processes: &[Process], seen: Option<&Seen>) -> String {
    let mut object = json_of(properties);
    if let Some(seen) = seen {
        object.insert("Locality".to_owned(), seen.json());
    }
    object.insert(
        "Processes".to_owned(),
        serde_json::to_value(processes).unwrap_or_default(),
    );
    to_json(json, &object)
}

/// A dictionary as a JSON object.
pub fn json_of(dict: &OwnedDict) -> Map<String, Value> {
    dict.iter().map(|(name, value)| (name.clone(), json(value))).collect()
}

/// JSON with a newline at its end, on one line when it is to be short.
pub fn to_json(json: Json, value: &impl Serialize) -> String {
    let text = match json {
        Json::Short => serde_json::to_string(value),
        Json::Pretty | Json::Off => serde_json::to_string_pretty(value),
    };
    text.unwrap_or_default() + "\n"
}

/// JSON text, short or pretty; what is no JSON stays as it is.
pub fn json_text(json: Json, text: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(value) => to_json(json, &value),
        Err(_) => printable(text) + "\n",
    }
}

pub(super) fn json(value: &Variant<'_>) -> Value {
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

pub(super) fn human(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(human).collect::<Vec<_>>().join("; "),
        other => other.to_string(),
    }
}

fn ordered<'a>(dict: &'a OwnedDict, order: &[&str]) -> Vec<(&'a str, &'a Variant<'static>)> {
    let mut entries: Vec<_> = dict.iter().map(|(name, value)| (name.as_str(), &**value)).collect();
    entries.sort_by_key(|(name, _)| {
        (
            order.iter().position(|known| known == name).unwrap_or(order.len()),
            *name,
        )
    });
    entries
}

/// Every cell holds something, so that a column stays a column for awk.
pub(super) fn or_dash(text: &str) -> String {
    if text.is_empty() {
        "-".to_owned()
    } else {
        printable(text)
    }
}

/// Columns two blanks apart, nothing else: it pipes. No rows make no table, only its header.
pub(super) fn table(header: &[&str], rows: Vec<Vec<String>>, legend: bool, right: Option<usize>) -> String {
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

/// Microseconds since the epoch.
pub(super) fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// Microseconds since the epoch as UTC, ISO 8601; 0 is "not yet".
pub(super) fn time(usec: u64) -> String {
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
    // The calendar repeats after 400 years; without this a nonsense value would count for ever.
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
    fn an_empty_list_is_its_header() {
        assert_eq!(
            instances(&[], true),
            "POD UID  CONTAINER  STATE  CPUS  FLOAT  DEGRADED\n"
        );
        assert_eq!(instances(&[], false), "");
    }

    #[test]
    fn what_is_no_json_is_printed_all_the_same() {
        assert_eq!(json_text(Json::Off, "{\"a\":1}"), "{\n  \"a\": 1\n}\n");
        assert_eq!(json_text(Json::Short, "{ \"a\": 1 }"), "{\"a\":1}\n");
        assert_eq!(json_text(Json::Pretty, "oops"), "oops\n");
    }
}
