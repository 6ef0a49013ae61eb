//! QMP: the few commands the runner needs. Their answers are declared here and slim, because the published types name
//! every CPU target and event of one QEMU version, and a newer QEMU must not break the start of a guest.

pub mod events;
pub mod wire;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::timeout;
use zbus::Variant;

use super::error::Error;
use crate::dbus::client::VcpuArg;
use wire::{Event, Wire};

/// QEMU answers at once unless its main loop is busy.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);
/// The topology properties that are handed on; all are integers.
const PROPS: [&str; 6] = ["socket-id", "core-id", "thread-id", "node-id", "die-id", "cluster-id"];

/// One vCPU of `query-cpus-fast`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Vcpu {
    /// QEMU's index of it.
    pub cpu_index: u32,
    /// Its thread in this PID namespace.
    pub thread_id: i32,
    /// Where it sits in the guest's topology.
    #[serde(default)]
    pub props: BTreeMap<String, Value>,
}

impl Vcpu {
    /// As AttachVcpus wants it: the known properties, kept as integers (u where not negative, else i).
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

/// One I/O thread of `query-iothreads`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Iothread {
    /// The id of its `-object iothread`.
    pub id: String,
    /// Its thread in this PID namespace.
    pub thread_id: i32,
}

/// The answer of `query-status`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Status {
    /// `running`, `prelaunch`, `inmigrate`, `paused`…
    pub status: String,
}

impl Status {
    /// Nobody would hear the power button: the guest never ran, has left for another host, or has ended.
    pub fn is_deaf(&self) -> bool {
        let deaf = [
            "prelaunch",
            "inmigrate",
            "postmigrate",
            "shutdown",
            "internal-error",
            "guest-panicked",
        ];
        deaf.contains(&self.status.as_str())
    }
}

/// A negotiated QMP connection. QEMU serves one at a time; dropping it frees the socket.
#[derive(Debug)]
pub struct Qmp {
    socket: PathBuf,
    wire: Wire,
}

impl Qmp {
    /// Connect and negotiate. Waits as long as QEMU takes to greet: that is after all guest memory was allocated.
    pub async fn connect(socket: &Path) -> Result<Qmp, Error> {
        match Wire::open(socket).await {
            Ok(wire) => Ok(Qmp {
                socket: socket.to_owned(),
                wire,
            }),
            Err(error) => Err(failed(socket, "connect", error.to_string())),
        }
    }

    /// Every vCPU, with its thread and place.
    pub async fn vcpus(&mut self) -> Result<Vec<Vcpu>, Error> {
        self.ask("query-cpus-fast").await
    }

    /// Every I/O thread.
    pub async fn iothreads(&mut self) -> Result<Vec<Iothread>, Error> {
        self.ask("query-iothreads").await
    }

    /// Whether the machine has a slot that a vCPU could be plugged into.
    pub async fn has_free_cpu_slot(&mut self) -> Result<bool, Error> {
        let slots: Vec<Value> = self.ask("query-hotpluggable-cpus").await?;
        Ok(slots.iter().any(|slot| slot.get("qom-path").is_none()))
    }

    /// Run state.
    pub async fn status(&mut self) -> Result<Status, Error> {
        self.ask("query-status").await
    }

    /// Let the guest run.
    pub async fn cont(&mut self) -> Result<(), Error> {
        self.execute("cont", Value::Null).await.map(drop)
    }

    /// Let a migration come in at `uri`, where QEMU was started with `-incoming defer`.
    pub async fn migrate_incoming(&mut self, uri: &str) -> Result<(), Error> {
        self.execute("migrate-incoming", json!({ "uri": uri })).await.map(drop)
    }

    /// Press the guest's power button.
    pub async fn powerdown(&mut self) -> Result<(), Error> {
        self.execute("system_powerdown", Value::Null).await.map(drop)
    }

    /// End QEMU. It may be gone before it answers.
    pub async fn quit(&mut self) -> Result<(), Error> {
        self.execute("quit", Value::Null).await.map(drop)
    }

    /// The next event. Dropping the wait loses nothing.
    pub async fn event(&mut self) -> Result<Event, Error> {
        let event = self.wire.event().await;
        event.map_err(|error| failed(&self.socket, "wait for events", error.to_string()))
    }

    async fn ask<T: DeserializeOwned>(&mut self, command: &'static str) -> Result<T, Error> {
        let answer = self.execute(command, Value::Null).await?;
        serde_json::from_value(answer).map_err(|error| failed(&self.socket, command, format!("odd answer: {error}")))
    }

    async fn execute(&mut self, command: &'static str, arguments: Value) -> Result<Value, Error> {
        let text = match timeout(COMMAND_TIMEOUT, self.wire.execute(command, arguments)).await {
            Ok(Ok(Ok(answer))) => return Ok(answer),
            Ok(Ok(Err(refusal))) => {
                return Err(Error::QmpRefused {
                    command,
                    socket: self.socket.clone(),
                    text: refusal,
                });
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", COMMAND_TIMEOUT.as_secs()),
        };
        Err(failed(&self.socket, command, text))
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

    #[test]
    fn a_cpu_without_props_is_accepted() {
        let vcpu: Vcpu =
            serde_json::from_str(r#"{"cpu-index":0,"thread-id":7,"qom-path":"/m","target":"arm"}"#).unwrap();
        assert!(vcpu.to_dbus().2.is_empty());
    }

    #[test]
    fn a_guest_that_hears_no_power_button_is_told_by_its_run_state() {
        let status = |text: &str| Status { status: text.into() };
        assert!(status("prelaunch").is_deaf() && status("inmigrate").is_deaf() && status("postmigrate").is_deaf());
        assert!(!status("running").is_deaf() && !status("paused").is_deaf());
    }
}
