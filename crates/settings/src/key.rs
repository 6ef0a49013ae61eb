//! A key of a table of the configuration: its name, its check and its printing.

use toml::Value;

pub(crate) struct Key<T> {
    pub(crate) name: &'static str,
    /// What the value may be, the last behind an "or".
    pub(crate) allowed: &'static [&'static str],
    /// Sets the value; `None` if it is not allowed.
    pub(crate) set: fn(&mut T, &Value) -> Option<()>,
    pub(crate) get: fn(&T) -> Value,
}

/// A key of one field: its name, what is allowed, the field, how a value is read (`None` if it is not allowed), and how it is printed.
macro_rules! key {
    ($name:literal, $allowed:expr, $($field:ident).+, $read:expr, $print:expr) => {
        $crate::key::Key {
            name: $name,
            allowed: &$allowed,
            set: |table, value| $crate::key::set(&mut table.$($field).+, value, $read),
            get: |table| $crate::key::get(&table.$($field).+, $print),
        }
    };
}
pub(crate) use key;

/// A key whose values are all names of an enumeration, or these of its names.
macro_rules! choice {
    ($key:literal, $type:ident, $($field:ident).+) => {
        $crate::key::choice!($key, $type[$type::NAMES], $($field).+)
    };
    ($key:literal, $type:ident [$names:expr], $($field:ident).+) => {
        $crate::key::key!(
            $key,
            $names,
            $($field).+,
            |value| $type::parse(value.as_str().filter(|name| $names.contains(name))?),
            |value| value.name().into()
        )
    };
}
pub(crate) use choice;

pub(crate) fn set<T>(field: &mut T, value: &Value, read: fn(&Value) -> Option<T>) -> Option<()> {
    *field = read(value)?;
    Some(())
}

pub(crate) fn get<T>(field: &T, print: fn(&T) -> Value) -> Value {
    print(field)
}
