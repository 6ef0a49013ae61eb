//! The loop that owns the state and changes the system. An event marks what may be out of date; a turn reads just that, plans
//! for the instances concerned and applies the steps. The audit alone reads everything, a few instances a turn.
//!
//! | file | its job |
//! |---|---|
//! | `handle`, `inbox` | how entry points call the engine; the queue of calls, pods in turn |
//! | `event_loop`, `timerfd` | the loop; its one timer |
//! | `state` | all that the engine owns |
//! | `watch`, `events`, `out_of_date` | inotify; what an event puts out of date; what is to be read again |
//! | `pod_work_limits` | how often a pod may register, or have itself audited |
//! | `fair_share` | how often the engine looked at each pod's instance of late; pods with many looks wait for others |
//! | `picture` (`read_node`, `read_instance`) | what is known, and its parts read again |
//! | `read_cgroups`, `outside_units`, `read_limits`, `sibling_containers`, `kubelet_file`, `device_record` | reading cgroups, units outside and workers, limits, other containers, kubelet's files |
//! | `delayed_condition`, `kvm_threads` | conditions that count after a delay; threads that KVM makes after the guest has started |
//! | `vmm_exit` | the exit of a VMM whose container's own cgroup is the partition |
//! | `turn`, `pass`, `pass_log` | one turn; the turns from the first with work to the last, and what they did |
//! | `apply`, `systemd_calls` | applying steps; those that systemd applies, without waiting for it |
//! | `move_tasks` | moving and pinning tasks, only those of the instance and its container |
//! | `retries` | how often an instance or a shared step is tried in a row, and how long it then rests |
//! | `calls` | each call in its own file: what it checks and records, and when it is answered |
//! | `container`, `adopting`, `in_place` | what is read of a container before it becomes an instance; the cgroups of one in place |
//! | `blocking_thread` | work of a registration that may block, on a thread of its own |
//! | `record_writer` | the one writer of records |
//! | `view`, `view_writer` | the view that entry points read; the one writer of it |
//! | `instance_log`, `kubelet_log`, `drift` | the journal's messages about instances and kubelet's file; drift until it is repaired |
//! | `visible_to_pods` | the part of all this that a pod may see |
//! | `ledger_calls` | how entry points call the ledger's task |
//! | `incidents` | refused calls of pods, intrusions on their CPUs |
//! | `metrics`, `topology_facts`, `node_topology`, `localities_of_view` | counters; facts and the node's object for schedulers; where memory and devices are |
//! | `jobs`, `rebind_job` | jobs that move running VMs to better CPUs |
//! | `states_of_other_tasks` | what other tasks have in the view |

mod adopting;
mod apply;
mod blocking_thread;
mod calls;
mod container;
mod delayed_condition;
#[cfg(test)]
mod described_tests;
mod device_record;
mod drift;
mod event_loop;
mod events;
mod fair_share;
mod handle;
mod in_place;
mod inbox;
mod incidents;
mod instance_log;
mod jobs;
mod kubelet_file;
mod kubelet_log;
mod kvm_threads;
mod ledger_calls;
mod localities_of_view;
mod metrics;
#[cfg(test)]
mod model_tests;
mod move_tasks;
mod node_topology;
mod out_of_date;
mod outside_units;
mod pass;
mod pass_log;
mod picture;
mod pod_work_limits;
mod read_cgroups;
mod read_limits;
mod rebind_job;
mod record_writer;
mod retries;
mod sibling_containers;
mod state;
mod states_of_other_tasks;
mod systemd_calls;
mod timerfd;
mod topology_facts;
mod turn;
mod view;
mod view_writer;
mod visible_to_pods;
mod vmm_exit;
mod watch;

pub use calls::attach::{AttachRequest, Placed, VcpuRequest, Vmm};
pub use container::{Peer, RegisterRequest};
pub use event_loop::Engine;
pub use handle::Handle;
pub use stelia_decide::admission::{Adopting, Claim};

pub(crate) use apply::release_host;
pub(crate) use calls::rebind::RebindRequest;
pub(crate) use calls::register::REGISTRATION_TIMEOUT;
pub(crate) use calls::resize::ResizeRequest;
pub(crate) use calls::rollback::{CallChange, RollbackError};
pub(crate) use incidents::Incident;
pub(crate) use ledger_calls::{AccountRequest, LedgerCall};
pub(crate) use localities_of_view::localities;
pub(crate) use node_topology::{Configuration, ObjectForm, node_name, node_topology};
pub(crate) use pass::{PassReport, Preview};
pub(crate) use topology_facts::node_facts;
#[cfg(test)]
pub(crate) use view::registered;
pub(crate) use view::{allocator_node, usage};
