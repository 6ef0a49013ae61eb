//! `monitor`: the daemon's signals as they come, one per line.

use serde_json::{Map, Value};
use stelia_api::{MANAGER_PATH, Reason, instance_uid};
use zbus::fdo;
use zbus::message::Message;

use crate::shared::daemon::signals::{self, End, Received, Signals};
use crate::shared::daemon::{Client, Failure, Pod, Pods, Selection, fact, reason_of};
use crate::shared::output::{self, Form, json, text_of};

#[derive(Debug, Clone, PartialEq, Eq)]
enum Event {
    /// The daemon's name appeared on the bus, or vanished.
    Daemon {
        runs: bool,
    },
    New {
        pod: String,
    },
    /// The VM was released, or ended.
    Removed {
        pod: String,
    },
    Changed {
        /// `None`: a property of the Manager.
        pod: Option<String>,
        /// New values by name.
        properties: Map<String, Value>,
    },
    ProblemFound(Reason),
    /// No problem of the node has this code any more.
    ProblemOver(String),
}

impl Event {
    /// The event of a signal; `None` for signals of other objects and interfaces.
    fn of(message: &Message) -> Option<Self> {
        let header = message.header();
        let (interface, member) = (header.interface()?.as_str(), header.member()?.as_str());
        let body = message.body();
        match (interface, member) {
            ("io.stelia.Isolation1.Manager", "InstanceNew" | "InstanceRemoved") => {
                let (pod, _): (String, zbus::OwnedObjectPath) = body.deserialize().ok()?;
                Some(match member {
                    "InstanceNew" => Self::New { pod },
                    _ => Self::Removed { pod },
                })
            }
            ("io.stelia.Isolation1.Manager", "NodeProblemFound") => {
                let row: (String, String, String) = body.deserialize().ok()?;
                Some(Self::ProblemFound(reason_of(&serde_json::to_value(row).ok()?)?))
            }
            ("io.stelia.Isolation1.Manager", "NodeProblemOver") => Some(Self::ProblemOver(body.deserialize().ok()?)),
            ("org.freedesktop.DBus.Properties", "PropertiesChanged") => {
                let path = header.path()?.as_str();
                let signal = fdo::PropertiesChanged::from_message(message.clone())?;
                let arguments = signal.args().ok()?;
                let changed = arguments.changed_properties().iter();
                let properties = changed.map(|(name, value)| (name.to_string(), json(value))).collect();
                let pod = instance_uid(path);
                (path == MANAGER_PATH || pod.is_some()).then_some(Self::Changed { pod, properties })
            }
            _ => None,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Daemon { runs: true } => "DaemonAppeared",
            Self::Daemon { runs: false } => "DaemonVanished",
            Self::New { .. } => "InstanceNew",
            Self::Removed { .. } => "InstanceRemoved",
            Self::Changed { .. } => "PropertiesChanged",
            Self::ProblemFound(_) => "NodeProblemFound",
            Self::ProblemOver(_) => "NodeProblemOver",
        }
    }

    /// The pod whose event it is.
    fn pod(&self) -> Option<&str> {
        match self {
            Self::New { pod } | Self::Removed { pod } => Some(pod),
            Self::Changed { pod, .. } => pod.as_deref(),
            Self::Daemon { .. } | Self::ProblemFound(_) | Self::ProblemOver(_) => None,
        }
    }

    /// What happened; empty where other events say it.
    fn what(&self) -> String {
        match self {
            Self::Daemon { runs: true } => "steliad is running".to_owned(),
            Self::Daemon { runs: false } => "steliad is not running: running VMs stay isolated".to_owned(),
            Self::New { .. } => "registered".to_owned(),
            Self::Removed { .. } => "released, or ended".to_owned(),
            Self::ProblemFound(problem) => fact(problem),
            Self::ProblemOver(code) => format!("over: {code}"),
            Self::Changed { properties, .. } => {
                let parts = properties.iter().filter_map(|(name, value)| changed(name, value));
                parts.collect::<Vec<_>>().join(", ")
            }
        }
    }

