//! Sets of NUMA nodes.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::str::FromStr;

use crate::cpuset::write_runs;
use crate::text::json_string;
use crate::{CpuSet, ParseError};

/// A set of NUMA nodes by their numbers. Its text is that of `cpuset.mems`, `0-1,4`; in JSON it is that text, except with [`as_array`].
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeSet(BTreeSet<u32>);

impl NodeSet {
    /// The empty set.
    pub const fn new() -> Self {
        Self(BTreeSet::new())
    }
}

impl Deref for NodeSet {
    type Target = BTreeSet<u32>;

    fn deref(&self) -> &BTreeSet<u32> {
        &self.0
    }
}

impl DerefMut for NodeSet {
    fn deref_mut(&mut self) -> &mut BTreeSet<u32> {
        &mut self.0
    }
}

impl FromIterator<u32> for NodeSet {
    fn from_iter<I: IntoIterator<Item = u32>>(nodes: I) -> Self {
        Self(nodes.into_iter().collect())
    }
}

impl<const N: usize> From<[u32; N]> for NodeSet {
    fn from(nodes: [u32; N]) -> Self {
        Self(nodes.into())
    }
}

impl IntoIterator for NodeSet {
    type Item = u32;
    type IntoIter = std::collections::btree_set::IntoIter<u32>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a NodeSet {
    type Item = &'a u32;
    type IntoIter = std::collections::btree_set::Iter<'a, u32>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl FromStr for NodeSet {
    type Err = ParseError;

    /// As a list of CPUs, which the kernel prints alike.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        Ok(text.parse::<CpuSet>()?.iter().collect())
    }
}

impl fmt::Display for NodeSet {
    /// As the kernel prints lists: `0-1,5`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_runs(f, self.0.iter().copied())
    }
}

impl fmt::Debug for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

json_string!(NodeSet, str::parse::<NodeSet>);

/// For `#[serde(with)]`: an array of the nodes' numbers.
pub mod as_array {
    use std::collections::BTreeSet;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::NodeSet;

    /// Write the array.
    pub fn serialize<S: Serializer>(nodes: &NodeSet, serializer: S) -> Result<S::Ok, S::Error> {
        nodes.0.serialize(serializer)
    }

    /// Read the array.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<NodeSet, D::Error> {
        BTreeSet::deserialize(deserializer).map(NodeSet)
    }
}
