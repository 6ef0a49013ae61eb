//! Sets of NUMA nodes as kubelet has them: 64 bits.

use std::fmt;
use std::ops::{BitAnd, BitOr};

use stelia_cpus::NodeSet;

/// A set of NUMA nodes by their ids, all below 64. Masks are ordered by their numeric value.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeMask(u64);

/// A NUMA node's id does not fit into a mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("NUMA node {node} is beyond 63, the highest that kubelet's masks hold")]
pub struct NodeTooHigh {
    /// The node.
    pub node: u32,
}

impl NodeMask {
    /// Bit i is the node with id i.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Bit i is the node with id i.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// How many nodes.
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// No node at all.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the node with this id is in it; never for ids from 64 on.
    pub fn contains(self, node: u32) -> bool {
        self.0.checked_shr(node).is_some_and(|bits| bits & 1 == 1)
    }

    /// The nodes' ids, ascending.
    pub fn nodes(self) -> impl Iterator<Item = u32> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let node = left.trailing_zeros();
            (left != 0).then(|| {
                left &= left - 1;
                node
            })
        })
    }
}

impl serde::Serialize for NodeMask {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl BitOr for NodeMask {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for NodeMask {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl FromIterator<u32> for NodeMask {
    /// Nodes by their ids. Ids from 64 on are dropped silently, as in kubelet; [`TryFrom`] reports them.
    fn from_iter<I: IntoIterator<Item = u32>>(nodes: I) -> Self {
        let bits = nodes.into_iter().filter_map(|node| 1u64.checked_shl(node));
        Self(bits.fold(0, |mask, bit| mask | bit))
    }
}

impl TryFrom<&NodeSet> for NodeMask {
    type Error = NodeTooHigh;

    fn try_from(nodes: &NodeSet) -> Result<Self, NodeTooHigh> {
        match nodes.iter().copied().find(|node| *node >= u64::BITS) {
            Some(node) => Err(NodeTooHigh { node }),
            None => Ok(nodes.iter().copied().collect()),
        }
    }
}

impl From<NodeMask> for NodeSet {
    fn from(mask: NodeMask) -> Self {
        mask.nodes().collect()
    }
}

impl fmt::Display for NodeMask {
    /// As the kernel prints lists: `0-1,5`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        NodeSet::from(*self).fmt(f)
    }
}

impl fmt::Debug for NodeMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}
