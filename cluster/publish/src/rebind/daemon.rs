//! The calls to the steliad of this node. A steliad that does not run is not started for them.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use stelia_api::ErrorKind;
use stelia_api::client::{Dict, ManagerProxy, MoveRow};
use stelia_api::job::Job;
use tokio::time::timeout;
use zbus::proxy::MethodFlags;
use zbus::{Connection, DynamicType, OwnedObjectPath};

/// Timeout of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(25);

/// What is read of Describe's answer.
#[derive(Deserialize)]
struct Description {
    node: DescribedNode,
}

#[derive(Deserialize)]
struct DescribedNode {
    jobs: Vec<Job>,
}

/// What becomes of a call for a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// A job of this number began.
    Job(u32),
    /// steliad refused it for now: a job runs, the last one began just now, or polkit does not permit it.
    NotNow(String),
    /// steliad never begins one here.
    Never(String),
    /// It is not known whether one began.
    NotKnown(String),
}

/// The daemon, on the bus.
#[derive(Debug)]
pub struct Daemon {
    connection: Option<Connection>,
}

impl Daemon {
    /// On the system bus, once it is asked for the first time.
    pub fn on_system_bus() -> Self {
        Self { connection: None }
    }

    /// At the other end of this connection.
    pub fn at(connection: Connection) -> Self {
        Self {
            connection: Some(connection),
        }
    }

    /// The last jobs, the oldest first.
    ///
    /// # Errors
    /// steliad does not run or answer, or with something else.
    pub async fn jobs(&mut self) -> Result<Vec<Job>, String> {
        let answer: zbus::Result<String> = self.call("Describe", &()).await;
        let text = answer.map_err(|failure| format!("Describe: {}", cause(&failure)))?;
        let described: Description = serde_json::from_str(&text).map_err(|cause| format!("Describe: {cause}"))?;
        Ok(described.node.jobs)
    }

    /// Begin a job for the whole node. No move begins after so many seconds.
    pub async fn begin(&mut self, deadline_s: u32) -> Begun {
        let options = Dict::new();
        let answer: zbus::Result<(OwnedObjectPath, Vec<MoveRow>)> =
            self.call("Rebind", &("node", deadline_s, options)).await;
        let failure = match answer {
            Ok((path, _)) => {
                let number = path.as_str().rsplit('/').next().and_then(|number| number.parse().ok());
                return number.map_or_else(|| Begun::NotKnown(format!("the job is {path}")), Begun::Job);
            }
            Err(failure) => failure,
        };
        let text = cause(&failure);
        let zbus::Error::MethodError(name, ..) = &failure else {
            return Begun::NotKnown(text);
        };
        let is = |kind: ErrorKind| **name == kind.error_name();
        if is(ErrorKind::InvalidArgument) {
            Begun::Never(text)
        } else if is(ErrorKind::Busy) || is(ErrorKind::NotPermitted) {
            Begun::NotNow(text)
        } else {
            Begun::NotKnown(text)
        }
    }

    async fn call<B, R>(&mut self, method: &str, body: &B) -> zbus::Result<R>
    where
        B: Serialize + DynamicType,
        R: for<'d> zbus::wire::DynamicDeserialize<'d>,
    {
        let answer = timeout(CALL_TIMEOUT, self.exchange(method, body)).await;
        let late = |_| {
            Err(zbus::Error::Failure(format!(
                "no answer within {} s",
                CALL_TIMEOUT.as_secs()
            )))
        };
        let answer = answer.unwrap_or_else(late);
        if !matches!(answer, Ok(_) | Err(zbus::Error::MethodError(..))) {
            // The bus may have been started anew.
            self.connection = None;
        }
        answer
    }

    async fn exchange<B, R>(&mut self, method: &str, body: &B) -> zbus::Result<R>
    where
        B: Serialize + DynamicType,
        R: for<'d> zbus::wire::DynamicDeserialize<'d>,
    {
        let connection = match &self.connection {
            Some(connection) => connection.clone(),
            None => self.connection.insert(Connection::system().await?).clone(),
        };
        let manager = ManagerProxy::new(&connection).await?;
        let answer = manager
            .inner()
            .call_with_flags(method, MethodFlags::NO_AUTO_START, body)
            .await?;
        answer.ok_or(zbus::Error::InvalidReply)
    }
}

/// The text of an error that steliad or the bus answered, or why there is no answer.
fn cause(failure: &zbus::Error) -> String {
    match failure {
        zbus::Error::MethodError(name, text, _) => text.clone().unwrap_or_else(|| name.to_string()),
        other => other.to_string(),
    }
}
