//! systemd's manager over the system bus.

use std::time::Duration;

use futures_util::StreamExt;
use zbus::export::async_trait::async_trait;
use zbus::{Connection, ObjectPath, OwnedObjectPath, Variant, proxy};

use super::{Limits, Systemd, SystemdError};

/// Well inside the watchdog's interval: the engine waits for the job.
const JOB_TIMEOUT: Duration = Duration::from_secs(20);

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

    #[zbus(signal)]
    fn job_removed(&self, id: u32, job: ObjectPath<'_>, unit: &str, result: &str) -> zbus::Result<()>;
}

#[proxy(
    interface = "org.freedesktop.systemd1.Scope",
    default_service = "org.freedesktop.systemd1"
)]
trait Scope {
    #[zbus(property(emits_changed_signal = "false"))]
    fn memory_max(&self) -> zbus::Result<u64>;
    #[zbus(property(emits_changed_signal = "false"))]
    fn memory_high(&self) -> zbus::Result<u64>;
    #[zbus(property(emits_changed_signal = "false"))]
    fn memory_swap_max(&self) -> zbus::Result<u64>;
    #[zbus(property(emits_changed_signal = "false"))]
    fn tasks_max(&self) -> zbus::Result<u64>;
    #[zbus(property(emits_changed_signal = "false"), name = "CPUWeight")]
    fn cpu_weight(&self) -> zbus::Result<u64>;
    #[zbus(property(emits_changed_signal = "false"))]
    fn device_policy(&self) -> zbus::Result<String>;
    #[zbus(property(emits_changed_signal = "false"))]
    fn device_allow(&self) -> zbus::Result<Vec<(String, String)>>;
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
}

fn failed<E: std::fmt::Display>(operation: String) -> impl FnOnce(E) -> SystemdError {
    move |cause| SystemdError {
        operation,
        cause: cause.to_string(),
    }
}

#[async_trait]
impl Systemd for DbusSystemd {
    async fn limits(&self, unit: &str) -> Result<Limits, SystemdError> {
        let what = || format!("read the limits of {unit}");
        let manager = ManagerProxy::new(&self.connection).await.map_err(failed(what()))?;
        let path = manager.get_unit(unit).await.map_err(failed(what()))?;
        let scope = ScopeProxy::builder(&self.connection)
            .path(path)
            .build()
            .await
            .map_err(failed(what()))?;
        Ok(Limits {
            memory_max: Some(scope.memory_max().await.map_err(failed(what()))?),
            memory_high: Some(scope.memory_high().await.map_err(failed(what()))?),
            memory_swap_max: Some(scope.memory_swap_max().await.map_err(failed(what()))?),
            tasks_max: Some(scope.tasks_max().await.map_err(failed(what()))?),
            cpu_weight: Some(scope.cpu_weight().await.map_err(failed(what()))?),
            device_policy: Some(scope.device_policy().await.map_err(failed(what()))?),
            device_allow: scope.device_allow().await.map_err(failed(what()))?,
        })
    }

    async fn start_scope(&self, unit: &str, description: &str, pid: u32, limits: &Limits) -> Result<(), SystemdError> {
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
        let start = manager.start_transient_unit(unit, "fail", &properties, &[]).await;
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

fn limit_properties(limits: &Limits) -> Vec<(&'static str, Variant<'static>)> {
    let numbers = [
        ("MemoryMax", limits.memory_max),
        ("MemoryHigh", limits.memory_high),
        ("MemorySwapMax", limits.memory_swap_max),
        ("TasksMax", limits.tasks_max),
        ("CPUWeight", limits.cpu_weight),
    ];
    // systemd prints an unset weight as u64::MAX, which it does accept back.
    let mut properties: Vec<(&'static str, Variant<'static>)> = numbers
        .into_iter()
        .filter_map(|(name, value)| Some((name, Variant::from(value?))))
        .collect();
    if let Some(policy) = &limits.device_policy {
        properties.push(("DevicePolicy", Variant::from(policy.clone())));
        properties.push(("DeviceAllow", Variant::from(limits.device_allow.clone())));
    }
    properties
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_not_known_is_not_set() {
        let limits = Limits {
            memory_max: Some(1 << 30),
            ..Limits::default()
        };
        let names: Vec<_> = limit_properties(&limits).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["MemoryMax"]);
    }

    #[test]
    fn signatures_are_systemds() {
        let limits = Limits {
            tasks_max: Some(7),
            device_policy: Some("strict".into()),
            device_allow: vec![("/dev/null".into(), "rwm".into())],
            ..Limits::default()
        };
        let signatures: Vec<_> = limit_properties(&limits)
            .into_iter()
            .map(|(name, value)| (name, value.value_signature().to_string()))
            .collect();
        assert_eq!(
            signatures,
            [
                ("TasksMax", "t".into()),
                ("DevicePolicy", "s".into()),
                ("DeviceAllow", "a(ss)".to_owned())
            ]
        );
    }
}
