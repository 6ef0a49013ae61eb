//! `monitor`: the daemon's signals as they come, one per line.

use serde_json::{Map, Value};
use stelia_api::{MANAGER_PATH, instance_uid};
use zbus::fdo;
use zbus::message::Message;

use crate::shared::daemon::signals::{self, End, Signals};
use crate::shared::daemon::{Client, Failure, Pod, Pods, Selection};
use crate::shared::output::{self, Form, text_of, texts_of};

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
                    .map(|(name, value)| (name.to_string(), output::json(value)))
                    .collect();
                let pod = instance_uid(path);
                (path == MANAGER_PATH || pod.is_some()).then_some(Event::Changed { pod, properties })
            }
            _ => None,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Event::Daemon { runs: true } => "DaemonAppeared",
            Event::Daemon { runs: false } => "DaemonVanished",
            Event::New { .. } => "InstanceNew",
            Event::Removed { .. } => "InstanceRemoved",
            Event::Changed { .. } => "PropertiesChanged",
        }
    }

    /// The pod whose event it is.
    fn pod(&self) -> Option<&str> {
        match self {
            Event::New { pod } | Event::Removed { pod } => Some(pod),
            Event::Changed { pod, .. } => pod.as_deref(),
            Event::Daemon { .. } => None,
        }
    }

    /// One line, or a document of YAML, with its end; `time` is microseconds since the epoch.
    fn written(&self, time: u64, form: Form, pods: &Pods) -> Result<String, Failure> {
        let name = self.name();
        let changed = match self {
            Event::Changed { properties, .. } => Some(properties),
            _ => None,
        };
        let pod = self.pod().map(|uid| pods.get(uid));
        if !form.is_data() {
            return Ok(line(time, name, pod.as_ref(), changed));
        }
        let mut object = Map::new();
        object.insert("time_us".to_owned(), time.into());
        object.insert("event".to_owned(), name.into());
        object.extend(pod.iter().flat_map(Pod::members));
        if let Some(changed) = changed {
            object.insert("properties".to_owned(), output::snake_case(changed).into());
        }
        let form = if form == Form::Yaml { form } else { Form::JsonLine };
        Ok(form.divider().to_owned() + &form.write(&object)?)
    }
}

fn line(time: u64, name: &str, pod: Option<&Pod>, changed: Option<&Map<String, Value>>) -> String {
    let pod = pod.map_or_else(|| "-".to_owned(), Pod::to_string);
    let mut line = format!("{} {pod} {name}", output::time(time));
    for (property, value) in changed.into_iter().flatten() {
        let value = output::human(value);
        // Values with blanks are quoted, so that a line can be split again.
        if value.is_empty() || value.contains([' ', '"']) {
            line += &format!(" {property}={value:?}");
        } else {
            line += &format!(" {property}={value}");
        }
    }
    output::printable(&line) + "\n"
}

/// Prints events as they come.
struct Printer<'a> {
    client: &'a Client,
    selection: &'a Selection,
    form: Form,
    /// The pods of all instances listed so far: an instance that ended has no object to ask.
    pods: Pods,
}

impl Printer<'_> {
    /// Prints an event at once; returns whether standard output still has a reader.
    async fn print(&mut self, event: &Event) -> Result<bool, Failure> {
        let known = event.pod().is_none_or(|uid| self.pods.has(uid));
        let runs = !matches!(event, Event::Daemon { runs: false });
        if runs && (!known || matches!(event, Event::Daemon { .. })) {
            self.pods.add(self.client.pods_running().await);
        }
        if !selects(self.selection, event, &self.pods) {
            return Ok(true);
        }
        signals::print(&event.written(output::now(), self.form, &self.pods)?)
    }
}

/// Whether an event is of a selected VM. With states only its changes to them are; of the daemon's own events all are.
fn selects(selection: &Selection, event: &Event, pods: &Pods) -> bool {
    if selection.is_all() || matches!(event, Event::Daemon { .. }) {
        return true;
    }
    let Some(uid) = event.pod() else {
        return false;
    };
    let to_state = || {
        let Event::Changed { properties, .. } = event else {
            return false;
        };
        let degraded = texts_of(properties, "Degraded").next().is_some();
        selection.has_state(text_of(properties, "State"), degraded)
    };
    selection.has(&pods.get(uid), pods.iter()) && (!selection.names_states() || to_state())
}

/// Whether a VM of the node is selected, whatever its state, or every VM is.
fn selects_any(selection: &Selection, pods: &Pods) -> bool {
    selection.is_all() || pods.iter().any(|pod| selection.has(pod, pods.iter()))
}

