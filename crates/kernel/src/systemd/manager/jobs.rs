//! Waiting for systemd's answers and for its jobs.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::Mutex;
use zbus::OwnedObjectPath;
use zbus::proxy::CacheProperties;

use super::super::SystemdError;
use super::bus::{ALREADY_SUBSCRIBED, BusFailure, JobRemovedStream, ManagerProxy, NO_SUCH_UNIT, UnitProxy, is_error};
use super::{DbusSystemd, RETRY_INTERVAL};

/// How long a job or an answer of systemd is waited for. A PID 1 that hangs has recovered by then from most causes (a
/// reload, a mount that does not answer), and a runner waits longer.
pub(super) const JOB_TIMEOUT: Duration = Duration::from_secs(90);

/// How many jobs are waited for. systemd does not count a connection's subscriptions: unsubscribing when the first job
/// ends would end the signals for the others too.
#[derive(Debug, Default)]
pub(super) struct Subscription {
    pub(super) jobs: AtomicU32,
    /// Held while subscribing or unsubscribing.
    order: Mutex<()>,
}

/// Receives the signals of jobs that end, until it is dropped.
#[derive(Debug)]
pub(in super::super) struct Ends {
    removed: JobRemovedStream,
    _subscribed: Subscribed,
}

/// One that counts as subscribed. Subscribed only while a job is pending: a busy node has many units.
#[derive(Debug)]
struct Subscribed(DbusSystemd);

impl Drop for Subscribed {
    fn drop(&mut self) {
        let left = self.0.subscription.jobs.fetch_sub(1, Ordering::SeqCst) - 1;
        // If the call is lost, that costs wake-ups only, so it is not waited for.
        if left == 0
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let systemd = self.0.clone();
            runtime.spawn(async move { systemd.unsubscribe().await });
        }
    }
}

impl DbusSystemd {
    /// Do some work with systemd, with a time limit. While systemd re-executes itself it is not on the bus, and calls
    /// made before are not answered: the work is then repeated, so it must be idempotent.
    pub(super) async fn bounded<T, F>(
        &self,
        operation: String,
        mut work: impl FnMut() -> F + Send,
    ) -> Result<T, SystemdError>
    where
        F: Future<Output = Result<T, BusFailure>> + Send,
    {
        let answered = async {
            loop {
                match work().await {
                    Err(BusFailure::Unreachable) => tokio::time::sleep(RETRY_INTERVAL).await,
                    Err(BusFailure::Refused(cause)) => return Err(cause),
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

    /// Subscribe to the ends of jobs.
    pub(super) async fn ends(&self) -> Result<Ends, BusFailure> {
        let manager = &self.manager().await?;
        let subscribe = async {
            let _order = self.subscription.order.lock().await;
            self.subscription.jobs.fetch_add(1, Ordering::SeqCst);
            let subscribed = Subscribed(self.clone());
            match manager.subscribe().await {
                // systemd still has a subscription of a connection that has ended.
                result if is_error(&result, ALREADY_SUBSCRIBED) => {}
                result => result?,
            }
            Ok(subscribed)
        };
        let listen = async { Ok::<_, BusFailure>(manager.receive_job_removed().await?) };
        let (_subscribed, removed) = tokio::try_join!(subscribe, listen)?;
        Ok(Ends { removed, _subscribed })
    }

    async fn unsubscribe(&self) {
        let Subscription { jobs, order } = &*self.subscription;
        // While another task holds the lock it subscribes, so there is nothing to unsubscribe.
        if let Ok(_order) = order.try_lock()
            && jobs.load(Ordering::SeqCst) == 0
            && let Ok(manager) = self.manager().await
        {
            let _ = manager.unsubscribe().await;
        }
    }

    /// Wait for the end of the job that starts `unit`.
    pub(super) async fn job_done(
        &self,
        manager: &ManagerProxy<'_>,
        ends: &mut Ends,
        job: &OwnedObjectPath,
        unit: &str,
    ) -> Result<(), BusFailure> {
        let mut poll = tokio::time::interval_at(tokio::time::Instant::now() + self.poll_interval, self.poll_interval);
        loop {
            let signal = tokio::select! {
                signal = ends.removed.next() => signal.ok_or_else(|| BusFailure::Refused("the bus went away".into()))?,
                _ = poll.tick() => {
                    match self.unit_status(manager, unit).await {
                        UnitStatus::Active => return Ok(()),
                        // Where systemd executes itself anew between the call and its job, it forgets the scope's process.
                        UnitStatus::Ended => return Err(BusFailure::Refused("the job ended, and the unit is not active".into())),
                        UnitStatus::Pending => continue,
                    }
                }
            };
            if let Ok(args) = signal.args()
                && args.job.as_str() == job.as_str()
            {
                return match args.result {
                    "done" => Ok(()),
                    result => Err(BusFailure::Refused(format!("the job ended: {result}"))),
                };
            }
        }
    }

    /// Whether a unit whose job is waited for has started, failed or is under way.
    pub(super) async fn unit_status(&self, manager: &ManagerProxy<'_>, unit: &str) -> UnitStatus {
        let seen = async {
            let path = match manager.get_unit(unit).await {
                result if is_error(&result, NO_SUCH_UNIT) => return Ok(UnitStatus::Ended),
                result => result?,
            };
            let unit = UnitProxy::builder(&self.connection).path(path);
            let unit = unit.cache_properties(CacheProperties::No).build().await?;
            if unit.active_state().await? == "active" {
                return Ok(UnitStatus::Active);
            }
            Ok::<_, zbus::Error>(if unit.job().await?.0 == 0 {
                UnitStatus::Ended
            } else {
                UnitStatus::Pending
            })
        };
        // While it is out of reach nothing is known.
        seen.await.unwrap_or(UnitStatus::Pending)
    }
}

/// The state of a unit whose start is waited for.
pub(super) enum UnitStatus {
    Active,
    /// It has no job and is not active, or it is not there.
    Ended,
    Pending,
}
