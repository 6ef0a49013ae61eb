//! Errors of reading a description.

use stelia_text::excerpt::excerpt;

use super::{MAX_BYTES, MAX_LISTED, MAX_ZONES};

/// Why a text is not the description of a node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DescribedError {
    /// The text is too long.
    #[error("the text has {0} bytes, more than {MAX_BYTES}")]
    TooLarge(usize),
    /// Its CPU lists are too long.
    #[error("its lists have more than {MAX_LISTED} CPUs together")]
    TooMany,
    /// It has too many zones.
    #[error("it has {0} zones, more than {MAX_ZONES}")]
    TooManyZones(usize),
    /// It does not parse as the object.
    #[error("not a NodeResourceTopology as steliactl prints it: {0}")]
    Text(String),
    /// An annotation is missing.
    #[error("the annotation {0} is missing")]
    Missing(&'static str),
    /// An annotation does not parse.
    #[error("annotation {name}: {cause}")]
    Annotation {
        /// The annotation.
        name: &'static str,
        /// The parser's words.
        cause: String,
    },
    /// A value cannot be.
    #[error("{place} is {found:?}: {why}")]
    Value {
        /// Where it is.
        place: String,
        /// The value, or its beginning.
        found: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Two parts contradict each other, or one is not known.
    #[error("{place} is {found}, by the rest of the object it would be {implied}")]
    Contradiction {
        /// Where it is.
        place: String,
        /// The value, or its beginning.
        found: String,
        /// What the rest implies, or its beginning.
        implied: String,
    },
}

/// A value that cannot be.
pub(super) fn wrong(place: &str, found: &str, why: &'static str) -> DescribedError {
    DescribedError::Value {
        place: place.to_owned(),
        found: excerpt(found),
        why,
    }
}
