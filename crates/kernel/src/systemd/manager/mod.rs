//! systemd's manager over the system bus.

mod bus;
#[cfg(test)]
mod fake;
mod jobs;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as Lock, PoisonError};
use std::time::Duration;

use stelia_cpus::CpuSet;
use zbus::export::async_trait::async_trait;
use zbus::proxy::CacheProperties;
use zbus::{Connection, Variant};

pub(super) use self::jobs::Ends;

use self::bus::{BusFailure, ManagerProxy, NO_SUCH_UNIT, ScopeProxy, UNIT_EXISTS, is_error};
use self::jobs::{JOB_TIMEOUT, Subscription, UnitStatus};
use super::{Devices, Listening, Systemd, SystemdError};
use crate::cgroup::{CpuQuota, Limits};

/// The pause before systemd is called again after it did not answer.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// How often a unit with a pending job is polled, since the signal of the job's end is lost if systemd
/// re-executes itself at that moment.
const POLL_INTERVAL: Duration = Duration::from_secs(3);

/// systemd through its D-Bus API.
#[derive(Debug, Clone)]
pub struct DbusSystemd {
    connection: Connection,
    timeout: Duration,
    poll_interval: Duration,
    subscription: Arc<Subscription>,
}

impl DbusSystemd {
    /// Use this connection to the system bus. Does no I/O.
    pub fn new(connection: Connection) -> Self {
        Self {
            connection,
            timeout: JOB_TIMEOUT,
            poll_interval: POLL_INTERVAL,
            subscription: Arc::default(),
        }
    }

