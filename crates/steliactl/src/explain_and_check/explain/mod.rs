//! `explain`: who chooses CPUs and how, the story of an instance and what may slow it down, who owns a CPU.

mod cpu;
mod guest;
mod near;
mod node;
mod other_tasks;
mod pod;
mod slow;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::Instant;

use stelia_koordinator::allocator::CpuSource;

use crate::shared::daemon::{Client, Failure, Pods};
use crate::shared::kernel::Roots;
use crate::shared::output::{OutputOptions, now};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject<'a> {
    Node,
    Cpu(u32),
    Pod(&'a str),
}

/// A number is a CPU, with or without the kernel's `cpu` before it; everything else is a VM.
fn subject(what: Option<&str>) -> Subject<'_> {
    let number = |what: &str| what.strip_prefix("cpu").unwrap_or(what).parse();
    match what.map(|what| (what, number(what))) {
        None => Subject::Node,
        Some((_, Ok(cpu))) => Subject::Cpu(cpu),
        Some((uid, Err(_))) => Subject::Pod(uid),
    }
}

fn source_in_words(source: CpuSource) -> &'static str {
    match source {
        CpuSource::Kubelet => "kubelet, by its static policy",
        CpuSource::Steliad => source.name(),
    }
}

/// Asks the daemon and prints the answer.
///
/// # Errors
/// The daemon does not answer, or there is no such CPU or instance.
pub(crate) async fn run(
    client: &Client,
    roots: &Roots,
    root: &Path,
    what: Option<&str>,
    output_options: OutputOptions,
) -> Result<String, Failure> {
    match subject(what) {
        Subject::Cpu(cpu) => {
            let description = client.describe().await?;
            output_options.print(&cpu::facts(&description, Pods::by_logs(root), cpu)?)
        }
        Subject::Pod(vm) => {
            let uid = client.find(vm).await?.pod.pod_uid;
            let description = client.describe().await?;
            let story = pod::gather(&description, &uid, now())?;
            let began = Instant::now();
            let before = slow::Reading::take(&description, &uid, roots, began.elapsed());
            tokio::time::sleep(slow::MEASURE_INTERVAL).await;
            let after = slow::Reading::take(&description, &uid, roots, began.elapsed());
            output_options.print(&story.measured(&description, (&before, &after)))
        }
        Subject::Node => output_options.print(&node::gather(&client.describe().await?)),
    }
}
