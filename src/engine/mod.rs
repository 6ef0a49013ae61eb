//! The loop that owns the state and changes the system: an event says what may have changed, a turn looks at just that, plans
//! for whom it concerns and takes the steps; the audit alone looks at everything, a few instances a turn.
//!
//! | file | its job |
//! |---|---|
//! | `handle`, `inbox` | calls come in, and wait for their turn, pod by pod |
//! | `task` | the loop: calls, events, timers, the watchdog |
//! | `picture`, `observe` | what is known, and the reading of what may be out of date |
//! | `watch`, `dirty`, `lasting` | what tells of a change, what is to be read anew, what counts once it has lasted |
//! | `turn`, `apply`, `errands` | one bounded pass; its steps; calls to systemd, which nobody waits for |
//! | `patience` | how often an instance is tried, and how long it rests |
//! | `register`, `attach`, `leave`, `calls` | what a call writes down, and when it is answered |
//! | `store` | the one writer of records |
//! | `publish`, `view`, `tell`, `drifted` | what doors and the journal are told |
//! | `locality` | where the VMs' memory and devices are, when somebody asks |
//! | `audience` | what of it a pod may know |
//! | `rebind` | jobs that move running VMs to better CPUs |

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
mod errands;
mod fault;
mod handle;
mod home;
mod inbox;
mod lasting;
mod late;
mod leave;
mod limits;
mod locality;
mod metrics;
#[cfg(test)]
mod model_tests;
mod observe;
mod patience;
mod picture;
mod publish;
mod rebind;
mod register;
mod report;
mod siblings;
mod store;
mod task;
mod tell;
mod turn;
mod view;
mod watch;

pub use apply::release_host;
pub use attach::{AttachRequest, Placed, VcpuRequest};
pub use container::{Peer, RegisterRequest};
pub use handle::Handle;
pub use locality::localities;
pub use metrics::{Metrics, Trigger};
pub use rebind::{Job, JobPhase, Made, RebindRequest};
pub use report::node_facts;
pub use task::Engine;
pub use turn::{Preview, Report};
pub use view::{Counters, InstanceView, LastPass, PoolsView, Usage, View, usage};
