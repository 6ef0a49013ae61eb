//! `monitor`: the daemon's signals as they come, one per line.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use stelia_api::reason::joined;
use stelia_api::{MANAGER_PATH, Reason, ReasonCode, instance_uid};
use zbus::fdo;
use zbus::message::Message;

use super::list::Vms;
use crate::shared::daemon::signals::{End, Received, Signals};
use crate::shared::daemon::{Client, Description, Failure, Pods, Selected, Selection, fact, reason_of};
use crate::shared::output::{self, Form, Meaning, OutputOptions, Render, facts, printable};

const APPEARED: &str = "DaemonAppeared";
const VANISHED: &str = "DaemonVanished";
const NEW: &str = "InstanceNew";
const REMOVED: &str = "InstanceRemoved";
const PROBLEM_FOUND: &str = "NodeProblemFound";
const PROBLEM_OVER: &str = "NodeProblemOver";
/// The interface whose signals are events.
const MANAGER: &str = "io.stelia.Isolation1.Manager";

/// What is known of VMs besides an event: one that ended has no object to ask, and no event tells what was wrong before.
#[derive(Default)]
struct Known {
    /// The pods of all VMs so far.
    pods: Pods,
    /// What was last said to be wrong with each, by UID.
    degraded: BTreeMap<String, Vec<Reason>>,
}

impl Known {
    /// Adds VMs; of those that are known already only events say what is wrong.
    fn add(&mut self, described: &Description) {
        self.pods.add(Pods::of_former(described));
        self.pods.add(Pods::of(described));
        for (uid, vm) in &described.node.instances {
            self.degraded
                .entry(uid.to_string())
                .or_insert_with(|| vm.degraded.clone());
        }
    }

    /// What an event says is wrong with its VM now.
    fn learn(&mut self, event: &Event) {
        if let Some((uid, now)) = event.pod.clone().zip(reasons(&event.json["properties"], "Degraded")) {
            self.degraded.insert(uid, now);
        }
    }
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Event {
    /// The pod whose event it is.
    pod: Option<String>,
    /// Its JSON object, without pod and time.
    json: Value,
}

impl Event {
    /// The daemon's name appeared on the bus, or vanished.
    fn daemon(runs: bool) -> Self {
        let json = json!({ "event": if runs { APPEARED } else { VANISHED } });
        Self { pod: None, json }
    }

    fn name(&self) -> &str {
        member(&self.json, "event")
    }

    /// The event of a signal; `None` for signals of other objects and interfaces.
    fn of(message: &Message) -> Option<Self> {
        let (header, body) = (message.header(), message.body());
        let name = header.member()?.as_str();
        let (pod, json) = match (header.interface()?.as_str(), name) {
            ("org.freedesktop.DBus.Properties", _) => {
                let path = header.path()?.as_str();
                let pod = instance_uid(path);
                if pod.is_none() && path != MANAGER_PATH {
                    return None;
                }
                let signal = fdo::PropertiesChanged::from_message(message.clone())?;
                let arguments = signal.args().ok()?;
                let changed = arguments.changed_properties().iter();
                let changed = changed.map(|(name, value)| (name.to_string(), output::json(value)));
                (
                    pod,
                    json!({ "event": name, "properties": changed.collect::<Map<_, _>>() }),
                )
            }
            (MANAGER, NEW | REMOVED) => {
                let (pod, _): (String, zbus::OwnedObjectPath) = body.deserialize().ok()?;
                (Some(pod), json!({ "event": name }))
            }
            (MANAGER, PROBLEM_FOUND) => {
                let row: (String, String, String) = body.deserialize().ok()?;
                (None, json!({ "event": name, "problem": reason_of(&json!(row))? }))
            }
            (MANAGER, PROBLEM_OVER) => {
                let code: String = body.deserialize().ok()?;
                (None, json!({ "event": name, "code": code }))
            }
            _ => return None,
        };
        Some(Self { pod, json })
    }

