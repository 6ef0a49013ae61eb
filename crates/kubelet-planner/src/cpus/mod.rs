//! kubelet's static CPU manager policy, exactly: which CPUs a container gets, or why it is rejected.
//!
//! | step | what it answers |
//! |---|---|
//! | [`CpuGroups::new`] | the node's CPUs as kubelet sees them |
//! | [`take`] | which CPUs kubelet takes of a set: packed, or distributed over the NUMA nodes |
//! | [`allocate`] | the same, with those of the Topology Manager's NUMA nodes first |
//! | [`StaticPolicy`] | the policy over kubelet's [`CpuState`]: start, hints, allocation, removal, pod-level resources |
//!
//! The answers are those of Kubernetes 1.36. `tests/data/vectors/cpu-assignment/` has recorded answers of kubelet's own
//! code, and its README the rules that are not obvious; `make vectors` compares. Pod-level resources are not among
//! these cases: they are compared with state files that kubelet wrote.
//!
//! On 1,024 CPUs and 8 NUMA nodes an answer takes less than a millisecond. distribute-cpus-across-numa looks at every
//! combination of NUMA nodes, as kubelet does: with 16 of them that is some tens of milliseconds at worst, and where
//! there are too many the answer is refused ([`CpuRefusal::NotSearched`]). [Hints](StaticPolicy::hints) are as many as there are combinations.
//!
//! kubelet's faults are predicted too, because a node has to live with them:
//! - CPUs that are not free ([`Fault::NotFree`]): where cores have different numbers of threads, a core counts as free by
//!   the average, and is taken with the thread that another container holds.
//! - NUMA nodes that were not chosen ([`Fault::Overwritten`]): the list of those chosen shares memory with lists made
//!   later (Kubernetes issue 141237). [`Kubelet::combinations_copied`] gives the answer without this.
//! - no answer at all ([`CpuRefusal::WouldNotReturn`]): kubelet repeats a step that changes nothing (fixed after 1.36.3 by
//!   pull request 140730).
//!
//! A node of two cores of two threads each, on two NUMA nodes:
//!
//! ```
//! use std::collections::BTreeMap;
//! use stelia_cpus::CpuSet;
//! use kubelet_planner::cpus::{CpuGroups, Kubelet, CpuOptions, take};
//! use stelia_cpus::{Cpu, Topology};
//!
//! let cpu = |cpu: u32| (cpu, Cpu { package: cpu / 2, core: cpu / 2, node: cpu / 2 });
//! let node = Topology { cpus: (0..4).map(cpu).collect() };
//! let topology = CpuGroups::new(&node, &BTreeMap::new());
//!
//! let answer = take(&topology, CpuOptions::default(), Kubelet::default(), &"1-3".parse()?, 2)?;
//! assert_eq!(answer.cpus, "2-3".parse::<CpuSet>()?);
//! assert!(answer.is_safe());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod accumulator;
mod assign;
mod combinations;
mod distributed;
mod hints;
mod options;
mod packed;
mod pod_level;
mod policy;
mod refusal;
mod state;
#[cfg(test)]
mod tests;
mod topology;

pub use assign::{AssignedCpus, ExclusiveRequest, Fault, allocate, take};
pub use hints::Bound;
pub use options::{AFFINITY_IS_LEAST_SINCE, CpuOptions, CpuOptionsError, Kubelet};
pub use policy::StaticPolicy;
pub use refusal::CpuRefusal;
pub use state::CpuState;
pub use topology::CpuGroups;
