//! observe → plan → apply: the one task that owns the state and changes the system.
//!
//! Every trigger (a D-Bus call, a kubelet file, a scope that emptied, the audit timer, start-up) ends in the same pass.

mod apply;
mod attach;
mod container;
#[cfg(test)]
mod described_tests;
pub mod holder;
mod late;
mod lifecycle;
mod metrics;
#[cfg(test)]
mod model_tests;
mod observe;
mod pass;
mod rebind;
mod report;
pub(crate) mod runtime;
mod siblings;
mod system;
mod task;
mod tell;
mod view;
mod watch;

pub use apply::release_host;
pub use attach::{AttachRequest, Placed, VcpuRequest};
pub use container::{Peer, RegisterRequest};
pub use metrics::{BOUNDS_US, Counted, Metrics, Timed, Trigger};
pub use pass::{Preview, Report};
pub use rebind::{Job, JobPhase, Made, RebindRequest};
pub use report::node_facts;
pub use siblings::live_containers;
pub use system::{Failpoint, System};
pub use task::{Engine, Handle};
pub use view::{Counters, InstanceView, LastPass, Usage, View, usage};
