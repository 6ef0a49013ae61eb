//! VMs that do not register themselves, by the administrator's rules (`[[adopt]]`). Each is found when it begins, looked at until
//! it has all its vCPU threads, and then registered and attached through the engine's [`Handle`], as a runner would do it.
//!
//! | file | its job |
//! |---|---|
//! | `starting_vm` | when a container is looked at, and when what is seen there counts as a whole VM |
//! | `budget` | how much time looks at one pod's containers may take |
//! | `scan` | one look at a container |
//! | `adopt` | the calls to the engine |
//! | `task` | hears KVM, and takes the next step of each container |
//! | `status` | what the journal and the view say of VMs that are adopted, and of those that are not |
//!
//! Without a rule nothing is heard, read or timed. The engine alone holds what is adopted, in the instances' records; what is held
//! here is forgotten at the daemon's end and found again at its start.

mod adopt;
mod budget;
mod scan;
mod starting_vm;
mod status;
mod task;

pub(crate) use task::run;
