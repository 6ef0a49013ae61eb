//! `plan`: what kubelet would do with a pod, on this node or on a described one. Needs no daemon.

mod answer;
mod evaluate;
mod merges;
mod subject;
mod text;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use clap::Args;
use kubelet_planner::manifest::NodeRequirements;
use kubelet_planner::{Pod, manifest, until_full};
use stelia_koordinator::report::described;
use stelia_kubelet::{KubeletConfig, config};
use stelia_node_plan::Subject;
use stelia_node_plan::devices::DeviceWords;

use crate::shared::daemon::{Client, Failure};
use crate::shared::files;
use crate::shared::output::OutputOptions;
use answer::{Answer, Fits, features, other};

pub(crate) use subject::forgotten;

/// Limit of the pods of `--until-full`: more than any node runs (`maxPods` is 110 by default).
const MAX_PODS: usize = 256;

#[derive(Debug, Args)]
pub(crate) struct PlanOptions {
    /// A manifest, YAML or JSON, with the pod, an object with its template such as a Deployment, or a VM of KubeVirt. - is standard input
    #[arg(
        value_name = "FILE",
        required_unless_present_any = ["containers", "cpus", "qos", "requests"],
        conflicts_with_all = ["containers", "requests"]
    )]
    pub manifest: Option<PathBuf>,
    /// The Pod, or the object with its template, if the manifest has several: its name, or its kind and name, such as Deployment/web
    #[arg(long, value_name = "[KIND/]NAME", conflicts_with = "containers")]
    pub pod: Option<String>,
    /// A container of a pod that has no manifest: its resources, which are both requests and limits, such as
    /// cpus=4,memory=8Gi,hugepages-2Mi=1Gi,example.com/nic=1, and optionally name=NAME and kind=app|init|sidecar. May be repeated
    #[arg(short, long = "container", value_name = "KEY=VALUE,...")]
    pub containers: Vec<String>,
    /// Plan for the node that this file describes, which `steliactl export topology` printed on that node. Default: this node
    #[arg(long, value_name = "FILE")]
    pub node: Option<PathBuf>,
    /// With --node: the answer of a kubelet with this configuration file, whatever the described one's is
    #[arg(long, value_name = "FILE", requires = "node")]
    pub kubelet_config: Option<PathBuf>,
    /// Devices of the node by NUMA node, such as example.com/gpu=0:4,1:3/4: four at NUMA node 0, and four at 1 of which three are free.
    /// Replaces what is known of the resource. May be repeated
    #[arg(long, value_name = "RESOURCE=NODE:COUNT,...")]
    pub devices: Vec<DeviceWords>,
    /// kubelet's version, such as 1.37. From 1.37 on, distribute-cpus-across-numa takes CPUs from at least as many NUMA nodes as the
    /// Topology Manager chose. Default: 1.37 if kubelet's file has the schema of 1.37, otherwise 1.36
    #[arg(long, value_name = "VERSION", value_parser = minor)]
    pub kubelet_version: Option<u32>,
    /// Print how many pods of this kind fit, one after the other
    #[arg(long)]
    pub until_full: bool,
    /// Also print the answer for other policies and scopes of the Topology Manager and other options of the CPU manager, each with its
    /// feature gate and the versions that have it
    #[arg(long)]
    pub what_if: bool,
    #[command(flatten)]
    pub allocator: evaluate::AllocatorOptions,
}

/// Returns what is to be printed. The options of the allocator ask steliad, any other question is kubelet's.
///
/// # Errors
/// As [`of_kubelet`], [`evaluate::offline`] and [`evaluate::online`].
pub(crate) async fn run(
    asked: &PlanOptions,
    client: impl AsyncFnOnce() -> Result<Client, Failure>,
    root: &Path,
    output_options: OutputOptions,
) -> Result<String, Failure> {
    if asked.manifest.is_some() || !asked.containers.is_empty() {
        return of_kubelet(asked, root, output_options);
    }
    output_options.print(&match &asked.node {
        Some(path) => evaluate::offline(&asked.allocator, path)?,
        None => evaluate::online(&client().await?, &asked.allocator).await?,
    })
}

