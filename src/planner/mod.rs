//! What would kubelet do? Its managers' answers, exact and quick, as pure functions over plain values: no I/O, no clock.
//!
//! They follow kubelet 1.36 and predict it, surprises and faults included, and name the faults. steliad's own decisions are in
//! [`plan`](crate::plan) and [`alloc`](crate::alloc); nothing here enters them.
//!
//! | module | what it answers |
//! |---|---|
//! | [`cpus`] | CPU Manager, static policy: which CPUs does a container get, and what does kubelet's state say then? |
//! | [`merge`] | Topology Manager: which NUMA nodes do all the hints agree on, and is the pod admitted? |

pub mod cpus;
pub mod merge;
