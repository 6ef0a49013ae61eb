//! `report`: the whole node in one text, to be pasted into a ticket, trouble first. A section is the answer of another command, as that renders it. What
//! cannot be read is missing, the rest is there.

#[cfg(test)]
mod tests;

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value, json};
use stelia_kubelet::config;
use stelia_kubelet::home::Search;
use stelia_model::Instance;
use tokio::time::{Instant, sleep};

use crate::check::doctor::{self, Examined};
use crate::check::verify::{self, Verified};
use crate::check::{ledger, noise, printed};
use crate::shared::daemon::{Client, Failure, Selected, is_in_trouble};
use crate::shared::kernel::Roots;
use crate::shared::kernel::rates::rates;
use crate::shared::kernel::sample::Sample;
use crate::shared::output::{Block, FAIL, Render, TextStyle, human, now, printable, progress, properties, time};
use crate::view::list::Vms;
use crate::view::map;
use crate::view::show::{self, Details};
use crate::view::status::Status;

/// Sections that programs print: their names in JSON, their headings and the command lines.
const PROGRAMS: [(&str, &str, &str); 3] = [
    ("processor", "Processor", "lscpu"),
    (
        "settings",
        "Settings of steliad",
        "/usr/libexec/stelia/steliad --print-config",
    ),
    (
        "journal",
        "Journal of steliad",
        "journalctl --quiet --no-pager --lines=50 --unit=steliad --unit=steliad-quiet",
    ),
];

/// As JSON a member for each section. Nothing in it is secret: of the guests' processes only the names.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// Why the daemon does not answer, or what fails by a section, each once.
    wrong: Vec<String>,
    #[serde(flatten)]
    json: Map<String, Value>,
    #[serde(skip)]
    text: String,
    /// Parts that are missing, each with the reason.
    missing: Vec<String>,
}

impl Render for Report {
    fn text(&self, _: TextStyle) -> String {
        let listed = |heading: &str, lines: &[String]| {
            let lines: String = lines.iter().map(|line| printable(line) + "\n").collect();
            Some(format!("== {heading} ==\n{lines}")).filter(|_| !lines.is_empty())
        };
        let wrong = listed("What is wrong", &self.wrong).map(|wrong| wrong + "\n");
        let missing = listed("Not in this report", &self.missing);
        wrong.unwrap_or_default() + &self.text + &missing.unwrap_or_default()
    }
}

impl Report {
    /// Adds an answer, or why there is none. Nothing is cut: it is for a ticket.
    fn add<T: Render>(&mut self, name: &str, heading: &str, answer: Result<T, Failure>) {
        self.add_with(name, heading, answer, |_, _| Vec::new());
    }

    /// The same with what the answer found. What is wrong on the node is told by the first section that finds it.
    fn add_with<T: Render>(
        &mut self,
        name: &str,
        heading: &str,
        answer: Result<T, Failure>,
        findings: impl FnOnce(&T, TextStyle) -> Vec<Block>,
    ) {
        let json = |answer: &T| serde_json::to_value(answer).map_err(|cause| Failure::Other(cause.to_string()));
        let (json, answer) = match answer.and_then(|answer| Ok((json(&answer)?, answer))) {
            Ok(answer) => answer,
            Err(failure) => return self.missing.push(format!("{heading}: {failure}")),
        };
        let style = TextStyle::from(true);
        self.json.insert(name.to_owned(), json);
        self.text += &format!("== {heading} ==\n{}\n\n", answer.text(style).trim_end());
        let failed: Vec<Block> = findings(&answer, style)
            .into_iter()
            .filter(|one| one.label == FAIL)
            .collect();
        if failed.is_empty() {
            let failure = answer.failure().map(|failure| format!("{heading}: {failure}"));
            self.wrong.extend(failure);
        }
        for Block { subject, fact, .. } in failed {
            let about = format!("{subject}: {fact}");
            let found = if subject == "node" { &fact } else { &about };
            if !self.wrong.iter().any(|said| said.ends_with(&format!(": {found}"))) {
                self.wrong.push(format!("{heading}: {about}"));
            }
        }
    }

    /// Adds those of the VMs that are to be shown here, in detail, if there are any.
    fn add_details(&mut self, names: [&str; 2], all: &Selected, roots: &Roots, is_shown: fn(&Instance) -> bool) {
        let mut some = all.clone();
        some.vms.retain(|vm| is_shown(vm));
        some.former.clear();
        if !some.vms.is_empty() {
            let [name, heading] = names;
            self.add(name, heading, show::gather(&some, roots, Details::default()));
        }
    }
}

