//! A QEMU with a QMP socket for the runner.

use std::path::{Path, PathBuf};

use super::{Change, Release, Threads, Vmm};
use crate::error::Error;
use crate::qmp::Qmp;
use crate::qmp::events::{Reaction, reaction};

/// QEMU behind its QMP socket. The connection is made when it is needed, and again when it broke.
#[derive(Debug)]
pub struct Monitor {
    socket: PathBuf,
    qmp: Option<Qmp>,
}

impl Monitor {
    /// No connection is made yet.
    pub fn new(socket: &Path) -> Monitor {
        Monitor {
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

    /// A broken connection is forgotten; a refusal breaks none.
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
        // Neither is worth a guest that does not start: machines differ in what they answer.
        let iothreads = or_told(qmp.iothreads().await)?;
        let may_grow = or_told(qmp.has_free_cpu_slot().await)?;
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
                Reaction::Tell => tracing::info!("QEMU: {} {}", event.name, event.data),
                Reaction::Nothing => tracing::debug!("QEMU: {} {}", event.name, event.data),
            }
        }
    }
}

/// What QEMU refuses to answer counts as nothing.
fn or_told<T: Default>(answer: Result<T, Error>) -> Result<T, Error> {
    match answer {
        Err(error @ Error::QmpRefused { .. }) => {
            tracing::debug!("{error}");
            Ok(T::default())
        }
        other => other,
    }
}

impl Vmm for Monitor {
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
                Release::Others | Release::Running => Ok(()),
            }
        }
        .await;
        self.checked(done)
    }

    fn disconnect(&mut self) {
        self.qmp = None;
    }

    fn take_qmp(&mut self) -> Option<Qmp> {
        self.qmp.take()
    }
}
