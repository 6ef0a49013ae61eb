//! systemd's manager over the system bus.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex as Lock, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use stelia_cpus::CpuSet;
use tokio::sync::Mutex;
use zbus::export::async_trait::async_trait;
use zbus::proxy::CacheProperties;
use zbus::{Connection, DBusError as _, ObjectPath, OwnedObjectPath, Variant, proxy};

use super::{Devices, Listening, Systemd, SystemdError};
use crate::cgroup::{CpuQuota, Limits};

/// The longest that is waited for systemd, for a job as for an answer. A PID 1 that hangs comes back from most of what holds
/// it (a reload, a mount that does not answer) by then, and a runner waits for longer.
const TIMEOUT: Duration = Duration::from_secs(90);
/// How long until a systemd that was not there is asked again.
const AGAIN: Duration = Duration::from_millis(250);
/// How often a unit whose job is waited for is looked at: the signal that the job is over is lost where systemd executes
/// itself anew at that moment.
const LOOK: Duration = Duration::from_secs(3);

const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";

const UNIT_EXISTS: &str = "org.freedesktop.systemd1.UnitExists";

const ALREADY_SUBSCRIBED: &str = "org.freedesktop.systemd1.AlreadySubscribed";

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
    #[zbus(no_reply)]
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

#[proxy(
    interface = "org.freedesktop.systemd1.Unit",
    default_service = "org.freedesktop.systemd1"
)]
trait Unit {
    #[zbus(property(emits_changed_signal = "false"))]
    fn active_state(&self) -> zbus::Result<String>;
    #[zbus(property(emits_changed_signal = "false"))]
    fn job(&self) -> zbus::Result<(u32, OwnedObjectPath)>;
}

/// Jobs that are waited for. systemd counts no subscriptions of a connection: the first job's end must not make the others
/// deaf.
#[derive(Debug, Default)]
struct Subscription {
    jobs: AtomicU32,
    /// Held by who subscribes, or ends it.
    order: Mutex<()>,
}

/// Being told of the ends of jobs, until it is dropped.
#[derive(Debug)]
pub(super) struct Ends {
    removed: JobRemovedStream,
    _subscribed: Subscribed,
}

/// One that counts as subscribed. Subscribed only while a job is pending: a busy node has many units.
#[derive(Debug)]
struct Subscribed(DbusSystemd);

impl Drop for Subscribed {
    fn drop(&mut self) {
        let left = self.0.subscription.jobs.fetch_sub(1, Ordering::SeqCst) - 1;
        // Losing the call costs wake-ups only, so nobody waits for it.
        if left == 0
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let systemd = self.0.clone();
            runtime.spawn(async move { systemd.unsubscribe().await });
        }
    }
}

/// systemd through its D-Bus API.
#[derive(Debug, Clone)]
pub struct DbusSystemd {
    connection: Connection,
    timeout: Duration,
    look: Duration,
    subscription: Arc<Subscription>,
}

impl DbusSystemd {
    /// Use this connection to the system bus. Does no I/O.
    pub fn new(connection: Connection) -> Self {
        Self {
            connection,
            timeout: TIMEOUT,
            look: LOOK,
            subscription: Arc::default(),
        }
    }

