#![doc = include_str!("../README.md")]
//!
//! | module | what it is |
//! |---|---|
//! | [`node`] | a node in compact form, read from its object |
//! | [`request`] | what a pod asks |
//! | [`evaluate`](mod@evaluate) | what a node would do with it |
//! | [`score`] | how well a node suits it |
//! | [`cluster`] | all nodes, with their answers kept |
//! | [`rebalance`](mod@rebalance) | which VMs would have to move so that a pod finds room |
//! | [`reservations`] | who holds what on a node beside what its object shows |
//! | [`apiserver`] | what is asked of the API server |
//! | [`placer`] | the two together: what is answered, and what a bind does |
//! | [`extender`] | the HTTP service that kube-scheduler calls |

#[cfg(feature = "service")]
pub mod apiserver;
#[cfg(feature = "service")]
pub mod cli;
pub mod cluster;
pub mod evaluate;
#[cfg(feature = "service")]
pub mod extender;
pub mod node;
#[cfg(feature = "service")]
pub mod placer;
pub mod rebalance;
pub mod request;
pub mod reservations;
#[cfg(feature = "service")]
pub mod run;
pub mod score;
#[cfg(feature = "service")]
#[cfg(test)]
mod simulation;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use cluster::{Change, Cluster, Emptied, Question, Reason, RequestId, Verdict};
pub use evaluate::{By, Placement, Refusal};
pub use node::{NodeError, Uid};
pub use request::{Request, RequestError};
