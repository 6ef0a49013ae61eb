#![doc = include_str!("../README.md")]

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
