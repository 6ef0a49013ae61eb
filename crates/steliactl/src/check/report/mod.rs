//! `report`: the whole node in one text, to be pasted into a ticket. A section is the answer of another command, as that renders it. What cannot be
//! read is missing, the rest is there.

#[cfg(test)]
mod tests;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value, json};
use stelia_kernel::locality::size;
use stelia_kernel::proc::field;
use stelia_kubelet::config;
use stelia_kubelet::home::Search;
use tokio::time::{Instant, sleep};

use crate::check::{doctor, ledger, noise, verify};
use crate::shared::daemon::{Client, Description, FORMER, Failure, Selected};
use crate::shared::kernel::rates::{Model, rates};
use crate::shared::kernel::sample::Sample;
use crate::shared::kernel::{Roots, host_name};
use crate::shared::output::{Render, TextStyle, human, now, printable, properties, time};
use crate::view::list::Vms;
use crate::view::status::Status;
use crate::view::{map, show};

const PRINT_CONFIG: [&str; 2] = ["/usr/libexec/stelia/steliad", "--print-config"];
const PRINT_JOURNAL: [&str; 6] = [
    "journalctl",
    "--unit=steliad",
    "--unit=steliad-quiet",
    "--lines=50",
    "--no-pager",
    "--quiet",
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
        let json = |answer: &T| serde_json::to_value(answer).map_err(|cause| Failure::Other(cause.to_string()));
        match answer.and_then(|answer| Ok((json(&answer)?, answer))) {
            Ok((json, answer)) => {
                self.json.insert(name.to_owned(), json);
                let text = answer.text(TextStyle::from(true));
                let former = |line: &&str| line.starts_with("NOTE  ") && line.contains(FORMER);
                let failed = text.lines().filter(|line| line.starts_with("FAIL  ") || former(line));
                let mut failed: Vec<&str> = failed.map(|line| &line[6..]).collect();
                let failure = answer.failure().unwrap_or_default();
                if failed.is_empty() && !failure.is_empty() {
                    failed.push(&failure);
                }
                for line in failed {
                    if !self.wrong.iter().any(|said| said.ends_with(&format!(": {line}"))) {
                        self.wrong.push(format!("{heading}: {line}"));
                    }
                }
                self.text += &format!("== {heading} ==\n{}\n\n", text.trim_end());
            }
            Err(failure) => self.missing.push(format!("{heading}: {failure}")),
        }
    }
}

/// Reads everything, and samples the VMs' load for this long.
pub(crate) async fn gather(client: Result<Client, Failure>, roots: &Roots, root: &Path, time: Duration) -> Report {
    let mut report = Report::default();
    report.add("host", "Host", Ok(host(root)));
    let described = match client {
        Ok(client) => client.describe().await.map(|description| (client, description)),
        Err(failure) => Err(failure),
    };
    let client = described.as_ref().ok().map(|(client, _)| client);
    let told = described.as_ref().map(|(_, told)| told.clone()).map_err(Failure::clone);
    let doctor = doctor::gather(root, told, true).await;
    report.add("doctor", "Readiness of the node", Ok(doctor));
    match &described {
        Ok((client, description)) => {
            let all = Selected::all(description.clone());
            report.add("status", "Node", Ok(Status::of(description, String::new())));
            let verified = verify::gather(client, roots, &all, Default::default()).await;
            report.add("verify", "Verification", verified);
            report.add("list", "VMs", Ok(Vms::of(&all, false)));
            let noise = noise::gather(roots, &all).await;
            report.add("noise", "Interrupts and kernel threads", Ok(noise));
            report.add("top", "Load", Ok(measured(description, roots, time).await));
            report.add("map", "CPUs", Ok(map::gather(&all, roots)));
            if !description.node.instances.is_empty() {
                report.add("show", "VMs in detail", show::gather(&all, roots, false, false));
            }
        }
        Err(failure) => {
            report.wrong.push(failure.to_string());
            report.missing.push(format!("what the daemon knows: {failure}"));
        }
    }
    let description = described.as_ref().ok().map(|(_, description)| description);
    let kubelet = kubelet(description, root);
    report.add("kubelet_config", "kubelet's configuration", kubelet);
    let reader = ledger::LedgerReader::of_node(client, root);
    let verification = reader.verification().await;
    if verification.is_ok() {
        let accounts = reader.all(ledger::last_24_hours()).await;
        report.add("ledger", "Ledger of the last 24 hours", accounts);
    }
    report.add("ledger_verify", "Ledger files", verification);
    report.add("processor", "Processor", printed(root, &["lscpu"]));
    report.add("settings", "Settings of steliad", printed(root, &PRINT_CONFIG));
    report.add("journal", "Journal of steliad", printed(root, &PRINT_JOURNAL));
    if !rustix::process::geteuid().is_root() {
        let lacks = "VFIO devices that processes have open: run steliactl report as root";
        report.missing.push(lacks.to_owned());
    }
    report
}

/// The load of the VMs that the daemon describes, and what disturbs them, measured for this long.
async fn measured(description: &Description, roots: &Roots, time: Duration) -> Model {
    let began = Instant::now();
    let before = Sample::read(description, roots, began.elapsed());
    sleep(time).await;
    rates(&before, &Sample::read(description, roots, began.elapsed()))
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

/// The host by the files below `root`; what is not known is empty.
fn host(root: &Path) -> Listing {
    let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let os = ["etc/os-release", "usr/lib/os-release"].map(text);
    let mut names = os
        .iter()
        .flat_map(|os| os.lines().filter_map(|line| line.strip_prefix("PRETTY_NAME=")));
    let memory = field(&text("proc/meminfo"), "MemTotal").and_then(|kib| {
        let kib: u64 = kib.strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    });
    Listing(json!({
        "hostname": host_name(&root.join("proc")),
        "time": time(now()),
        "system": names.next().map(|name| name.trim_matches('"')),
        "kernel": text("proc/sys/kernel/osrelease").trim(),
        "systemd": doctor::systemd(root),
        "memory": memory.map(size),
        "steliactl": env!("CARGO_PKG_VERSION"),
    }))
}

/// kubelet's settings under its own names, as the daemon has them; without one as kubelet's files and its command line have it.
fn kubelet(description: Option<&Description>, root: &Path) -> Result<Listing, Failure> {
    if let Some(description) = description {
        return Ok(Listing(description.kubelet_config.clone()));
    }
    let read = config::read(&root.join("proc"), root, Search::SocketsThenNames);
    Ok(Listing(json!(read.map_err(|error| Failure::Other(error.in_full()))?)))
}

/// What a command prints on this host; of a node in a folder nothing can.
fn printed(root: &Path, command: &[&str]) -> Result<Listing, Failure> {
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
    Ok(Listing(Value::String(text)))
}
