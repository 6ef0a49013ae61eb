//! A node in compact form, read from its object of profile `stelia`.
//!
//! What many nodes have in common (topology, kubelet's settings, policies) is a [`NodeShape`], kept once; what differs is [`FreeResources`].

mod error;
mod free_resources;
mod shape;
#[cfg(test)]
mod tests;
mod zones;

use stelia_cpus::CpuSet;
use stelia_cpus::text::excerpt;
use stelia_koordinator::report::NodeResourceTopology;
use stelia_koordinator::report::compact::{self, Compact};
use stelia_kubelet::{PodUid, Uid};

pub use error::NodeError;
pub use free_resources::{Amount, Devices, FreeResources};
pub use shape::{NodeShape, ShapeKey};

/// The longest object that is parsed, in bytes. One of 8192 CPUs and 1000 pods has a fifth of it.
pub const MAX_BYTES: usize = 1 << 19;
/// The attribute by which a node says that its own facts cannot be used; absent, or `ready`, where they can.
pub const STATE: &str = "isolation.stelia.io/state";
const READY: &str = "ready";

/// What a node's object says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedNode {
    pub shape: ShapeKey,
    pub available: FreeResources,
    /// The pods that have CPUs of their own, with these, ascending.
    pub pods: Vec<(Uid, CpuSet)>,
}

/// Parses an object as the API server gives it, JSON.
///
/// # Errors
/// The object cannot be used. Any program may have written it.
pub fn parse(text: &[u8]) -> Result<ParsedNode, NodeError> {
    if text.len() > MAX_BYTES {
        return Err(NodeError::TooLarge(text.len()));
    }
    let object: NodeResourceTopology =
        serde_json::from_slice(text).map_err(|cause| NodeError::Syntax(excerpt::cause(&cause)))?;
    parse_object(&object)
}

/// Interprets an object whose JSON is parsed.
///
/// # Errors
/// As [`parse`].
pub fn parse_object(object: &NodeResourceTopology) -> Result<ParsedNode, NodeError> {
    if let Some(state) = attribute(object, STATE)?.filter(|state| *state != READY) {
        return Err(NodeError::Unusable(excerpt::excerpt(state)));
    }
    let value = attribute(object, compact::ATTRIBUTE)?.ok_or(NodeError::NoAttribute(compact::ATTRIBUTE))?;
    let compact = Compact::parse(value)?;
    let zones = zones::parse(object, &compact)?;
    let taken = compact.taken();
    let own = |(pod, cpus): (&PodUid, &CpuSet)| (Uid::of(pod), cpus.intersection(&taken));
    let mut pods: Vec<(Uid, CpuSet)> = compact.pods.iter().map(own).collect();
    pods.sort_unstable_by_key(|(uid, _)| *uid);
    let available = FreeResources::of(&compact, &zones);
    Ok(ParsedNode {
        shape: shape::parse_key(object, compact, zones)?,
        available,
        pods,
    })
}

/// The value of an attribute.
fn attribute<'a>(object: &'a NodeResourceTopology, name: &'static str) -> Result<Option<&'a str>, NodeError> {
    let mut found = object.attributes.iter().filter(|attribute| attribute.name == name);
    let first = found.next();
    match found.next() {
        Some(_) => Err(NodeError::Twice(name)),
        None => Ok(first.map(|attribute| attribute.value.as_str())),
    }
}

fn invalid(place: &'static str, found: &str, why: &'static str) -> NodeError {
    NodeError::Value {
        place,
        found: excerpt::excerpt(found),
        why,
    }
}
