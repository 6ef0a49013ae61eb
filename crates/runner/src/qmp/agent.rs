//! The QEMU guest agent: the guest takes vCPUs offline by itself before they are unplugged, and online again if they stay.
//!
//! The protocol is that of QEMU's `qga/qapi-schema.json`. What answers is the guest, which may be hostile: the time, the length of a line
//! and the number of bytes are limited, an answer selects only among the vCPUs that are asked for, and its texts are quoted.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::Path;
use std::time::Duration;

use qapi::{Command, Execute};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::lines::Lines;
use super::wire::result;
use crate::error::Error;

/// For the whole conversation. Linux takes some 10 ms for a vCPU; a guest without an agent never answers.
const CONVERSATION_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit of a line, in bytes; 1024 vCPUs take 60 kB.
const MAX_LINE_BYTES: usize = 256 << 10;
/// Limit of all bytes of a conversation.
const MAX_CONVERSATION_BYTES: usize = 1 << 20;
/// Limit of a text of the guest's in a message, in characters.
const MAX_QUOTED_CHARS: usize = 200;
/// The byte before the answer to `guest-sync-delimited`, and before the request, where it ends what a former client left unfinished.
const SENTINEL: u8 = 0xff;

#[derive(Debug, Clone, Copy, Serialize)]
struct SyncDelimited {
    id: i64,
}

impl Command for SyncDelimited {
    type Ok = i64;
    const NAME: &'static str = "guest-sync-delimited";
    const ALLOW_OOB: bool = false;
}

#[derive(Debug, Clone, Copy, Serialize)]
struct GetVcpus {}

impl Command for GetVcpus {
    type Ok = Vec<LogicalProcessor>;
    const NAME: &'static str = "guest-get-vcpus";
    const ALLOW_OOB: bool = false;
}

#[derive(Debug, Clone, Serialize)]
struct SetVcpus<'a> {
    vcpus: &'a [LogicalProcessor],
}

impl Command for SetVcpus<'_> {
    /// How many of the list were changed, from its start.
    type Ok = i64;
    const NAME: &'static str = "guest-set-vcpus";
    const ALLOW_OOB: bool = false;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct LogicalProcessor {
    /// The guest's number of the CPU. In Linux it equals QEMU's cpu-index if vCPUs were plugged in the order of their slots.
    logical_id: i64,
    online: bool,
    #[serde(default, skip_serializing)]
    can_offline: bool,
}

/// Has the guest take vCPUs offline or online, as far as it can and for at most `limit`, and returns those of which it says that it did.
pub(crate) async fn set_vcpus(socket: &Path, vcpus: &[u32], online: bool, limit: Duration) -> Result<Vec<u32>, Error> {
    let limit = limit.min(CONVERSATION_TIMEOUT);
    let text = match timeout(limit, converse(socket, vcpus, online)).await {
        Ok(Ok(set)) => return Ok(set),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {:.1} s", limit.as_secs_f32()),
    };
    Err(Error::GuestAgent {
        socket: socket.to_owned(),
        text,
    })
}

async fn converse(socket: &Path, vcpus: &[u32], online: bool) -> io::Result<Vec<u32>> {
    let mut agent = Agent::connect(socket).await?;
    let known = agent.execute(GetVcpus {}).await?;
    let change = to_change(&known, vcpus, online);
    if change.is_empty() {
        return Ok(Vec::new());
    }
    let count = agent.execute(SetVcpus { vcpus: &change }).await?;
    let count = usize::try_from(count).unwrap_or(0);
    let changed = change.iter().take(count);
    Ok(changed.filter_map(|one| u32::try_from(one.logical_id).ok()).collect())
}

/// The vCPUs among those asked for that the guest has, that are not as asked, and that can be. The first one is never taken offline.
fn to_change(known: &[LogicalProcessor], vcpus: &[u32], online: bool) -> Vec<LogicalProcessor> {
    let is_changeable = |number: &&u32| {
        let mut found = known.iter().filter(|one| one.logical_id == i64::from(**number));
        (online || **number > 0) && found.any(|one| one.online != online && (online || one.can_offline))
    };
    let changed = |number: &u32| LogicalProcessor {
        logical_id: i64::from(*number),
        online,
        can_offline: true,
    };
    vcpus.iter().filter(is_changeable).map(changed).collect()
}

/// A connection in which the agent has answered.
#[derive(Debug)]
struct Agent {
    lines: Lines,
    received: usize,
}

impl Agent {
    async fn connect(socket: &Path) -> io::Result<Agent> {
        let stream = UnixStream::connect(socket).await?;
        let mut agent = Agent {
            lines: Lines::new(stream, MAX_LINE_BYTES),
            received: 0,
        };
        agent.synchronize().await?;
        Ok(agent)
    }

    /// Skips what the agent still had for a former client.
    async fn synchronize(&mut self) -> io::Result<()> {
        let id = i64::try_from(RandomState::new().build_hasher().finish() >> 12).unwrap_or(1);
        self.send(&[SENTINEL], SyncDelimited { id }).await?;
        let mut is_delimited = false;
        loop {
            let line = self.line().await?;
            let sentinel = line.iter().rposition(|byte| *byte == SENTINEL);
            is_delimited |= sentinel.is_some();
            let answer = line.get(sentinel.map_or(0, |at| at + 1)..).unwrap_or_default();
            if is_delimited && parse(answer) == Some(Ok(id.into())) {
                return Ok(());
            }
        }
    }

    async fn execute<C: Command>(&mut self, command: C) -> io::Result<C::Ok> {
        self.send(&[], command).await?;
        let answer = loop {
            if let Some(answer) = parse(&self.line().await?) {
                break answer;
            }
        };
        let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {text}", C::NAME));
        let value = answer.map_err(|text| invalid(quoted(&text)))?;
        serde_json::from_value(value)
            .map_err(|error| invalid(format!("unexpected answer: {}", quoted(&error.to_string()))))
    }

    async fn send<C: Command>(&mut self, before: &[u8], command: C) -> io::Result<()> {
        // Older agents refuse a command with an id.
        let mut message = before.to_vec();
        serde_json::to_writer(&mut message, &Execute::<C>::with_command(command))?;
        message.push(b'\n');
        self.lines.write(&message).await
    }

    async fn line(&mut self) -> io::Result<Vec<u8>> {
        let line = self.lines.next().await?;
        self.received += line.len();
        if self.received > MAX_CONVERSATION_BYTES {
            let text = format!("more than {MAX_CONVERSATION_BYTES} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(line)
    }
}

fn parse(line: &[u8]) -> Option<Result<Value, String>> {
    match serde_json::from_slice(line) {
        Ok(Value::Object(mut object)) => result(&mut object),
        _ => None,
    }
}

/// A text of the guest's, for a message.
fn quoted(text: &str) -> String {
    let excerpt: String = text.chars().take(MAX_QUOTED_CHARS).collect();
    excerpt.escape_debug().to_string()
}

#[cfg(test)]
mod tests;
