//! The daemon's signals, for commands that run until interrupted.

use std::num::NonZeroUsize;
use std::time::Duration;

use futures_util::StreamExt;
use stelia_api::{BUS_NAME, MANAGER_PATH};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Interval, interval};
use zbus::message::{Message, Type};
use zbus::{Connection, MatchRule, MessageStream, fdo};

use super::failure::Failure;
use crate::shared::output;

/// Signals that may be queued while the reader of standard output is slow.
const MAX_QUEUED_SIGNALS: usize = 4096;
/// How often the program checks whether standard output still has a reader.
const READER_POLL_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) enum Received {
    /// The daemon's name appeared on the bus, or vanished.
    Daemon {
        runs: bool,
    },
    Signal(Message),
}

/// A subscription.
pub(crate) struct Signals {
    messages: MessageStream,
    owner: Option<String>,
}

impl Signals {
    /// Subscribes. The daemon is not started for it.
    pub(crate) async fn subscribe(connection: &Connection) -> Result<Self, Failure> {
        // One stream for all messages keeps their order, so that the daemon's end comes after its last signals.
        let mut messages = MessageStream::from(connection);
        messages.set_max_queued(NonZeroUsize::new(MAX_QUEUED_SIGNALS).unwrap_or(NonZeroUsize::MIN));
        let bus = fdo::DBusProxy::new(connection).await?;
        let signals = || MatchRule::builder().msg_type(Type::Signal);
        let daemon = signals().sender(BUS_NAME).path_namespace(MANAGER_PATH);
        let owner = signals().sender("org.freedesktop.DBus").member("NameOwnerChanged");
        for rule in [daemon, owner.add_arg(BUS_NAME)] {
            bus.add_match_rule(rule.build()?).await?;
        }
        let owner = match bus.get_name_owner(BUS_NAME.try_into()?).await {
            Err(fdo::Error::NameHasNoOwner(_)) => None,
            owner => Some(owner?.to_string()),
        };
        Ok(Self { messages, owner })
    }

    pub(crate) fn runs(&self) -> bool {
        self.owner.is_some()
    }

    /// The next signal; `None` when the connection ended. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Received> {
        loop {
            let Some(Ok(message)) = self.messages.next().await else {
                return None;
            };
            // The replies to this program's own calls come here too.
            if message.message_type() != Type::Signal {
                continue;
            }
            if let Some(new) = new_owner(&message) {
                self.owner = new;
                return Some(Received::Daemon { runs: self.runs() });
            }
            let sender = message.header().sender().map(ToString::to_string);
            if sender == self.owner {
                return Some(Received::Signal(message));
            }
        }
    }
}

/// The end of a command that runs until interrupted: a signal, or standard output without a reader.
pub(crate) struct End {
    interrupt: Signal,
    terminate: Signal,
    reader_poll: Interval,
}

impl End {
    pub(crate) fn new() -> Result<Self, Failure> {
        Ok(Self {
            interrupt: catch(SignalKind::interrupt())?,
            terminate: catch(SignalKind::terminate())?,
            reader_poll: interval(READER_POLL_INTERVAL),
        })
    }

    /// Returns when the command is to end. Cancel-safe.
    pub(crate) async fn reached(&mut self) {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => return,
                _ = self.terminate.recv() => return,
                _ = self.reader_poll.tick() => if !is_read() { return },
            }
        }
    }
}

pub(crate) fn catch(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::Other(format!("catch signals: {error}")))
}

/// Whether standard output still has a reader; the kernel reports that of a pipe at once.
fn is_read() -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let stdout = std::io::stdout();
    let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
    let now = Timespec::default();
    let answered = poll(&mut fds, Some(&now)).is_ok();
    !(answered && fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP))
}

/// Prints a text at once; returns whether standard output still has a reader.
pub(crate) fn print(text: &str) -> Result<bool, Failure> {
    output::write(text).map_err(|error| Failure::Other(format!("write: {error}")))
}

/// The owner of the daemon's name after a NameOwnerChanged of the bus itself; `Some(None)`: the name has no owner.
fn new_owner(message: &Message) -> Option<Option<String>> {
    // Any peer may send a signal of that name to this connection; only the bus has this sender.
    if message.header().sender()?.as_str() != "org.freedesktop.DBus" {
        return None;
    }
    let signal = fdo::NameOwnerChanged::from_message(message.clone())?;
    let arguments = signal.args().ok()?;
    let owner = arguments.new_owner().as_ref().map(ToString::to_string);
    (arguments.name().as_str() == BUS_NAME).then_some(owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_bus_tells_who_owns_the_name() {
        let signal = |sender: &str| {
            let builder = Message::signal("/org/freedesktop/DBus", "org.freedesktop.DBus", "NameOwnerChanged");
            let builder = builder.sender(sender);
            builder.build(&(BUS_NAME, ":1.5", "")).unwrap()
        };
        assert_eq!(new_owner(&signal("org.freedesktop.DBus")), Some(None));
        assert_eq!(new_owner(&signal(":1.66")), None);
    }
}