    /// One line, or a document of YAML, with its end; `time` is microseconds since the epoch. `None`: it is no line of text.
    fn written(&self, time: u64, form: Form, pods: &Pods) -> Result<Option<String>, Failure> {
        let pod = self.pod().map(|uid| pods.get(uid));
        if !form.is_data() {
            let clock = output::time(time).get(11..19).unwrap_or_default().to_owned();
            let whose = pod.as_ref().map_or_else(|| "node".to_owned(), Pod::to_string);
            let what = Some(self.what()).filter(|what| !what.is_empty());
            return Ok(what.map(|what| output::printable(&format!("{clock}  {whose}  {what}")) + "\n"));
        }
        let mut object = Map::new();
        object.insert("time_us".to_owned(), time.into());
        object.insert("event".to_owned(), self.name().into());
        object.extend(pod.iter().flat_map(Pod::members));
        match self {
            Self::Changed { properties, .. } => {
                object.insert("properties".to_owned(), output::snake_case(properties).into());
            }
            Self::ProblemFound(problem) => {
                object.insert("problem".to_owned(), serde_json::json!(problem));
            }
            Self::ProblemOver(code) => {
                object.insert("code".to_owned(), code.as_str().into());
            }
            _ => {}
        }
        let form = if form == Form::Yaml { form } else { Form::JsonLine };
        Ok(Some(form.divider().to_owned() + &form.write(&object)?))
    }
}

/// A changed property in words; `None` where another event or property says the same.
fn changed(name: &str, value: &Value) -> Option<String> {
    let reasons = || value.as_array().into_iter().flatten().filter_map(reason_of);
    let texts = || reasons().map(|reason| reason.text).collect::<Vec<_>>().join("; ");
    Some(match name {
        "State" => output::human(value),
        "Degraded" => match texts() {
            none if none.is_empty() => "no longer degraded".to_owned(),
            texts => format!("degraded: {texts}"),
        },
        "NotIsolated" => Some(texts()).filter(|texts| !texts.is_empty())?,
        "ExclusiveCPUs" => format!("CPUs {}", output::or_dash(&output::human(value))),
        "NodeProblems" | "AdmissionProblem" | "IsolatedTimestamp" | "VCPUs" => return None,
        _ => format!("{name} {}", output::or_dash(&output::human(value))),
    })
}

