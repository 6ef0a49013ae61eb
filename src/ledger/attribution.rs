//! Makes attributions: the names of what else runs on VMs' CPUs, which the kernel counts for some seconds on behalf of `steliad-quiet`.
//! There is one at a time on a node. A request of an operator ends an automatic one early.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use stelia_api::attribution::{Attribution, Occupant};
use stelia_api::{Error, ErrorKind};
use stelia_cpus::CpuSet;
use stelia_kubelet::PodUid;
use stelia_quiet::client;
use stelia_quiet::order::{SOCKET, Target};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::target::{Targets, VmTarget};
use crate::engine::now_us;

/// How long an attribution after an intrusion takes.
pub(super) const INTRUSION_TRACE_DURATION: Duration = Duration::from_secs(5);
/// The shortest time between two attributions after intrusions on one VM's CPUs.
const INTRUSION_TRACE_INTERVAL: Duration = Duration::from_secs(3600);
/// Limit of the tasks that a message names.
const MAX_NAMED_TASKS: usize = 4;

/// Lets the kernel count what runs on CPUs.
pub(crate) trait Tracer: Send + Sync {
    /// Begin to count. Blocks until counting has begun.
    ///
    /// # Errors
    /// Why nothing is counted.
    fn begin(&self, target: &Target) -> Result<(), String>;

    /// End counting. Blocks until it has ended.
    ///
    /// # Errors
    /// Why there is no result.
    fn finish(&self) -> Result<Attribution, String>;

    /// Whether the kernel may still be counting for a former daemon.
    fn may_be_counting(&self) -> bool;
}

/// The tracefs instance that `steliad-quiet` makes and removes.
const TRACEFS_INSTANCE: &str = "/sys/kernel/tracing/instances/steliad-quiet";

/// Counts by `steliad-quiet`, through its socket.
pub(crate) struct QuietTracer;

impl Tracer for QuietTracer {
    fn begin(&self, target: &Target) -> Result<(), String> {
        client::begin(Path::new(SOCKET), target, client::ANSWER_TIMEOUT).map_err(|error| error.to_string())
    }

    fn finish(&self) -> Result<Attribution, String> {
        client::finish(Path::new(SOCKET), client::ANSWER_TIMEOUT).map_err(|error| error.to_string())
    }

    fn may_be_counting(&self) -> bool {
        Path::new(TRACEFS_INSTANCE).is_dir()
    }
}

/// Makes attributions, one at a time.
#[derive(Clone)]
pub(super) struct Attributor {
    tracer: Arc<dyn Tracer>,
    /// One permit: the attribution that is under way.
    current: Arc<Semaphore>,
    /// One permit: an operator's attribution, under way or waiting for the other permit.
    operators: Arc<Semaphore>,
    /// Ends the last automatic attribution early.
    end_automatic: Arc<Mutex<CancellationToken>>,
}

impl Attributor {
    pub(super) fn new(tracer: Arc<dyn Tracer>) -> Self {
        Self {
            tracer,
            current: Arc::new(Semaphore::new(1)),
            operators: Arc::new(Semaphore::new(1)),
            end_automatic: Arc::default(),
        }
    }

    /// End counting that a former daemon began. The next attribution waits for that.
    pub(super) fn end_former(&self) {
        let Ok(permit) = self.current.clone().try_acquire_owned() else {
            return;
        };
        let tracer = self.tracer.clone();
        tokio::spawn(async move {
            let end = move || {
                if tracer.may_be_counting() {
                    tracer.finish().map(drop)
                } else {
                    Ok(())
                }
            };
            if let Err(problem) = blocking(end).await {
                tracing::debug!("what counted before: {problem}");
            }
            drop(permit);
        });
    }

    /// An operator's attribution. It ends early when `cancelled` completes.
    ///
    /// # Errors
    /// `Busy` while another operator's is under way; `Failed` with the problem that `steliad-quiet` reports.
    pub(super) async fn for_operator(
        &self,
        target: Target,
        duration: Duration,
        cancelled: impl Future<Output = ()>,
    ) -> Result<Attribution, Error> {
        let busy = || ErrorKind::Busy.because("an attribution is under way on this node: one at a time");
        let _permit = self.operators.clone().try_acquire_owned().map_err(|_| busy())?;
        self.end_automatic
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .cancel();
        let permit = self.current.clone().acquire_owned().await.map_err(|_| busy())?;
        let attributed = self.attribute(permit, target, duration, cancelled).await;
        attributed.map_err(ErrorKind::Failed.context("attribution"))
    }

