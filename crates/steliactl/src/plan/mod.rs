//! Commands that answer what would be done, and do nothing: the group "Plan" of the help. `plan` asks kubelet's planner, `evaluate` steliad's
//! allocator.

pub(crate) mod evaluate;
#[expect(clippy::module_inception, reason = "a command's module has the command's name")]
pub(crate) mod plan;
