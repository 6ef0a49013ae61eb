//! systemd's manager over the system bus.

use std::time::Duration;

use futures_util::StreamExt;
use zbus::export::async_trait::async_trait;
use zbus::{Connection, ObjectPath, OwnedObjectPath, Variant, proxy};

use super::{Devices, Systemd, SystemdError};
use crate::cgroup::Limits;
use crate::cpuset::CpuSet;

/// Well inside the watchdog's interval: the engine waits for the job.
const JOB_TIMEOUT: Duration = Duration::from_secs(20);

const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";

const UNIT_EXISTS: &str = "org.freedesktop.systemd1.UnitExists";

fn is_error<T>(result: &zbus::Result<T>, wanted: &str) -> bool {
    matches!(result, Err(zbus::Error::MethodError(name, ..)) if name.as_str() == wanted)
}

/// A row of `ListUnits`: name, description, load, active and sub state, whom it follows, object path, job id, type and path.
type UnitRow = (
    String,
    String,
    String,
    String,
    String,
    String,
    OwnedObjectPath,
    u32,
    String,
    OwnedObjectPath,
);

#[proxy(
    interface = "org.freedesktop.systemd1.Manager",
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1"
)]
trait Manager {
    fn subscribe(&self) -> zbus::Result<()>;
    fn unsubscribe(&self) -> zbus::Result<()>;
    fn get_unit(&self, name: &str) -> zbus::Result<OwnedObjectPath>;
    #[allow(clippy::type_complexity)]
    fn start_transient_unit(
        &self,
        name: &str,
        mode: &str,
        properties: &[(&str, Variant<'_>)],
        aux: &[(&str, &[(&str, Variant<'_>)])],
    ) -> zbus::Result<OwnedObjectPath>;

    fn list_units_by_patterns(&self, states: &[&str], patterns: &[&str]) -> zbus::Result<Vec<UnitRow>>;
    fn stop_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;
    fn set_unit_properties(&self, name: &str, runtime: bool, properties: &[(&str, Variant<'_>)]) -> zbus::Result<()>;

    #[zbus(signal)]
    fn job_removed(&self, id: u32, job: ObjectPath<'_>, unit: &str, result: &str) -> zbus::Result<()>;
}

#[proxy(
    interface = "org.freedesktop.systemd1.Scope",
    default_service = "org.freedesktop.systemd1"
)]
trait Scope {
    #[zbus(property(emits_changed_signal = "false"))]
    fn device_policy(&self) -> zbus::Result<String>;
    #[zbus(property(emits_changed_signal = "false"))]
    fn device_allow(&self) -> zbus::Result<Vec<(String, String)>>;
    #[zbus(property(emits_changed_signal = "false"))]
    fn control_group(&self) -> zbus::Result<String>;
}

/// systemd through its D-Bus API.
#[derive(Debug, Clone)]
pub struct DbusSystemd {
    connection: Connection,
}

impl DbusSystemd {
    /// Use this connection to the system bus. Does no I/O.
    pub fn new(connection: Connection) -> Self {
        Self { connection }
    }

    async fn set(&self, unit: &str, properties: &[(&str, Variant<'_>)]) -> Result<(), SystemdError> {
        let names: Vec<&str> = properties.iter().map(|(name, _)| *name).collect();
        let what = || format!("set {} of {unit}", names.join(", "));
        let manager = ManagerProxy::new(&self.connection).await.map_err(failed(what()))?;
        manager
            .set_unit_properties(unit, true, properties)
            .await
            .map_err(failed(what()))
    }
}

fn failed<E: std::fmt::Display>(operation: String) -> impl FnOnce(E) -> SystemdError {
    move |cause| SystemdError {
        operation,
        cause: cause.to_string(),
    }
}

#[async_trait]
impl Systemd for DbusSystemd {
    async fn devices(&self, unit: &str) -> Result<Option<Devices>, SystemdError> {
        let what = || format!("read the devices of {unit}");
        let manager = ManagerProxy::new(&self.connection).await.map_err(failed(what()))?;
        let path = match manager.get_unit(unit).await {
            Ok(path) => path,
            result if is_error(&result, NO_SUCH_UNIT) => return Ok(None),
            Err(cause) => return Err(failed(what())(cause)),
        };
        let scope = ScopeProxy::builder(&self.connection)
            .path(path)
            .build()
            .await
            .map_err(failed(what()))?;
        Ok(Some(Devices {
            policy: scope.device_policy().await.map_err(failed(what()))?,
            allow: scope.device_allow().await.map_err(failed(what()))?,
        }))
    }

    async fn stop_emptied(&self, unit: &str) -> Result<(), SystemdError> {
        let what = || format!("stop {unit}");
        let manager = ManagerProxy::new(&self.connection).await.map_err(failed(what()))?;
        match manager.stop_unit(unit, "replace").await {
            result if is_error(&result, NO_SUCH_UNIT) => Ok(()),
            result => result.map(drop).map_err(failed(what())),
        }
    }

    async fn scopes(&self, pattern: &str) -> Result<Vec<(String, String)>, SystemdError> {
        let what = || format!("list {pattern}");
        let manager = ManagerProxy::new(&self.connection).await.map_err(failed(what()))?;
        let units = manager.list_units_by_patterns(&["active"], &[pattern]).await;
        let mut scopes = Vec::new();
        for unit in units.map_err(failed(what()))? {
            let builder = ScopeProxy::builder(&self.connection).path(unit.6);
            let scope = builder.build().await.map_err(failed(what()))?;
            // One that has ended meanwhile is none.
            if let Ok(cgroup) = scope.control_group().await {
                scopes.push((unit.0, cgroup));
            }
        }
        Ok(scopes)
    }

    async fn limit(&self, unit: &str, limits: &Limits) -> Result<(), SystemdError> {
        self.set(unit, &limit_properties(limits)).await
    }

    async fn weigh(&self, unit: &str, weight: u64) -> Result<(), SystemdError> {
        self.set(unit, &[("CPUWeight", Variant::from(weight))]).await
    }

    async fn allow_cpus(&self, unit: &str, cpus: &CpuSet) -> Result<(), SystemdError> {
        self.set(unit, &[("AllowedCPUs", Variant::from(cpus.to_systemd_mask()))])
            .await
    }

    async fn start_scope(
        &self,
        unit: &str,
        description: &str,
        pid: u32,
        limits: &Limits,
        devices: &Devices,
    ) -> Result<(), SystemdError> {
        let what = || format!("start {unit}");
        let manager = ManagerProxy::new(&self.connection).await.map_err(failed(what()))?;
        // Subscribe before the call, or the job may be over before we listen.
        manager.subscribe().await.map_err(failed(what()))?;
        let mut removed = manager.receive_job_removed().await.map_err(failed(what()))?;
        let mut properties: Vec<(&str, Variant<'_>)> = vec![
            ("Description", Variant::from(description)),
            ("Slice", Variant::from("stelia.slice")),
            ("Delegate", Variant::from(true)),
            // Without it the host's shutdown kills QEMU before the pod is told to stop.
            ("DefaultDependencies", Variant::from(false)),
            ("CollectMode", Variant::from("inactive-or-failed")),
            ("PIDs", Variant::from(vec![pid])),
        ];
        properties.extend(limit_properties(limits));
        properties.push(("DevicePolicy", Variant::from(devices.policy.clone())));
        properties.push(("DeviceAllow", Variant::from(devices.allow.clone())));
        let mut start = manager.start_transient_unit(unit, "fail", &properties, &[]).await;
        if is_error(&start, UNIT_EXISTS) {
            self.stop_emptied(unit).await?;
            start = manager.start_transient_unit(unit, "fail", &properties, &[]).await;
        }
        let outcome = match start {
            Err(cause) => Err(failed(what())(cause)),
            Ok(job) => {
                let wait = async {
                    while let Some(signal) = removed.next().await {
                        if let Ok(args) = signal.args()
                            && args.job.as_str() == job.as_str()
                        {
                            return args.result.to_owned();
                        }
                    }
                    "the bus went away".to_owned()
                };
                match tokio::time::timeout(JOB_TIMEOUT, wait).await {
                    Ok(result) if result == "done" => Ok(()),
                    Ok(result) => Err(failed(what())(format!("the job ended: {result}"))),
                    Err(_) => Err(failed(what())(format!("no answer within {} s", JOB_TIMEOUT.as_secs()))),
                }
            }
        };
        // Subscribed only while a job is pending: a busy node has many units. Losing this call costs wake-ups only.
        let _ = manager.unsubscribe().await;
        outcome
    }
}

/// systemd's "no limit".
const INFINITY: u64 = u64::MAX;

fn limit_properties(limits: &Limits) -> Vec<(&'static str, Variant<'static>)> {
    let mut properties: Vec<(&'static str, Variant<'static>)> = [
        ("MemoryMax", limits.memory_max),
        ("MemoryHigh", limits.memory_high),
        ("MemorySwapMax", limits.memory_swap_max),
        ("TasksMax", limits.pids_max),
    ]
    .into_iter()
    .map(|(name, value)| (name, Variant::from(value.unwrap_or(INFINITY))))
    .collect();
    if let Some(weight) = limits.cpu_weight {
        properties.push(("CPUWeight", Variant::from(weight)));
    }
    properties
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_is_systemds_infinity_and_no_weight_is_left_alone() {
        let limits = Limits {
            memory_max: Some(1 << 30),
            ..Limits::default()
        };
        let told: Vec<(&str, u64)> = limit_properties(&limits)
            .into_iter()
            .map(|(name, value)| (name, u64::try_from(value).unwrap()))
            .collect();
        assert_eq!(
            told,
            [
                ("MemoryMax", 1 << 30),
                ("MemoryHigh", INFINITY),
                ("MemorySwapMax", INFINITY),
                ("TasksMax", INFINITY)
            ]
        );
    }
}
