//! `why`: why a VM, a CPU or the node is as it is. An answer is a list of facts, each with a label and with the source where it was read.

mod cpu;
mod node;
mod slow;
#[cfg(test)]
mod tests;
mod vm;

use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use serde_json::{Map, Value};
use stelia_api::Reason;

use crate::check::ledger;
use crate::shared::daemon::{Client, Description, Failure, Pod, Pods, fact};
use crate::shared::kernel::Roots;
use crate::shared::output::{Meaning, OutputOptions, Render, TextStyle, columns, hanging, now, paragraph, printable};

// Where facts are read.
const STELIAD: &str = "steliad";
const RECORD: &str = "steliad's record";
const SETTINGS: &str = "steliad's settings";
const ASSIGNMENT: &str = "cpu_manager_state";
const CGROUPS: &str = "/sys/fs/cgroup";
const SYSTEM: &str = "/sys/devices/system";
const KUBELET: &str = "kubelet's configuration";
const MEASURED: &str = "measured for 1 s";

/// The least column in which texts begin.
const MIN_INDENT: usize = 9;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Fact {
    label: &'static str,
    text: String,
    source: &'static str,
}

/// The facts about something.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Answer {
    facts: Vec<Fact>,
    /// More for programs.
    #[serde(flatten)]
    details: Map<String, Value>,
    /// The first line.
    #[serde(skip)]
    title: String,
    /// What is printed below the facts.
    #[serde(skip)]
    below: String,
    /// Whether the text has the sources.
    #[serde(skip)]
    has_sources: bool,
}

impl Answer {
    fn say(&mut self, label: &'static str, text: impl Into<String>, source: &'static str) {
        let text = text.into();
        self.facts.push(Fact { label, text, source });
    }

    /// What to do; once, whatever it is good for.
    fn fix(&mut self, fix: &str, source: &'static str) {
        let is_said = self.facts.iter().any(|fact| fact.label == "Fix" && fact.text == fix);
        if !fix.is_empty() && !is_said {
            self.say("Fix", fix, source);
        }
    }

    /// A reason with its effect and fix.
    fn reason(&mut self, label: &'static str, reason: &Reason) {
        self.say(label, &reason.text, STELIAD);
        let effect = reason.code.effect();
        if !effect.is_empty() {
            self.say("Effect", effect, STELIAD);
        }
        self.fix(&reason.fix, STELIAD);
    }

    /// What is wrong on the node, where it is about a VM or a CPU.
    fn node_problems(&mut self, description: &Description) {
        for problem in &description.problems {
            self.say("Node", format!("{} (steliactl why node)", fact(problem)), STELIAD);
        }
    }
}

impl Render for Answer {
    fn text(&self, style: TextStyle) -> String {
        let mut text = paragraph(&printable(&self.title), style);
        let labels = self.facts.iter().map(|fact| columns(fact.label) + 2);
        let indent = labels.max().unwrap_or_default().max(MIN_INDENT);
        let mut before = "";
        for fact in &self.facts {
            let meaning = match fact.label {
                "Problem" | "Slow" => Meaning::Broken,
                "Because" | "Node" => Meaning::Attention,
                _ => Meaning::Plain,
            };
            let label = if fact.label == before { "" } else { fact.label };
            before = fact.label;
            let said = if self.has_sources {
                format!("{} [{}]", fact.text, fact.source)
            } else {
                fact.text.clone()
            };
            text += &hanging(label, indent, meaning, &said, style);
        }
        text + &self.below
    }
}

/// A number is a CPU, with or without the kernel's `cpu` before it; everything else is a VM.
fn cpu_number(what: &str) -> Option<u32> {
    what.strip_prefix("cpu").unwrap_or(what).parse().ok()
}

/// The names of pods that are no VMs, or were: by kubelet's logs, by the rules of adoption, and by the ledger.
async fn names(client: &Client, description: &Description, root: &Path) -> Pods {
    let node = &description.node;
    let mut pods = Pods::by_logs(root);
    let unadopted = node.unadopted.iter();
    pods.add(unadopted.map(|one| Pod::new(&one.pod, one.pod_name.as_ref())).collect());
    pods.add(Pods::of(description));
    let mut assigned = node.entries.keys();
    if node.ledger.enabled && assigned.any(|uid| !pods.get(uid.as_str()).is_named()) {
        // Whoever may not read the ledger sees UIDs.
        let accounts = ledger::last_day(client, None).await.unwrap_or_default();
        let mut ended: Vec<Pod> = accounts.into_iter().map(|account| account.pod).collect();
        ended.retain(|pod| !pods.get(&pod.pod_uid).is_named());
        pods.add(ended.into_iter().collect());
    }
    pods
}

/// Asks the daemon and prints the answer.
///
/// # Errors
/// The daemon does not answer, or there is no such CPU or VM.
pub(crate) async fn run(
    client: &Client,
    roots: &Roots,
    root: &Path,
    (what, has_sources): (&str, bool),
    output_options: OutputOptions,
) -> Result<String, Failure> {
    let answer = match (what, cpu_number(what)) {
        ("node", _) => node::answer(&client.describe().await?, roots, root, output_options.style),
        (_, Some(cpu)) => {
            let description = client.describe().await?;
            let names = names(client, &description, root).await;
            cpu::answer(&description, &names, cpu)?
        }
        (_, None) => {
            let uid = client.find(what).await?.pod.pod_uid;
            let description = client.describe().await?;
            let began = Instant::now();
            let before = slow::Reading::take(&description, &uid, roots, began.elapsed());
            tokio::time::sleep(slow::MEASURE_INTERVAL).await;
            let after = slow::Reading::take(&description, &uid, roots, began.elapsed());
            vm::answer(&description, &uid, now(), (&before, &after))?
        }
    };
    output_options.print(&Answer { has_sources, ..answer })
}
