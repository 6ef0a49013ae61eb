#![doc = include_str!("../README.md")]
//!
//! Names of programs and threads, command lines and the environment are a pod's own words. They choose among the pod's own
//! threads and nothing else: who may be adopted is said by the rules, which CPUs by kubelet.

pub mod guest;
mod others;
mod rules;
#[cfg(test)]
mod tests;
mod vm;
mod why;

pub use others::Accelerator;
pub use rules::{Names, is_vcpu, is_vmm, rules_for};
pub use vm::{Vm, vm};
pub use why::Why;
