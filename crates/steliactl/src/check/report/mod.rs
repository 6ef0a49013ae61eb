//! `report`: the whole node in one text, to be pasted into a ticket. A section is the answer of another command, as that renders it. What cannot be
//! read is missing, the rest is there.

mod host;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;
use stelia_kubelet::config;
use stelia_kubelet::home::Search;

use crate::check::{doctor, ledger, noise, verify};
use crate::shared::daemon::{Client, Description, Failure, Selection};
use crate::shared::kernel::Roots;
use crate::shared::kernel::rates::{Model, rates};
use crate::shared::kernel::sample::Sample;
use crate::shared::output::{Render, TextStyle, human, printable, properties};
use crate::view::list::Vms;
use crate::view::show::ShowOptions;
use crate::view::status::Status;
use crate::view::{map, show};
use host::Host;

const PRINT_CONFIG: [&str; 2] = ["/usr/libexec/stelia/steliad", "--print-config"];
const PRINT_JOURNAL: [&str; 6] = [
    "journalctl",
    "--unit=steliad",
    "--unit=steliad-quiet",
    "--lines=50",
    "--no-pager",
    "--quiet",
];

/// Nothing in it is secret: of the guests' processes only the names.
#[derive(Debug, Default)]
pub(crate) struct Report {
    sections: Vec<Section>,
    /// Parts that are missing, each with the reason.
    missing: Vec<String>,
}

#[derive(Debug)]
struct Section {
    /// Its member of the JSON object.
    name: &'static str,
    heading: &'static str,
    text: String,
    json: Value,
}

/// An object with a member for each section, and what is missing.
impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(None)?;
        for section in &self.sections {
            object.serialize_entry(section.name, &section.json)?;
        }
        object.serialize_entry("missing", &self.missing)?;
        object.end()
    }
}

impl Render for Report {
    fn text(&self, _: TextStyle) -> String {
        let mut text = String::new();
        for section in &self.sections {
            text += &format!("== {} ==\n{}\n", section.heading, section.text);
        }
        if !self.missing.is_empty() {
            let lines = self.missing.iter().map(|part| printable(part) + "\n");
            text += &format!("== Not in this report ==\n{}", lines.collect::<String>());
        }
        text
    }
}

impl Report {
    /// Adds an answer, or why there is none. Nothing is cut: it is for a ticket.
    fn add<T: Render>(&mut self, name: &'static str, heading: &'static str, answer: Result<T, Failure>) {
        let section = answer.and_then(|answer| {
            let json = serde_json::to_value(&answer).map_err(|cause| Failure::Other(cause.to_string()))?;
            let text = answer.text(TextStyle::from(true));
            Ok(Section {
                name,
                heading,
                text,
                json,
            })
        });
        match section {
            Ok(section) => self.sections.push(section),
            Err(failure) => self.missing.push(format!("{heading}: {failure}")),
        }
    }
}

