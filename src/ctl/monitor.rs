//! `monitor`: what the daemon tells, a line each, as it happens.

use std::io::{self, ErrorKind, Write};
use std::time::Duration;

use futures_util::StreamExt;
use serde_json::{Map, Value};
use tokio::signal::unix::{Signal, SignalKind, signal};
use zbus::message::{Message, Type};
use zbus::{Connection, MatchRule, MessageStream, fdo};

use super::cli::Json;
use super::client::Failure;
use super::view;
use crate::dbus::{BUS_NAME, MANAGER_PATH, instance_uid};

/// Signals that may wait while the reader of standard output is slow.
const QUEUE: usize = 4096;
/// How often it is looked whether somebody still reads.
const LOOK: Duration = Duration::from_secs(1);

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The daemon is on the bus, or not any more.
    Daemon {
        /// Whether it is.
        runs: bool,
    },
    /// An instance was registered.
    New {
        /// Its pod.
        pod: String,
    },
    /// An instance left or died.
    Removed {
        /// Its pod.
        pod: String,
    },
    /// Properties have new values.
    Changed {
        /// The instance's pod; `None`: the node's own.
        pod: Option<String>,
        /// The properties by name.
        properties: Map<String, Value>,
    },
}

impl Event {
    /// Of a signal; `None` for one that tells nothing here.
    fn of(message: &Message) -> Option<Self> {
        if message.message_type() != Type::Signal {
            return None;
        }
        let header = message.header();
        let (interface, member) = (header.interface()?.as_str(), header.member()?.as_str());
        match (interface, member) {
            ("io.stelia.Isolation1.Manager", "InstanceNew" | "InstanceRemoved") => {
                let (pod, _): (String, zbus::OwnedObjectPath) = message.body().deserialize().ok()?;
                Some(match member {
                    "InstanceNew" => Event::New { pod },
                    _ => Event::Removed { pod },
                })
            }
            ("org.freedesktop.DBus.Properties", "PropertiesChanged") => {
                let path = header.path()?.as_str();
                let signal = fdo::PropertiesChanged::from_message(message.clone())?;
                let arguments = signal.args().ok()?;
                let changed = arguments.changed_properties().iter();
                let properties: Map<_, _> = changed
                    .map(|(name, value)| (name.to_string(), view::json(value)))
                    .collect();
                let pod = instance_uid(path);
                (path == MANAGER_PATH || pod.is_some()).then_some(Event::Changed { pod, properties })
            }
            _ => None,
        }
    }

    /// One line, without its end; `time` is microseconds since the epoch.
    fn line(&self, time: u64, json: Json) -> String {
        let (name, pod, changed) = match self {
            Event::Daemon { runs: true } => ("DaemonAppeared", None, None),
            Event::Daemon { runs: false } => ("DaemonVanished", None, None),
            Event::New { pod } => ("InstanceNew", Some(pod), None),
            Event::Removed { pod } => ("InstanceRemoved", Some(pod), None),
            Event::Changed { pod, properties } => ("PropertiesChanged", pod.as_ref(), Some(properties)),
        };
        let time = view::time(time);
        if json.is_on() {
            let mut object = Map::new();
            object.insert("Time".to_owned(), time.into());
            object.insert("Event".to_owned(), name.into());
            if let Some(pod) = pod {
                object.insert("PodUID".to_owned(), pod.as_str().into());
            }
            if let Some(changed) = changed {
                object.insert("Properties".to_owned(), changed.clone().into());
            }
            return Value::Object(object).to_string();
        }
        let mut line = format!("{time} {} {name}", pod.map_or("-", |pod| pod.as_str()));
        for (property, value) in changed.into_iter().flatten() {
            let value = view::human(value);
            // What holds blanks is quoted, so that a line can be taken apart again.
            if value.is_empty() || value.contains([' ', '"']) {
                line += &format!(" {property}={value:?}");
            } else {
                line += &format!(" {property}={value}");
            }
        }
        view::printable(&line)
    }
}

/// Whether somebody reads standard output; of a pipe the kernel tells at once.
fn is_read() -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let stdout = io::stdout();
    let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
    let now = Timespec::default();
    match poll(&mut fds, Some(&now)) {
        Ok(_) => fds
            .iter()
            .all(|fd| !fd.revents().intersects(PollFlags::ERR | PollFlags::HUP)),
        Err(_) => true,
    }
}

/// Prints a line at once; whether somebody still reads.
fn print(event: &Event, json: Json) -> Result<bool, Failure> {
    let line = event.line(view::now(), json) + "\n";
    let mut out = io::stdout();
    match out.write_all(line.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::Other(format!("write: {error}"))),
    }
}

/// The signals that end what runs until interrupted.
pub(super) fn until(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::Other(format!("catch signals: {error}")))
}

