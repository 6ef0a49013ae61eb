//! The forms of an answer, and what prints it.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;

use crate::TextStyle;

/// In which form an answer is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Text,
    /// Text with more columns.
    Wide,
    /// JSON for the eye.
    Json,
    /// JSON on one line.
    JsonLine,
}

/// Why the command fails although its answer is printed, or without one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct PrintError {
    pub printed: String,
    pub reason: String,
}

impl Form {
    /// Whether programs read it.
    pub fn is_data(self) -> bool {
        matches!(self, Self::Json | Self::JsonLine)
    }

    /// Parses an option's value: one of these words.
    pub fn parser<const N: usize>(words: [(&'static str, Self); N]) -> impl TypedValueParser<Value = Self> {
        PossibleValuesParser::new(words.map(|(word, _)| word)).try_map(move |given| {
            let found = words.iter().find(|(word, _)| *word == given);
            found.map(|(_, form)| *form).ok_or("not a form")
        })
    }

    /// The value as JSON, on one line or for the eye, with a newline at its end.
    ///
    /// # Errors
    /// The value cannot be serialized.
    pub fn write(self, value: &impl Serialize) -> Result<String, PrintError> {
        let json = match self {
            Self::JsonLine => serde_json::to_string(value),
            _ => serde_json::to_string_pretty(value),
        };
        json.map(|text| text + "\n").map_err(|cause| PrintError {
            printed: String::new(),
            reason: format!("write the answer: {cause}"),
        })
    }
}

/// How an answer is printed, from the command line's options.
#[derive(Debug, Clone, Copy)]
pub struct OutputOptions {
    pub form: Form,
    pub style: TextStyle,
}

impl OutputOptions {
    /// Writes the answer.
    ///
    /// # Errors
    /// [`PrintError`] where the answer itself means failure.
    pub fn print<E: From<PrintError>>(self, answer: &impl Render) -> Result<String, E> {
        let printed = match self.form {
            Form::Text | Form::Wide => answer.text(self.style),
            form => form.write(answer)?,
        };
        match answer.failure() {
            None => Ok(printed),
            Some(reason) => Err(PrintError { printed, reason }.into()),
        }
    }
}

/// A command's answer: it serializes for programs and renders as text for people.
pub trait Render: Serialize {
    fn text(&self, style: TextStyle) -> String;

    /// Why the exit code is 1 although there is an answer.
    fn failure(&self) -> Option<String> {
        None
    }
}
