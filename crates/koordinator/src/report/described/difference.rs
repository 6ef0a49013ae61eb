//! Where two objects differ.

use serde_json::Value;
use stelia_cpus::text::excerpt;

use super::DescribedError;
use crate::report::NodeResourceTopology;

/// The first place where an object differs from the one that it has to be. Annotations are compared parsed.
pub(super) fn first(found: Value, implied: &NodeResourceTopology) -> Result<Option<DescribedError>, DescribedError> {
    let (found, implied) = (parsed(found), parsed(value(implied)?));
    Ok(walk(String::new(), Some(&found), Some(&implied)))
}

pub(super) fn value(object: &NodeResourceTopology) -> Result<Value, DescribedError> {
    serde_json::to_value(object).map_err(|cause| DescribedError::Text(excerpt::cause(&cause)))
}

fn parsed(mut value: Value) -> Value {
    let annotations = value
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut);
    for (_, annotation) in annotations.into_iter().flatten() {
        if let Some(parsed) = annotation.as_str().and_then(|text| serde_json::from_str(text).ok()) {
            *annotation = parsed;
        }
    }
    value
}

fn walk(place: String, found: Option<&Value>, implied: Option<&Value>) -> Option<DescribedError> {
    match (found, implied) {
        (Some(Value::Object(found)), Some(Value::Object(implied))) => {
            let inside = |name: &str| match place.as_str() {
                "" => excerpt::name(name),
                place => format!("{place}.{}", excerpt::name(name)),
            };
            let names = implied.keys().chain(found.keys());
            names
                .map(|name| (name, found.get(name), implied.get(name)))
                .find_map(|(name, found, implied)| walk(inside(name), found, implied))
        }
        (Some(Value::Array(found)), Some(Value::Array(implied))) => (0..found.len().max(implied.len()))
            .find_map(|at| walk(format!("{place}[{at}]"), found.get(at), implied.get(at))),
        (found, implied) if found == implied => None,
        (found, implied) => Some(DescribedError::Contradiction {
            place,
            found: shown(found),
            implied: shown(implied),
        }),
    }
}

fn shown(value: Option<&Value>) -> String {
    value.map_or_else(|| "not there".to_owned(), |value| excerpt::excerpt(&value.to_string()))
}
