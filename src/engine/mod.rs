//! The loop that owns the state and changes the system. An event marks what may be out of date; a turn reads just that, plans
//! for the instances concerned and takes the steps. The audit alone reads everything, a few instances a turn.
//!
//! | file | its job |
//! |---|---|
//! | `handle`, `inbox` | how doors call the engine; the queue of calls, pods in turn |
//! | `task`, `timer` | the loop; its one timer |
//! | `state` | all that the engine owns |
//! | `watch`, `events`, `dirty` | inotify; what an event puts out of date; what is to be read again |
//! | `rates` | how often a pod may register, or have itself audited |
//! | `recent_looks` | how often the engine looked at each pod's instance of late; pods with many looks wait for others |
//! | `picture` (`node`, `instance`) | what is known, and its parts read again |
//! | `observe`, `outside`, `limits`, `siblings`, `kubelet_file` | reading cgroups, units outside and workers, limits, other containers, kubelet's file |
//! | `delayed_condition`, `kvm_threads` | conditions that count after a delay; threads that KVM makes after the guest has started |
//! | `turn`, `pass`, `pass_log` | one turn; the turns from the first with work to the last, and what they did |
//! | `apply`, `systemd_calls` | taking steps; those that systemd takes, without waiting for it |
//! | `tasks` | moving and pinning tasks, only those of the instance and its container |
//! | `retries` | how often an instance or a shared step is tried in a row, and how long it then rests |
//! | `calls` | each call in its own file: what it checks and records, and when it is answered |
//! | `container`, `adopting`, `home` | what is read of a container before it becomes an instance, and where that is made |
//! | `own_thread` | work of a registration that may block, on a thread of its own |
//! | `store` | the one writer of records |
//! | `view`, `view_writer` | the view that doors read; the one writer of it |
//! | `instance_log`, `drift_log` | the journal's messages about instances; drift until it is repaired |
//! | `restrict` | the part of all this that a pod may see |
//! | `ledger` | how doors call the ledger's task |
//! | `incidents` | refused calls of pods, intrusions on their CPUs |
//! | `metrics`, `report`, `node_object`, `locality` | counters; facts and the node's object for schedulers; where memory and devices are |
//! | `jobs`, `rebind_job` | jobs that move running VMs to better CPUs |
//! | `shown` | what other tasks have in the view |

mod adopting;
mod apply;
mod calls;
mod container;
mod delayed_condition;
#[cfg(test)]
mod described_tests;
mod dirty;
mod drift_log;
mod events;
mod handle;
mod in_place;
mod inbox;
mod incidents;
mod instance_log;
mod jobs;
mod kubelet_file;
mod kvm_threads;
mod ledger;
mod limits;
mod locality;
mod metrics;
#[cfg(test)]
mod model_tests;
mod node_object;
mod observe;
mod outside;
mod own_thread;
mod pass;
mod pass_log;
mod picture;
mod rates;
mod rebind_job;
mod recent_looks;
mod report;
mod restrict;
mod retries;
mod shown;
mod siblings;
mod state;
mod store;
mod systemd_calls;
mod task;
mod tasks;
mod timer;
mod turn;
mod view;
mod view_writer;
mod watch;

pub use calls::attach::{AttachRequest, Placed, VcpuRequest, Vmm};
pub use container::{Peer, RegisterRequest};
pub use handle::Handle;
pub use stelia_decide::admission::{Adopting, Claim};
pub use task::Engine;

pub(crate) use apply::{now_us, release_host};
pub(crate) use calls::REGISTRATION_TIMEOUT;
pub(crate) use calls::rebind::RebindRequest;
pub(crate) use calls::rollback::{CallChange, RollbackError};
pub(crate) use incidents::Incident;
pub(crate) use ledger::{AccountRequest, LedgerCall};
pub(crate) use locality::localities;
pub(crate) use node_object::{Configuration, ObjectForm, node_name, node_object};
pub(crate) use pass::{Preview, Report};
pub(crate) use report::node_facts;
#[cfg(test)]
pub(crate) use view::registered;
pub(crate) use view::{allocator_node, usage};
