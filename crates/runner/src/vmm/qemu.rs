//! QEMU, as the runner asks and orders it: by its QMP socket.

use std::path::{Path, PathBuf};

use super::{Change, PowerDown, Quit, Release, Threads, Vmm};
use crate::error::Error;
use crate::qmp::{Qmp, Reaction, reaction};

/// QEMU by its QMP socket. It connects when needed, and again after a failure.
#[derive(Debug)]
pub(crate) struct Qemu {
    socket: PathBuf,
    qmp: Option<Qmp>,
}

impl Qemu {
    pub(crate) fn new(socket: &Path) -> Qemu {
        Qemu {
            socket: socket.to_owned(),
            qmp: None,
        }
    }

    async fn qmp(&mut self) -> Result<&mut Qmp, Error> {
        match &mut self.qmp {
            Some(qmp) => Ok(qmp),
            none => Ok(none.insert(Qmp::connect(&self.socket).await?)),
        }
    }

    /// Drops a broken connection. After a refusal the connection is fine.
    fn checked<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        if matches!(result, Err(Error::Qmp { .. })) {
            self.qmp = None;
        }
        result
    }

    async fn query(&mut self) -> Result<Threads, Error> {
        let qmp = self.qmp().await?;
        let mut vcpus = qmp.vcpus().await?;
        vcpus.sort_by_key(|vcpu| vcpu.cpu_index);
        // Not every machine type answers these, and the guest must start all the same.
        let iothreads = or_default_if_refused(qmp.iothreads().await)?;
        let may_grow = or_default_if_refused(qmp.has_free_cpu_slot().await)?;
        Ok(Threads {
            vcpus,
            iothreads,
            may_grow,
        })
    }

    async fn next(&mut self) -> Result<Change, Error> {
        let qmp = self.qmp().await?;
        loop {
            let event = qmp.event().await?;
            match reaction(&event) {
                Reaction::Threads => {
                    tracing::info!("QEMU: {} {}", event.name, event.data);
                    return Ok(Change::Threads);
                }
                Reaction::RunState => return Ok(Change::RunState),
                Reaction::Log => tracing::info!("QEMU: {} {}", event.name, event.data),
                Reaction::Nothing => tracing::debug!("QEMU: {} {}", event.name, event.data),
            }
        }
    }
}

/// A query that QEMU refuses counts as an empty answer.
fn or_default_if_refused<T: Default>(answer: Result<T, Error>) -> Result<T, Error> {
    match answer {
        Err(error @ Error::QmpRefused { .. }) => {
            tracing::debug!("{error}");
            Ok(T::default())
        }
        other => other,
    }
}

impl Vmm for Qemu {
    async fn threads(&mut self) -> Result<Threads, Error> {
        let found = self.query().await;
        self.checked(found)
    }

    async fn change(&mut self) -> Result<Change, Error> {
        let change = self.next().await;
        self.checked(change)
    }

    async fn run_state(&mut self) -> Result<String, Error> {
        let status = async { self.qmp().await?.status().await }.await;
        Ok(self.checked(status)?.status)
    }

    async fn release(&mut self, how: &Release) -> Result<(), Error> {
        let done = async {
            match how {
                Release::Continue => self.qmp().await?.cont().await,
                Release::Migration(uri) => self.qmp().await?.migrate_incoming(uri).await,
                Release::External | Release::AlreadyRunning => Ok(()),
            }
        }
        .await;
        self.checked(done)
    }

    async fn power_down(&mut self) -> Result<PowerDown, Error> {
        let done = async {
            let qmp = self.qmp().await?;
            if qmp.status().await?.ignores_power_button() {
                return Ok(PowerDown::NotRunning);
            }
            qmp.powerdown().await?;
            Ok(PowerDown::Requested)
        }
        .await;
        self.checked(done)
    }

    async fn quit(&mut self) -> Result<Quit, Error> {
        let done = async { self.qmp().await?.quit().await }.await;
        self.checked(done).map(|()| Quit::Requested)
    }

    fn disconnect(&mut self) {
        self.qmp = None;
    }
}
