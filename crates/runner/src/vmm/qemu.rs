//! QEMU, as the runner asks and orders it: by its QMP socket.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Change, Memory, PowerDown, Quit, Release, ResizeStart, Threads, Vmm};
use crate::error::Error;
use crate::qmp::{Qmp, or_none_if_refused, set_vcpus};

/// QEMU by its QMP socket. It connects when needed, and again after a failure.
#[derive(Debug)]
pub(crate) struct Qemu {
    socket: PathBuf,
    qmp: Option<Qmp>,
    /// The socket of the guest agent.
    agent: Option<PathBuf>,
    /// The vCPUs that the guest took offline to give them up.
    offline: Vec<u32>,
    /// What its balloon was asked to leave the guest, bytes.
    ballooned: Option<u64>,
}

impl Qemu {
    pub(crate) fn new(socket: &Path, agent: Option<&Path>) -> Qemu {
        Qemu {
            socket: socket.to_owned(),
            qmp: None,
            agent: agent.map(Path::to_owned),
            offline: Vec::new(),
            ballooned: None,
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
        let iothreads = or_none_if_refused(qmp.iothreads().await)?.unwrap_or_default();
        let may_grow = or_none_if_refused(qmp.has_free_cpu_slot().await)?.unwrap_or_default();
        Ok(Threads {
            vcpus,
            iothreads,
            may_grow,
        })
    }

    /// `deadline`: until when the guest may give them up.
    async fn unplug(&mut self, count: usize, deadline: Instant) -> Result<usize, Error> {
        let vcpus = self.qmp().await?.vcpus_to_unplug(count).await?;
        // ACPI alone asks the guest too, but a guest whose agent is asked first has moved its work when the vCPU is unplugged, and says
        // why it does not.
        if let Some(agent) = &self.agent {
            let numbers: Vec<u32> = vcpus.iter().filter_map(|vcpu| vcpu.number).collect();
            // Half of the time is left for ACPI if the agent does not answer.
            let time = deadline.saturating_duration_since(Instant::now()) / 2;
            match set_vcpus(agent, &numbers, false, time).await {
                Ok(offline) => {
                    tracing::info!("the guest took {} of {} vCPUs offline", offline.len(), numbers.len());
                    self.offline.extend(offline);
                }
                Err(error) => tracing::warn!("{error}; the guest is asked by ACPI alone"),
            }
        }
        self.qmp().await?.unplug_vcpus(&vcpus).await
    }

    async fn next(&mut self) -> Result<Change, Error> {
        let qmp = self.qmp().await?;
        loop {
            let event = qmp.event().await?;
            let change = change(&event.name);
            if change == Some(Change::Threads) || LOGGED.contains(&event.name.as_str()) {
                tracing::info!("QEMU: {} {}", event.name, event.data);
            } else {
                tracing::debug!("QEMU: {} {}", event.name, event.data);
            }
            if let Some(change) = change {
                return Ok(change);
            }
        }
    }
}

/// Events after which nothing is asked, and which are logged all the same.
const LOGGED: [&str; 5] = [
    "SHUTDOWN",
    "POWERDOWN",
    "GUEST_CRASHLOADED",
    "WATCHDOG",
    "MEMORY_FAILURE",
];

/// What is to be asked after an event of QEMU's. None reports a thread: those of a plug and an unplug are hints to ask.
///
/// - A plugged vCPU is reported by the guest alone, and only by one with ACPI (`ACPI_DEVICE_OST`).
/// - `DEVICE_DELETED` comes after the unplugged vCPU's thread has ended.
/// - A reset keeps the threads, but completes a plug that the guest has not noticed.
fn change(event: &str) -> Option<Change> {
    match event {
        "ACPI_DEVICE_OST" | "DEVICE_DELETED" | "DEVICE_UNPLUG_GUEST_ERROR" | "RESET" => Some(Change::Threads),
        "STOP" | "RESUME" | "SUSPEND" | "WAKEUP" | "GUEST_PANICKED" => Some(Change::RunState),
        "MEMORY_DEVICE_SIZE_CHANGE" | "BALLOON_CHANGE" => Some(Change::Memory),
        _ => None,
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

    async fn pause(&mut self) -> Result<(), Error> {
        let done = async { self.qmp().await?.stop().await }.await;
        self.checked(done)
    }

    async fn resume(&mut self) -> Result<bool, Error> {
        let done = async {
            let qmp = self.qmp().await?;
            // After a migration, or a fault of the guest, it must not run.
            if qmp.status().await?.status != "paused" {
                return Ok(false);
            }
            qmp.cont().await?;
            Ok(true)
        }
        .await;
        self.checked(done)
    }

    async fn why_not_grow(&mut self) -> Result<Option<String>, Error> {
        let has_slot = async { self.qmp().await?.has_free_cpu_slot().await }.await;
        match self.checked(has_slot) {
            Ok(has_slot) => Ok((!has_slot).then(|| "QEMU has no free slot (maxcpus of -smp)".into())),
            // Such as arm64's `virt`.
            Err(error @ Error::QmpRefused { .. }) => Ok(Some(format!("this machine type plugs no vCPUs: {error}"))),
            Err(error) => Err(error),
        }
    }

    async fn is_migrating(&mut self) -> Result<bool, Error> {
        let found = async { or_none_if_refused(self.qmp().await?.is_migrating().await) }.await;
        Ok(self.checked(found)?.unwrap_or_default())
    }

    async fn resize(&mut self, from: usize, to: usize, deadline: Instant) -> Result<ResizeStart, Error> {
        let begun = if to > from {
            async { self.qmp().await?.plug_vcpus(to - from).await }.await
        } else {
            self.unplug(from - to, deadline).await
        };
        match self.checked(begun) {
            Ok(0) if to > from => Ok(ResizeStart::Impossible("QEMU has no slot for a single vCPU".into())),
            Ok(0) => Ok(ResizeStart::Impossible("QEMU has no vCPU that can be unplugged".into())),
            Ok(count) => Ok(ResizeStart::Begun(count)),
            Err(error @ Error::QmpRefused { .. }) => Ok(ResizeStart::Impossible(error.to_string())),
            Err(error) => Err(error),
        }
    }

    async fn request_again(&mut self, count: usize) -> Result<(), Error> {
        let vcpus = self.qmp().await?.vcpus_to_unplug(count).await?;
        self.qmp().await?.unplug_vcpus(&vcpus).await.map(drop)
    }

    async fn shrunk(&mut self) {
        let offline = std::mem::take(&mut self.offline);
        // Those that were unplugged the guest has no more. One remains where it refuses to give it up, or has other numbers.
        if let Some(agent) = self.agent.as_ref().filter(|_| !offline.is_empty()) {
            match set_vcpus(agent, &offline, true, Duration::MAX).await {
                Ok(online) if online.is_empty() => {}
                Ok(online) => tracing::info!("the guest brought {} vCPUs online again", online.len()),
                Err(error) => tracing::warn!("{error}; vCPUs that stay may be offline in the guest"),
            }
        }
    }

    async fn memory(&mut self) -> Result<Memory, Error> {
        let ballooned = self.ballooned;
        let found = async { self.qmp().await?.memory(ballooned).await }.await;
        let text = "QEMU has neither virtio-mem (with an id) nor a balloon";
        Ok(self
            .checked(found)?
            .map_or_else(|| Memory::Fixed(text.into()), Memory::Is))
    }

    async fn resize_memory(&mut self, to: u64) -> Result<Option<String>, Error> {
        let done = async { self.qmp().await?.resize_memory(to).await }.await;
        match self.checked(done) {
            Ok(is_balloon) => {
                self.ballooned = is_balloon.then_some(to);
                Ok(None)
            }
            Err(error @ Error::QmpRefused { .. }) => Ok(Some(error.to_string())),
            Err(error) => Err(error),
        }
    }

    fn disconnect(&mut self) {
        self.qmp = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("ACPI_DEVICE_OST", Some(Change::Threads))]
    #[case("DEVICE_DELETED", Some(Change::Threads))]
    #[case("RESET", Some(Change::Threads))]
    #[case("STOP", Some(Change::RunState))]
    #[case("RESUME", Some(Change::RunState))]
    #[case("MEMORY_DEVICE_SIZE_CHANGE", Some(Change::Memory))]
    #[case("BALLOON_CHANGE", Some(Change::Memory))]
    #[case("SHUTDOWN", None)]
    #[case("NEW_IN_QEMU_99", None)]
    #[case("", None)]
    fn events_are_sorted(#[case] name: &str, #[case] expected: Option<Change>) {
        assert_eq!(change(name), expected);
    }
}
