//! What a scalar is: kubelet's YAML library decides it by YAML 1.1 (`resolve.go` of go-yaml v2).

use serde_json::{Number, Value};

/// A scalar's value, as kubelet's JSON has it. `tag` is written as in the text: `!!str`.
pub(super) fn resolve(text: &str, plain: bool, tag: Option<&str>) -> Result<Value, &'static str> {
    match tag {
        None if !plain => Ok(text.into()),
        None => implicit(text),
        Some("!!str" | "!") => Ok(text.into()),
        Some("!!null") => expect(implicit(text)?, Value::is_null),
        Some("!!bool") => expect(implicit(text)?, Value::is_boolean),
        Some("!!int" | "!!float") => expect(implicit(text)?, Value::is_number),
        Some("!!binary") => Err("!!binary is not read by steliad"),
        // With an unknown tag the value is the text.
        Some(_) => Ok(text.into()),
    }
}

fn expect(value: Value, is: fn(&Value) -> bool) -> Result<Value, &'static str> {
    if is(&value) {
        Ok(value)
    } else {
        Err("a value is not of the type that its tag names")
    }
}

fn implicit(text: &str) -> Result<Value, &'static str> {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => return Ok(true.into()),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Ok(false.into());
        }
        "" | "~" | "null" | "Null" | "NULL" => return Ok(Value::Null),
        ".nan" | ".NaN" | ".NAN" => return Err("a number is not finite, which JSON does not have"),
        _ => {}
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") {
        return Err("a number is not finite, which JSON does not have");
    }
    let number = match text.as_bytes().first() {
        Some(b'+' | b'-' | b'0'..=b'9') => {
            let plain = text.replace('_', "");
            integer(&plain).or_else(|| is_float(&plain).then(|| float(&plain)).flatten())
        }
        Some(b'.') if is_float(text) => float(text),
        _ => None,
    };
    Ok(number.map_or_else(|| text.into(), Value::Number))
}

/// What Go's `ParseInt` and `ParseUint` take of base 0.
fn integer(text: &str) -> Option<Number> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let (digits, radix) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&digits[2..], 16),
        [b'0', b'o' | b'O', ..] => (&digits[2..], 8),
        [b'0', b'b' | b'B', ..] => (&digits[2..], 2),
        [b'0', _, ..] => (&digits[1..], 8),
        _ => (digits, 10),
    };
    // The standard library would take another sign.
    if !digits.starts_with(|first: char| first.is_ascii_hexdigit()) {
        return None;
    }
    let value = u64::from_str_radix(digits, radix).ok()?;
    if negative {
        0i64.checked_sub_unsigned(value).map(Number::from)
    } else {
        Some(value.into())
    }
}

/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`
fn is_float(text: &str) -> bool {
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let some = |text: &str| !text.is_empty() && digits(text);
    let of_mantissa = match mantissa.split_once('.') {
        None => some(mantissa),
        Some(("", fraction)) => some(fraction),
        Some((whole, fraction)) => some(whole) && digits(fraction),
    };
    of_mantissa && exponent.is_none_or(|text| some(text.strip_prefix(['+', '-']).unwrap_or(text)))
}

/// Go writes a whole number as JSON without point or exponent, so that it is an integer again.
fn float(text: &str) -> Option<Number> {
    let value: f64 = text.parse().ok()?;
    let whole = value.fract() == 0.0 && value.abs() < 9e18;
    if whole {
        Some((value as i64).into())
    } else {
        Number::from_f64(value)
    }
}

/// A key as a text; `None`: kubelet does not take such a one.
pub(super) fn key(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}
