//! The loop that owns the state and changes the system. An event marks what may be out of date; a turn reads just that, plans
//! for the instances concerned and takes the steps. The audit alone reads everything, a few instances a turn.
//!
//! | file | its job |
//! |---|---|
//! | `handle`, `inbox` | how doors call the engine; the queue of calls, pods in turn |
//! | `task`, `alarm` | the loop; its one timer |
//! | `watch`, `events`, `dirty` | inotify; what an event puts out of date; what is to be read again |
//! | `recent` | how often the engine looked at each pod's instance of late; pods with many looks wait for others |
//! | `picture` (`node`, `instance`) | what is known, and its parts read again |
//! | `observe`, `outside`, `limits`, `siblings`, `kubelet_file` | reading cgroups, units outside and workers, limits, other containers, kubelet's file |
//! | `lasting`, `late` | conditions that count after a time; threads that appear after the guest has started |
//! | `turn`, `pass` | one turn; the turns from the first with work to the last, and what they did |
//! | `apply`, `systemd_calls` | taking steps; those that systemd takes, without waiting for it |
//! | `tasks` | moving and pinning tasks, only those of the instance and its container |
//! | `patience` | how often an instance or a shared step is tried in a row, and how long it then rests |
//! | `register`, `adopting`, `container`, `attach`, `leave` | what a call checks and records |
//! | `own_thread` | work of a registration that may block, on a thread of its own |
//! | `calls`, `reconcile` | when a call about one instance, or about all, is answered |
//! | `store` | the one writer of records |
//! | `publish`, `view` | the view that doors read |
//! | `reported`, `drifted` | messages of the journal; drift until it is repaired |
//! | `audience` | the part of all this that a pod may see |
//! | `ledger` | how doors reach whoever keeps the ledger |
//! | `incidents` | what happens to pods besides: refused calls, intrusions |
//! | `metrics`, `report`, `locality` | counters; facts for schedulers; where memory and devices are |
//! | `rebind` | jobs that move running VMs to better CPUs |

mod adopting;
mod alarm;
mod apply;
mod attach;
mod audience;
mod calls;
mod container;
#[cfg(test)]
mod described_tests;
mod dirty;
mod drifted;
mod events;
mod handle;
mod home;
mod in_place;
mod inbox;
mod incidents;
mod kubelet_file;
mod lasting;
mod late;
mod leave;
mod ledger;
mod limits;
mod locality;
mod metrics;
#[cfg(test)]
mod model_tests;
mod observe;
mod outside;
mod own_audits;
mod own_thread;
mod pass;
mod patience;
mod picture;
mod publish;
mod quiet;
mod rebind;
mod recent;
mod reconcile;
mod register;
mod report;
mod report_rest;
mod reported;
mod siblings;
mod store;
mod systemd_calls;
mod task;
mod tasks;
mod turn;
mod view;
mod watch;

pub use crate::decide::admission::Claim;
pub use attach::{AttachRequest, Placed, VcpuRequest, Vmm};
pub use container::{Adopting, Peer, RegisterRequest};
pub use handle::Handle;
pub use task::Engine;

pub(crate) use apply::{now_us, release_host};
pub(crate) use calls::REGISTRATION_PATIENCE;
pub(crate) use incidents::Incident;
pub(crate) use ledger::{AccountRequest, LedgerCall};
pub(crate) use locality::localities;
pub(crate) use metrics::{Metrics, Trigger};
pub(crate) use pass::{Preview, Report};
#[cfg(test)]
pub(crate) use rebind::JobPhase;
pub(crate) use rebind::{Job, Made, RebindRequest};
pub(crate) use report::node_facts;
pub(crate) use report_rest::{Configuration, ObjectForm, node_name, node_object};
#[cfg(test)]
pub(crate) use view::PoolsView;
pub(crate) use view::{Counters, InstanceView, LastPass, PinnedThread, Unadopted, Usage, View, usage};