    /// What happened; empty where another event says it. `before`: what was wrong with the VM.
    fn words(&self, before: &[Reason]) -> String {
        match self.name() {
            APPEARED => "steliad is running".to_owned(),
            VANISHED => Failure::NotRunning.to_string(),
            NEW => "registered".to_owned(),
            REMOVED => "released or ended".to_owned(),
            PROBLEM_FOUND => {
                let problem = serde_json::from_value(self.json["problem"].clone());
                format!("problem: {}", problem.map_or(String::new(), |problem| fact(&problem)))
            }
            PROBLEM_OVER => {
                let code = member(&self.json, "code");
                let fact = ReasonCode::parse(code).map(ReasonCode::fact);
                over(fact.unwrap_or(code))
            }
            _ => changes(&self.json["properties"], before),
        }
    }

    /// With when it was, microseconds since the epoch, and whose it is: JSON on one line, or text, of which a narrow terminal has several.
    fn written(&self, time: u64, output: OutputOptions, known: &Known) -> Result<String, Failure> {
        let pod = self.pod.as_ref().map(|uid| known.pods.get(uid));
        if output.form.is_data() {
            let mut object = pod.map(|pod| pod.members()).unwrap_or_default();
            object.insert("time_us".to_owned(), time.into());
            object.extend(self.json.as_object().cloned().unwrap_or_default());
            return Ok(Form::JsonLine.write(&object)?);
        }
        let clock = output::time(time).get(11..19).unwrap_or_default().to_owned();
        let whose = pod.map_or_else(|| "node".to_owned(), |pod| pod.to_string());
        let label = printable(&format!("{clock}  {whose}"));
        let before = self.pod.as_ref().and_then(|uid| known.degraded.get(uid));
        let words = self.words(before.map_or(&[], Vec::as_slice));
        let line = Some((label, words, Meaning::Plain)).filter(|(_, words, _)| !words.is_empty());
        Ok(facts(line.as_slice(), output.style))
    }
}

/// A string; empty when it is absent or not a string.
fn member<'a>(object: &'a Value, name: &str) -> &'a str {
    object[name].as_str().unwrap_or_default()
}

/// That what was wrong is no longer so.
fn over(problem: &str) -> String {
    format!("the problem is over: {problem}")
}

/// Reasons in a property that changed; `None` where it did not.
fn reasons(properties: &Value, name: &str) -> Option<Vec<Reason>> {
    let rows = properties.get(name)?.as_array()?;
    Some(rows.iter().filter_map(reason_of).collect())
}

/// Properties that changed: of a VM the new state and why, what is wrong with it or was until now, and its CPUs.
fn changes(properties: &Value, before: &[Reason]) -> String {
    let now = reasons(properties, "Degraded");
    let has_ended = |now: &[Reason], one: &Reason| now.iter().all(|other| other.code != one.code);
    let ended = now
        .iter()
        .flat_map(|now| before.iter().filter(|one| has_ended(now, one)));
    let ended: Vec<Reason> = ended.cloned().collect();
    let cpus = Some(member(properties, "ExclusiveCPUs")).filter(|cpus| !cpus.is_empty());
    let words = [
        Some(member(properties, "State").to_owned()),
        reasons(properties, "NotIsolated").map(|reasons| joined(&reasons)),
        (!ended.is_empty()).then(|| over(&joined(&ended))),
        now.filter(|now| !now.is_empty())
            .map(|now| format!("degraded: {}", joined(&now))),
        cpus.map(|cpus| format!("CPUs {cpus}")),
    ];
    let words: Vec<String> = words.into_iter().flatten().filter(|words| !words.is_empty()).collect();
    words.join(", ")
}

/// Whether an event is of a selected VM. That the daemon appears or vanishes is of all.
fn selects(selection: &Selection, event: &Event, pods: &Pods) -> bool {
    if selection.is_all() || [APPEARED, VANISHED].contains(&event.name()) {
        return true;
    }
    let is_selected = |uid: &String| selection.has(&pods.get(uid), pods);
    event.pod.as_ref().is_some_and(is_selected)
}

