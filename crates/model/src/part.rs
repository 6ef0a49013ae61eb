//! A part of an answer that a newer daemon may send in another form.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A value, or JSON that this program does not understand and hands on as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Part<T> {
    Known(T),
    Unknown(Value),
}

impl<T> Default for Part<T> {
    fn default() -> Self {
        Self::Unknown(Value::Null)
    }
}

impl<T> Part<T> {
    pub fn known(&self) -> Option<&T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Unknown(_) => None,
        }
    }
}
