//! What kubelet would do: its resource managers' answers, as pure functions over plain values.
//!
//! It predicts kubelet with kubelet's faults, and names them. [`alloc`](crate::alloc), which decides for ourselves, has none
//! of them.

pub mod cpus;
