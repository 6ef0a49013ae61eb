//! Expensive readings that every user of the host may ask for: one at a time, off the reactor, and cached for a moment. An
//! unprivileged user who asks without end must not keep the daemon from its work.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use stelia_api::{Error, ErrorKind};
use stelia_kernel::System;
use stelia_kernel::cgroup::Cgroups;
use stelia_kernel::locality::Localities;
use stelia_kubelet::config::{ConfigError, KubeletConfig};
use stelia_kubelet::home::Search;
use stelia_kubelet::{PodUid, config};
use stelia_model as model;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::caller::Caller;
use crate::engine::{Configuration, Preview, localities, usage};

/// How long a reading is used.
const MAX_READING_AGE: Duration = Duration::from_secs(1);
/// How long the locality of memory is used: it is more to read, and changes seldom.
const MAX_LOCALITY_AGE: Duration = Duration::from_secs(5);
/// After a reading there is a pause of this many times its duration.
const PAUSE_FACTOR: u32 = 2;

/// So many callers wait for their turn at most. All calls of users that are answered at a time are fewer.
const MAX_WAITING: usize = 128;

/// The queue for readings, and the last ones. There is one for the whole daemon.
#[derive(Clone)]
pub(super) struct Readings {
    turn: Arc<Semaphore>,
    places: Arc<Semaphore>,
    recent: Arc<Mutex<Recent>>,
    /// The last preview, and when it was begun.
    preview: Arc<Mutex<Option<(Instant, Preview)>>>,
}

impl Default for Readings {
    fn default() -> Self {
        Self {
            turn: Arc::new(Semaphore::new(1)),
            places: Arc::new(Semaphore::new(MAX_WAITING)),
            recent: Arc::default(),
            preview: Arc::default(),
        }
    }
}

impl Readings {
    /// Do this work when it is its turn, on a thread where it may block.
    ///
    /// # Errors
    /// Too many wait, the work panicked, or its own.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Recent) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let turn = self.turn().await?;
        let (recent, runtime) = (self.recent.clone(), Handle::current());
        let work = tokio::task::spawn_blocking(move || {
            // The turn is held here and not by the caller, who may leave before the reading is done. The next turn
            // begins after it and a pause, so that all readings together take at most a third of a CPU.
            let _turn = Turn {
                turn: Some(turn),
                began: Instant::now(),
                runtime,
            };
            // A reader that panicked left the former value, with its time.
            work(&mut recent.lock().unwrap_or_else(PoisonError::into_inner))
        });
        work.await.map_err(ErrorKind::Failed.context("a reading"))?
    }

    /// A preview of the next pass. Root gets a new one at once. Every other caller gets one that is made when it is its turn, or the last one
    /// if it was begun less than a second ago: however many of them ask, the engine makes one preview a second for them, and they take at most
    /// a third of its time.
    ///
    /// # Errors
    /// Too many wait, or the work's own.
    pub(super) async fn preview(
        &self,
        caller: &Caller,
        work: impl Future<Output = Result<Preview, Error>>,
    ) -> Result<Preview, Error> {
        if caller.is_root {
            return work.await;
        }
        let turn = self.turn().await?;
        let began = Instant::now();
        if let Some(last) = self.last_preview(began) {
            return Ok(last);
        }
        let _turn = Turn {
            turn: Some(turn),
            began,
            runtime: Handle::current(),
        };
        let preview = work.await?;
        *self.preview.lock().unwrap_or_else(PoisonError::into_inner) = Some((began, preview.clone()));
        Ok(preview)
    }

    async fn turn(&self) -> Result<OwnedSemaphorePermit, Error> {
        let full = |_| {
            ErrorKind::Busy.because(format!(
                "{MAX_WAITING} calls already wait for a reading: try again later"
            ))
        };
        let _place = self.places.try_acquire().map_err(full)?;
        let turn = self.turn.clone().acquire_owned().await;
        turn.map_err(ErrorKind::Failed.context("a reading"))
    }

    fn last_preview(&self, now: Instant) -> Option<Preview> {
        let last = self.preview.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = last
            .as_ref()
            .filter(|(at, _)| now.saturating_duration_since(*at) < MAX_READING_AGE);
        fresh.map(|(_, preview)| preview.clone())
    }
}

