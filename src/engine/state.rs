//! The engine's state: what is known, what is out of date, and the calls under way. Files that act on it each have an `impl EngineState`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stelia_api::{Reason, ReasonCode};
use stelia_decide::disturbances::FiringInterrupts;
use stelia_decide::drift_findings::Finding;
use stelia_decide::{Instance, Whom};
use stelia_kernel::System;
use stelia_kubelet::PodUid;
use stelia_settings::Settings;
use tokio::sync::watch;

use super::calls::Calls;
use super::device_record::DeviceRecord;
use super::fair_share::RecentLooks;
use super::inbox::Inbox;
use super::instance_log::InstanceLog;
use super::jobs::Jobs;
use super::metrics::Metrics;
use super::out_of_date::Dirty;
use super::pass::Passes;
use super::picture::Picture;
use super::pod_work_limits::PodWorkLimits;
use super::retries::Retries;
use super::systemd_calls::SystemdCalls;
use super::view_writer::ViewWriter;
use super::watch::Watcher;
use crate::journal::JournalPod;

/// How often everything is looked at while something is not watched, or cannot be read.
const UNWATCHED_INTERVAL: Duration = Duration::from_secs(2);
/// The shortest time between two such looks because the kernel dropped events: a container that makes many files in a cgroup that is watched
/// can have it drop some all the time.
const LOST_INTERVAL: Duration = Duration::from_secs(1);

/// All that the engine owns.
pub(super) struct EngineState {
    pub(super) system: System,
    pub(super) settings: Settings,
    pub(super) inbox: Inbox,
    pub(super) calls: Calls,
    pub(super) watcher: Watcher,
    pub(super) picture: Picture,
    pub(super) dirty: Dirty,
    pub(super) retries: Retries,
    /// How often the engine looked at each pod's instance recently.
    pub(super) recent_looks: RecentLooks,
    pub(super) rates: PodWorkLimits,
    pub(super) systemd_calls: SystemdCalls,
    /// Drift that is not repaired yet, with the instance as it was before.
    pub(super) drift: BTreeMap<Whom, (Option<Instance>, Vec<Finding>)>,
    pub(super) passes: Passes,
    pub(super) metrics: Arc<Metrics>,
    pub(super) view_writer: ViewWriter,
    pub(super) instance_log: InstanceLog,
    pub(super) jobs: Jobs,
    /// kubelet's record of devices.
    pub(super) devices: DeviceRecord,
    /// Which interrupts fire on VMs' CPUs.
    pub(super) firing: FiringInterrupts,
    /// The settings, for the tasks beside the engine that follow them.
    pub(super) shown_settings: watch::Sender<Arc<Settings>>,
    /// Notified when an audit of everything begins, for the tasks that work once for each audit.
    pub(super) audits: watch::Sender<()>,
    pub(super) next_audit: Instant,
    /// The kernel dropped events since everything was last looked at.
    pub(super) has_lost_events: bool,
    /// Something of the node could not be read since then.
    pub(super) has_unread_parts: bool,
    /// When everything was last marked as out of date.
    pub(super) looked: Instant,
}

impl EngineState {
    /// A pod as messages name it.
    pub(super) fn named<'a>(&'a self, pod: &'a PodUid) -> JournalPod<'a> {
        let instance = self.picture.snapshot.instances.get(pod);
        JournalPod::new(pod.as_str(), instance.and_then(|instance| instance.pod_name.as_ref()))
    }

    /// Why one instance is degraded, and what could not be done for it.
    pub(super) fn amiss(&self, pod: &PodUid) -> Vec<Reason> {
        let view = self.view_writer.view();
        let shown = view
            .instances
            .get(pod)
            .into_iter()
            .flat_map(|instance| &instance.degraded);
        let mut all: Vec<Reason> = shown
            .filter(|reason| reason.code != ReasonCode::StepFailed)
            .cloned()
            .collect();
        let own = self.retries.instances.failures(pod).iter();
        all.extend(own.map(|text| Reason::of(pod, ReasonCode::StepFailed, text)));
        // The failures of shared steps for which this instance waits.
        let shared = self.retries.shared.failures_of(self.needs_step_of(pod));
        all.extend(shared.map(|text| Reason::of_node(ReasonCode::StepFailed, text)));
        all
    }

    /// When everything is looked at next: at the audit, or before that where events were lost or something is not watched or could not be read.
    pub(super) fn next_look(&self) -> Instant {
        let interval = if self.has_lost_events {
            LOST_INTERVAL
        } else if self.picture.is_watched() && !self.has_unread_parts {
            return self.next_audit;
        } else {
            UNWATCHED_INTERVAL
        };
        self.next_audit.min(self.looked + interval)
    }

    pub(super) fn next_audit_in(&mut self, interval: Duration) {
        self.next_audit = Instant::now() + interval;
    }
}