/// Subscribes; answers who owns the daemon's name. On a peer-to-peer connection there is nobody else.
async fn subscribe(connection: &Connection) -> Result<Option<String>, Failure> {
    let bus = fdo::DBusProxy::new(connection).await?;
    let signals = || MatchRule::builder().msg_type(Type::Signal);
    let daemon = signals().sender(BUS_NAME).path_namespace(MANAGER_PATH);
    let owner = signals().sender("org.freedesktop.DBus").member("NameOwnerChanged");
    for rule in [daemon, owner.add_arg(BUS_NAME)] {
        bus.add_match_rule(rule.build()?).await?;
    }
    match bus.get_name_owner(BUS_NAME.try_into()?).await {
        Ok(owner) => Ok(Some(owner.to_string())),
        Err(fdo::Error::NameHasNoOwner(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The owner of the daemon's name after a NameOwnerChanged of the bus itself: `Some(None)` is nobody.
fn new_owner(message: &Message) -> Option<Option<String>> {
    // Anybody may send a signal of that name to this connection; only the bus has this sender.
    if message.header().sender()?.as_str() != "org.freedesktop.DBus" {
        return None;
    }
    let signal = fdo::NameOwnerChanged::from_message(message.clone())?;
    let arguments = signal.args().ok()?;
    let owner = arguments.new_owner().as_ref().map(ToString::to_string);
    (arguments.name().as_str() == BUS_NAME).then_some(owner)
}

/// Prints events until it is interrupted or nobody reads any more. The daemon is not started for it.
///
/// # Errors
/// The connection ended, or standard output cannot be written.
pub async fn run(connection: &Connection, json: Json) -> Result<String, Failure> {
    // All messages in their order, so that the daemon's end comes after what it told before.
    let mut messages = MessageStream::from(connection);
    messages.set_max_queued(std::num::NonZeroUsize::new(QUEUE).unwrap_or(std::num::NonZeroUsize::MIN));
    let mut interrupt = until(SignalKind::interrupt())?;
    let mut terminate = until(SignalKind::terminate())?;
    let mut owner = None;
    if connection.is_bus() {
        owner = subscribe(connection).await?;
    }
    let runs = owner.is_some() || !connection.is_bus();
    if !print(&Event::Daemon { runs }, json)? {
        return Ok(String::new());
    }
    let mut look = tokio::time::interval(LOOK);
    loop {
        let message = tokio::select! {
            _ = interrupt.recv() => return Ok(String::new()),
            _ = terminate.recv() => return Ok(String::new()),
            _ = look.tick() => {
                if is_read() { continue } else { return Ok(String::new()) }
            }
            message = messages.next() => message,
        };
        let Some(Ok(message)) = message else {
            print(&Event::Daemon { runs: false }, json)?;
            return Err(Failure::Other("the connection ended".to_owned()));
        };
        let event = if let Some(new) = new_owner(&message) {
            owner = new;
            Some(Event::Daemon { runs: owner.is_some() })
        } else if connection.is_bus() && message.header().sender().map(|sender| sender.as_str()) != owner.as_deref() {
            None
        } else {
            Event::of(&message)
        };
        if let Some(event) = event
            && !print(&event, json)?
        {
            return Ok(String::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use zbus::Variant;

    use super::*;

    const OBJECT: &str = "/io/stelia/Isolation1/instance/aaa";

    fn changed(path: &str, properties: &[(&str, Variant<'_>)]) -> Option<Event> {
        let properties: HashMap<&str, &Variant<'_>> = properties.iter().map(|(name, value)| (*name, value)).collect();
        let none: [&str; 0] = [];
        let message = Message::signal(path, "org.freedesktop.DBus.Properties", "PropertiesChanged")
            .build(&("io.stelia.Isolation1.Instance", properties, &none[..]))
            .unwrap();
        Event::of(&message)
    }

    #[test]
    fn a_change_is_one_line_that_can_be_taken_apart() {
        let event = changed(
            OBJECT,
            &[
                ("State", Variant::from("floating")),
                ("Degraded", Variant::from(vec!["CPU 2 is offline\x1b[2J"])),
                ("FloatCPUs", Variant::from("")),
            ],
        );
        assert_eq!(
            event.unwrap().line(951_827_696_000_007, Json::Off),
            "2000-02-29T12:34:56.000007Z aaa PropertiesChanged Degraded=\"CPU 2 is offline\\u{1b}[2J\" FloatCPUs=\"\" State=floating"
        );
    }

    #[test]
    fn an_instance_that_comes_is_one_json_object_on_one_line() {
        let message = Message::signal(MANAGER_PATH, "io.stelia.Isolation1.Manager", "InstanceNew")
            .build(&("aaa", zbus::ObjectPath::try_from(OBJECT).unwrap()))
            .unwrap();
        let event = Event::of(&message).unwrap();
        assert_eq!(event, Event::New { pod: "aaa".to_owned() });
        assert_eq!(
            event.line(951_827_696_000_007, Json::Pretty),
            r#"{"Event":"InstanceNew","PodUID":"aaa","Time":"2000-02-29T12:34:56.000007Z"}"#
        );
    }

    #[test]
    fn what_the_daemon_does_not_say_is_no_event() {
        assert_eq!(changed("/org/example", &[]), None);
        let message = Message::signal(MANAGER_PATH, "org.example.Other", "InstanceNew");
        assert_eq!(Event::of(&message.build(&("aaa",)).unwrap()), None);
    }

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
