//! Isolates a VM and keeps it so, from the VMM's start to its end: registers, attaches the vCPUs, lets the guest run, and follows
//! changes on either side (threads plugged, the daemon restarted, the instance deregistered).
//!
//! `Isolator::run` never returns. It is dropped when the VMM ends or the shutdown begins.

mod daemon_events;
mod hold;
mod memory;
mod resizing;
mod text;
mod watch;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use stelia_api::NOT_PINNED;
use tokio::time::{Instant, sleep};
use zbus::OwnedObjectPath;

use self::hold::HoldOutcome;
use super::cli::CommonOptions;
use super::daemon::Daemon;
use super::error::Error;
use super::memory::MemoryResizer;
use super::pause_mark::PauseMark;
use super::probe_answers::in_words;
use super::qmp::Vcpu;
use super::resize::{CpuLoss, Resizer};
use super::state::{Isolation, Phase};
use super::status_socket::Status;
use super::vmm::{Release, SHUT_DOWN, Threads, Vmm};

const FIRST_VMM_RETRY_DELAY: Duration = Duration::from_millis(100);
/// The pause grows up to this while the VMM does not report its vCPU threads.
const MAX_VMM_RETRY_DELAY: Duration = Duration::from_secs(2);
/// The VMM may take this long to answer before a warning is logged.
const VMM_WARNING_DELAY: Duration = Duration::from_secs(10);
const FIRST_RETRY_DELAY: Duration = Duration::from_secs(5);
/// The pause doubles up to this while the guest runs without isolation: more calls would not help it.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);
/// The pause while a guest is paused for its new vCPUs.
const MAX_PAUSED_RETRY_DELAY: Duration = Duration::from_secs(1);
/// One hot-plug causes several events: the runner waits this long for the others.
const SETTLE_TIME: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct VmOptions<'a> {
    /// The VMM's.
    pub(crate) process: BorrowedFd<'a>,
    /// For a registration that has to be repeated.
    pub(crate) anchor: BorrowedFd<'a>,
    pub(crate) common: &'a CommonOptions,
    pub(crate) release: Release,
    pub(crate) pause_mark: PauseMark,
}

#[derive(Debug)]
pub(crate) struct Isolator<'a, V> {
    pub(crate) vmm: V,
    daemon: &'a mut Daemon,
    status: &'a Status,
    options: VmOptions<'a>,
    /// `None` while not registered.
    instance: Option<OwnedObjectPath>,
    /// The threads of the last successful AttachVcpus.
    attached: Option<(Vec<Vcpu>, Vec<u32>)>,
    /// The instance's CPUs at that time.
    cpus: String,
    /// Whether they changed since. This is set only if I/O threads have CPUs: the daemon moves vCPUs by itself, but unpins an I/O thread for
    /// which no CPU remains.
    cpus_changed: bool,
    resizer: Resizer,
    /// CPUs that the VM is about to lose.
    pending: Option<CpuLoss>,
    /// The daemon's limit of the VM's memory, bytes.
    memory_limit: Option<u64>,
    memory: MemoryResizer,
    /// Since when the guest is paused for its new vCPUs.
    paused: Option<std::time::Instant>,
    released: bool,
    /// The state of the guest before its release.
    held: HoldOutcome,
    /// How long it may have run before it was paused, until that is reported.
    ran: Option<Duration>,
    /// The instance was deregistered while the VM ran. That was an administrator's decision, so the runner does not register
    /// again.
    given_up: bool,
    /// To log a repeated failure once.
    last_failure: String,
    retry: Duration,
}