    async fn manager(&self) -> Result<ManagerProxy<'static>, BusFailure> {
        Ok(ManagerProxy::new(&self.connection).await?)
    }

    async fn set(&self, unit: &str, properties: &[(&str, Variant<'_>)]) -> Result<(), SystemdError> {
        let names: Vec<&str> = properties.iter().map(|(name, _)| *name).collect();
        let operation = format!("set {} of {unit}", names.join(", "));
        let work = || async {
            let manager = self.manager().await?;
            Ok(manager.set_unit_properties(unit, true, properties).await?)
        };
        self.bounded(operation, work).await
    }

    async fn stop(&self, manager: &ManagerProxy<'_>, unit: &str) -> Result<(), BusFailure> {
        match manager.stop_unit(unit, "replace").await {
            result if is_error(&result, NO_SUCH_UNIT) => Ok(()),
            result => Ok(result.map(drop)?),
        }
    }
}

#[async_trait]
impl Systemd for DbusSystemd {
    async fn devices(&self, unit: &str) -> Result<Option<Devices>, SystemdError> {
        let work = || async {
            let manager = self.manager().await?;
            let path = match manager.get_unit(unit).await {
                Ok(path) => path,
                result if is_error(&result, NO_SUCH_UNIT) => return Ok(None),
                Err(cause) => return Err(cause.into()),
            };
            let scope = ScopeProxy::builder(&self.connection).path(path);
            // The properties are asked for one by one: a call for all of them would cost more.
            let scope = scope.cache_properties(CacheProperties::No).build().await?;
            let (policy, allow) = tokio::try_join!(scope.device_policy(), scope.device_allow())?;
            Ok(Some(Devices { policy, allow }))
        };
        self.bounded(format!("read the devices of {unit}"), work).await
    }

    async fn run(&self, unit: &str) -> Result<(), SystemdError> {
        let work = || async {
            let manager = &self.manager().await?;
            let mut ends = self.ends().await?;
            let job = manager.start_unit(unit, "replace").await?;
            self.job_done(manager, &mut ends, &job, unit).await
        };
        self.bounded(format!("start {unit}"), work).await
    }

    async fn stop_emptied(&self, unit: &str) -> Result<(), SystemdError> {
        let work = || async { self.stop(&self.manager().await?, unit).await };
        self.bounded(format!("stop {unit}"), work).await
    }

    async fn scopes(&self, pattern: &str) -> Result<Vec<(String, String)>, SystemdError> {
        let work = || async {
            let manager = self.manager().await?;
            let units = manager.list_units_by_patterns(&["active"], &[pattern]).await;
            let mut scopes = Vec::new();
            for unit in units? {
                let builder = ScopeProxy::builder(&self.connection).path(unit.6);
                let scope = builder.cache_properties(CacheProperties::No).build().await?;
                // A scope that has ended meanwhile is left out.
                if let Ok(cgroup) = scope.control_group().await {
                    scopes.push((unit.0, cgroup));
                }
            }
            Ok(scopes)
        };
        self.bounded(format!("list {pattern}"), work).await
    }

    async fn limit(&self, unit: &str, limits: &Limits) -> Result<(), SystemdError> {
        self.set(unit, &limit_properties(limits)).await
    }

    async fn weigh(&self, unit: &str, weight: u64) -> Result<(), SystemdError> {
        self.set(unit, &[("CPUWeight", Variant::from(weight))]).await
    }

    async fn protect(&self, unit: &str, min: u64, low: u64) -> Result<(), SystemdError> {
        let properties = [("MemoryMin", Variant::from(min)), ("MemoryLow", Variant::from(low))];
        self.set(unit, &properties).await
    }

    async fn allow_cpus(&self, unit: &str, cpus: &CpuSet) -> Result<(), SystemdError> {
        self.set(unit, &[("AllowedCPUs", Variant::from(cpus.to_systemd_mask()))])
            .await
    }

    async fn listen(&self) -> Result<Listening, SystemdError> {
        let ends = self.bounded("listen for the ends of jobs".into(), || self.ends());
        Ok(Listening(Some(ends.await?)))
    }

    async fn start_scope(
        &self,
        listening: Listening,
        unit: &str,
        description: &str,
        pid: u32,
        limits: &Limits,
        devices: &Devices,
    ) -> Result<(), SystemdError> {
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
        let (asked, listening) = (AtomicBool::new(false), Lock::new(listening.0));
        let work = || async {
            let manager = &self.manager().await?;
            let heard = listening.lock().unwrap_or_else(PoisonError::into_inner).take();
            // Before the call, or the job may end before its signal is listened for.
            let mut ends = match heard {
                Some(ends) => ends,
                None => self.ends().await?,
            };
            // systemd may have left the bus after it made the scope: one that exists then is ours, not an old one.
            while asked.load(Ordering::SeqCst) {
                match self.unit_status(manager, unit).await {
                    UnitStatus::Active => return Ok(()),
                    UnitStatus::Ended => break,
                    UnitStatus::Pending => tokio::time::sleep(RETRY_INTERVAL).await,
                }
            }
            asked.store(true, Ordering::SeqCst);
            let mut start = manager.start_transient_unit(unit, "fail", &properties, &[]).await;
            if is_error(&start, UNIT_EXISTS) {
                self.stop(manager, unit).await?;
                start = manager.start_transient_unit(unit, "fail", &properties, &[]).await;
            }
            self.job_done(manager, &mut ends, &start?, unit).await
        };
        self.bounded(format!("start {unit}"), work).await
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
        ("CPUQuotaPerSecUSec", limits.cpu_max.map(CpuQuota::per_second)),
        ("CPUQuotaPeriodUSec", limits.cpu_max.map(|quota| quota.period)),
        ("MemoryMin", Some(limits.memory_min)),
        ("MemoryLow", Some(limits.memory_low)),
    ]
    .into_iter()
    .map(|(name, value)| (name, Variant::from(value.unwrap_or(INFINITY))))
    .collect();
    for (name, weight) in [("CPUWeight", limits.cpu_weight), ("IOWeight", limits.io_weight)] {
        properties.extend(weight.map(|weight| (name, Variant::from(weight))));
    }
    properties
}
