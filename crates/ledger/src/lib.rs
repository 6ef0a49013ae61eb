//! Records what ran on the CPUs of VMs. It reads the kernel's counters, stores the readings in a ring of files in which later
//! changes can be detected, and computes accounts from them.
//!
//! - [`sample`]: one reading of the counters of all seats;
//! - [`entry`]: the entries that store readings and events;
//! - [`ring`]: the files that hold entries, each chained to the one before by its hash;
//! - [`recorder`]: decides which samples are written as entries;
//! - [`replay`]: the state after a sequence of entries, from which the next one continues;
//! - [`account`]: the account of one VM for a period;
//! - [`verdict`]: the result of checking a ring for changes.

pub mod account;
pub mod day;
pub mod entry;
pub mod recorder;
pub mod replay;
pub mod ring;
pub mod sample;
pub mod verdict;
