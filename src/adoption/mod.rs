//! Adopts VMs that do not register themselves, by the administrator's rules (`[[adopt]]`). A container is scanned from the time at which a
//! VM is created in it until the VM has all its vCPU threads. Then it is registered and attached through the engine's [`Handle`], as a
//! runner would do it.
//!
//! Without a rule there are no events, scans or timers. Only the engine holds which VMs are adopted, in the instances' records. The state
//! here is lost when the daemon ends; its next start scans all containers.

mod budget;
mod kvm_event;
mod pod_search;
mod preview;
mod register_and_attach;
mod scan;
mod starting_vm;
mod status;
mod sweep;
mod task;
mod vm_end;

pub(crate) use preview::preview;
pub(crate) use task::run;
