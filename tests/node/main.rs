//! What steliad promises, tested on a real node: see `tests/vm/README.md`. One test at a time, as root.

#![allow(clippy::expect_used, clippy::panic)]

mod allocator;
mod attack;
mod bad_input;
mod bookworm;
mod bus;
mod client;
mod cold_start;
mod conformance;
mod contained;
mod cookbook;
mod crash;
mod crun;
mod doors;
mod drift;
mod guest;
mod host;
mod isolation;
mod kubelet;
mod kvm;
mod life;
mod limits;
mod linux_guest;
mod metrics;
mod migration;
mod noise;
mod package;
mod plan;
mod pod_level;
mod pods;
mod promise;
mod runner;
mod sid;
mod topology;
