//! Makes attributions: the names of what else runs on VMs' CPUs, which the kernel counts for some seconds on behalf of `steliad-quiet`.
//! There is one at a time on a node. A request of an operator ends an automatic one early.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use stelia_api::attribution::{Attribution, Occupant};
use stelia_api::{Error, ErrorKind};
use stelia_cpus::CpuSet;
use stelia_kernel::clock::now_us;
use stelia_kubelet::PodUid;
use stelia_ledger::sample::tasks_of_container;
use steliad_quiet::client;
use steliad_quiet::order::{SOCKET, Target};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::target::{Targets, VmTarget};

/// How long an attribution after an intrusion takes.
pub(super) const INTRUSION_TRACE_DURATION: Duration = Duration::from_secs(5);
/// The shortest time between two attributions after intrusions on one VM's CPUs.
const INTRUSION_TRACE_INTERVAL: Duration = Duration::from_secs(3600);
/// How often the tasks of a container are listed while it is counted who runs on its CPUs.
const TASKS_INTERVAL: Duration = Duration::from_millis(500);
/// What an attribution of a container's CPUs cannot tell, if it names tasks.
const UNLISTED_TASKS: &str =
    "tasks of the container that began and ended within half a second may be among those that are named";
/// Limit of the tasks that a message names.
const MAX_NAMED_TASKS: usize = 4;

/// Lets the kernel count what runs on CPUs.
pub(crate) trait Tracer: Send + Sync {
    /// Begin to count. Blocks until counting has begun.
    ///
    /// # Errors
    /// Why nothing is counted.
    fn begin(&self, target: &Target) -> Result<(), String>;

    /// End counting. `own`: further own threads, if each thread is counted for itself. Blocks until it has ended.
    ///
    /// # Errors
    /// Why there is no result.
    fn finish(&self, own: &BTreeSet<i32>) -> Result<Attribution, String>;

    /// The tasks in this cgroup and in those below it now; `None` if they cannot be listed. Blocks.
    fn tasks(&self, cgroup: &str) -> Option<BTreeSet<i32>>;

    /// Whether the kernel may still be counting for a former daemon.
    fn may_be_counting(&self) -> bool;
}

/// The tracefs instance that `steliad-quiet` makes and removes.
const TRACEFS_INSTANCE: &str = "/sys/kernel/tracing/instances/steliad-quiet";

/// Tasks that one attribution in the ledger names.
const MAX_LEDGER_TASKS: usize = 64;
/// Tasks of containers that one attribution remembers.
const MAX_OWN_TASKS: usize = 100_000;
/// Why an attribution of a container's CPUs is not made, or is incomplete.
const TOO_MANY_TASKS: &str =
    "the container has, or had, more tasks or cgroups than are listed: its own tasks cannot be told from others";

/// Counts by `steliad-quiet`, through its socket.
pub(crate) struct QuietTracer;

impl Tracer for QuietTracer {
    fn begin(&self, target: &Target) -> Result<(), String> {
        client::begin(Path::new(SOCKET), target, client::ANSWER_TIMEOUT).map_err(|error| error.to_string())
    }

    fn finish(&self, own: &BTreeSet<i32>) -> Result<Attribution, String> {
        client::finish(Path::new(SOCKET), own, client::ANSWER_TIMEOUT).map_err(|error| error.to_string())
    }

