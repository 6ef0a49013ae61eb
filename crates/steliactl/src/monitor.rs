//! `monitor`: the daemon's signals as they come, one per line.

use std::time::Duration;

use serde_json::{Map, Value};
use stelia_api::{MANAGER_PATH, instance_uid};
use tokio::signal::unix::SignalKind;
use zbus::message::Message;
use zbus::{Connection, fdo};

use super::cli::Json;
use super::client::Failure;
use super::signals::{self, Signals, is_read, until};
use super::view;

/// How often it is checked whether standard output still has a reader.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// The daemon's name appeared on the bus, or vanished.
    Daemon {
        runs: bool,
    },
    New {
        pod: String,
    },
    /// The instance was deregistered, or its VM ended.
    Removed {
        pod: String,
    },
    Changed {
        /// `None`: a property of the Manager.
        pod: Option<String>,
        /// New values by name.
        properties: Map<String, Value>,
    },
}

impl Event {
    /// The event of a signal; `None` for signals of other objects and interfaces.
    fn of(message: &Message) -> Option<Self> {
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
            // Values with blanks are quoted, so that a line can be split again.
            if value.is_empty() || value.contains([' ', '"']) {
                line += &format!(" {property}={value:?}");
            } else {
                line += &format!(" {property}={value}");
            }
        }
        view::printable(&line)
    }
}

/// Prints a line at once; returns whether standard output still has a reader.
fn print(event: &Event, json: Json) -> Result<bool, Failure> {
    signals::print(&(event.line(view::now(), json) + "\n"))
}

/// Prints events until interrupted, or until standard output has no reader. The daemon is not started for it.
///
/// # Errors
/// The connection ended, or standard output cannot be written.
pub(crate) async fn run(connection: &Connection, json: Json) -> Result<String, Failure> {
    let mut signals = Signals::subscribe(connection).await?;
    let mut interrupt = until(SignalKind::interrupt())?;
    let mut terminate = until(SignalKind::terminate())?;
    if !print(&Event::Daemon { runs: signals.runs() }, json)? {
        return Ok(String::new());
    }
    let mut look = tokio::time::interval(LOOK);
    loop {
        let event = tokio::select! {
            _ = interrupt.recv() => return Ok(String::new()),
            _ = terminate.recv() => return Ok(String::new()),
            _ = look.tick() => {
                if is_read() { continue } else { return Ok(String::new()) }
            }
            event = signals.next() => event,
        };
        let event = match event {
            Some(signals::Received::Daemon { runs }) => Some(Event::Daemon { runs }),
            Some(signals::Received::Signal(message)) => Event::of(&message),
            None => {
                print(&Event::Daemon { runs: false }, json)?;
                return Err(Failure::Other("the connection ended".to_owned()));
            }
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
}