/// Prints events until interrupted, or until nobody reads what is printed, as `print` returns; as text, a list of what is wrong already comes first. The daemon
/// is not started for it.
///
/// # Errors
/// A running daemon does not answer at first, or none of its VMs is selected; the connection ended, or standard output cannot be written.
pub(crate) async fn run(
    client: &Client,
    selection: &Selection,
    output: OutputOptions,
    mut print: impl FnMut(&str) -> Result<bool, Failure>,
) -> Result<String, Failure> {
    let mut signals = Signals::subscribe(client.connection()).await?;
    let mut end = End::new()?;
    if signals.runs() {
        Selected::of(selection, client.describe().await?)?;
    }
    let mut known = Known::default();
    let mut received = Some(Received::Daemon { runs: signals.runs() });
    // Whether the daemon has appeared, and has not yet said what is wrong.
    let mut is_new = false;
    loop {
        let event = match &received {
            Some(Received::Signal(message)) => Event::of(message),
            Some(Received::Daemon { runs }) => {
                is_new = *runs;
                known.degraded.clear();
                Some(Event::daemon(*runs))
            }
            None => Some(Event::daemon(false)),
        };
        let is_of_unknown = |one: &Event| one.pod.as_ref().is_some_and(|uid| !known.pods.get(uid).is_named());
        let mut now = None;
        if is_new || event.as_ref().is_some_and(is_of_unknown) {
            match client.describe().await {
                Ok(described) => {
                    known.add(&described);
                    now = Selected::of(selection, described).ok().filter(|_| is_new);
                    is_new = false;
                }
                Err(failure) => output::note(&failure.to_string()),
            }
        }
        let selected = event.as_ref().filter(|one| selects(selection, one, &known.pods));
        let written = selected
            .map(|one| one.written(output::now(), output, &known))
            .transpose()?;
        event.iter().for_each(|one| known.learn(one));
        let wrong = now.filter(|_| !output.form.is_data());
        let wrong = wrong.map(|selected| Vms::of(&selected).in_trouble().text(output.style));
        let text = written.unwrap_or_default() + &wrong.unwrap_or_default();
        if !text.is_empty() && !print(&text)? {
            return Ok(String::new());
        }
        if received.is_none() {
            return Err(Failure::Other("the connection ended".to_owned()));
        }
        received = tokio::select! {
            () = end.reached() => return Ok(String::new()),
            received = signals.next() => received,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use zbus::Variant;

    use super::*;
    use crate::shared::daemon::Pod;
    use crate::shared::output::TextStyle;

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

    fn written(event: &Event, form: Form, width: Option<usize>, known: &Known) -> String {
        let style = TextStyle {
            width,
            ..TextStyle::default()
        };
        event.written(TIME, OutputOptions { form, style }, known).unwrap()
    }

    /// The line of an event after these problems of the VM.
    fn text_after(before: &[Reason], event: Option<Event>) -> String {
        let known = Known {
            pods: [crate::tests::fixtures::pod("aaa", "team-a/web")].into_iter().collect(),
            degraded: [("aaa".to_owned(), before.to_vec())].into(),
        };
        written(&event.unwrap(), Form::Text, Some(70), &known)
    }

    fn text(event: Option<Event>) -> String {
        text_after(&[], event)
    }

    #[test]
    fn an_event_is_one_line_in_words() {
        let degraded = vec![("cpus-offline", "CPU 2 is offline\x1b[2J", "fix")];
        let waits = vec![("no-vcpus", "vCPUs not attached", "fix")];
        let lines = [
            changed(OBJECT, &[("State", Variant::from("isolated"))]),
            changed(
                OBJECT,
                &[
                    ("Degraded", Variant::from(degraded)),
                    ("FloatCPUs", Variant::from("0-1")),
                ],
            ),
            changed(
                OBJECT,
                &[
                    ("State", Variant::from("waiting")),
                    ("NotIsolated", Variant::from(waits)),
                ],
            ),
            changed(OBJECT, &[("FloatCPUs", Variant::from("0-1"))]),
            of_manager("NodeProblemFound", &("kubelet-unusable", "the file is empty", "fix")),
            of_manager("NodeProblemOver", &("kubelet-unusable",)),
            Some(Event::daemon(false)),
        ];
        let lines: Vec<String> = lines.into_iter().map(text).collect();
        insta::assert_snapshot!(lines.concat(), @r"
        12:34:56  team-a/web  isolated
        12:34:56  team-a/web  degraded: CPU 2 is offline?[2J
        12:34:56  team-a/web  waiting, vCPUs not attached
        12:34:56  node  problem: cpu_manager_state is unusable: no new VMs;
                        running VMs keep their CPUs
        12:34:56  node  the problem is over: cpu_manager_state is unusable
        12:34:56  node  steliad is not running: running VMs stay isolated
        ");
        // A problem of the node is an event of its own.
        assert_eq!(
            text(changed(MANAGER_PATH, &[("AdmissionProblem", Variant::from("x"))])),
            ""
        );
    }

    #[test]
    fn what_is_no_longer_wrong_is_named() {
        let offline = Reason::of_node(ReasonCode::CpusOffline, "CPU 2 is offline");
        let anchor = Reason::of_node(ReasonCode::PlaceholderEnded, "the placeholder ended");
        let before = [offline, anchor];
        let told = |now: &[(&str, &str, &str)]| {
            let event = changed(OBJECT, &[("Degraded", Variant::from(now.to_vec()))]);
            text_after(&before, event)
        };
        let other = ("placeholder-ended", "the placeholder 7 ended", "fix");
        insta::assert_snapshot!([told(&[]), told(&[other])].concat(), @r"
        12:34:56  team-a/web  the problem is over: CPU 2 is offline; the
                              placeholder ended
        12:34:56  team-a/web  the problem is over: CPU 2 is offline, degraded:
                              the placeholder 7 ended
        ");
        // Another property says nothing of problems.
        let event = changed(OBJECT, &[("State", Variant::from("isolated"))]);
        assert_eq!(text_after(&before, event), "12:34:56  team-a/web  isolated\n");
        // An event is what the next one is compared with; a daemon's answer is not, because it may be newer than that.
        let mut known = Known::default();
        known.learn(&changed(OBJECT, &[("Degraded", Variant::from(vec![other]))]).unwrap());
        known.add(&Description::default());
        assert_eq!(known.degraded["aaa"][0].text, "the placeholder 7 ended");
    }

    #[test]
    fn json_is_one_object_a_line() {
        let path = zbus::ObjectPath::try_from(OBJECT).unwrap();
        let new = of_manager("InstanceNew", &("aaa", path)).unwrap();
        let written = |event: Event| written(&event, Form::Json, None, &Known::default());
        assert_eq!(
            written(new),
            concat!(
                r#"{"event":"InstanceNew","pod_name":"","pod_namespace":"","pod_uid":"aaa","time_us":951827696000007}"#,
                "\n"
            )
        );
        let found = of_manager("NodeProblemFound", &("not-watched", "no watch is left", "fix")).unwrap();
        let found: Value = serde_json::from_str(&written(found)).unwrap();
        assert_eq!(
            (&found["problem"]["code"], &found["problem"]["fix"]),
            (&"not-watched".into(), &"fix".into())
        );
    }

    #[test]
    fn only_events_of_selected_vms_are_printed() {
        use crate::tests::fixtures::selection;
        let pods: Pods = [Pod::unnamed("aaa"), Pod::unnamed("bbb")].into_iter().collect();
        let event = changed(OBJECT, &[("State", Variant::from("waiting"))]).unwrap();
        let selected = |line: &[&str], event: &Event| selects(&selection(line), event, &pods);
        for line in [&[][..], &["aaa"], &["a*"]] {
            assert!(selected(line, &event), "{line:?}");
        }
        for line in [&["bbb"][..], &["-n", "team-a"]] {
            assert!(!selected(line, &event), "{line:?}");
        }
        assert!(selected(&["bbb"], &Event::daemon(true)));
        assert!(!selected(&["bbb"], &changed(MANAGER_PATH, &[]).unwrap()));
    }

    #[test]
    fn what_the_daemon_does_not_say_is_no_event() {
        assert_eq!(changed("/org/example", &[]), None);
        let message = Message::signal(MANAGER_PATH, "org.example.Other", "InstanceNew");
        assert_eq!(Event::of(&message.build(&("aaa",)).unwrap()), None);
        // A newer daemon has other codes.
        assert!(text(of_manager("NodeProblemFound", &("no-such-code", "x", "y"))).ends_with("node  problem: x\n"));
    }
}
