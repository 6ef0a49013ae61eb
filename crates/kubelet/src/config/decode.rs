//! Values to a KubeletConfiguration's types, as strictly as kubelet is.

use serde_json::{Map, Value};
use stelia_cpus::quantity::{Quantity, QuantityError};
use stelia_cpus::text::excerpt::name as shown;
use stelia_cpus::text::near::nearest;

use super::schema::{Case, Fields, Kind, field};
use super::yaml::MAX_NAMED;

/// A value that kubelet does not take: it does not start with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mismatch {
    /// Where: `systemReserved.cpu`.
    pub(super) path: String,
    /// `is the boolean true, and kubelet takes a text only: write "true"`.
    pub(super) what: String,
}

/// A key that kubelet does not have, and one that it does have and that may be meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unknown {
    pub(super) path: String,
    pub(super) like: Option<&'static str>,
}

/// The keys that kubelet has, by their own names and without null.
///
/// # Errors
/// The first value of another type.
pub(super) fn object(
    map: &Map<String, Value>,
    fields: Fields,
    case: Case,
    unknown: &mut Vec<Unknown>,
) -> Result<Map<String, Value>, Mismatch> {
    let mut decoder = Decoder {
        case,
        unknown,
        path: Vec::new(),
    };
    decoder.object(map, fields)
}

struct Decoder<'a> {
    case: Case,
    unknown: &'a mut Vec<Unknown>,
    path: Vec<String>,
}

impl Decoder<'_> {
    fn object(&mut self, map: &Map<String, Value>, fields: Fields) -> Result<Map<String, Value>, Mismatch> {
        let mut decoded = Map::new();
        for (key, value) in map {
            let Some((name, kind)) = field(fields, key, self.case) else {
                if self.unknown.len() == MAX_NAMED {
                    continue;
                }
                let names = fields.iter().map(|(name, _)| *name);
                let like = nearest(key, names);
                let path = self.at(&shown(key));
                self.unknown.push(Unknown { path, like });
                continue;
            };
            self.path.push((*name).to_owned());
            if let Some(value) = self.value(value, kind)? {
                put(&mut decoded, name, value);
            }
            self.path.pop();
        }
        Ok(decoded)
    }

    /// `None`: it leaves the key as if it were not there.
    fn value(&mut self, value: &Value, kind: &Kind) -> Result<Option<Value>, Mismatch> {
        let taken = match (kind, value) {
            (Kind::Duration, Value::Null) => false,
            (_, Value::Null) => return Ok(None),
            (Kind::Text, value) => value.is_string(),
            (Kind::Bool, value) => value.is_boolean(),
            (Kind::Int32, value) => value.as_i64().is_some_and(|number| i32::try_from(number).is_ok()),
            (Kind::UInt32, value) => value.as_u64().is_some_and(|number| u32::try_from(number).is_ok()),
            (Kind::Int64, value) => value.as_i64().is_some(),
            (Kind::Float, value) => value.is_number(),
            (Kind::Duration | Kind::OptionalDuration, value) => value.as_str().is_some_and(is_duration),
            (Kind::Quantity, Value::String(text)) => !matches!(
                text.trim().parse::<Quantity>(),
                Err(QuantityError::Malformed(_) | QuantityError::TooLarge(_))
            ),
            (Kind::Quantity, value) => value.is_number(),
            (Kind::TextOrNumber, value) => value.is_string() || value.is_number(),
            (Kind::List(kind), Value::Array(list)) => return self.list(list, kind).map(Some),
            (Kind::Map(kind), Value::Object(map)) => return self.map(map, kind).map(Some),
            (Kind::Object(fields), Value::Object(map)) => return Ok(Some(self.object(map, fields)?.into())),
            (Kind::List(_) | Kind::Map(_) | Kind::Object(_), _) => false,
        };
        if taken {
            Ok(Some(value.clone()))
        } else {
            Err(Mismatch {
                path: self.path.join("."),
                what: wrong(value, kind),
            })
        }
    }

    fn list(&mut self, list: &[Value], kind: &Kind) -> Result<Value, Mismatch> {
        let mut decoded = Vec::new();
        for (at, value) in list.iter().enumerate() {
            self.path.push(at.to_string());
            decoded.push(self.value(value, kind)?.unwrap_or_else(|| nothing(kind)));
            self.path.pop();
        }
        Ok(decoded.into())
    }

    fn map(&mut self, map: &Map<String, Value>, kind: &Kind) -> Result<Value, Mismatch> {
        let mut decoded = Map::new();
        for (key, value) in map {
            self.path.push(shown(key));
            let value = self.value(value, kind)?.unwrap_or_else(|| nothing(kind));
            decoded.insert(key.clone(), value);
            self.path.pop();
        }
        Ok(decoded.into())
    }

    fn at(&self, key: &str) -> String {
        let above = self.path.iter().map(String::as_str);
        above.chain([key]).collect::<Vec<_>>().join(".")
    }
}

