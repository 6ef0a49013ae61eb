//! QMP: the few commands that the runner sends, as qapi's `Command`, over a connection of its own.

mod agent;
mod commands;
mod lines;
mod memory;
mod slots;
mod wire;

use std::path::{Path, PathBuf};
use std::time::Duration;

use qapi::Command;
use tokio::time::timeout;
use zbus::Variant;

use stelia_api::client::VcpuArg;

use crate::error::Error;
pub(crate) use agent::set_vcpus;
pub use commands::{Iothread, StatusInfo, Vcpu};
pub use wire::Event;
use wire::Wire;

/// QEMU answers at once unless its main loop is busy.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);
/// The topology properties that AttachVcpus takes; all are integers.
const PROPS: [&str; 6] = ["socket-id", "core-id", "thread-id", "node-id", "die-id", "cluster-id"];

impl Vcpu {
    /// For AttachVcpus: index, thread, and the topology properties as integers (`u` where not negative, else `i`).
    pub fn to_dbus(&self) -> VcpuArg<'static> {
        let props = PROPS.iter().filter_map(|name| {
            let number = self.props.get(*name)?.as_i64()?;
            let value = u32::try_from(number)
                .map(Variant::from)
                .or_else(|_| i32::try_from(number).map(Variant::from));
            Some((*name, value.ok()?))
        });
        (self.cpu_index, self.thread_id, props.collect())
    }
}

/// A vCPU that can be unplugged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unpluggable {
    /// In QEMU's object tree.
    path: String,
    /// Its number in QEMU; `None` if QEMU does not list it.
    pub(crate) number: Option<u32>,
}

/// A QMP connection after negotiation. QEMU serves one client at a time; dropping this frees the socket.
#[derive(Debug)]
pub struct Qmp {
    socket: PathBuf,
    wire: Wire,
}

impl Qmp {
    /// Connects and negotiates, however long QEMU takes to greet: it does so after all guest memory was allocated.
    pub async fn connect(socket: &Path) -> Result<Qmp, Error> {
        match Wire::open(socket).await {
            Ok(wire) => Ok(Qmp {
                socket: socket.to_owned(),
                wire,
            }),
            Err(error) => Err(failed(socket, "connect", error.to_string())),
        }
    }

    pub async fn vcpus(&mut self) -> Result<Vec<Vcpu>, Error> {
        self.execute(commands::QueryCpusFast {}).await
    }

    pub async fn iothreads(&mut self) -> Result<Vec<Iothread>, Error> {
        self.execute(commands::QueryIothreads {}).await
    }

    /// Whether the machine has a slot that a vCPU could be plugged into.
    pub async fn has_free_cpu_slot(&mut self) -> Result<bool, Error> {
        let slots = self.execute(commands::QueryHotpluggableCpus {}).await?;
        Ok(slots.iter().any(|slot| slot.qom_path.is_none()))
    }

    /// Plugs so many vCPUs, as far as the machine has slots. Returns how many were plugged.
    pub async fn plug_vcpus(&mut self, count: usize) -> Result<usize, Error> {
        let slots = self.execute(commands::QueryHotpluggableCpus {}).await?;
        let chosen = slots::to_plug(&slots, count);
        for (plugged, slot) in chosen.iter().enumerate() {
            let (id, props) = (&slot.device_id(), &slot.props);
            let driver = &slot.driver;
            match self.execute(commands::DeviceAdd { driver, id, props }).await {
                // Those that were plugged before have to be attached.
                Err(error @ Error::QmpRefused { .. }) if plugged > 0 => {
                    tracing::warn!("{error}; {plugged} of {} vCPUs were plugged", chosen.len());
                    return Ok(plugged);
                }
                added => added?,
            };
        }
        Ok(chosen.len())
    }

    /// The vCPUs to unplug for so many fewer, or for fewer if that is not possible.
    pub(crate) async fn vcpus_to_unplug(&mut self, count: usize) -> Result<Vec<Unpluggable>, Error> {
        let slots = self.execute(commands::QueryHotpluggableCpus {}).await?;
        let vcpus = self.vcpus().await?;
        let boot = vcpus.iter().find(|vcpu| vcpu.cpu_index == 0).map(|vcpu| &vcpu.props);
        let chosen = slots::to_unplug(&slots, count, boot).into_iter();
        let numbered = chosen.map(|(slot, path)| Unpluggable {
            path: path.to_owned(),
            number: vcpus
                .iter()
                .find(|vcpu| vcpu.props == slot.props)
                .map(|vcpu| vcpu.cpu_index),
        });
        Ok(numbered.collect())
    }

    /// Asks the guest to give up these vCPUs. Returns how many QEMU asked it for; each is gone when its `DEVICE_DELETED` comes. It is an
    /// error if QEMU refuses to ask for all of them.
    pub(crate) async fn unplug_vcpus(&mut self, vcpus: &[Unpluggable]) -> Result<usize, Error> {
        let (mut asked, mut refusal) = (0, None);
        for vcpu in vcpus {
            match self.execute(commands::DeviceDel { id: &vcpu.path }).await {
                Err(error @ Error::QmpRefused { .. }) => {
                    tracing::warn!("{error}");
                    refusal = Some(error);
                }
                done => {
                    done?;
                    asked += 1;
                }
            }
        }
        match refusal {
            Some(error) if asked == 0 => Err(error),
            _ => Ok(asked),
        }
    }