/// A turn that ends some time after it is dropped.
struct Turn {
    turn: Option<OwnedSemaphorePermit>,
    began: Instant,
    runtime: Handle,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let (turn, pause) = (self.turn.take(), self.began.elapsed() * PAUSE_FACTOR);
        self.runtime.spawn(async move {
            tokio::time::sleep(pause).await;
            drop(turn);
        });
    }
}

/// Why kubelet's configuration is not known.
pub(super) struct ConfigProblem {
    pub(super) text: String,
    /// Whether a kubelet runs.
    runs: bool,
}

impl From<ConfigError> for ConfigProblem {
    fn from(error: ConfigError) -> Self {
        Self {
            text: error.in_full(),
            runs: !matches!(error, ConfigError::NotRunning),
        }
    }
}

/// The last readings.
#[derive(Default)]
pub(super) struct Recent {
    config: Cached<Result<KubeletConfig, ConfigProblem>>,
    usage: Cached<BTreeMap<PodUid, model::Usage>>,
    locality: Cached<Localities>,
}

impl Recent {
    /// The running kubelet's configuration, or why it is not known. A kubelet that answers on no socket is searched for in all of `/proc`.
    pub(super) fn kubelet_config(&mut self) -> &Result<KubeletConfig, ConfigProblem> {
        let read =
            || config::read(Path::new("/proc"), Path::new("/"), Search::SocketsThenNames).map_err(ConfigProblem::from);
        self.config.get(Instant::now(), MAX_READING_AGE, |_| true, read)
    }

    /// The same for a description of the node, which has less where no kubelet runs, and is not made where its configuration cannot be read.
    pub(super) fn kubelet(&mut self) -> Configuration<'_> {
        match self.kubelet_config() {
            Ok(config) => Ok(Some(config)),
            Err(unread) if unread.runs => Err(&unread.text),
            Err(_) => Ok(None),
        }
    }

    /// kubelet's root directory; the default one where its configuration is not known.
    pub(super) fn kubelet_root(&mut self) -> PathBuf {
        let config = self.kubelet_config().as_ref();
        config.map_or_else(|_| KubeletConfig::default().root_dir, |config| config.root_dir.clone())
    }

    /// What the instances of this view use: three files each.
    pub(super) fn usage(&mut self, cgroups: &dyn Cgroups, view: &model::Node) -> &BTreeMap<PodUid, model::Usage> {
        let is_of_these = |usage: &BTreeMap<PodUid, model::Usage>| usage.keys().eq(view.instances.keys());
        self.usage
            .get(Instant::now(), MAX_READING_AGE, is_of_these, || usage(cgroups, view))
    }

    /// Where the memory and the devices of the instances of this view are.
    pub(super) fn locality(&mut self, system: &System, view: &model::Node) -> &Localities {
        let root = self.kubelet_root();
        let is_of_these = |cached: &Localities| {
            let pods = view.instances.keys().map(PodUid::as_str);
            cached.instances.keys().map(String::as_str).eq(pods)
        };
        self.locality.get(Instant::now(), MAX_LOCALITY_AGE, is_of_these, || {
            localities(&*system.cgroups, view, system.root(), &root, |_| true)
        })
    }
}

/// A value with the time it was read at.
struct Cached<T>(Option<(Instant, T)>);

