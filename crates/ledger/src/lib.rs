//! Who ran on the CPUs of VMs: the kernel's counters are read as a meter is, kept in a ring of files that shows later changes, and made
//! into accounts.
//!
//! - [`look`]: the counters, as read at one time;
//! - [`entry`]: what is kept of them, and of what happened;
//! - [`ring`]: where entries are kept, each chained to the one before;
//! - [`keeper`]: what of a look is worth an entry;
//! - [`standing`]: what entries leave to go on from;
//! - [`account`]: what follows from entries for one VM and a time;
//! - [`verdict`]: whether a ring is what was written.

pub mod account;
pub mod day;
pub mod entry;
pub mod keeper;
pub mod look;
pub mod ring;
pub mod standing;
pub mod verdict;