/// Prints events as they come.
struct Printer<'a> {
    client: &'a Client,
    selection: &'a Selection,
    form: Form,
    /// The pods of all VMs so far: one that ended has no object to ask.
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
        match event.written(output::now(), self.form, &self.pods)? {
            Some(text) => signals::print(&text),
            None => Ok(true),
        }
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
        let degraded = properties.get("Degraded").and_then(Value::as_array);
        selection.has_state(
            text_of(properties, "State"),
            degraded.is_some_and(|all| !all.is_empty()),
        )
    };
    selection.has(&pods.get(uid), pods.iter()) && (!selection.names_states() || to_state())
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
    let pods = &printer.pods;
    if signals.runs() && !selection.is_all() && !pods.iter().any(|pod| selection.has(pod, pods.iter())) {
        output::note("no VM on this node fits yet: waiting for one");
    }
    loop {
        let received = tokio::select! {
            () = end.reached() => return Ok(String::new()),
            received = signals.next() => received,
        };
        let event = match received {
            Some(Received::Daemon { runs }) => Some(Event::Daemon { runs }),
            Some(Received::Signal(message)) => Event::of(&message),
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
    const TIME: u64 = 951_827_696_000_007;

    fn changed(path: &str, properties: &[(&str, Variant<'_>)]) -> Option<Event> {
        let properties: HashMap<&str, &Variant<'_>> = properties.iter().map(|(name, value)| (*name, value)).collect();
        let none: [&str; 0] = [];
        let message = Message::signal(path, "org.freedesktop.DBus.Properties", "PropertiesChanged")
            .build(&("io.stelia.Isolation1.Instance", properties, &none[..]))
            .unwrap();
        Event::of(&message)
    }

    fn of_manager(member: &str, body: &(impl serde::Serialize + zbus::DynamicType)) -> Option<Event> {
        let message = Message::signal(MANAGER_PATH, "io.stelia.Isolation1.Manager", member);
        Event::of(&message.build(body).unwrap())
    }

    fn text(event: Option<Event>) -> Option<String> {
        let pods = [crate::tests::fixtures::pod("aaa", "team-a/web")].into_iter().collect();
        event.unwrap().written(TIME, Form::Text, &pods).unwrap()
    }

    #[test]
    fn an_event_is_one_line_in_words() {
        let degraded = vec![("cpus-offline", "CPU 2 is offline\x1b[2J", "fix")];
        let gone: Vec<(&str, &str, &str)> = Vec::new();
        let lines = [
            changed(OBJECT, &[("State", Variant::from("isolated"))]),
            changed(
                OBJECT,
                &[
                    ("Degraded", Variant::from(degraded)),
                    ("FloatCPUs", Variant::from("0-1")),
                ],
            ),
            changed(OBJECT, &[("Degraded", Variant::from(gone))]),
            of_manager("NodeProblemFound", &("kubelet-unusable", "the file is empty", "fix")),
            of_manager("NodeProblemOver", &("kubelet-unusable",)),
            Some(Event::Daemon { runs: false }),
        ];
        let lines: Vec<String> = lines.into_iter().filter_map(text).collect();
        insta::assert_snapshot!(lines.concat(), @r"
        12:34:56  team-a/web  isolated
        12:34:56  team-a/web  degraded: CPU 2 is offline?[2J, FloatCPUs 0-1
        12:34:56  team-a/web  no longer degraded
        12:34:56  node  the file is empty: no new VMs; running VMs keep their CPUs
        12:34:56  node  over: kubelet-unusable
        12:34:56  node  steliad is not running: running VMs stay isolated
        ");
        // A problem of the node is an event of its own.
        assert_eq!(
            text(changed(MANAGER_PATH, &[("AdmissionProblem", Variant::from("x"))])),
            None
        );
    }

    #[test]
    fn json_is_one_object_a_line() {
        let path = zbus::ObjectPath::try_from(OBJECT).unwrap();
        let new = of_manager("InstanceNew", &("aaa", path)).unwrap();
        let written = |event: Event| event.written(TIME, Form::Json, &Pods::default()).unwrap();
        assert_eq!(
            written(new).as_deref(),
            Some(concat!(
                r#"{"event":"InstanceNew","pod_name":"","pod_namespace":"","pod_uid":"aaa","time_us":951827696000007}"#,
                "\n"
            ))
        );
        let found = of_manager("NodeProblemFound", &("not-watched", "no watch is left", "fix")).unwrap();
        let found: Value = serde_json::from_str(&written(found).unwrap()).unwrap();
        assert_eq!(
            (&found["problem"]["code"], &found["problem"]["fix"]),
            (&"not-watched".into(), &"fix".into())
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
        let event = changed(OBJECT, &[("State", Variant::from("waiting"))]).unwrap();
        let selected = |line: &[&str], event: &Event| selects(&selection(line), event, &pods);
        for line in [&[][..], &["aaa"], &["a*"], &["--state=waiting,releasing"]] {
            assert!(selected(line, &event), "{line:?}");
        }
        for line in [&["bbb"][..], &["-n", "team-a"], &["--state=isolated"]] {
            assert!(!selected(line, &event), "{line:?}");
        }
        assert!(selected(&["bbb"], &Event::Daemon { runs: true }));
        assert!(!selected(&["bbb"], &changed(MANAGER_PATH, &[]).unwrap()));
    }

    #[test]
    fn what_the_daemon_does_not_say_is_no_event() {
        assert_eq!(changed("/org/example", &[]), None);
        let message = Message::signal(MANAGER_PATH, "org.example.Other", "InstanceNew");
        assert_eq!(Event::of(&message.build(&("aaa",)).unwrap()), None);
        // A newer daemon has other codes.
        assert!(
            text(of_manager("NodeProblemFound", &("no-such-code", "x", "y")))
                .unwrap()
                .ends_with("node  x\n")
        );
    }
}