    /// An automatic attribution; `None` while another one is under way.
    pub(super) async fn automatic(&self, target: Target, duration: Duration) -> Option<Result<Attribution, String>> {
        if self.operators.available_permits() == 0 {
            return None;
        }
        let permit = self.current.clone().try_acquire_owned().ok()?;
        let end_early = CancellationToken::new();
        *self.end_automatic.lock().unwrap_or_else(PoisonError::into_inner) = end_early.clone();
        Some(self.attribute(permit, target, duration, end_early.cancelled()).await)
    }

    async fn attribute(
        &self,
        permit: OwnedSemaphorePermit,
        target: Target,
        duration: Duration,
        end_early: impl Future<Output = ()>,
    ) -> Result<Attribution, String> {
        let tracer = self.tracer.clone();
        blocking(move || tracer.begin(&target)).await?;
        tokio::select! {
            () = tokio::time::sleep(duration) => {}
            () = end_early => {}
        }
        let tracer = self.tracer.clone();
        let attributed = blocking(move || tracer.finish()).await;
        drop(permit);
        attributed
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, String> + Send + 'static) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|panicked| Err(panicked.to_string()))
}

/// The CPUs of these VMs to count on, and their own threads, which are not counted.
pub(super) fn trace_target<'a>(vms: impl Iterator<Item = &'a Arc<VmTarget>>) -> Target {
    let mut target = Target::default();
    for seat in vms.flat_map(|vm| &vm.seats) {
        target.cpus = target.cpus.union(&seat.cpus);
        target.own.extend(seat.threads.iter().map(|thread| thread.id));
    }
    target
}

/// An empty attribution with the reason why it could not be made.
pub(super) fn failed(problem: String) -> Attribution {
    let now_us = now_us();
    Attribution {
        from_us: now_us,
        until_us: now_us,
        problems: vec![problem],
        ..Attribution::default()
    }
}

/// The part of an attribution that is about one VM's CPUs.
pub(super) fn of_vm(attribution: &Attribution, vm: &VmTarget) -> Attribution {
    let cpus: CpuSet = vm.seats.iter().flat_map(|seat| seat.cpus.iter()).collect();
    let part = |occupants: &[Occupant]| {
        occupants
            .iter()
            .filter(|occupant| cpus.contains(occupant.cpu))
            .cloned()
            .collect()
    };
    Attribution {
        cpus: cpus.to_string(),
        tasks: part(&attribution.tasks),
        interrupts: part(&attribution.interrupts),
        softirqs: part(&attribution.softirqs),
        vectors: part(&attribution.vectors),
        ..attribution.clone()
    }
}

/// When automatic attributions are due.
#[derive(Debug, Default)]
pub(super) struct AttributionSchedule {
    /// When the last attribution after an intrusion on each VM's CPUs began.
    after_intrusions: BTreeMap<PodUid, Instant>,
    last_sample: Option<Instant>,
}

impl AttributionSchedule {
    /// Whether an attribution is due after another task ran on this VM's CPUs. If so, its interval begins.
    pub(super) fn intrusion_is_due(&mut self, pod: &PodUid, now: Instant) -> bool {
        self.after_intrusions
            .retain(|_, began| now.saturating_duration_since(*began) < INTRUSION_TRACE_INTERVAL);
        let is_due = !self.after_intrusions.contains_key(pod);
        if is_due {
            self.after_intrusions.insert(pod.clone(), now);
        }
        is_due
    }

    /// Whether a sample is due at this audit. If so, its interval begins.
    pub(super) fn sample_is_due(&mut self, interval: Duration, now: Instant) -> bool {
        let due = self
            .last_sample
            .is_none_or(|sampled| now.saturating_duration_since(sampled) >= interval);
        if due {
            self.last_sample = Some(now);
        }
        due
    }
}

/// The pods whose VMs have CPUs of their own.
pub(super) fn with_seats(targets: &Targets) -> BTreeSet<&PodUid> {
    let with_seats = targets.iter().filter(|(_, vm)| !vm.seats.is_empty());
    with_seats.map(|(pod, _)| pod).collect()
}

