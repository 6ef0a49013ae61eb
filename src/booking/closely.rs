//! Looking closely for a while: who else runs on VMs' CPUs, by name, as the kernel counts it for `steliad-quiet`. One at a time on the node.
//! An operator's comes first: one that began by itself ends early for it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use stelia_api::attribution::{Attribution, Doer};
use stelia_api::{Error, ErrorKind};
use stelia_cpus::CpuSet;
use stelia_kubelet::PodUid;
use stelia_quiet::client;
use stelia_quiet::order::{SOCKET, Target};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::wanted::{Vm, Vms};
use crate::engine::now_us;

/// How long it is looked where the counters say that a task ran.
pub(super) const SHORT: Duration = Duration::from_secs(5);
/// How often that is done for one VM.
const AGAIN: Duration = Duration::from_secs(3600);

/// Who counts.
pub(crate) trait Tracer: Send + Sync {
    /// Blocks until counting begins.
    ///
    /// # Errors
    /// Why nothing is counted.
    fn begin(&self, target: &Target) -> Result<(), String>;

    /// Blocks until counting has ended.
    ///
    /// # Errors
    /// Why nothing is known.
    fn finish(&self) -> Result<Attribution, String>;

    /// Whether the kernel may still be counting for a daemon that was before.
    fn may_be_counting(&self) -> bool;
}

/// The instance of tracefs that `steliad-quiet` makes and removes.
const INSTANCE: &str = "/sys/kernel/tracing/instances/steliad-quiet";

/// `steliad-quiet`, behind its socket.
pub(crate) struct Program;

impl Tracer for Program {
    fn begin(&self, target: &Target) -> Result<(), String> {
        client::begin(Path::new(SOCKET), target, client::PATIENCE).map_err(|error| error.to_string())
    }

    fn finish(&self) -> Result<Attribution, String> {
        client::finish(Path::new(SOCKET), client::PATIENCE).map_err(|error| error.to_string())
    }

    fn may_be_counting(&self) -> bool {
        Path::new(INSTANCE).is_dir()
    }
}

/// The one that may be under way.
#[derive(Clone)]
pub(super) struct Closely {
    tracer: Arc<dyn Tracer>,
    /// Of whoever looks.
    turn: Arc<Semaphore>,
    /// Of operators.
    operators: Arc<Semaphore>,
    /// Ends the one that began by itself.
    early: Arc<Mutex<CancellationToken>>,
}

impl Closely {
    pub(super) fn new(tracer: Arc<dyn Tracer>) -> Self {
        Self {
            tracer,
            turn: Arc::new(Semaphore::new(1)),
            operators: Arc::new(Semaphore::new(1)),
            early: Arc::default(),
        }
    }

    /// End what a daemon that was before left. Whoever looks next waits for that.
    pub(super) fn clear(&self) {
        let Ok(turn) = self.turn.clone().try_acquire_owned() else {
            return;
        };
        let tracer = self.tracer.clone();
        tokio::spawn(async move {
            let clear = move || match tracer.may_be_counting() {
                true => tracer.finish().map(drop),
                false => Ok(()),
            };
            if let Err(problem) = blocking(clear).await {
                tracing::debug!("what counted before: {problem}");
            }
            drop(turn);
        });
    }

    /// An operator's: `given_up` ends it early.
    ///
    /// # Errors
    /// `Busy` while another operator's is under way; `Failed` with the words of `steliad-quiet`.
    pub(super) async fn for_operator(
        &self,
        target: Target,
        lasts: Duration,
        given_up: impl Future<Output = ()>,
    ) -> Result<Attribution, Error> {
        let busy = || ErrorKind::Busy.because("an attribution is under way on this node: one at a time");
        let _alone = self.operators.clone().try_acquire_owned().map_err(|_| busy())?;
        self.early.lock().unwrap_or_else(PoisonError::into_inner).cancel();
        let turn = self.turn.clone().acquire_owned().await.map_err(|_| busy())?;
        let looked = self.look(turn, target, lasts, given_up).await;
        looked.map_err(ErrorKind::Failed.context("attribution"))
    }

    /// One that begins by itself, unless another is under way: then nothing.
    pub(super) async fn by_itself(&self, target: Target, lasts: Duration) -> Option<Result<Attribution, String>> {
        if self.operators.available_permits() == 0 {
            return None;
        }
        let turn = self.turn.clone().try_acquire_owned().ok()?;
        let early = CancellationToken::new();
        *self.early.lock().unwrap_or_else(PoisonError::into_inner) = early.clone();
        Some(self.look(turn, target, lasts, early.cancelled()).await)
    }

    async fn look(
        &self,
        turn: OwnedSemaphorePermit,
        target: Target,
        lasts: Duration,
        early: impl Future<Output = ()>,
    ) -> Result<Attribution, String> {
        let tracer = self.tracer.clone();
        blocking(move || tracer.begin(&target)).await?;
        tokio::select! {
            () = tokio::time::sleep(lasts) => {}
            () = early => {}
        }
        let tracer = self.tracer.clone();
        let looked = blocking(move || tracer.finish()).await;
        drop(turn);
        looked
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, String> + Send + 'static) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|panicked| Err(panicked.to_string()))
}

/// What is looked at: the CPUs of these VMs and their threads.
pub(super) fn target<'a>(vms: impl Iterator<Item = &'a Arc<Vm>>) -> Target {
    let mut target = Target::default();
    for seat in vms.flat_map(|vm| &vm.seats) {
        target.cpus = target.cpus.union(&seat.cpus);
        target.own.extend(seat.threads.iter().map(|thread| thread.id));
    }
    target
}