impl<'a, V: Vmm> Isolator<'a, V> {
    pub(crate) fn new(
        vmm: V,
        daemon: &'a mut Daemon,
        status: &'a Status,
        options: VmOptions<'a>,
        instance: Option<OwnedObjectPath>,
    ) -> Isolator<'a, V> {
        // By a runner before this one.
        let paused = options.pause_mark.is_set().then(std::time::Instant::now);
        Isolator {
            vmm,
            daemon,
            status,
            options,
            instance,
            attached: None,
            cpus: String::new(),
            cpus_changed: false,
            resizer: Resizer::default(),
            pending: None,
            memory_limit: None,
            memory: MemoryResizer::default(),
            paused,
            released: false,
            held: HoldOutcome::NotYet,
            ran: None,
            given_up: false,
            last_failure: String::new(),
            retry: FIRST_RETRY_DELAY,
        }
    }

    pub(crate) async fn run(&mut self) {
        loop {
            self.hold().await;
            let Some(threads) = self.wait_for_threads().await else {
                continue;
            };
            self.report_paused();
            match self.isolate_and_run(&threads).await {
                Ok(has_other_threads) => {
                    self.last_failure.clear();
                    self.retry = FIRST_RETRY_DELAY;
                    if !has_other_threads {
                        self.watch(&threads).await;
                    }
                }
                Err(error) => {
                    self.resume().await;
                    // vCPUs may have been unplugged between the look and the call.
                    match self.vmm.threads().await {
                        Ok(now) if now.vcpus != threads.vcpus => tracing::debug!("{error}; the threads have changed"),
                        _ => self.failed(&error).await,
                    }
                }
            }
        }
    }

    /// Attaches the threads, lets the guest run, and requests another number of vCPUs if that is due. Returns whether the threads have
    /// changed by that.
    async fn isolate_and_run(&mut self, threads: &Threads) -> Result<bool, Error> {
        self.isolate_soon(threads).await?;
        self.note_vcpus(threads).await;
        self.release().await?;
        self.resume().await;
        self.follow_memory().await;
        self.resize().await
    }

    /// Waits until the VMM reports its vCPU threads, and returns them. `None`: the guest was shut down before its release, so the next one
    /// that is booted has to be held again.
    async fn wait_for_threads(&mut self) -> Option<Threads> {
        let started = Instant::now();
        let mut warned = false;
        loop {
            let error = match self.vmm.threads().await {
                Ok(threads) => {
                    self.report_iothreads(&threads);
                    self.run_state().await;
                    return Some(threads);
                }
                Err(error) => error,
            };
            self.resume_if_late().await;
            // The VMM of a guest that was shut down may remain without vCPUs. This is not a failure, and probes must see it.
            self.run_state().await;
            let is_shut_down = self.status.now().guest == SHUT_DOWN;
            if is_shut_down && !self.released {
                self.held = HoldOutcome::NotYet;
                return None;
            }
            if !is_shut_down && !warned && started.elapsed() > VMM_WARNING_DELAY {
                tracing::warn!("{error}; still trying");
                warned = true;
            } else {
                tracing::debug!("{error}");
            }
            let pause = (started.elapsed() / 10).clamp(FIRST_VMM_RETRY_DELAY, MAX_VMM_RETRY_DELAY);
            let watched = is_shut_down && self.vmm.reports_every_change();
            let followed = self.is_followed() && (watched || self.daemon.is_connected());
            tokio::select! {
                change = self.vmm.change(), if watched => if let Err(error) = change {
                    tracing::debug!("{error}");
                    self.vmm.disconnect();
                    sleep(pause).await;
                },
                () = sleep(pause), if !watched => {}
                event = self.daemon.event(), if followed => self.on_event(event).await,
            }
        }
    }

    /// Whether the daemon has an instance whose signals count.
    fn is_followed(&self) -> bool {
        self.instance.is_some() && !self.given_up
    }

    fn report_iothreads(&self, threads: &Threads) {
        let iothreads = threads
            .iothreads
            .iter()
            .map(|one| (one.id.clone(), one.thread_id))
            .collect();
        if self.attached.is_none() || self.status.now().iothreads != iothreads {
            let list = text::iothreads(&threads.iothreads);
            tracing::info!("{} has {} vCPUs and {list}", self.vmm.name(), threads.vcpus.len());
        }
        self.status.update(|state| state.iothreads = iothreads);
    }

    /// Registers if that is still to be done, and attaches threads that the daemon does not have yet.
    async fn isolate(&mut self, threads: &Threads) -> Result<(), Error> {
        let with_cpus = threads.iothreads.iter().filter(|_| self.options.common.iothread_cpus);
        let iothreads: Vec<u32> = with_cpus.filter_map(|one| u32::try_from(one.thread_id).ok()).collect();
        let wanted = (threads.vcpus.clone(), iothreads);
        let same = self.instance.is_some() && self.attached.as_ref() == Some(&wanted);
        if self.given_up || (same && !self.cpus_changed) {
            return Ok(());
        }
        let instance = match &self.instance {
            Some(instance) => instance.clone(),
            None => {
                let claims = self.options.common;
                let instance = self.daemon.try_register(claims, self.options.anchor).await?;
                self.instance.insert(instance).clone()
            }
        };
        let attached = self
            .daemon
            .attach(&instance, self.options.process, (&wanted.0, &wanted.1))
            .await;
        if attached.as_ref().is_err_and(Error::is_absent) {
            if self.attached.is_some() {
                self.give_up();
                return Ok(());
            }
            // Never attached: a daemon that died meanwhile may have lost it. Register again.
            self.instance = None;
        }
        let attached = attached?;
        let isolation = attached.isolation;
        tracing::info!(
            "{}: {}",
            isolation.promise(attached.qos),
            text::placement(&attached.placement)
        );
        self.cpus_changed = false;
        if let Ok(Some((_, cpus))) = self.query_instance(&instance).await {
            self.cpus = cpus;
        }
        self.attached = Some(wanted);
        self.status.update(|now| {
            now.isolation = isolation;
            now.qos = attached.qos;
            now.reason.clear();
            now.daemon = true;
            let cpu = |cpu: u32| (cpu != NOT_PINNED).then_some(cpu);
            now.vcpus = attached
                .placement
                .iter()
                .map(|one| (one.0, one.1, cpu(one.2)))
                .collect();
        });
        Ok(())
    }

    async fn release(&mut self) -> Result<(), Error> {
        if !self.released {
            if self.held == HoldOutcome::Runs {
                self.report_window(self.vmm.window());
            }
            self.vmm.release(&self.options.release).await?;
            self.released = true;
            tracing::info!("{}", text::released(&self.options.release));
            self.status.update(|state| state.phase = Phase::Up);
            self.run_state().await;
        }
        Ok(())
    }

    async fn failed(&mut self, error: &Error) {
        self.status.update(|state| {
            state.reason = error.to_string();
            state.daemon = !matches!(error, Error::Transport { .. });
            if self.attached.is_none() {
                state.isolation = Isolation::None;
            }
        });
        let text = error.to_string();
        let seconds = self.retry.as_secs();
        let is_new = std::mem::replace(&mut self.last_failure, text) != self.last_failure;
        if self.released {
            if is_new {
                tracing::error!(
                    "{error}; the guest runs on, without isolation for what is new; next try in {seconds} s"
                );
            }
        } else if self.options.common.require_isolation {
            let guest = match self.held {
                HoldOutcome::Runs => "runs on shared CPUs",
                HoldOutcome::NotYet | HoldOutcome::Paused => "stays paused",
            };
            tracing::error!("{error}; the guest {guest}, next try in {seconds} s");
        } else {
            tracing::error!(
                "{error}; --require-isolation=no: the guest runs DEGRADED, on CPUs it shares, next try in {seconds} s"
            );
            if let Err(error) = self.release().await {
                tracing::error!("{error}");
            }
        }
        if !self.released {
            // QEMU serves one client at a time: let others use the socket meanwhile.
            self.vmm.disconnect();
        }
        // A new connection has the daemon's objects as they are then.
        self.daemon.disconnect();
        // A guest that could not be resumed is tried again soon.
        sleep(if self.paused.is_some() {
            MAX_PAUSED_RETRY_DELAY
        } else {
            self.retry
        })
        .await;
        if self.released {
            self.retry = self.retry.saturating_mul(2).min(MAX_RETRY_DELAY);
        }
    }

    async fn run_state(&mut self) {
        match self.vmm.run_state().await {
            Ok(guest) => {
                let before = self.status.now().guest;
                if before != guest && self.released {
                    tracing::info!("the guest is {}", in_words(&guest));
                }
                self.status.update(|state| state.guest = guest);
            }
            Err(error) => tracing::debug!("{error}"),
        }
    }
}
