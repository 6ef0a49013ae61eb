//! Adopts VMs that do not register themselves, by the administrator's rules (`[[adopt]]`). A container is scanned from the time at which a
//! VM is created in it until the VM has all its vCPU threads. Then it is registered and attached through the engine's [`Handle`], as a
//! runner would do it.
//!
//! | file | contents |
//! |---|---|
//! | `starting_vm` | when a container is scanned, and when its VM counts as complete |
//! | `budget` | the limit of the time for scans of one pod's containers |
//! | `scan` | one scan of a container |
//! | `pod_search` | when the containers of a pod that was given CPUs are listed, for rules that adopt whole containers |
//! | `vm_end` | whether a VM that ended was the container's adopted one |
//! | `register_and_attach` | the calls to the engine |
//! | `task` | receives KVM's events, and takes the next step for each container |
//! | `kvm_event` | what each event of KVM starts |
//! | `sweep` | lists the containers that match a rule |
//! | `status` | the journal's messages and the view |
//!
//! Without a rule there are no events, scans or timers. Only the engine holds which VMs are adopted, in the instances' records. The state
//! here is lost when the daemon ends; its next start scans all containers.

mod budget;
mod kvm_event;
mod pod_search;
mod register_and_attach;
mod scan;
mod starting_vm;
mod status;
mod sweep;
mod task;
mod vm_end;

pub(crate) use task::run;
