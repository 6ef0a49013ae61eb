//! Why a node's object cannot be used.

use kubelet_planner::cpus::CpuOptionsError;
use kubelet_planner::{StartError, merge};
use stelia_koordinator::report::compact::CompactError;

use super::MAX_BYTES;

/// Why a node's object cannot be used; nothing is placed on that node. Texts are cut, however long what was found is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    #[error("the object has {0} bytes, more than {MAX_BYTES}")]
    TooLarge(usize),
    #[error("it is not a NodeResourceTopology: {0}")]
    Syntax(String),
    /// The object is of another profile, or another program's.
    #[error("it has no attribute {0}: it is not of profile stelia")]
    NoAttribute(&'static str),
    #[error("the attribute {0} is there twice")]
    Twice(&'static str),
    #[error(transparent)]
    Attribute(#[from] CompactError),
    /// The node says that its own facts cannot be used.
    #[error("the node's state is {0:?}")]
    Unusable(String),
    #[error("{place} is {found:?}: {why}")]
    Value {
        place: &'static str,
        /// The value, or its beginning.
        found: String,
        why: &'static str,
    },
    /// The zones do not agree with the attribute.
    #[error("zone node-{node} has {told} CPUs {what}, by the attribute it is {counted}")]
    Contradiction {
        node: u32,
        what: &'static str,
        told: u64,
        counted: usize,
    },
    #[error("{0}")]
    Options(#[from] CpuOptionsError),
    #[error("{0}")]
    TopologyOptions(#[from] merge::TopologyOptionError),
    #[error("kubelet would not start: {0}")]
    Start(#[from] StartError),
    /// kubelet chooses there, and the object does not say how.
    #[error("kubelet chooses the CPUs, and its topology manager's policy is not told")]
    KubeletUnknown,
}

impl NodeError {
    /// A word for it, as events and metrics have it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::TooLarge(_) => "ObjectTooLarge",
            Self::Syntax(_) | Self::Value { .. } | Self::Twice(_) => "ObjectMalformed",
            Self::NoAttribute(_) => "ObjectOfAnotherProfile",
            Self::Attribute(_) => "AttributeMalformed",
            Self::Unusable(_) => "NodeStateUnusable",
            Self::Contradiction { .. } => "ObjectContradicts",
            Self::Options(_) | Self::TopologyOptions(_) | Self::Start(_) | Self::KubeletUnknown => "KubeletUnknown",
        }
    }
}
