//! A configuration's text to values, as kubelet's libraries take it (`sigs.k8s.io/yaml`, which reads YAML 1.1): of several documents the
//! first, of a key given twice the last, `yes` and `on` as booleans, numbers with underscores and in bases 2, 8 and 16.
//!
//! A text that begins with `{` is JSON for kubelet and nothing else.

mod scalar;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use serde_saphyr::granit_parser::{Event, Options, Parser, ScalarStyle, Span, StrInput};
use stelia_cpus::text::excerpt::name as shown;

use super::ConfigError;
use scalar::{key, resolve};

/// More values than this are not repeated by aliases, because aliases of aliases grow exponentially and a real file needs few. kubelet's own
/// limit is another: it counts the share of what is repeated.
const MAX_REPEATED: usize = 10_000;

/// Limit of the duplicate keys that are named, and of the unknown keys.
pub(super) const MAX_NAMED: usize = 32;

/// A text's first document.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Document {
    pub(super) value: Value,
    /// The keys that are in it twice, each as its path: `systemReserved.cpu`.
    pub(super) twice: Vec<String>,
    /// Whether other documents follow, which kubelet does not look at.
    pub(super) others: bool,
}

/// Why a text is no document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Malformed {
    /// Quotes nothing of the text, which may have secrets.
    pub(super) cause: String,
    /// kubelet may read it.
    pub(super) is_limit: bool,
}

impl Malformed {
    fn new(cause: String) -> Self {
        Self { cause, is_limit: false }
    }
}

pub(super) fn parse(text: &str) -> Result<Document, Malformed> {
    if !text.trim_start().starts_with('{') {
        return yaml(text);
    }
    let value = serde_json::from_str(text).map_err(|cause| {
        Malformed::new(format!(
            "line {}: it is not JSON, as its first character says",
            cause.line()
        ))
    })?;
    // JSON is YAML too; what that reader finds twice is twice.
    let twice = yaml(text).map(|document| document.twice).unwrap_or_default();
    Ok(Document {
        value,
        twice,
        others: false,
    })
}

/// The keys of a file of another program's, such as k3s's.
///
/// # Errors
/// It is not YAML, or no map.
pub fn values(text: &str, place: &str) -> Result<Map<String, Value>, ConfigError> {
    let malformed = |cause: String| ConfigError::Malformed {
        place: place.to_owned(),
        cause,
    };
    match yaml(text).map_err(|wrong| malformed(wrong.cause))?.value {
        Value::Object(map) => Ok(map),
        Value::Null => Ok(Map::new()),
        _ => Err(malformed("it is not a map of keys".to_owned())),
    }
}

fn yaml(text: &str) -> Result<Document, Malformed> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut options = Options::default();
    options.set_emit_comments(false);
    let mut reader = Reader {
        parser: Parser::new_from_str_with_options(text, options),
        anchors: BTreeMap::new(),
        repeated: 0,
        twice: Vec::new(),
        path: Vec::new(),
    };
    let mut value = Value::Null;
    loop {
        let (event, span) = reader.next()?;
        match event {
            Event::StreamEnd => break,
            Event::DocumentStart(_, Some(version)) if (version.major, version.minor) != (1, 1) => {
                return Err(at(&span, "%YAML names another version than 1.1"));
            }
            Event::DocumentEnd => {
                let others = matches!(reader.next(), Ok((Event::DocumentStart(..), _)));
                return Ok(reader.document(value, others));
            }
            Event::StreamStart | Event::DocumentStart(..) => {}
            event => (value, _) = reader.node(event, &span)?,
        }
    }
    Ok(reader.document(value, false))
}

fn at(span: &Span, what: &str) -> Malformed {
    Malformed::new(format!("line {}: {what}", span.start.line()))
}

struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    /// Each with its number of values.
    anchors: BTreeMap<usize, (Value, usize)>,
    repeated: usize,
    twice: Vec<String>,
    path: Vec<String>,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), Malformed> {
        match self.parser.next_event() {
            None => Err(Malformed::new("it ends within a document".to_owned())),
            Some(Ok(next)) => Ok(next),
            Some(Err(cause)) => {
                let mark = cause.marker();
                let place = format!("line {}, column {}", mark.line(), mark.col() + 1);
                Err(Malformed::new(format!("{place}: it is not YAML")))
            }
        }
    }

    fn document(self, value: Value, others: bool) -> Document {
        Document {
            value,
            twice: self.twice,
            others,
        }
    }

    /// A value that begins with this event, and of how many values it consists.
    fn node(&mut self, event: Event<'a>, span: &Span) -> Result<(Value, usize), Malformed> {
        let (anchor, value, count) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let tag = tag.map(|tag| tag.original());
                let value = resolve(&text, style == ScalarStyle::Plain, tag.as_deref());
                (anchor, value.map_err(|what| at(span, what))?, 1)
            }
            Event::SequenceStart(_, anchor, _) => {
                let (list, count) = self.list()?;
                (anchor, Value::Array(list), count)
            }
            Event::MappingStart(_, anchor, _) => {
                let (map, count) = self.map()?;
                (anchor, Value::Object(map), count)
            }
            Event::Alias(id) => {
                let (value, count) = self
                    .anchors
                    .get(&id)
                    .ok_or_else(|| at(span, "an anchor's value contains the anchor"))?;
                self.repeated += count;
                if self.repeated > MAX_REPEATED {
                    return Err(Malformed {
                        cause: format!("aliases repeat more than {MAX_REPEATED} values, which is steliad's limit"),
                        is_limit: true,
                    });
                }
                return Ok((value.clone(), *count));
            }
            _ => return Err(at(span, "it is not YAML")),
        };
        if anchor != 0 {
            self.anchors.insert(anchor, (value.clone(), count));
        }
        Ok((value, count))
    }

    fn list(&mut self) -> Result<(Vec<Value>, usize), Malformed> {
        let (mut list, mut count) = (Vec::new(), 1);
        loop {
            let (event, span) = self.next()?;
            if event == Event::SequenceEnd {
                return Ok((list, count));
            }
            self.path.push(list.len().to_string());
            let (value, own) = self.node(event, &span)?;
            self.path.pop();
            count += own;
            list.push(value);
        }
    }

    fn map(&mut self) -> Result<(Map<String, Value>, usize), Malformed> {
        let (mut map, mut count) = (Map::new(), 1);
        loop {
            let (event, span) = self.next()?;
            if event == Event::MappingEnd {
                return Ok((map, count));
            }
            let merges = matches!(&event, Event::Scalar(text, ScalarStyle::Plain, _, None) if text == "<<");
            let (name, own) = self.node(event, &span)?;
            let name = key(&name).ok_or_else(|| at(&span, "a key is not a text, a number or a boolean"))?;
            self.path.push(name.clone());
            let (event, span) = self.next()?;
            let (value, of_value) = self.node(event, &span)?;
            count += own + of_value;
            if merges {
                self.merge(&mut map, value).map_err(|what| at(&span, what))?
            } else {
                self.set(&mut map, name, value)
            }
            self.path.pop();
        }
    }

    fn set(&mut self, map: &mut Map<String, Value>, name: String, value: Value) {
        if map.insert(name, value).is_some() && self.twice.len() < MAX_NAMED {
            self.twice.push(shown(&self.path.join(".")));
        }
    }

    /// `<<`: the keys of another map, or of several, of which the first counts most. Keys that follow replace them.
    fn merge(&mut self, map: &mut Map<String, Value>, value: Value) -> Result<(), &'static str> {
        const BAD_MERGE_VALUE: &str = "<< has neither a map nor a list of maps";
        let maps = match value {
            Value::Object(one) => vec![Value::Object(one)],
            Value::Array(several) => several,
            _ => return Err(BAD_MERGE_VALUE),
        };
        for other in maps.into_iter().rev() {
            let Value::Object(other) = other else {
                return Err(BAD_MERGE_VALUE);
            };
            map.extend(other);
        }
        Ok(())
    }
}
