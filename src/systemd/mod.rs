//! The few calls to systemd's manager that the daemon needs.

mod manager;

use zbus::export::async_trait::async_trait;

pub use manager::DbusSystemd;

/// Limits copied from the origin's unit to the scope, as systemd's D-Bus properties.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// `MemoryMax`, bytes; `u64::MAX` is no limit.
    pub memory_max: Option<u64>,
    /// `MemoryHigh`, bytes.
    pub memory_high: Option<u64>,
    /// `MemorySwapMax`, bytes.
    pub memory_swap_max: Option<u64>,
    /// `TasksMax`.
    pub tasks_max: Option<u64>,
    /// `CPUWeight`.
    pub cpu_weight: Option<u64>,
    /// `DevicePolicy`: `auto`, `closed` or `strict`.
    pub device_policy: Option<String>,
    /// `DeviceAllow`: (device node or class, `rwm`).
    pub device_allow: Vec<(String, String)>,
}

/// A call to systemd that failed.
#[derive(Debug, thiserror::Error)]
#[error("{operation}: {cause}")]
pub struct SystemdError {
    /// The call with the unit's name.
    pub operation: String,
    /// systemd's or the bus's answer.
    pub cause: String,
}

/// What the program asks of systemd.
#[async_trait]
pub trait Systemd: Send + Sync {
    /// The limits set on a unit.
    ///
    /// # Errors
    /// systemd knows no such unit or does not answer.
    async fn limits(&self, unit: &str) -> Result<Limits, SystemdError>;
    /// Start the transient scope `unit` in `stelia.slice`, holding process `pid`; answers when its job is done.
    ///
    /// # Errors
    /// systemd refuses, the job fails, or it takes longer than 20 s.
    async fn start_scope(&self, unit: &str, description: &str, pid: u32, limits: &Limits) -> Result<(), SystemdError>;
}