    /// Do what is asked of systemd, or say that it does not answer. While it executes itself anew it is not on the bus, and
    /// what it was asked before is not answered: then the work is done again, so it must be such that may be.
    async fn bounded<T, F>(&self, operation: String, mut work: impl FnMut() -> F + Send) -> Result<T, SystemdError>
    where
        F: Future<Output = Result<T, Failure>> + Send,
    {
        let answered = async {
            loop {
                match work().await {
                    Err(Failure::Away) => tokio::time::sleep(AGAIN).await,
                    Err(Failure::Refused(cause)) => return Err(cause),
                    Ok(answer) => return Ok(answer),
                }
            }
        };
        let cause = match tokio::time::timeout(self.timeout, answered).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(cause)) => cause,
            Err(_) => format!("systemd (PID 1) did not answer within {} s", self.timeout.as_secs()),
        };
        Err(SystemdError { operation, cause })
    }

    async fn manager(&self) -> Result<ManagerProxy<'static>, Failure> {
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

    async fn stop(&self, manager: &ManagerProxy<'_>, unit: &str) -> Result<(), Failure> {
        match manager.stop_unit(unit, "replace").await {
            result if is_error(&result, NO_SUCH_UNIT) => Ok(()),
            result => Ok(result.map(drop)?),
        }
    }

    /// Be told of jobs that are over.
    async fn ends(&self) -> Result<Ends, Failure> {
        let manager = &self.manager().await?;
        let subscribe = async {
            let _order = self.subscription.order.lock().await;
            self.subscription.jobs.fetch_add(1, Ordering::SeqCst);
            let subscribed = Subscribed(self.clone());
            match manager.subscribe().await {
                // systemd kept a subscription whose end it did not hear of.
                result if is_error(&result, ALREADY_SUBSCRIBED) => {}
                result => result?,
            }
            Ok(subscribed)
        };
        let listen = async { Ok::<_, Failure>(manager.receive_job_removed().await?) };
        let (_subscribed, removed) = tokio::try_join!(subscribe, listen)?;
        Ok(Ends { removed, _subscribed })
    }

    async fn unsubscribe(&self) {
        let Subscription { jobs, order } = &*self.subscription;
        // Whoever holds it subscribes, so there is nothing to end.
        if let Ok(_order) = order.try_lock()
            && jobs.load(Ordering::SeqCst) == 0
            && let Ok(manager) = self.manager().await
        {
            let _ = manager.unsubscribe().await;
        }
    }

    /// Wait for the end of the job that starts `unit`.
    async fn job_done(
        &self,
        manager: &ManagerProxy<'_>,
        ends: &mut Ends,
        job: &OwnedObjectPath,
        unit: &str,
    ) -> Result<(), Failure> {
        let mut look = tokio::time::interval_at(tokio::time::Instant::now() + self.look, self.look);
        loop {
            let signal = tokio::select! {
                signal = ends.removed.next() => signal.ok_or_else(|| Failure::Refused("the bus went away".into()))?,
                _ = look.tick() => {
                    match self.look(manager, unit).await {
                        Seen::Active => return Ok(()),
                        // Where systemd executes itself anew between the call and its job, it forgets the scope's process.
                        Seen::Ended => return Err(Failure::Refused("the job ended, and the unit is not active".into())),
                        Seen::Pending => continue,
                    }
                }
            };
            if let Ok(args) = signal.args()
                && args.job.as_str() == job.as_str()
            {
                return match args.result {
                    "done" => Ok(()),
                    result => Err(Failure::Refused(format!("the job ended: {result}"))),
                };
            }
        }
    }

    /// How far a unit is that is to be started.
    async fn look(&self, manager: &ManagerProxy<'_>, unit: &str) -> Seen {
        let seen = async {
            let path = match manager.get_unit(unit).await {
                result if is_error(&result, NO_SUCH_UNIT) => return Ok(Seen::Ended),
                result => result?,
            };
            let unit = UnitProxy::builder(&self.connection).path(path);
            let unit = unit.cache_properties(CacheProperties::No).build().await?;
            if unit.active_state().await? == "active" {
                return Ok(Seen::Active);
            }
            Ok::<_, zbus::Error>(if unit.job().await?.0 == 0 {
                Seen::Ended
            } else {
                Seen::Pending
            })
        };
        // While it is out of reach nothing is known.
        seen.await.unwrap_or(Seen::Pending)
    }
}

/// What a look at a unit that is to be started tells.
enum Seen {
    Active,
    /// It has no job and is not active, or it is not there.
    Ended,
    Pending,
}

/// Why systemd did not do what it was asked.
#[derive(Debug)]
enum Failure {
    /// It is not on the bus now, or left it before it answered.
    Away,
    /// It said so.
    Refused(String),
}

/// The bus' answers to a call whose recipient is away.
const AWAY: [&str; 3] = [
    "org.freedesktop.DBus.Error.NoReply",
    "org.freedesktop.DBus.Error.ServiceUnknown",
    "org.freedesktop.DBus.Error.NameHasNoOwner",
];

