//! A place in a document: a value and the path to it.

use serde_json::{Map, Value};
use stelia_cpus::text::excerpt;

use super::error::ManifestError;

/// A value with its path.
#[derive(Debug, Clone)]
pub(super) struct Field<'a> {
    path: String,
    value: &'a Value,
}

impl<'a> Field<'a> {
    pub(super) fn root(value: &'a Value) -> Self {
        let path = String::new();
        Self { path, value }
    }

    pub(super) fn value(&self) -> &'a Value {
        self.value
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// The value of this key; `None` where the key is absent, or null.
    pub(super) fn get(&self, key: &str) -> Result<Option<Self>, ManifestError> {
        let found = self.map()?.get(key).filter(|value| !value.is_null());
        Ok(found.map(|value| self.at(key, value)))
    }

    /// The value at a path of keys; `None` where one of them is absent, or null.
    pub(super) fn below(&self, keys: &[&str]) -> Result<Option<Self>, ManifestError> {
        let mut found = self.clone();
        for key in keys {
            match found.get(key)? {
                Some(next) => found = next,
                None => return Ok(None),
            }
        }
        Ok(Some(found))
    }

    /// The value of a required key.
    pub(super) fn needed(&self, key: &str) -> Result<Self, ManifestError> {
        let found = self.get(key)?;
        found.ok_or_else(|| self.at(key, self.value).wrong("it is required"))
    }

    /// All keys of a map with their values.
    pub(super) fn entries(&self) -> Result<impl Iterator<Item = (&'a str, Self)>, ManifestError> {
        let entries = self.map()?.iter();
        Ok(entries.map(|(key, value)| (key.as_str(), self.at(key, value))))
    }

    /// All values of a list.
    pub(super) fn items(&self) -> Result<impl Iterator<Item = Self>, ManifestError> {
        let list = self.value.as_array().ok_or_else(|| self.wrong("it must be a list"))?;
        let item = |(at, value): (usize, &'a Value)| Self {
            path: format!("{}[{at}]", self.path),
            value,
        };
        Ok(list.iter().enumerate().map(item))
    }

    pub(super) fn is_null(&self) -> bool {
        self.value.is_null()
    }

    pub(super) fn text(&self) -> Result<&'a str, ManifestError> {
        self.value.as_str().ok_or_else(|| self.wrong("it must be a string"))
    }

    /// A number or a string, as quantities may be written.
    pub(super) fn number_or_text(&self) -> Result<String, ManifestError> {
        match self.value {
            Value::String(text) => Ok(text.clone()),
            Value::Number(number) => Ok(number.to_string()),
            _ => Err(self.wrong("it must be a number or a string")),
        }
    }

    pub(super) fn wrong(&self, what: impl ToString) -> ManifestError {
        ManifestError::Wrong {
            path: self.path.clone(),
            what: what.to_string(),
        }
    }

    fn map(&self) -> Result<&'a Map<String, Value>, ManifestError> {
        self.value.as_object().ok_or_else(|| self.wrong("it must be a map"))
    }

    fn at(&self, key: &str, value: &'a Value) -> Self {
        let dot = if self.path.is_empty() { "" } else { "." };
        Self {
            path: format!("{}{dot}{}", self.path, excerpt::name(key)),
            value,
        }
    }
}
