//! Calls to systemd that are under way. The engine does not wait for them: each answer is an event, so a systemd that hangs
//! delays only the instances that need it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use stelia_api::{Error, ErrorKind};
use stelia_decide::{OUTSIDE, Planned, Step, Whom};
use stelia_kernel::cgroup::{CgroupError, CgroupPath, Limits, optional};
use stelia_kernel::holder::Hold;
use stelia_kernel::systemd::{Devices, SystemdError};
use stelia_kernel::{System, runtime_config};
use stelia_kubelet::{ContainerCgroup, PodUid};
use stelia_model::record::Record;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::apply::restore;
use super::blocking_thread;
use super::outside_units::{OWN, saved_attribute, set_on_slice};

/// A call that takes longer than this is shown as a problem of the node.
const SLOW_CALL_TIME: Duration = Duration::from_secs(5);

/// Limit of the trial of a container's OCI runtime, whose end one call waits for: `TimeoutStartSec=` of steliad-try-runtime@.service.
pub(super) const RUNTIME_CHECK_TIMEOUT: Duration = Duration::from_secs(60);

/// An answer.
pub(super) enum Done {
    /// A property of a unit was set, or the unit was stopped.
    Unit {
        unit: String,
        whom: Whom,
        result: Result<(), Error>,
    },
    /// A pod's OCI runtime was tried, by this unit.
    RuntimeChecked {
        pod: PodUid,
        unit: String,
        result: Result<(), SystemdError>,
    },
    /// A scope was started, with the holder in it.
    Started {
        pod: PodUid,
        result: Result<Box<dyn Hold>, Error>,
    },
}

/// A call under way.
#[derive(Debug, Clone, Copy)]
struct Call {
    since: Instant,
    /// Longer than this it should not take.
    slow_after: Duration,
}

impl Call {
    fn beginning(slow_after: Duration) -> Self {
        let since = Instant::now();
        Self { since, slow_after }
    }

    fn slow_at(&self) -> Instant {
        self.since + self.slow_after
    }
}

/// The calls under way, by unit.
pub(super) struct SystemdCalls {
    running: BTreeMap<String, Call>,
    /// Where the calls are made: the runtime that has the connection to systemd.
    runtime: Handle,
    sender: mpsc::UnboundedSender<Done>,
    pub(super) done: mpsc::UnboundedReceiver<Done>,
    /// Whether it was logged that systemd does not answer.
    reported: bool,
}

impl SystemdCalls {
    pub(super) fn of(runtime: Handle) -> Self {
        let (sender, done) = mpsc::unbounded_channel();
        Self {
            running: BTreeMap::new(),
            runtime,
            sender,
            done,
            reported: false,
        }
    }