/// Reads everything, and samples the VMs' load for this long.
pub(crate) async fn gather(client: Result<Client, Failure>, roots: &Roots, root: &Path, time: Duration) -> Report {
    let mut report = Report::default();
    report.add("host", "Host", Ok(Host::read(root)));
    let described = match client {
        Ok(client) => client.describe().await.map(|description| (client, description)),
        Err(failure) => Err(failure),
    };
    let all = Selection::default();
    match &described {
        Ok((client, description)) => {
            report.add("status", "Node", Ok(Status::of(description)));
            report.add("list", "VMs", Ok(Vms::of(description, false)));
            // What is wrong comes before what is long.
            let verified = verify::gather(client, roots, &all, Default::default()).await;
            report.add("verify", "Verification", verified);
        }
        Err(failure) => report.missing.push(format!("what the daemon knows: {failure}")),
    }
    let client = described.as_ref().ok().map(|(client, _)| client);
    let told = described.as_ref().map(|(_, told)| told.clone()).map_err(Failure::clone);
    let doctor = doctor::gather(root, told, true).await;
    report.add("doctor", "Readiness of the node", Ok(doctor));
    if let Ok((client, description)) = &described {
        let noise = noise::gather(client, roots, &all).await;
        report.add("noise", "Interrupts and kernel threads", noise);
        report.add("top", "Load", load(client, roots, time).await);
        report.add("map", "CPUs", Ok(map::gather(description, roots, None)));
        if !description.node.instances.is_empty() {
            let options = ShowOptions::default();
            let shown = show::gather(client, roots, &Selection::every(), &options, false).await;
            report.add("show", "VMs in detail", shown);
        }
    }
    let described = described.as_ref().map(|(_, description)| description);
    report.add(
        "kubelet_config",
        "kubelet's configuration",
        kubelet(described.ok(), root),
    );
    let ledger = ledger::summary(client, root).await;
    report.add("ledger", "Ledger", ledger);
    report.add("settings", "Settings of steliad", printed(root, &PRINT_CONFIG));
    report.add("journal", "Journal of steliad", printed(root, &PRINT_JOURNAL));
    if !rustix::process::geteuid().is_root() {
        let lacks = "VFIO devices that processes have open: run steliactl report as root";
        report.missing.push(lacks.to_owned());
    }
    report
}

/// A sample as of `top`.
async fn load(client: &Client, roots: &Roots, time: Duration) -> Result<Model, Failure> {
    let began = Instant::now();
    let before = Sample::read(&client.describe().await?, roots, began.elapsed());
    tokio::time::sleep(time).await;
    let mut now = Sample::read(&client.describe().await?, roots, began.elapsed());
    now.carry_over(&before);
    Ok(rates(&before, &now))
}

/// The settings under kubelet's own names, one a line; those that say nothing are left out.
#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Settings(Value);

impl Render for Settings {
    fn text(&self, style: TextStyle) -> String {
        let members = self.0.as_object().into_iter().flatten();
        let said = members.filter(|(_, value)| value.as_object().is_none_or(|members| !members.is_empty()));
        properties(
            said.map(|(name, value)| match value.as_object() {
                Some(members) => {
                    let members = members.iter().map(|(name, value)| format!("{name}={}", human(value)));
                    (name, members.collect::<Vec<_>>().join(", "))
                }
                None => (name, human(value)),
            }),
            style,
        )
    }
}

/// As the daemon has it; without one as kubelet's files and its command line have it.
fn kubelet(description: Option<&Description>, root: &Path) -> Result<Settings, Failure> {
    if let Some(description) = description {
        return Ok(Settings(description.kubelet_config.clone()));
    }
    let read = config::read(&root.join("proc"), root, Search::SocketsThenNames);
    let read = read.map_err(|error| Failure::Other(error.in_full()))?;
    let json = serde_json::to_value(read).map_err(|cause| Failure::Other(cause.to_string()))?;
    Ok(Settings(json))
}

/// What a program printed.
#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Printed(String);

impl Render for Printed {
    fn text(&self, _: TextStyle) -> String {
        self.0.lines().map(|line| printable(line) + "\n").collect()
    }
}

/// What a command prints on this host; of a node in a folder nothing can.
fn printed(root: &Path, command: &[&str]) -> Result<Printed, Failure> {
    let (Some((program, arguments)), true) = (command.split_first(), root == Path::new("/")) else {
        return Err(Failure::Other("not of this host".to_owned()));
    };
    let answer = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let answer = answer.map_err(|cause| Failure::Other(format!("run {program}: {cause}")))?;
    let error = String::from_utf8_lossy(&answer.stderr);
    let text = String::from_utf8_lossy(&answer.stdout).into_owned();
    if !answer.status.success() {
        return Err(Failure::Other(format!("{program}: {}", error.trim())));
    }
    if text.trim().is_empty() {
        return Err(Failure::Other(format!("{program} prints nothing")));
    }
    Ok(Printed(text))
}
