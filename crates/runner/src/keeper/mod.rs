//! From a QEMU that has just started to the end of it: its vCPUs are handed over, the guest is let run, and what changes on
//! either side (threads plugged, the daemon restarted, the instance evicted) is followed.
//!
//! It never ends. Whoever holds it drops it when QEMU ends or the shutdown begins.

mod news;
mod text;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use stelia_api::NOT_PINNED;
use tokio::time::{Instant, sleep};
use zbus::OwnedObjectPath;

use super::daemon::{Claims, Daemon};
use super::error::Error;
use super::qmp::Vcpu;
use super::state::{Isolation, Phase};
use super::status::Status;
use super::vmm::{Change, Release, Threads, Vmm};

const VMM_RETRY: Duration = Duration::from_millis(100);
/// After this long without an answer of QEMU's it is worth a line.
const VMM_PATIENCE: Duration = Duration::from_secs(10);
const FIRST_RETRY: Duration = Duration::from_secs(5);
/// A guest that runs without isolation is not helped by a call every 5 s.
const LAST_RETRY: Duration = Duration::from_secs(60);
/// How often a machine that could have a vCPU plugged is asked, no event tells of it; and one that does not run.
const LOOK: Duration = Duration::from_secs(2);
/// One plug makes several events.
const SETTLE: Duration = Duration::from_millis(100);

/// What is kept, and how.
#[derive(Debug)]
pub struct Plan<'a> {
    /// QEMU itself.
    pub qemu: BorrowedFd<'a>,
    /// The anchor, for a registration that is made late.
    pub anchor: BorrowedFd<'a>,
    /// What the daemon is told of it.
    pub claims: Claims<'a>,
    /// `--require-isolation`.
    pub require: bool,
    /// `--iothread-cpus`.
    pub iothread_cpus: bool,
    /// How the guest is let run.
    pub release: Release,
}

/// Keeps one VM isolated.
#[derive(Debug)]
pub struct Keeper<'a, V> {
    /// The VM.
    pub vmm: V,
    daemon: &'a mut Daemon,
    status: &'a Status,
    plan: Plan<'a>,
    /// None: not registered.
    instance: Option<OwnedObjectPath>,
    /// What the daemon was given last, and took.
    attached: Option<(Vec<Vcpu>, Vec<u32>)>,
    /// The CPUs it had then, and whether they are others now. Only looked at for I/O threads: the daemon moves vCPUs by itself,
    /// but lets an I/O thread go that finds no CPU any more.
    cpus: String,
    resized: bool,
    released: bool,
    /// Somebody deregistered it while it ran: that is his will, and not undone here.
    given_up: bool,
    /// The last failure that was told.
    told: String,
    retry: Duration,
}