/// One that could not be made now, for this reason.
pub(super) fn failed(problem: String) -> Attribution {
    let now_us = now_us();
    Attribution {
        from_us: now_us,
        until_us: now_us,
        problems: vec![problem],
        ..Attribution::default()
    }
}

/// The part of an attribution that is one VM's.
pub(super) fn of_vm(attribution: &Attribution, vm: &Vm) -> Attribution {
    let cpus: CpuSet = vm.seats.iter().flat_map(|seat| seat.cpus.iter()).collect();
    let part = |doers: &[Doer]| doers.iter().filter(|doer| cpus.contains(doer.cpu)).cloned().collect();
    Attribution {
        cpus: cpus.to_string(),
        tasks: part(&attribution.tasks),
        interrupts: part(&attribution.interrupts),
        softirqs: part(&attribution.softirqs),
        vectors: part(&attribution.vectors),
        ..attribution.clone()
    }
}

/// When one begins by itself: not more often than is worth it.
#[derive(Debug, Default)]
pub(super) struct Occasions {
    began: BTreeMap<PodUid, Instant>,
    sampled: Option<Instant>,
}

impl Occasions {
    /// A task ran on this VM's CPUs: whether it is looked who.
    pub(super) fn intruded(&mut self, pod: &PodUid, now: Instant) -> bool {
        self.began
            .retain(|_, began| now.saturating_duration_since(*began) < AGAIN);
        let is_first = !self.began.contains_key(pod);
        if is_first {
            self.began.insert(pod.clone(), now);
        }
        is_first
    }

    /// An audit's time: whether a sample is due.
    pub(super) fn is_due(&mut self, interval: Duration, now: Instant) -> bool {
        let due = self
            .sampled
            .is_none_or(|sampled| now.saturating_duration_since(sampled) >= interval);
        if due {
            self.sampled = Some(now);
        }
        due
    }
}

/// VMs that have CPUs of their own.
pub(super) fn with_seats(vms: &Vms) -> BTreeSet<&PodUid> {
    let with = vms.iter().filter(|(_, vm)| !vm.seats.is_empty());
    with.map(|(pod, _)| pod).collect()
}

/// The names of those that ran most, for a message: at most four.
pub(super) fn named(attribution: &Attribution) -> String {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for task in &attribution.tasks {
        let count = counts.entry(&task.name).or_default();
        *count = count.saturating_add(task.count);
    }
    let mut most: Vec<(&str, u64)> = counts.into_iter().collect();
    most.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let most = most
        .into_iter()
        .take(4)
        .map(|(name, count)| format!("{name} ({count})"));
    most.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says what was counted, and when.
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
    async fn an_operators_comes_first_and_two_operators_do_not_wait_for_each_other() {
        let fake = Arc::new(Fake::default());
        let closely = Closely::new(fake.clone());
        let long = Duration::from_secs(3600);
        let never = std::future::pending::<()>;
        let own = tokio::spawn({
            let closely = closely.clone();
            async move { closely.by_itself(Target::default(), long).await }
        });
        while fake.begun.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(
            closely.by_itself(Target::default(), long).await.is_none(),
            "one at a time"
        );
        let first = tokio::spawn({
            let closely = closely.clone();
            async move { closely.for_operator(Target::default(), long, never()).await }
        });
        // It ends although its hour is not over.
        assert_eq!(own.await.unwrap(), Some(Ok(Attribution::default())));
        while fake.begun.lock().unwrap().len() < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let refused = closely.for_operator(Target::default(), long, never()).await;
        assert_eq!(refused.unwrap_err().kind, ErrorKind::Busy);
        assert!(closely.by_itself(Target::default(), long).await.is_none());
        first.abort();
        assert!(first.await.is_err());
    }

    #[tokio::test]
    async fn one_that_is_given_up_ends_and_the_next_may_begin() {
        let fake = Arc::new(Fake::default());
        let closely = Closely::new(fake.clone());
        for _ in 0..2 {
            let looked = closely.for_operator(Target::default(), Duration::from_secs(3600), async {});
            looked.await.unwrap();
        }
        assert_eq!(*fake.finished.lock().unwrap(), 2);
    }

    #[test]
    fn by_itself_it_is_looked_once_an_hour_for_each_vm() {
        let pod = |number: u32| PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap();
        let (mut occasions, now) = (Occasions::default(), Instant::now());
        assert!(occasions.intruded(&pod(1), now));
        assert!(!occasions.intruded(&pod(1), now + AGAIN / 2));
        assert!(occasions.intruded(&pod(2), now + AGAIN / 2));
        assert!(occasions.intruded(&pod(1), now + AGAIN));
        assert!(occasions.is_due(AGAIN, now));
        assert!(!occasions.is_due(AGAIN, now + AGAIN / 2));
        assert!(occasions.is_due(AGAIN, now + AGAIN));
    }

    #[test]
    fn the_message_names_those_that_ran_most() {
        let doer = |cpu: u32, name: &str, count: u64| Doer {
            cpu,
            name: name.to_owned(),
            count,
            ..Doer::default()
        };
        let tasks = vec![
            doer(2, "a", 1),
            doer(2, "b", 5),
            doer(3, "a", 7),
            doer(2, "c", 1),
            doer(2, "d", 1),
            doer(2, "e", 1),
        ];
        let attribution = Attribution {
            tasks,
            ..Attribution::default()
        };
        assert_eq!(named(&attribution), "a (8), b (5), c (1), d (1)");
    }
}
