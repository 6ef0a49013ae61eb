//! `explain`: the story of an instance and what may slow it down, who owns a CPU.

mod cpu;
mod guest;
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

/// A number is a CPU, with or without the kernel's `cpu` before it; everything else is a VM.
fn cpu_number(what: &str) -> Option<u32> {
    what.strip_prefix("cpu").unwrap_or(what).parse().ok()
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
    what: &str,
    output_options: OutputOptions,
) -> Result<String, Failure> {
    match cpu_number(what) {
        Some(cpu) => {
            let description = client.describe().await?;
            output_options.print(&cpu::facts(&description, Pods::by_logs(root), cpu)?)
        }
        None => {
            let uid = client.find(what).await?.pod.pod_uid;
            let description = client.describe().await?;
            let story = pod::gather(&description, &uid, now())?;
            let began = Instant::now();
            let before = slow::Reading::take(&description, &uid, roots, began.elapsed());
            tokio::time::sleep(slow::MEASURE_INTERVAL).await;
            let after = slow::Reading::take(&description, &uid, roots, began.elapsed());
            output_options.print(&story.measured(&description, (&before, &after)))
        }
    }
}
