//! `why`: why a VM, a CPU or the node is as it is. An answer is rows, each with a label.

mod cpu;
mod slow;
#[cfg(test)]
mod tests;
mod vm;

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};
use stelia_cpus::CpuSet;
use stelia_cpus::text::near::nearest;

use crate::shared::daemon::{
    Client, Condition, Description, Failure, Pods, Rows, counts, fact, former_in_words, former_vms,
};
use crate::shared::kernel::{Roots, host_name, interrupts};
use crate::shared::output::{OutputOptions, Render, TextStyle, counted, now, paragraph, printable};

/// What is said about something.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Answer {
    facts: Rows,
    /// More for programs: an object.
    #[serde(flatten)]
    details: Value,
    /// The first line.
    #[serde(skip)]
    title: String,
}

/// How long disturbances of a VM or a CPU are counted.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);
/// Of device interrupts, where there is no table of them.
const NOT_COUNTED: &str = "not counted: /proc/interrupts cannot be read";

impl Answer {
    fn new(title: String, details: Value) -> Self {
        Self {
            title,
            details,
            ..Self::default()
        }
    }

    /// What is wrong on the node, where it is about a VM or a CPU.
    fn node_problems(&mut self, description: &Description) {
        for problem in &description.problems {
            let text = format!("{} (steliactl why node)", fact(problem));
            self.facts.say("Node", text);
        }
    }
}

impl Render for Answer {
    fn text(&self, style: TextStyle) -> String {
        paragraph(&printable(&self.title), style) + &self.facts.text("", style)
    }
}

/// A number is a CPU, with or without the kernel's `cpu` before it; everything else is a VM.
fn cpu_number(what: &str) -> Option<u32> {
    what.strip_prefix("cpu").unwrap_or(what).parse().ok()
}

/// The names of pods that are no VMs, by kubelet's logs, of former VMs, and of VMs.
fn names(description: &Description, root: &Path) -> Pods {
    let mut pods = Pods::by_logs(root);
    pods.add(Pods::of_former(description));
    pods.add(Pods::of(description));
    pods
}

/// Asks the daemon and prints the answer.
pub(crate) async fn run(
    client: &Client,
    roots: &Roots,
    root: &Path,
    what: &str,
    output_options: OutputOptions,
) -> Result<String, Failure> {
    let (description, host) = (client.describe().await?, host_name(&roots.proc));
    let answer = match (what, cpu_number(what)) {
        (name, _) if name == "node" || name == host => of_node(&description, &host),
        (_, Some(cpu)) => {
            let fired = interrupts::measured(&roots.proc, MEASURE_INTERVAL).await;
            let pods = names(&description, root);
            cpu::answer(&description, &pods, cpu, fired.as_deref(), now())?
        }
        (several, None) if several.parse().is_ok_and(|cpus: CpuSet| cpus.len() > 1) => {
            return Err(Failure::Usage("give one CPU (steliactl map shows all)".to_owned()));
        }
        (_, None) => {
            let found = client.find(what).await.map_err(|failure| match failure {
                Failure::NoSuchInstance(text) if what.contains("node") || nearest(what, ["node"]).is_some() => {
                    Failure::NoSuchInstance(format!("{text}; for the node: steliactl why node"))
                }
                failure => failure,
            });
            let uid = found?.pod.pod_uid;
            let began = Instant::now();
            let before = slow::Reading::take(&description, &uid, roots, began.elapsed());
            tokio::time::sleep(MEASURE_INTERVAL).await;
            let after = slow::Reading::take(&description, &uid, roots, began.elapsed());
            vm::answer(&description, &uid, now(), (&before, &after))?
        }
    };
    output_options.print(&answer)
}

/// What is wrong on the node, and who assigns CPUs. `status` has the rest.
fn of_node(description: &Description, host: &str) -> Answer {
    let (node, problems) = (&description.node, &description.problems);
    let has = match problems.len() as u64 {
        0 => "no problems".to_owned(),
        count => counted(count, "problem"),
    };
    let details = json!({ "problems": problems, "cpu_source": node.cpu_source });
    let vms = counts(node.instances.values().map(|vm| Condition::of(vm)));
    let host = if host.is_empty() { "this node" } else { host };
    let mut answer = Answer::new(format!("{host} has {has}; {vms}"), details);
    let facts = &mut answer.facts;
    problems.iter().for_each(|problem| facts.reason("Problem", problem));
    let former: Vec<_> = former_vms(description).collect();
    facts.say("Released", former_in_words(description, &former).unwrap_or_default());
    // A file that is damaged says nothing of the policy, and steliad acts on no other than static.
    let by_kubelet = node.cpu_source.needs_static_policy().then_some("static");
    let policy = node.kubelet_policy.as_deref().or(by_kubelet);
    let policy = policy.map_or(String::new(), |policy| format!(" (CPU manager policy {policy})"));
    facts.say("Assigned", format!("by {}{policy}", node.cpu_source.name()));
    answer
}