/// Returns what is to be printed; `root` is `/`, or a directory with the same layout.
///
/// # Errors
/// [`Failure::Partial`] when the pod is not admitted, any other [`Failure`] when there is no answer.
pub(crate) fn of_kubelet(asked: &PlanOptions, root: &Path, output_options: OutputOptions) -> Result<String, Failure> {
    let (name, pod, assumed) = pod(asked)?;
    let mut subject = match &asked.node {
        Some(path) => {
            let text = files::text(path, described::MAX_BYTES)?;
            let facts = described::read(&text).map_err(|cause| Failure::about(path, &cause))?;
            let described = match &asked.kubelet_config {
                Some(config) => Subject::described_under(&facts, &configuration(config)?),
                None => Subject::described(&facts),
            };
            let described = described.map_err(|cause| Failure::about(path, &cause))?;
            described.with_version(asked.kubelet_version)
        }
        None => subject::here(root, asked.kubelet_version).map_err(Failure::Other)?,
    };
    subject.notes.extend(assumed);
    if !asked.devices.is_empty() {
        subject = subject.with_devices(&asked.devices).map_err(Failure::Other)?;
    }
    let mut answer = Answer::new(&name, &pod, &subject);
    if asked.until_full {
        answer.until_full = Some(Fits::new(&until_full(&subject.node, &pod, MAX_PODS), &subject));
    }
    if asked.what_if {
        answer.what_if = other(&subject, &pod, MAX_PODS);
        answer.features = features(&subject);
    }
    output_options.print(&answer)
}

/// The node below `root` as the planner takes it, what is assumed of it, and what else is known of kubelet.
///
/// # Errors
/// The node's files or kubelet's cannot be read, or kubelet would not start on them.
pub(crate) fn subject(root: &Path) -> Result<Subject, Failure> {
    subject::here(root, None).map_err(Failure::Other)
}

/// The configuration in a file of kubelet's.
fn configuration(path: &Path) -> Result<KubeletConfig, Failure> {
    let text = files::text(path, described::MAX_BYTES)?;
    let file = config::File::parse(&text, &path.display().to_string());
    let read = file.and_then(|file| KubeletConfig::new(Some(file), Vec::new(), config::Flags::default()));
    read.map_err(|cause| Failure::Other(cause.in_full()))
}

/// The minor version in `1.37`, `v1.37.2` or `v1.37.2+k3s1`.
fn minor(text: &str) -> Result<u32, String> {
    let parts = text.strip_prefix('v').unwrap_or(text).strip_prefix("1.");
    let minor = parts.and_then(|parts| parts.split('.').next()?.parse().ok());
    minor.ok_or_else(|| "expected a version of Kubernetes, such as 1.37".to_owned())
}

/// The pod of the command line, its name, and what was assumed to make it of a template.
fn pod(asked: &PlanOptions) -> Result<(String, Pod, Vec<String>), Failure> {
    let (name, mut pod, assumed) = match &asked.manifest {
        Some(path) => {
            let text = files::text(path, manifest::MAX_BYTES)?;
            let found = manifest::described(&text, asked.pod.as_deref());
            let found = found.map_err(|cause| Failure::about(path, &cause))?;
            let mut assumed = found.assumed;
            assumed.extend(not_considered(&found.requirements));
            (found.name, found.pod, assumed)
        }
        None => {
            let pod = manifest::in_words(&asked.containers);
            let pod = pod.map_err(|cause| Failure::Usage(format!("--container: {cause}")))?;
            ("pod".to_owned(), pod, Vec::new())
        }
    };
    // The question is about one more pod: with a UID that kubelet knows the answer would be what that pod has.
    "plan".clone_into(&mut pod.uid);
    Ok((name, pod, assumed))
}

/// What KubeVirt requires of the node of a VM: kubelet does not decide by it.
fn not_considered(requirements: &NodeRequirements) -> Option<String> {
    if requirements.is_empty() {
        return None;
    }
    let labels = requirements.labels_in_words();
    let labels = if labels.is_empty() {
        labels
    } else {
        format!("the labels {labels} and ")
    };
    Some(format!(
        "KubeVirt also requires that the node has {labels}the devices {}; whether it has them is not considered",
        requirements.devices_in_words()
    ))
}