impl From<zbus::Error> for Failure {
    fn from(cause: zbus::Error) -> Self {
        let is_away = match &cause {
            zbus::Error::MethodError(name, ..) => AWAY.contains(&name.as_str()),
            zbus::Error::FDO(error) => AWAY.contains(&error.name().as_str()),
            _ => false,
        };
        match is_away {
            true => Self::Away,
            false => Self::Refused(cause.to_string()),
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
            // Each property is asked for, so all the others are not worth a call of their own.
            let scope = scope.cache_properties(CacheProperties::No).build().await?;
            let (policy, allow) = tokio::try_join!(scope.device_policy(), scope.device_allow())?;
            Ok(Some(Devices { policy, allow }))
        };
        self.bounded(format!("read the devices of {unit}"), work).await
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
                // One that has ended meanwhile is none.
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
            // Before the call, or the job may be over before anybody listens.
            let mut ends = match heard {
                Some(ends) => ends,
                None => self.ends().await?,
            };
            // It may have left after it did what it was asked: what is there then is no old one.
            while asked.load(Ordering::SeqCst) {
                match self.look(manager, unit).await {
                    Seen::Active => return Ok(()),
                    Seen::Ended => break,
                    Seen::Pending => tokio::time::sleep(AGAIN).await,
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

#[cfg(test)]
mod fake;

#[cfg(test)]
mod tests {
    use super::fake::Fake;
    use super::*;

    async fn start(systemd: &DbusSystemd, unit: &str) -> Result<(), SystemdError> {
        let devices = Devices::default();
        let listening = systemd.listen().await?;
        systemd
            .start_scope(listening, unit, "a VM", 1, &Limits::default(), &devices)
            .await
    }

    #[tokio::test]
    async fn who_is_subscribed_already_is_told_of_the_job() {
        let fake = Fake {
            subscribed: true,
            ..Fake::default()
        };
        let (_server, systemd) = fake.serve().await;
        start(&systemd, "a.scope").await.unwrap();
    }

    #[tokio::test]
    async fn a_job_that_failed_untold_is_a_failure_at_the_next_look() {
        let fake = Fake {
            silent: true,
            fails: true,
            ..Fake::default()
        };
        let (_server, systemd) = fake.serve().await;
        let error = start(&systemd, "a.scope").await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "start a.scope: the job ended, and the unit is not active"
        );
    }

    #[tokio::test]
    async fn a_systemd_that_was_away_is_asked_again_and_what_it_did_is_not_done_twice() {
        let fake = Fake {
            leaves: true,
            ..Fake::default()
        };
        let (server, systemd) = fake.serve().await;
        start(&systemd, "a.scope").await.unwrap();
        systemd.weigh("a.scope", 1).await.unwrap();
        let told = fake::told(&server).await;
        let count = |wanted: &str| told.iter().filter(|call| *call == wanted).count();
        assert_eq!(
            (count("StartTransientUnit"), count("SetUnitProperties")),
            (1, 2),
            "{told:?}"
        );
        assert_eq!(systemd.subscription.jobs.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn a_job_whose_end_is_not_told_is_done_when_its_unit_is_active() {
        let fake = Fake {
            silent: true,
            ..Fake::default()
        };
        let (_server, systemd) = fake.serve().await;
        start(&systemd, "a.scope").await.unwrap();
    }

    #[tokio::test]
    async fn the_end_of_one_job_does_not_make_another_deaf() {
        let (server, systemd) = Fake::default().serve().await;
        let slow = start(&systemd, "slow.scope");
        let quick = async {
            start(&systemd, "quick.scope").await.unwrap();
            start(&systemd, "quick.scope").await.unwrap();
        };
        let (slow, ()) = tokio::join!(slow, quick);
        slow.unwrap();
        let told = fake::told(&server).await;
        assert_eq!(told.iter().filter(|call| *call == "Unsubscribe").count(), 1, "{told:?}");
        assert_eq!(told.last().map(String::as_str), Some("Unsubscribe"), "{told:?}");
    }

    #[tokio::test]
    async fn a_systemd_that_does_not_answer_is_named_in_every_call() {
        let fake = Fake {
            hangs: true,
            ..Fake::default()
        };
        let (_server, mut systemd) = fake.serve().await;
        systemd.timeout = Duration::from_millis(50);
        let (limits, cpus) = (Limits::default(), CpuSet::new());
        let errors = [
            start(&systemd, "a.scope").await.unwrap_err(),
            systemd.devices("a.scope").await.unwrap_err(),
            systemd.stop_emptied("a.scope").await.unwrap_err(),
            systemd.scopes("*").await.unwrap_err(),
            systemd.limit("a.scope", &limits).await.unwrap_err(),
            systemd.weigh("a.scope", 1).await.unwrap_err(),
            systemd.protect("a.scope", 1, 1).await.unwrap_err(),
            systemd.allow_cpus("a.scope", &cpus).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.cause, "systemd (PID 1) did not answer within 0 s", "{error}");
        }
    }

    #[test]
    fn no_limit_is_systemds_infinity_and_no_weight_is_left_alone() {
        let limits = Limits {
            memory_max: Some(1 << 30),
            memory_low: 1 << 20,
            cpu_max: CpuQuota::parse("25000 50000"),
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
                ("TasksMax", INFINITY),
                ("CPUQuotaPerSecUSec", 500_000),
                ("CPUQuotaPeriodUSec", 50_000),
                ("MemoryMin", 0),
                ("MemoryLow", 1 << 20),
            ]
        );
    }
}
