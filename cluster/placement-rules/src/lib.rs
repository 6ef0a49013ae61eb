#![doc = include_str!("../README.md")]

pub mod cluster;
pub mod evaluate;
pub mod node;
pub mod request;
pub mod score;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use cluster::{Cluster, Evaluation, NodeVerdict, Question};
pub use evaluate::{Placement, Refusal};
pub use node::NodeError;
pub use request::{Request, RequestError};
