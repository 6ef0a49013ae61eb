//! The few calls to systemd's manager that the daemon needs.

mod manager;

use stelia_cpus::CpuSet;
use zbus::export::async_trait::async_trait;

use crate::cgroup::Limits;

pub use manager::DbusSystemd;

/// Which devices a unit's processes may open, as systemd's D-Bus properties.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Devices {
    /// `DevicePolicy`: `auto`, `closed` or `strict`.
    pub policy: String,
    /// `DeviceAllow`: (device node or class, `rwm`).
    pub allow: Vec<(String, String)>,
}

impl Devices {
    /// Whether any device is kept closed. With the policy `auto` a device is closed only if there is a list of allowed
    /// ones (systemd.resource-control(5)).
    pub fn restrict(&self) -> bool {
        self.policy != "auto" || !self.allow.is_empty()
    }
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

/// Listening for the ends of systemd's jobs, until it is dropped.
#[derive(Debug, Default)]
pub struct Listening(Option<manager::Ends>);

/// The calls to systemd; implemented by its manager on the bus and by the test node. A call fails where systemd refuses it,
/// or does not answer within 90 s.
#[async_trait]
pub trait Systemd: Send + Sync {
    /// The devices of a unit; `None` when systemd has no such unit.
    async fn devices(&self, unit: &str) -> Result<Option<Devices>, SystemdError>;
    /// Begin to listen for the ends of jobs, which [`Self::start_scope`] needs. It is a call of its own so that a
    /// caller can do other things meanwhile.
    async fn listen(&self) -> Result<Listening, SystemdError>;
    /// Start the transient scope `unit` in `stelia.slice`, holding process `pid`; answers when its job is done, and
    /// fails where the job does. The caller has made sure that the cgroup does not exist yet.
    async fn start_scope(
        &self,
        listening: Listening,
        unit: &str,
        description: &str,
        pid: u32,
        limits: &Limits,
        devices: &Devices,
    ) -> Result<(), SystemdError>;
    /// Start a service that ends by itself; answers when it has, and fails where it does.
    async fn run(&self, unit: &str) -> Result<(), SystemdError>;
    /// Stop a scope whose cgroup is gone. systemd may not know it any more.
    ///
    /// systemd learns that a scope is empty by an event. A process that was already ending when it was put there causes
    /// none, and the scope stays.
    async fn stop_emptied(&self, unit: &str) -> Result<(), SystemdError>;
    /// The active scopes whose names match the glob `pattern`, each with the cgroup that systemd has for it.
    async fn scopes(&self, pattern: &str) -> Result<Vec<(String, String)>, SystemdError>;
    /// Set limits on a unit, until the next boot; `None` means unlimited.
    async fn limit(&self, unit: &str, limits: &Limits) -> Result<(), SystemdError>;
    /// Set a unit's `CPUWeight`, until the next boot.
    async fn weigh(&self, unit: &str, weight: u64) -> Result<(), SystemdError>;
    /// Set a unit's `MemoryMin` and `MemoryLow`, bytes, until the next boot.
    async fn protect(&self, unit: &str, min: u64, low: u64) -> Result<(), SystemdError>;
    /// Set a unit's `AllowedCPUs`, until the next boot; an empty set forgets the setting.
    async fn allow_cpus(&self, unit: &str, cpus: &CpuSet) -> Result<(), SystemdError>;
}