/// If two keys name the same field, which only happens where case does not matter, the later one counts; maps are merged.
fn put(decoded: &mut Map<String, Value>, name: &str, value: Value) {
    match (decoded.get_mut(name), value) {
        (Some(Value::Object(former)), Value::Object(more)) => former.extend(more),
        (_, value) => {
            decoded.insert(name.to_owned(), value);
        }
    }
}

/// What Go has where JSON has null in a list or in a map.
fn nothing(kind: &Kind) -> Value {
    match kind {
        Kind::Text | Kind::Duration | Kind::OptionalDuration => "".into(),
        Kind::Bool => false.into(),
        Kind::Int32 | Kind::Int64 | Kind::UInt32 | Kind::Float | Kind::TextOrNumber | Kind::Quantity => 0.into(),
        Kind::List(_) => Value::Array(Vec::new()),
        Kind::Map(_) | Kind::Object(_) => Map::new().into(),
    }
}

fn wrong(value: &Value, kind: &Kind) -> String {
    // Texts are not quoted: they may be secrets.
    let found = match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => format!("the boolean {value}"),
        Value::Number(value) => format!("the number {value}"),
        Value::String(_) => "a text".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a map".to_owned(),
    };
    let wanted = match kind {
        Kind::Text => "a text",
        Kind::Bool => "a boolean",
        Kind::Int32 => "a whole number of 32 bits",
        Kind::Int64 => "a whole number of 64 bits",
        Kind::UInt32 => "a whole number of 32 bits that is not negative",
        Kind::Float => "a number",
        Kind::Duration | Kind::OptionalDuration => "a duration such as \"1m30s\"",
        Kind::Quantity => "a quantity such as \"1Gi\"",
        Kind::TextOrNumber => "a text or a number",
        Kind::List(_) => "a list",
        Kind::Map(_) | Kind::Object(_) => "a map",
    };
    let cure = match (kind, value) {
        (Kind::Text, Value::Bool(_) | Value::Number(_)) => format!(": write it in quotation marks, \"{value}\""),
        (Kind::Bool, Value::String(text)) if matches!(text.as_str(), "true" | "false") => {
            format!(": write {text} without quotation marks")
        }
        _ => String::new(),
    };
    format!("is {found}, and kubelet takes {wanted} only{cure}")
}

/// What Go's `time.ParseDuration` takes.
fn is_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    while !rest.is_empty() {
        let number = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (digits, after) = rest.split_at(number);
        let dots = digits.matches('.').count();
        if digits.len() == dots || dots > 1 {
            return false;
        }
        let units = ["ns", "us", "µs", "μs", "ms", "s", "m", "h"];
        // The longest that fits: "ms" before "m".
        let unit = units.into_iter().find(|unit| after.starts_with(unit));
        let Some(unit) = unit else { return false };
        rest = &after[unit.len()..];
    }
    !text.is_empty() && !text.ends_with(['+', '-'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_gos() {
        for text in [
            "0",
            "0s",
            "10s",
            "1m30s",
            "1.5h",
            "-1ms",
            "+.5s",
            "1h2m3s4ms5us6ns",
            "100µs",
        ] {
            assert!(is_duration(text), "{text}");
        }
        for text in ["", "-", "10", "s", ".s", "1.2.3s", "1m 30s", "1d", "0 s"] {
            assert!(!is_duration(text), "{text}");
        }
    }
}