/// The tasks that ran most often, with their counts, for a message.
pub(super) fn most_frequent(attribution: &Attribution) -> String {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for task in &attribution.tasks {
        let count = counts.entry(&task.name).or_default();
        *count = count.saturating_add(task.count);
    }
    let mut tasks: Vec<(&str, u64)> = counts.into_iter().collect();
    tasks.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let tasks = tasks
        .into_iter()
        .take(MAX_NAMED_TASKS)
        .map(|(name, count)| format!("{name} ({count})"));
    tasks.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records the requests.
    #[derive(Default)]
    struct Fake {
        begun: Mutex<Vec<Target>>,
        finished: Mutex<usize>,
    }

    impl Tracer for Fake {
        fn begin(&self, target: &Target) -> Result<(), String> {
            let mut begun = self.begun.lock().unwrap();
            assert_eq!(begun.len(), *self.finished.lock().unwrap(), "two at a time");
            begun.push(target.clone());
            Ok(())
        }

        fn finish(&self) -> Result<Attribution, String> {
            *self.finished.lock().unwrap() += 1;
            Ok(Attribution::default())
        }

        fn may_be_counting(&self) -> bool {
            false
        }
    }

    #[tokio::test]
    async fn an_operators_attribution_comes_first_and_a_second_operator_is_refused() {
        let fake = Arc::new(Fake::default());
        let attributor = Attributor::new(fake.clone());
        let long = Duration::from_secs(3600);
        let never = std::future::pending::<()>;
        let automatic = tokio::spawn({
            let attributor = attributor.clone();
            async move { attributor.automatic(Target::default(), long).await }
        });
        while fake.begun.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(
            attributor.automatic(Target::default(), long).await.is_none(),
            "one at a time"
        );
        let first = tokio::spawn({
            let attributor = attributor.clone();
            async move { attributor.for_operator(Target::default(), long, never()).await }
        });
        // It ends although its hour is not over.
        assert_eq!(automatic.await.unwrap(), Some(Ok(Attribution::default())));
        while fake.begun.lock().unwrap().len() < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let refused = attributor.for_operator(Target::default(), long, never()).await;
        assert_eq!(refused.unwrap_err().kind, ErrorKind::Busy);
        assert!(attributor.automatic(Target::default(), long).await.is_none());
        first.abort();
        assert!(first.await.is_err());
    }

    #[tokio::test]
    async fn an_attribution_that_is_given_up_ends_and_the_next_may_begin() {
        let fake = Arc::new(Fake::default());
        let attributor = Attributor::new(fake.clone());
        for _ in 0..2 {
            let attributed = attributor.for_operator(Target::default(), Duration::from_secs(3600), async {});
            attributed.await.unwrap();
        }
        assert_eq!(*fake.finished.lock().unwrap(), 2);
    }

    #[test]
    fn intrusions_on_one_vm_are_attributed_once_an_hour() {
        let pod = |number: u32| PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap();
        let (mut schedule, now) = (AttributionSchedule::default(), Instant::now());
        assert!(schedule.intrusion_is_due(&pod(1), now));
        assert!(!schedule.intrusion_is_due(&pod(1), now + INTRUSION_TRACE_INTERVAL / 2));
        assert!(schedule.intrusion_is_due(&pod(2), now + INTRUSION_TRACE_INTERVAL / 2));
        assert!(schedule.intrusion_is_due(&pod(1), now + INTRUSION_TRACE_INTERVAL));
        assert!(schedule.sample_is_due(INTRUSION_TRACE_INTERVAL, now));
        assert!(!schedule.sample_is_due(INTRUSION_TRACE_INTERVAL, now + INTRUSION_TRACE_INTERVAL / 2));
        assert!(schedule.sample_is_due(INTRUSION_TRACE_INTERVAL, now + INTRUSION_TRACE_INTERVAL));
    }

    #[test]
    fn the_message_names_the_tasks_that_ran_most_often() {
        let occupant = |cpu: u32, name: &str, count: u64| Occupant {
            cpu,
            name: name.to_owned(),
            count,
            ..Occupant::default()
        };
        let tasks = vec![
            occupant(2, "a", 1),
            occupant(2, "b", 5),
            occupant(3, "a", 7),
            occupant(2, "c", 1),
            occupant(2, "d", 1),
            occupant(2, "e", 1),
        ];
        let attribution = Attribution {
            tasks,
            ..Attribution::default()
        };
        assert_eq!(most_frequent(&attribution), "a (8), b (5), c (1), d (1)");
    }
}