    fn tasks(&self, cgroup: &str) -> Option<BTreeSet<i32>> {
        tasks_of_container(Path::new("/"), cgroup)
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
                    tracer.finish(&BTreeSet::new()).map(drop)
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
        target: TraceTarget,
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
    pub(super) async fn automatic(
        &self,
        target: TraceTarget,
        duration: Duration,
    ) -> Option<Result<Attribution, String>> {
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
        target: TraceTarget,
        duration: Duration,
        end_early: impl Future<Output = ()>,
    ) -> Result<Attribution, String> {
        let TraceTarget { mut target, containers } = target;
        let tracer = self.tracer.clone();
        let cgroups = containers.clone();
        let own = blocking(move || {
            let own = tasks_of(&*tracer, &cgroups).ok_or(TOO_MANY_TASKS)?;
            target.own.extend(&own);
            tracer.begin(&target)?;
            Ok(OwnTasks {
                ids: own,
                is_complete: true,
            })
        });
        let mut own = own.await?;
        tokio::select! {
            () = self.follow(&containers, &mut own, duration) => {}
            () = end_early => {}
        }
        let tracer = self.tracer.clone();
        let attributed = blocking(move || {
            own.add(tasks_of(&*tracer, &containers));
            let mut attributed = tracer.finish(&own.ids)?;
            if !own.is_complete {
                attributed.problems.push(TOO_MANY_TASKS.to_owned());
            } else if !containers.is_empty() && !attributed.tasks.is_empty() {
                attributed.problems.push(UNLISTED_TASKS.to_owned());
            }
            Ok(attributed)
        });
        let attributed = attributed.await;
        drop(permit);
        attributed
    }

    /// Adds the tasks that come into these containers, until the time is over.
    async fn follow(&self, containers: &BTreeSet<String>, own: &mut OwnTasks, duration: Duration) {
        let end = tokio::time::sleep(duration);
        tokio::pin!(end);
        while !containers.is_empty() && own.is_complete {
            tokio::select! {
                () = &mut end => return,
                () = tokio::time::sleep(TASKS_INTERVAL) => {}
            }
            let (tracer, containers) = (self.tracer.clone(), containers.clone());
            let listed = blocking(move || Ok(tasks_of(&*tracer, &containers))).await;
            own.add(listed.ok().flatten());
        }
        end.await;
    }
}

/// The tasks that were listed in containers.
#[derive(Debug)]
struct OwnTasks {
    ids: BTreeSet<i32>,
    /// False if they could not be listed once, or are more than [`MAX_OWN_TASKS`].
    is_complete: bool,
}

impl OwnTasks {
    fn add(&mut self, listed: Option<BTreeSet<i32>>) {
        self.is_complete &= listed.is_some() && self.ids.len() <= MAX_OWN_TASKS;
        if self.is_complete {
            self.ids.extend(listed.unwrap_or_default());
        }
    }
}

/// The tasks that are in these containers now; `None` if those of one cannot be listed.
fn tasks_of(tracer: &dyn Tracer, containers: &BTreeSet<String>) -> Option<BTreeSet<i32>> {
    let mut tasks = BTreeSet::new();
    for cgroup in containers {
        tasks.append(&mut tracer.tasks(cgroup)?);
    }
    Some(tasks)
}

/// The targets of a sample. The tasks of a whole container could fill the kernel's table, which all targets share: who runs on its CPUs is
/// counted on request and after an intrusion.
pub(super) fn sampled(mut targets: Targets) -> Targets {
    targets.retain(|_, vm| vm.seats.iter().all(|seat| seat.cgroup.is_none()));
    targets
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, String> + Send + 'static) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|panicked| Err(panicked.to_string()))
}

/// What to count.
#[derive(Debug, Clone, Default)]
pub(super) struct TraceTarget {
    target: Target,
    /// The cgroups of whole containers. All of their tasks are their own, also those that come later.
    containers: BTreeSet<String>,
}

/// The CPUs of these VMs to count on, and their own threads, which are not counted.
pub(super) fn trace_target<'a>(vms: impl Iterator<Item = &'a Arc<VmTarget>>) -> TraceTarget {
    let mut trace = TraceTarget::default();
    for seat in vms.flat_map(|vm| &vm.seats) {
        trace.target.cpus = trace.target.cpus.union(&seat.cpus);
        trace.target.own.extend(seat.threads.iter().map(|thread| thread.id));
        trace.containers.extend(seat.cgroup.clone());
    }
    trace.target.by_thread = !trace.containers.is_empty();
    trace
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

/// An attribution as the ledger keeps it: with a limited number of tasks. A tenant may give each of many tasks another name.
pub(super) fn bounded(mut attribution: Attribution) -> Attribution {
    let others = attribution.tasks.len().saturating_sub(MAX_LEDGER_TASKS);
    if others > 0 {
        attribution.tasks.sort_by_key(|task| Reverse(task.count));
        attribution.tasks.truncate(MAX_LEDGER_TASKS);
        let problem = format!("{others} further names of tasks are not kept");
        attribution.problems.push(problem);
    }
    attribution
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
    tasks.sort_by_key(|(_, count)| Reverse(*count));
    let tasks = tasks
        .into_iter()
        .take(MAX_NAMED_TASKS)
        .map(|(name, count)| format!("{name} ({count})"));
    tasks.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use stelia_api::State;
    use stelia_kernel::cgroup::CgroupPath;
    use stelia_ledger::sample::Seat;

    use super::*;

    /// Records the requests.
    #[derive(Default)]
    struct Fake {
        begun: Mutex<Vec<Target>>,
        finished: Mutex<usize>,
        own: Mutex<BTreeSet<i32>>,
        listed: Mutex<i32>,
        unlisted_from: Mutex<Option<i32>>,
    }

    impl Tracer for Fake {
        fn begin(&self, target: &Target) -> Result<(), String> {
            let mut begun = self.begun.lock().unwrap();
            assert_eq!(begun.len(), *self.finished.lock().unwrap(), "two at a time");
            begun.push(target.clone());
            Ok(())
        }

        fn finish(&self, own: &BTreeSet<i32>) -> Result<Attribution, String> {
            *self.finished.lock().unwrap() += 1;
            self.own.lock().unwrap().clone_from(own);
            let tasks = if own.is_empty() {
                Vec::new()
            } else {
                vec![Occupant::default()]
            };
            Ok(Attribution {
                tasks,
                ..Attribution::default()
            })
        }

        /// Another task each time; none that can be listed from [`Fake::unlisted_from`] on.
        fn tasks(&self, cgroup: &str) -> Option<BTreeSet<i32>> {
            assert_eq!(cgroup, "/container");
            let mut listed = self.listed.lock().unwrap();
            *listed += 1;
            (*self.unlisted_from.lock().unwrap() != Some(*listed)).then(|| [*listed].into())
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
            async move { attributor.automatic(TraceTarget::default(), long).await }
        });
        while fake.begun.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(
            attributor.automatic(TraceTarget::default(), long).await.is_none(),
            "one at a time"
        );
        let first = tokio::spawn({
            let attributor = attributor.clone();
            async move { attributor.for_operator(TraceTarget::default(), long, never()).await }
        });
        // It ends although its hour is not over.
        assert_eq!(automatic.await.unwrap(), Some(Ok(Attribution::default())));
        while fake.begun.lock().unwrap().len() < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let refused = attributor.for_operator(TraceTarget::default(), long, never()).await;
        assert_eq!(refused.unwrap_err().kind, ErrorKind::Busy);
        assert!(attributor.automatic(TraceTarget::default(), long).await.is_none());
        first.abort();
        assert!(first.await.is_err());
    }

    #[tokio::test]
    async fn an_attribution_that_is_given_up_ends_and_the_next_may_begin() {
        let fake = Arc::new(Fake::default());
        let attributor = Attributor::new(fake.clone());
        for _ in 0..2 {
            let attributed = attributor.for_operator(TraceTarget::default(), Duration::from_secs(3600), async {});
            attributed.await.unwrap();
        }
        assert_eq!(*fake.finished.lock().unwrap(), 2);
    }

    fn target(cgroup: Option<&str>) -> Arc<VmTarget> {
        let seat = Seat {
            cpus: "2-3".parse().unwrap(),
            threads: Vec::new(),
            cgroup: cgroup.map(str::to_owned),
        };
        Arc::new(VmTarget {
            name: String::new(),
            state: State::Isolated,
            seats: [seat].into(),
            origin: CgroupPath::root(),
            settled_us: 0,
            is_throttled: false,
        })
    }

    #[test]
    fn a_sample_is_of_vms_and_not_of_whole_containers() {
        let pod = |number: u32| PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap();
        let targets = Targets::from([(pod(1), target(None)), (pod(2), target(Some("/container")))]);
        assert_eq!(sampled(targets).into_keys().collect::<Vec<_>>(), [pod(1)]);
    }

    #[tokio::test]
    async fn a_container_whose_tasks_cannot_be_listed_is_refused_and_said_to_be_incomplete_afterwards() {
        for (unlisted, begun) in [(1, 0), (2, 1)] {
            let fake = Arc::new(Fake::default());
            *fake.unlisted_from.lock().unwrap() = Some(unlisted);
            let attributor = Attributor::new(fake.clone());
            let trace = trace_target([target(Some("/container"))].iter());
            let attributed = attributor
                .for_operator(trace, Duration::from_secs(3600), async {})
                .await;
            assert_eq!(fake.begun.lock().unwrap().len(), begun);
            match attributed {
                Err(error) => assert!(begun == 0 && error.to_string().contains(TOO_MANY_TASKS), "{error}"),
                Ok(attributed) => assert_eq!((begun, attributed.problems), (1, vec![TOO_MANY_TASKS.to_owned()])),
            }
        }
    }

    #[test]
    fn the_ledger_keeps_the_most_frequent_tasks_and_says_how_many_more_there_were() {
        let occupant = |count: u64| Occupant {
            name: count.to_string(),
            count,
            ..Occupant::default()
        };
        let attribution = |tasks: u64| Attribution {
            tasks: (1..=tasks).map(occupant).collect(),
            ..Attribution::default()
        };
        let most = MAX_LEDGER_TASKS as u64;
        assert_eq!(bounded(attribution(most)), attribution(most));
        let kept = bounded(attribution(most + 2));
        assert_eq!(kept.tasks.len() as u64, most);
        assert!(kept.tasks.iter().all(|task| task.count > 2), "{kept:?}");
        assert_eq!(kept.problems, ["2 further names of tasks are not kept"]);
    }

    #[tokio::test]
    async fn a_containers_tasks_are_its_own_whenever_they_come() {
        let fake = Arc::new(Fake::default());
        let attributor = Attributor::new(fake.clone());
        let trace = trace_target([target(Some("/container"))].iter());
        let listed_twice = async {
            while *fake.listed.lock().unwrap() < 3 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let attributed = attributor
            .for_operator(trace, Duration::from_secs(3600), listed_twice)
            .await;
        let begun = fake.begun.lock().unwrap()[0].clone();
        assert_eq!((begun.own, begun.by_thread), ([1].into(), true));
        let listed = *fake.listed.lock().unwrap();
        let own = fake.own.lock().unwrap().clone();
        // Before, meanwhile, and at the end. The end may come while the third list is read: then it is not used.
        assert!(own.is_superset(&[1, 2, listed].into()), "{own:?} of {listed}");
        assert_eq!(attributed.unwrap().problems, [UNLISTED_TASKS]);
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
