#![doc = include_str!("../README.md")]
//!
//! | module | what it is |
//! |---|---|
//! | [`node`] | a node in compact form, read from its object |
//! | [`request`] | what a pod asks |
//! | [`evaluate`](mod@evaluate) | what a node would do with it |
//! | [`score`] | how well a node suits it |
//! | [`cluster`] | all nodes, and a cache of their answers |
//! | [`rebalance`](mod@rebalance) | which VMs would have to move so that a pod finds room |

pub mod cluster;
pub mod evaluate;
pub mod node;
pub mod rebalance;
pub mod request;
pub mod score;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use cluster::{Cluster, Evaluation, NodeVerdict, NodeWithoutPods, Question, RefusalReason, RequestId};
pub use evaluate::{DecidedBy, Placement, Refusal};
pub use node::NodeError;
pub use request::{Request, RequestError};