    /// Whether a call about this unit is under way.
    pub(super) fn has(&self, unit: &str) -> bool {
        self.running.contains_key(unit)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// A call about this unit has ended.
    pub(super) fn ended(&mut self, unit: &str) {
        self.running.remove(unit);
        if self.running.is_empty() && std::mem::take(&mut self.reported) {
            tracing::info!("systemd (PID 1) answers again");
        }
    }

    /// The problem to show when systemd has not answered a call in the time that it may take.
    pub(super) fn slow(&mut self, now: Instant) -> Option<String> {
        let (unit, call) = self.running.iter().min_by_key(|(_, call)| call.slow_at())?;
        if now < call.slow_at() {
            return None;
        }
        let text = format!(
            "systemd (PID 1) has not answered about {unit} for more than {} s",
            call.slow_after.as_secs()
        );
        if !std::mem::replace(&mut self.reported, true) {
            tracing::warn!("{text}: instances that need it wait");
        }
        Some(text)
    }

    /// When to look for slow calls.
    pub(super) fn next(&self) -> Option<Instant> {
        if self.reported {
            return None;
        }
        self.running.values().map(Call::slow_at).min()
    }

    /// Have systemd apply a step.
    pub(super) fn apply(&mut self, system: &System, Planned { whom, step }: Planned) {
        let Some(unit) = step.systemd_unit().map(str::to_owned) else {
            return;
        };
        self.running.insert(unit.clone(), Call::beginning(SLOW_CALL_TIME));
        let (system, sender) = (system.clone(), self.sender.clone());
        self.runtime.spawn(async move {
            let result = apply(&system, &step).await;
            let _ = sender.send(Done::Unit { unit, whom, result });
        });
    }

    /// Have the OCI runtime of a pod's container checked.
    pub(super) fn check_runtime(&mut self, system: &System, pod: PodUid, unit: String) {
        let call = Call::beginning(RUNTIME_CHECK_TIMEOUT + SLOW_CALL_TIME);
        self.running.insert(unit.clone(), call);
        let (system, sender) = (system.clone(), self.sender.clone());
        self.runtime.spawn(async move {
            let result = system.systemd.run(&unit).await;
            let _ = sender.send(Done::RuntimeChecked { pod, unit, result });
        });
    }

    /// Start the scope of a container that was admitted.
    pub(super) fn start(&mut self, system: &System, record: &Record, limits: Limits) {
        let unit = record.pod.scope();
        self.running.insert(unit.clone(), Call::beginning(SLOW_CALL_TIME));
        let (system, sender, record) = (system.clone(), self.sender.clone(), record.clone());
        self.runtime.spawn(async move {
            let pod = record.pod.clone();
            let result = start(&system, &record, &limits).await;
            let _ = sender.send(Done::Started { pod, result });
        });
    }
}

async fn apply(system: &System, step: &Step) -> Result<(), Error> {
    let systemd = &system.systemd;
    match step {
        Step::Limit(unit, limits) => systemd.limit(unit, limits).await.map_err(Error::failed),
        Step::Weigh(weight) => {
            let weighed = systemd.weigh(CgroupPath::slice().name(), *weight).await;
            weighed.map_err(Error::failed)
        }
        Step::Protect { min, low } => {
            let protected = systemd.protect(CgroupPath::slice().name(), *min, *low).await;
            protected.map_err(Error::failed)
        }
        Step::Restrict { unit, cpus, save } => {
            // Recorded first: after a crash in between, a list is restored that was not changed yet.
            if let Some(save) = save {
                record_former_cpus(system, unit, &save.to_string()).map_err(Error::failed)?;
            }
            systemd.allow_cpus(unit, cpus).await.map_err(Error::failed)
        }
        Step::Restore(unit, saved) => restore(system, unit, saved).await,
        Step::Forget(scope) => systemd.stop_emptied(scope.name()).await.map_err(Error::failed),
        _ => Ok(()),
    }
}

/// The kernel keeps 128 attributes of a cgroup (`KERNFS_MAX_USER_XATTRS`): so many of the slice's may be pods'.
const MAX_POD_ATTRIBUTES_ON_SLICE: usize = 64;

/// Record a unit's former CPUs: on stelia.slice, or, for a pod for which that has no room, on the pod's own slice.
fn record_former_cpus(system: &System, unit: &str, saved: &str) -> Result<(), CgroupError> {
    let cgroups = &system.cgroups;
    let slice = CgroupPath::slice();
    let has_room = || -> Result<bool, CgroupError> {
        let of_the_host = OUTSIDE.contains(&unit);
        let all = optional(cgroups.attributes(&slice))?.unwrap_or_default();
        Ok(of_the_host || all.len() < MAX_POD_ATTRIBUTES_ON_SLICE)
    };
    let own = || CgroupPath::root().child("kubepods.slice").child(unit);
    if has_room()? {
        set_on_slice(&**cgroups, &saved_attribute(unit), saved)
    } else {
        cgroups.set_attribute(&own(), OWN, saved)
    }
}

async fn start(system: &System, record: &Record, limits: &Limits) -> Result<Box<dyn Hold>, Error> {
    let systemd = &system.systemd;
    let pod = &record.pod;
    let refused = |error: SystemdError| Error::failed(error).of(pod);
    // Questions to the bus and the start of a program, none of which depends on another.
    let listening = async { systemd.listen().await.map_err(refused) };
    let holders = system.holders.clone();
    let holder = async {
        let failed = ErrorKind::Failed.context("start the scope's holder");
        let started = blocking_thread::run("holder", move || holders.start()).await;
        let started = started.and_then(|started| started);
        started.map_err(|cause| failed(cause).of(pod))
    };
    let (devices, listening, holder) = tokio::try_join!(devices(system, pod, &record.origin), listening, holder)?;
    let description = format!("Stelia instance of pod {}, container {}", record.pod, record.container);
    let (unit, pid) = (record.pod.scope(), holder.pid());
    let started = systemd.start_scope(listening, &unit, &description, pid, limits, &devices);
    started.await.map_err(refused)?;
    Ok(holder)
}

/// The devices a container may open: as systemd says it of the unit, or as the runtime's configuration has it.
async fn devices(system: &System, pod: &PodUid, origin: &CgroupPath) -> Result<Devices, Error> {
    let whole = stelia_kernel::containers::container_scope(origin);
    if whole.name().ends_with(".scope") {
        let unit = system.systemd.devices(whole.name()).await;
        let unit = unit.map_err(|error| Error::failed(error).of(pod))?;
        if let Some(devices) = unit.filter(Devices::restrict) {
            return Ok(devices);
        }
    }
    // No unit (cgroupfs driver), or one that restricts nothing: of a privileged container, or of crun, which has a
    // program of its own for it.
    let id = ContainerCgroup::parse(origin.as_str()).map(|container| container.container_id);
    let numbers = std::fs::read_to_string("/proc/devices").unwrap_or_default();
    id.and_then(|id| runtime_config::devices(&system.run, &id, &numbers))
        .ok_or_else(|| {
            let text = format!("neither systemd nor the runtime's configuration tells the devices of {whole}");
            ErrorKind::Failed.because(text).of(pod)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_runtime_that_is_tried_may_take_longer_than_another_call() {
        let mut calls = SystemdCalls::of(Handle::current());
        let tried = Call::beginning(RUNTIME_CHECK_TIMEOUT + SLOW_CALL_TIME);
        calls.running.insert("steliad-try-runtime@a.service".into(), tried);
        assert_eq!(calls.next(), Some(tried.slow_at()));
        assert_eq!(calls.slow(tried.since + Duration::from_secs(64)), None);
        // Another, which began later, is slow earlier.
        let started = Call {
            since: tried.since + Duration::from_secs(10),
            slow_after: SLOW_CALL_TIME,
        };
        calls.running.insert("b.scope".into(), started);
        assert_eq!(calls.next(), Some(started.slow_at()));
        let slow = calls.slow(tried.since + Duration::from_secs(15)).expect("a problem");
        assert_eq!(slow, "systemd (PID 1) has not answered about b.scope for more than 5 s");
        calls.ended("b.scope");
        let slow = calls.slow(tried.slow_at()).expect("a problem");
        assert!(slow.contains("steliad-try-runtime@a.service"), "{slow}");
    }
}
