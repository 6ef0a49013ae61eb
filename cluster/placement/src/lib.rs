#![doc = include_str!("../README.md")]
//!
//! | module | what it is |
//! |---|---|
//! | [`apiserver`] | requests to the API server |
//! | [`placer`] | what is answered, and what a bind does |
//! | [`reservations`] | which CPUs are promised to pods; no I/O and no clock |
//! | [`extender`] | the HTTP service that kube-scheduler calls |
//! | [`run`](mod@run) | the program from its start to its end |
//! | [`cli`] | the command line |

pub mod apiserver;
pub mod cli;
pub mod extender;
pub mod placer;
#[cfg(test)]
#[cfg(feature = "real")]
mod real_cluster;
pub mod reservations;
pub mod run;
#[cfg(test)]
mod simulated_cluster;
