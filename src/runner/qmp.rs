//! QMP: the few commands the runner needs. Their answers are declared here and slim, because the published types name
//! every CPU target of one QEMU version, and a newer QEMU must not break the start of a guest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use qapi::futures::{QapiService, QmpStreamTokio};
use serde::{Deserialize, Serialize};
use tokio::io::WriteHalf;
use tokio::net::UnixStream;
use tokio::time::timeout;
use zbus::Variant;

use super::error::Error;
use crate::dbus::client::VcpuArg;

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
    pub props: BTreeMap<String, qapi::Any>,
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

/// The answer of `query-status`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Status {
    /// `running`, `prelaunch`, `inmigrate`, `paused`…
    pub status: String,
}

impl Status {
    /// The guest has not executed anything yet: powering it down would never be answered.
    pub fn never_ran(&self) -> bool {
        self.status == "prelaunch" || self.status == "inmigrate"
    }
}

macro_rules! command {
    ($(#[$doc:meta])* $name:ident = $text:literal -> $answer:ty) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Serialize)]
        struct $name {}
        impl qapi::Command for $name {
            const NAME: &'static str = $text;
            const ALLOW_OOB: bool = false;
            type Ok = $answer;
        }
        impl qapi::qmp::QmpCommand for $name {}
    };
}
command!(QueryCpus = "query-cpus-fast" -> Vec<Vcpu>);
command!(QueryIothreads = "query-iothreads" -> Vec<qapi::Any>);
command!(QueryStatus = "query-status" -> Status);
command!(Cont = "cont" -> qapi::Any);
command!(Powerdown = "system_powerdown" -> qapi::Any);
command!(Quit = "quit" -> qapi::Any);

/// A negotiated QMP connection. QEMU serves one at a time; dropping it frees the socket.
pub struct Qmp {
    socket: PathBuf,
    service: QapiService<QmpStreamTokio<WriteHalf<UnixStream>>>,
}

impl Qmp {
    /// Connect and negotiate. Waits as long as QEMU takes to greet: that is after all guest memory was allocated.
    pub async fn connect(socket: &Path) -> Result<Qmp, Error> {
        let negotiated = async { QmpStreamTokio::open_uds(socket).await?.negotiate().await }.await;
        let stream = negotiated.map_err(|e| Error::Qmp {
            command: "connect",
            socket: socket.to_owned(),
            text: e.to_string(),
        })?;
        let (service, _events) = stream.spawn_tokio();
        Ok(Qmp {
            socket: socket.to_owned(),
            service,
        })
    }

    /// Every vCPU, with its thread and place.
    pub async fn vcpus(&self) -> Result<Vec<Vcpu>, Error> {
        self.execute(QueryCpus {}).await
    }

    /// How many I/O threads there are.
    pub async fn iothreads(&self) -> Result<usize, Error> {
        Ok(self.execute(QueryIothreads {}).await?.len())
    }

    /// Run state.
    pub async fn status(&self) -> Result<Status, Error> {
        self.execute(QueryStatus {}).await
    }

    /// Let the guest run.
    pub async fn cont(&self) -> Result<(), Error> {
        self.execute(Cont {}).await.map(drop)
    }

    /// Press the guest's power button.
    pub async fn powerdown(&self) -> Result<(), Error> {
        self.execute(Powerdown {}).await.map(drop)
    }

    /// End QEMU. It may be gone before it answers.
    pub async fn quit(&self) -> Result<(), Error> {
        self.execute(Quit {}).await.map(drop)
    }

    async fn execute<C: qapi::qmp::QmpCommand>(&self, command: C) -> Result<C::Ok, Error> {
        let failed = |text| Error::Qmp {
            command: C::NAME,
            socket: self.socket.clone(),
            text,
        };
        match timeout(COMMAND_TIMEOUT, self.service.execute(command)).await {
            Ok(answer) => answer.map_err(|e| failed(e.to_string())),
            Err(_) => Err(failed(format!("no answer within {} s", COMMAND_TIMEOUT.as_secs()))),
        }
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
    fn a_guest_that_never_ran_is_told_by_its_run_state() {
        let status = |text: &str| Status { status: text.into() };
        assert!(status("prelaunch").never_ran() && status("inmigrate").never_ran());
        assert!(!status("running").never_ran() && !status("paused").never_ran());
    }
}
