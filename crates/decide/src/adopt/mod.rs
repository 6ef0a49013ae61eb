//! The rules of `[[adopt]]` applied to a container: which VM in it is adopted, with its vCPU threads, its guest's topology and the CPUs it keeps; or why
//! none is. Functions over plain values; the processes come from `crates/kernel/` (processes).
//!
//! Names of programs and threads, command lines and the environment are a pod's own words. They choose among the pod's own
//! threads and nothing else: who may be adopted is said by the rules, which CPUs by kubelet.

mod accelerator;
pub mod guest;
mod not_adopted;
mod rules;
#[cfg(test)]
mod tests;
mod vm;

pub use accelerator::Accelerator;
pub use not_adopted::NotAdopted;
pub use rules::{Names, RulesFor, is_vcpu, is_vmm, rules_for};
pub use vm::vm;