impl<'a, V: Vmm> Keeper<'a, V> {
    /// Nothing is done yet.
    pub fn new(
        vmm: V,
        daemon: &'a mut Daemon,
        status: &'a Status,
        plan: Plan<'a>,
        instance: Option<OwnedObjectPath>,
    ) -> Keeper<'a, V> {
        Keeper {
            vmm,
            daemon,
            status,
            plan,
            instance,
            attached: None,
            cpus: String::new(),
            resized: false,
            released: false,
            given_up: false,
            told: String::new(),
            retry: FIRST_RETRY,
        }
    }

    /// Keep it. Ends never.
    pub async fn keep(&mut self) {
        loop {
            let threads = self.answering().await;
            let done = match self.isolate(&threads).await {
                Ok(()) => self.release().await,
                Err(error) => Err(error),
            };
            match done {
                Ok(()) => {
                    self.told.clear();
                    self.retry = FIRST_RETRY;
                    self.watch(&threads).await;
                }
                Err(error) => self.failed(&error).await,
            }
        }
    }

    /// The threads, as soon as the VM answers.
    async fn answering(&mut self) -> Threads {
        let started = Instant::now();
        let mut told = false;
        loop {
            match self.vmm.threads().await {
                Ok(threads) => {
                    self.tell_iothreads(&threads);
                    self.run_state().await;
                    return threads;
                }
                Err(error) if !told && started.elapsed() > VMM_PATIENCE => {
                    tracing::warn!("{error}; still trying");
                    told = true;
                }
                Err(error) => tracing::debug!("{error}"),
            }
            sleep(VMM_RETRY).await;
        }
    }

    fn tell_iothreads(&self, threads: &Threads) {
        let iothreads = threads
            .iothreads
            .iter()
            .map(|one| (one.id.clone(), one.thread_id))
            .collect();
        if self.attached.is_none() || self.status.now().iothreads != iothreads {
            let list = text::iothreads(&threads.iothreads);
            tracing::info!("QEMU has {} vCPUs and {list}", threads.vcpus.len());
        }
        self.status.update(|state| state.iothreads = iothreads);
    }

    /// Register if that is still to be done, and hand over threads that the daemon does not have.
    async fn isolate(&mut self, threads: &Threads) -> Result<(), Error> {
        let iothreads: Vec<u32> = match self.plan.iothread_cpus {
            true => threads
                .iothreads
                .iter()
                .filter_map(|one| u32::try_from(one.thread_id).ok())
                .collect(),
            false => Vec::new(),
        };
        let wanted = (threads.vcpus.clone(), iothreads);
        let same = self.instance.is_some() && self.attached.as_ref() == Some(&wanted);
        if self.given_up || (same && !self.resized) {
            return Ok(());
        }
        let instance = match &self.instance {
            Some(instance) => instance.clone(),
            None => {
                let registration = self.daemon.try_register(self.plan.claims, self.plan.anchor).await?;
                tracing::info!("registered as {} in {}", registration.instance, registration.cgroup);
                self.instance.insert(registration.instance).clone()
            }
        };
        let attached = self
            .daemon
            .attach(&instance, self.plan.qemu, (&wanted.0, &wanted.1))
            .await;
        if attached.as_ref().is_err_and(Error::is_absent) {
            if self.attached.is_some() {
                self.give_up();
                return Ok(());
            }
            // Never attached: a daemon that died on the way may have lost it. Register anew.
            self.instance = None;
        }
        let attached = attached?;
        let isolation = Isolation::of(&attached.state, attached.qos);
        tracing::info!(
            "{}: {}",
            isolation.promise(attached.qos),
            text::placement(&attached.placement)
        );
        self.resized = false;
        if !wanted.1.is_empty()
            && let Ok(Some((_, cpus))) = self.daemon.state(&instance).await
        {
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

    /// Let the guest run, once.
    async fn release(&mut self) -> Result<(), Error> {
        if !self.released {
            self.vmm.release(&self.plan.release).await?;
            self.released = true;
            tracing::info!("{}", text::released(&self.plan.release));
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
        let news = std::mem::replace(&mut self.told, text) != self.told;
        if self.released {
            if news {
                tracing::error!(
                    "{error}; the guest runs on, without isolation for what is new; next try in {seconds} s"
                );
            }
        } else if self.plan.require {
            tracing::error!("{error}; the guest stays paused, next try in {seconds} s");
        } else {
            tracing::error!(
                "{error}; --require-isolation=no: the guest runs DEGRADED, on CPUs it shares, next try in {seconds} s"
            );
            if let Err(error) = self.release().await {
                tracing::error!("{error}");
            }
        }
        if !self.released {
            // QEMU serves one client: whoever wants to look meanwhile can.
            self.vmm.disconnect();
        }
        // A fresh connection shows the daemon's objects as they are then.
        self.daemon.disconnect();
        sleep(self.retry).await;
        if self.released {
            self.retry = self.retry.saturating_mul(2).min(LAST_RETRY);
        }
    }

    /// Until the threads are others.
    async fn watch(&mut self, threads: &Threads) {
        loop {
            // Some run states end without an event (a source's `finish-migrate`).
            let settled = matches!(self.status.now().guest.as_str(), "running" | "unknown");
            let look = if threads.may_grow || !settled {
                LOOK
            } else {
                Duration::MAX
            };
            tokio::select! {
                change = self.vmm.change() => match change {
                    Ok(Change::Threads) => {
                        sleep(SETTLE).await;
                        return;
                    }
                    Ok(Change::RunState) => self.run_state().await,
                    Err(error) => {
                        tracing::warn!("{error}; connecting again");
                        self.vmm.disconnect();
                        sleep(VMM_RETRY).await;
                        return;
                    }
                },
                () = sleep(look) => {
                    if threads.may_grow && !self.vmm.threads().await.is_ok_and(|now| now.vcpus == threads.vcpus) {
                        return;
                    }
                    self.run_state().await;
                }
                news = self.daemon.news(), if self.instance.is_some() && !self.given_up => {
                    self.heard(news).await;
                    if self.resized {
                        return;
                    }
                }
            }
        }
    }

    async fn run_state(&mut self) {
        match self.vmm.run_state().await {
            Ok(guest) => {
                let before = self.status.now().guest;
                if before != guest && self.released {
                    tracing::info!("the guest is {guest}");
                }
                self.status.update(|state| state.guest = guest);
            }
            Err(error) => tracing::debug!("{error}"),
        }
    }
}