impl<T> Default for Cached<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Cached<T> {
    /// The value, read anew when it is too old or does not fit.
    fn get(&mut self, now: Instant, limit: Duration, fits: impl FnOnce(&T) -> bool, read: impl FnOnce() -> T) -> &T {
        let fresh = |at: Instant| now.saturating_duration_since(at) < limit;
        let cached = self.0.take().filter(|(at, value)| fresh(*at) && fits(value));
        let (_, value) = self.0.insert(cached.unwrap_or_else(|| (now, read())));
        value
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn what_is_fresh_and_fits_is_not_read_again() {
        let mut cached = Cached::default();
        let now = Instant::now();
        assert_eq!(*cached.get(now, MAX_READING_AGE, |_| true, || 1), 1);
        assert_eq!(
            *cached.get(now + MAX_READING_AGE / 2, MAX_READING_AGE, |_| true, || 2),
            1
        );
        assert_eq!(
            *cached.get(now + MAX_READING_AGE / 2, MAX_READING_AGE, |_| false, || 3),
            3
        );
        assert_eq!(*cached.get(now + MAX_READING_AGE, MAX_READING_AGE, |_| true, || 4), 3);
        assert_eq!(
            *cached.get(now + MAX_READING_AGE * 2, MAX_READING_AGE, |_| true, || 5),
            5
        );
    }

    #[tokio::test]
    async fn one_reads_at_a_time_and_the_reactor_goes_on() {
        let readings = Readings::default();
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let reading = |readings: Readings| {
            let (now, most) = (now.clone(), most.clone());
            async move {
                let work = move |_: &mut Recent| {
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(20));
                    now.fetch_sub(1, Ordering::SeqCst);
                    Ok(())
                };
                readings.read(work).await
            }
        };
        let readers: Vec<_> = (0..8).map(|_| tokio::spawn(reading(readings.clone()))).collect();
        // One that is not waited for any more has its turn to its end all the same.
        tokio::time::sleep(Duration::from_millis(5)).await;
        readers[0].abort();
        let mut beats = 0;
        while !readers.iter().all(tokio::task::JoinHandle::is_finished) {
            tokio::time::sleep(Duration::from_millis(1)).await;
            beats += 1;
        }
        reading(readings).await.unwrap();
        assert_eq!(most.load(Ordering::SeqCst), 1);
        assert!(beats > 20, "{beats}");
    }

    /// A caller on the system bus that is not root.
    const USER: Caller = Caller {
        only: None,
        process: None,
        is_root: false,
    };

    #[tokio::test]
    async fn many_who_ask_for_a_preview_get_one() {
        let readings = Readings::default();
        let made = AtomicUsize::new(0);
        let work = || async {
            made.fetch_add(1, Ordering::SeqCst);
            Ok(Preview::default())
        };
        for _ in 0..100 {
            readings.preview(&USER, work()).await.unwrap();
        }
        // It is only as old as one that was begun a second ago.
        let (began, _) = readings.preview.lock().unwrap().take().unwrap();
        let old = began.checked_sub(MAX_READING_AGE).unwrap();
        *readings.preview.lock().unwrap() = Some((old, Preview::default()));
        assert_eq!(readings.last_preview(began), None);
        readings.preview(&USER, work()).await.unwrap();
        let for_users = made.load(Ordering::SeqCst);
        assert!((2..100).contains(&for_users), "{made:?}");
        let root = Caller { is_root: true, ..USER };
        readings.preview(&root, work()).await.unwrap();
        readings.preview(&root, work()).await.unwrap();
        assert_eq!(made.load(Ordering::SeqCst), for_users + 2);
    }

    #[tokio::test]
    async fn a_preview_that_fails_is_not_repeated_to_others() {
        let readings = Readings::default();
        let fails = async { Err(ErrorKind::Busy.because("now")) };
        assert!(readings.preview(&USER, fails).await.is_err());
        assert!(readings.preview(&USER, async { Ok(Preview::default()) }).await.is_ok());
    }

    #[tokio::test]
    async fn a_reading_that_panics_is_an_error_of_its_own_call() {
        let readings = Readings::default();
        let panicked = readings.read(|_| -> Result<(), Error> { panic!("on purpose") }).await;
        assert_eq!(panicked.map_err(|refused| refused.kind), Err(ErrorKind::Failed));
        assert_eq!(readings.read(|_| Ok(1)).await, Ok(1));
    }
}