/// Reads everything, and samples the VMs' load for this long. Says on standard error what takes time.
pub(crate) async fn gather(client: Result<Client, Failure>, roots: &Roots, root: &Path, time: Duration) -> Report {
    let mut report = Report::default();
    report.add("host", "Host", Ok(host(root)));
    let described = match &client {
        Ok(client) => client.describe().await,
        Err(failure) => Err(failure.clone()),
    };
    let all = described.as_ref().ok().map(|told| Selected::all(told.clone()));
    if let Some(all) = &all {
        report.add_details(["trouble", "VMs in trouble"], all, roots, is_in_trouble);
    }
    progress("report: readiness of the node");
    let doctor = doctor::gather(root, described.clone()).await;
    report.add_with("doctor", "Readiness of the node", Ok(doctor), Examined::blocks);
    let client = client.as_ref().ok().filter(|_| described.is_ok());
    if let (Some(client), Some(all)) = (client, &all) {
        let description = &all.described;
        progress("report: verification");
        let verified = verify::gather(client, roots, all, Default::default()).await;
        report.add_with("verify", "Verification", verified, Verified::blocks);
        progress("report: interrupts");
        let noise = noise::gather(roots, all).await;
        let heading = "Interrupts and kernel threads";
        report.add_with("noise", heading, Ok(noise), |one, _| one.blocks());
        report.wrong.extend(all.former_in_words());
        report.add("status", "Node", Ok(Status::of(description, String::new())));
        report.add("list", "VMs", Ok(Vms::of(all)));
        progress("report: load");
        let (began, before) = (Instant::now(), Sample::read(description, roots, Duration::ZERO));
        sleep(time).await;
        let load = rates(&before, &Sample::read(description, roots, began.elapsed()));
        report.add("top", "Load", Ok(load));
        report.add("map", "CPUs", Ok(map::gather(all, roots)));
        report.add_details(["show", "Other VMs in detail"], all, roots, |vm| !is_in_trouble(vm));
    }
    progress("report: ledger and journal");
    if let Err(failure) = &described {
        report.wrong.push(failure.to_string());
        report.missing.push(format!("what the daemon knows: {failure}"));
    }
    // kubelet's settings under its own names, as the daemon has them; without one as kubelet's files and its command line have it.
    let kubelet = described.map(|told| told.kubelet_config).or_else(|_| {
        let read = config::read(&root.join("proc"), root, Search::SocketsThenNames);
        read.map(|read| json!(read))
            .map_err(|error| Failure::Other(error.in_full()))
    });
    report.add("kubelet_config", "kubelet's configuration", kubelet.map(Listing));
    let reader = ledger::LedgerReader::of_node(client, root);
    let verification = reader.verification(&[], None).await;
    if verification.is_ok() {
        let accounts = reader.all(ledger::last_24_hours()).await;
        report.add("ledger", "Ledger of the last 24 hours", accounts);
    }
    report.add("ledger_verify", "Ledger files", verification);
    for (name, heading, command) in PROGRAMS {
        // Of a node in a folder no program can say anything.
        let text = if root == Path::new("/") {
            printed(command).await
        } else {
            Err(Failure::Other("not of this host".to_owned()))
        };
        report.add(name, heading, text.map(|text| Listing(Value::String(text))));
    }
    if !rustix::process::geteuid().is_root() {
        let lacks = "VFIO devices that processes have open: run steliactl report as root";
        report.missing.push(lacks.to_owned());
    }
    progress("");
    report
}

/// Names and values, one a line; what is empty is left out. Or text as it is.
#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Listing(Value);

impl Render for Listing {
    fn text(&self, style: TextStyle) -> String {
        if let Value::String(text) = &self.0 {
            return text.lines().map(|line| printable(line) + "\n").collect();
        }
        let members = self.0.as_object().into_iter().flatten();
        let rows = members.map(|(name, value)| (name, human(value)));
        properties(
            rows.filter(|(_, value)| !matches!(value.as_str(), "" | "{}" | "null")),
            style,
        )
    }
}

/// The host by lines of files below `root`, each behind how it begins.
fn host(root: &Path) -> Listing {
    let line = |path: &str, begins: &str| {
        let text = fs::read_to_string(root.join(path)).ok()?;
        let rest = text.lines().find_map(|line| line.strip_prefix(begins))?;
        Some(rest.trim_matches([' ', '"']).to_owned())
    };
    Listing(json!({
        "hostname": line("proc/sys/kernel/hostname", ""),
        "time": time(now()),
        "system": line("etc/os-release", "PRETTY_NAME=").or_else(|| line("usr/lib/os-release", "PRETTY_NAME=")),
        "kernel": line("proc/sys/kernel/osrelease", ""),
        "systemd": doctor::version_of_systemd(root),
        "memory": line("proc/meminfo", "MemTotal:"),
        "steliactl": env!("CARGO_PKG_VERSION"),
    }))
}
