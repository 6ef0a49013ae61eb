//! Why a description cannot be read.

use stelia_cpus::text::excerpt::excerpt;

use super::{MAX_BYTES, MAX_LISTED, MAX_ZONES};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DescribedError {
    #[error("the text has {0} bytes, more than {MAX_BYTES}")]
    TooLarge(usize),
    #[error("its lists have more than {MAX_LISTED} CPUs together")]
    TooMany,
    #[error("it has {0} zones, more than {MAX_ZONES}")]
    TooManyZones(usize),
    #[error("not a NodeResourceTopology as steliactl prints it: {0}")]
    Text(String),
    /// An object that another program wrote, and that is not a description.
    #[error(
        "this NodeResourceTopology was written by {0}: a node is described by what steliactl export topology prints on it, with its CPUs in \
         annotations. Of other writers' objects stelia-cluster nodes --from reads the amounts"
    )]
    OtherWriter(String),
    #[error("the annotation {0} is missing; the profile koordinator of node-topology has it")]
    Missing(&'static str),
    #[error("annotation {name}: {cause}")]
    Annotation { name: &'static str, cause: String },
    /// A value that no description can have there.
    #[error("{place} is {found:?}: {why}")]
    Value {
        place: String,
        /// The value, or the beginning of a long one.
        found: String,
        why: &'static str,
    },
    /// Two parts contradict each other, or a part is unknown.
    #[error("{place} is {found}, by the rest of the object it would be {implied}")]
    Contradiction {
        place: String,
        /// The value, or the beginning of a long one.
        found: String,
        /// What the rest implies, or the beginning of it.
        implied: String,
    },
}

pub(crate) fn wrong(place: &str, found: &str, why: &'static str) -> DescribedError {
    DescribedError::Value {
        place: place.to_owned(),
        found: excerpt(found),
        why,
    }
}