    /// Stops the guest.
    pub async fn stop(&mut self) -> Result<(), Error> {
        self.execute(commands::Stop {}).await.map(drop)
    }

    pub async fn status(&mut self) -> Result<StatusInfo, Error> {
        self.execute(commands::QueryStatus {}).await
    }

    /// Lets the guest run.
    pub async fn cont(&mut self) -> Result<(), Error> {
        self.execute(commands::Cont {}).await.map(drop)
    }

    /// Whether a migration is under way.
    pub(crate) async fn is_migrating(&mut self) -> Result<bool, Error> {
        Ok(self.execute(commands::QueryMigrate {}).await?.is_under_way())
    }

    /// Let a migration come in at `uri`, where QEMU was started with `-incoming defer`.
    pub async fn migrate_incoming(&mut self, uri: &str) -> Result<(), Error> {
        self.execute(commands::MigrateIncoming { uri }).await.map(drop)
    }

    /// Presses the guest's power button.
    pub async fn powerdown(&mut self) -> Result<(), Error> {
        self.execute(commands::SystemPowerdown {}).await.map(drop)
    }

    /// Ends QEMU. It may be gone before it answers.
    pub async fn quit(&mut self) -> Result<(), Error> {
        self.execute(commands::Quit {}).await.map(drop)
    }

    /// The next event. Cancel-safe.
    pub async fn event(&mut self) -> Result<Event, Error> {
        let event = self.wire.event().await;
        event.map_err(|error| failed(&self.socket, "wait for events", error.to_string()))
    }

    async fn execute<C: Command>(&mut self, command: C) -> Result<C::Ok, Error> {
        let text = match timeout(COMMAND_TIMEOUT, self.wire.execute(command)).await {
            Ok(Ok(Ok(answer))) => match serde_json::from_value(answer) {
                Ok(answer) => return Ok(answer),
                Err(error) => format!("unexpected answer: {error}"),
            },
            Ok(Ok(Err(refusal))) => {
                return Err(Error::QmpRefused {
                    command: C::NAME,
                    socket: self.socket.clone(),
                    text: refusal,
                });
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", COMMAND_TIMEOUT.as_secs()),
        };
        Err(failed(&self.socket, C::NAME, text))
    }
}

/// A query that QEMU refuses has no answer.
pub(crate) fn or_none_if_refused<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Err(error @ Error::QmpRefused { .. }) => {
            tracing::debug!("{error}");
            Ok(None)
        }
        other => other.map(Some),
    }
}

fn failed(socket: &Path, command: &'static str, text: String) -> Error {
    Error::Qmp {
        command,
        socket: socket.to_owned(),
        text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn props_stay_integers_and_strangers_stay_out() {
        let vcpu: Vcpu = serde_json::from_str(
            r#"{"cpu-index":3,"thread-id":1234,"qom-path":"/m","target":"x86_64",
                "props":{"core-id":1,"thread-id":0,"socket-id":2,"node-id":-1,"module-id":7,"die-id":"x"}}"#,
        )
        .unwrap();
        let (index, tid, props) = vcpu.to_dbus();
        assert_eq!((index, tid), (3, 1234));
        assert_eq!(props.len(), 4);
        assert_eq!(props["core-id"], Variant::U32(1));
        assert_eq!(props["socket-id"], Variant::U32(2));
        assert_eq!(props["thread-id"], Variant::U32(0));
        assert_eq!(props["node-id"], Variant::I32(-1));
    }

    /// As QEMU 7.2 answers for arm64's machine type `virt`, which does not answer `query-hotpluggable-cpus`.
    #[test]
    fn a_vcpu_of_arm64_has_a_cluster() {
        let vcpu: Vcpu = serde_json::from_str(
            r#"{"thread-id": 5610, "props": {"core-id": 1, "thread-id": 0, "socket-id": 0, "cluster-id": 0},
                "qom-path": "/machine/unattached/device[1]", "cpu-index": 1, "target": "aarch64"}"#,
        )
        .unwrap();
        let (index, tid, props) = vcpu.to_dbus();
        assert_eq!((index, tid), (1, 5610));
        let expected = [("core-id", 1), ("thread-id", 0), ("socket-id", 0), ("cluster-id", 0)];
        assert_eq!(
            props,
            expected.map(|(name, number)| (name, Variant::U32(number))).into()
        );
    }

    #[test]
    fn a_cpu_without_props_is_accepted() {
        let vcpu: Vcpu =
            serde_json::from_str(r#"{"cpu-index":0,"thread-id":7,"qom-path":"/m","target":"arm"}"#).unwrap();
        assert!(vcpu.to_dbus().2.is_empty());
    }
}