/// Why no event of a VM can come yet. That the daemon is absent is an event too, but its name tells only that it vanished.
fn awaited(runs: bool, fits: bool) -> Option<&'static str> {
    match (runs, fits) {
        (false, _) => Some("steliad does not run: waiting until it does (systemctl start steliad)"),
        (true, false) => Some("no VM on this node fits yet: waiting for one"),
        (true, true) => None,
    }
}

/// Prints events until interrupted, or until standard output has no reader. The daemon is not started for it.
///
/// # Errors
/// The connection ended, or standard output cannot be written.
pub(crate) async fn run(client: &Client, selection: &Selection, form: Form) -> Result<String, Failure> {
    let mut signals = Signals::subscribe(client.connection()).await?;
    let mut end = End::new()?;
    let mut printer = Printer {
        client,
        selection,
        form,
        pods: Pods::default(),
    };
    if !printer.print(&Event::Daemon { runs: signals.runs() }).await? {
        return Ok(String::new());
    }
    if let Some(awaited) = awaited(signals.runs(), selects_any(selection, &printer.pods)) {
        output::note(awaited);
    }
    loop {
        let event = tokio::select! {
            () = end.reached() => return Ok(String::new()),
            event = signals.next() => event,
        };
        let event = match event {
            Some(signals::Received::Daemon { runs }) => Some(Event::Daemon { runs }),
            Some(signals::Received::Signal(message)) => Event::of(&message),
            None => {
                printer.print(&Event::Daemon { runs: false }).await?;
                return Err(Failure::Other("the connection ended".to_owned()));
            }
        };
        if let Some(event) = event
            && !printer.print(&event).await?
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
    fn every_event_is_explained() {
        let pod = "aaa".to_owned();
        let all = [
            Event::Daemon { runs: true },
            Event::Daemon { runs: false },
            Event::New { pod: pod.clone() },
            Event::Removed { pod },
            changed(OBJECT, &[]).unwrap(),
        ];
        assert_eq!(
            output::manual::explained("EVENTS", None),
            all.each_ref().map(Event::name)
        );
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
            event
                .unwrap()
                .written(951_827_696_000_007, Form::Text, &Pods::default())
                .unwrap(),
            "2000-02-29T12:34:56.000007Z aaa PropertiesChanged Degraded=\"CPU 2 is offline\\u{1b}[2J\" FloatCPUs=\"\" State=floating\n"
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
            event
                .written(951_827_696_000_007, Form::Json, &Pods::default())
                .unwrap(),
            concat!(
                r#"{"event":"InstanceNew","pod_name":"","pod_namespace":"","pod_uid":"aaa","time_us":951827696000007}"#,
                "\n"
            )
        );
    }

    #[test]
    fn only_events_of_selected_vms_are_printed() {
        use clap::Parser;
        let selection =
            |line: &[&str]| match crate::cli::Cli::parse_from([&["steliactl", "monitor"], line].concat()).command {
                Some(crate::cli::Command::Monitor(selection)) => selection,
                other => panic!("{other:?}"),
            };
        let pods: Pods = [Pod::unnamed("aaa"), Pod::unnamed("bbb")].into_iter().collect();
        let event = changed(OBJECT, &[("State", Variant::from("floating"))]).unwrap();
        let selected = |line: &[&str], event: &Event| selects(&selection(line), event, &pods);
        for line in [&[][..], &["aaa"], &["a*"], &["--state=floating,leaving"]] {
            assert!(selected(line, &event), "{line:?}");
        }
        for line in [&["bbb"][..], &["-n", "team-a"], &["--state=isolated"]] {
            assert!(!selected(line, &event), "{line:?}");
        }
        assert!(selected(&["bbb"], &Event::Daemon { runs: true }));
        for (line, any) in [
            (&[][..], true),
            (&["b*"][..], true),
            (&["--state=leaving"][..], true),
            (&["nope"][..], false),
        ] {
            assert_eq!(selects_any(&selection(line), &pods), any, "{line:?}");
        }
        assert!(!selected(&["bbb"], &changed(MANAGER_PATH, &[]).unwrap()));
    }

    #[test]
    fn what_is_waited_for_is_named() {
        for fits in [true, false] {
            let message = awaited(false, fits).unwrap();
            assert!(message.starts_with("steliad does not run: waiting"), "{message}");
        }
        assert!(awaited(true, false).unwrap().contains("no VM on this node fits yet"));
        assert_eq!(awaited(true, true), None);
    }

    #[test]
    fn what_the_daemon_does_not_say_is_no_event() {
        assert_eq!(changed("/org/example", &[]), None);
        let message = Message::signal(MANAGER_PATH, "org.example.Other", "InstanceNew");
        assert_eq!(Event::of(&message.build(&("aaa",)).unwrap()), None);
    }
}
