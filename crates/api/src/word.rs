//! A word of an enumeration of which a newer daemon may know more.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use stelia_cpus::text::Named;

/// A value of an enumeration, or a word that this program does not know. It is compared, printed and written to JSON by its name.
#[derive(Debug, Clone)]
pub enum Word<T> {
    Known(T),
    Unknown(String),
}

impl<T: Named> Word<T> {
    pub fn name(&self) -> &str {
        match self {
            Self::Known(value) => value.name(),
            Self::Unknown(word) => word,
        }
    }

    /// The value; `None` of a word that this program does not know.
    pub fn known(&self) -> Option<T> {
        match self {
            Self::Known(value) => Some(*value),
            Self::Unknown(_) => None,
        }
    }
}

/// What was not told: the empty word.
impl<T> Default for Word<T> {
    fn default() -> Self {
        Self::Unknown(String::new())
    }
}

impl<T> From<T> for Word<T> {
    fn from(value: T) -> Self {
        Self::Known(value)
    }
}

impl<T: Named> PartialEq for Word<T> {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl<T: Named> Eq for Word<T> {}

impl<T: Named> PartialEq<T> for Word<T> {
    fn eq(&self, other: &T) -> bool {
        self.name() == other.name()
    }
}

impl<T: Named> fmt::Display for Word<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl<T: Named> Serialize for Word<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de, T: Named> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = <Cow<'de, str>>::deserialize(deserializer)?;
        Ok(T::parse(&word).map_or_else(|| Self::Unknown(word.into_owned()), Self::Known))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;

    #[test]
    fn a_word_that_is_not_known_is_read_and_written_as_it_is() {
        let json = r#"["isolated","sealed",""]"#;
        let words: Vec<Word<State>> = serde_json::from_str(json).unwrap();
        assert_eq!(words[0], State::Isolated);
        assert_eq!((words[1].known(), words[1].to_string()), (None, "sealed".to_owned()));
        assert_eq!(words[2], Word::default());
        assert_eq!(serde_json::to_string(&words).unwrap(), json);
    }
}
