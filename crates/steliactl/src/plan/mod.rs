//! `plan`: which CPUs a pod would get on this node or on a described one, or why it would be rejected. Where kubelet assigns the CPUs its
//! planner answers, without the daemon; where steliad does, the daemon, or the allocator for a described node.

mod allocator;
mod answer;
mod subject;
mod text;

#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::path::{Path, PathBuf};

use clap::Args;
use kubelet_planner::manifest::{self, Described, NodeRequirements};
use stelia_koordinator::allocator::AllocationRequest;
use stelia_koordinator::allocator::command_line::names;
use stelia_koordinator::allocator::evaluate::ScoringStrategy;
use stelia_koordinator::report::{Facts, described};
use stelia_kubelet::{KubeletConfig, config};
use stelia_node_plan::Subject;
use stelia_node_plan::devices::DeviceWords;

use crate::shared::daemon::{Client, Failure};
use crate::shared::files;
use crate::shared::output::OutputOptions;
use answer::Answer;

pub(crate) use subject::forgotten;

#[derive(Debug, Args)]
pub(crate) struct PlanOptions {
    /// A manifest, YAML or JSON, with the pod, an object with its template such as a Deployment, or a VM of KubeVirt. - is standard input
    #[arg(value_name = "FILE", required_unless_present_any = ["containers", "cpus", "qos"], conflicts_with = "containers")]
    manifest: Option<PathBuf>,
    /// The Pod, or the object with its template, if the manifest has several: its name, or its kind and name, such as Deployment/web
    #[arg(long, value_name = "[KIND/]NAME", conflicts_with = "containers")]
    pod: Option<String>,
    /// A container of a pod that has no manifest: its resources, which are both requests and limits, such as
    /// cpus=4,memory=8Gi,hugepages-2Mi=1Gi,example.com/nic=1, and optionally name=NAME and kind=app|init|sidecar. May be repeated
    #[arg(short, long = "container", value_name = "KEY=VALUE,...")]
    containers: Vec<String>,
    /// Plan for the node that this file describes, which `steliactl export topology` printed on that node. - is standard input. Default:
    /// this node
    #[arg(long, value_name = "FILE")]
    node: Option<PathBuf>,
    /// With --node: the answer of a kubelet with this configuration file, whatever assigns the described node's CPUs
    #[arg(long, value_name = "FILE", requires = "node")]
    kubelet_config: Option<PathBuf>,
    /// Devices of the node by NUMA node, such as example.com/gpu=0:4,1:3/4: four at NUMA node 0, and four at 1 of which three are free.
    /// Replaces what is known of the resource. May be repeated
    #[arg(long, value_name = "RESOURCE=NODE:COUNT,...")]
    devices: Vec<DeviceWords>,
    /// kubelet's version, such as 1.37. From 1.37 on, distribute-cpus-across-numa takes CPUs from at least as many NUMA nodes as the
    /// Topology Manager chose. Default: 1.37 if kubelet's file has the schema of 1.37, otherwise 1.36
    #[arg(long, value_name = "VERSION", value_parser = minor)]
    kubelet_version: Option<u32>,
    /// Print how many such pods kubelet would admit, one after the other
    #[arg(long)]
    until_full: bool,
    /// For steliad. At the end: its heading holds for all options that follow.
    #[command(flatten)]
    request: AllocationRequest,
    /// What the score favours. Default: MostAllocated
    #[arg(long, value_name = "STRATEGY",
          value_parser = names(ScoringStrategy::ALL.map(ScoringStrategy::name), ScoringStrategy::parse))]
    scoring_strategy: Option<ScoringStrategy>,
}

/// Returns what is to be printed; `root` is `/`, or a directory with the same layout.
///
/// # Errors
/// [`Failure::Partial`] when the pod is not admitted, any other [`Failure`] when there is no answer.
pub(crate) async fn run(
    asked: &PlanOptions,
    client: impl AsyncFnOnce() -> Result<Client, Failure>,
    root: &Path,
    output_options: OutputOptions,
) -> Result<String, Failure> {
    let stdin = Some(Path::new("-"));
    if asked.node.as_deref() == stdin && asked.manifest.as_deref() == stdin {
        let text = "--node and the manifest cannot both be standard input";
        return Err(Failure::Usage(text.to_owned()));
    }
    let question = asked.question()?;
    let facts = asked
        .node
        .as_deref()
        .map(|path| read(path, described::read))
        .transpose()?;
    let by_steliad = match &facts {
        Some(facts) => facts.allocator.is_some() && asked.kubelet_config.is_none(),
        None => stelia_settings::load(root).is_ok_and(|loaded| loaded.settings.policies.allocator.source.allocates()),
    };
    asked.refuse_options_of_the_other(by_steliad)?;
    let answer = if by_steliad {
        allocator::answer(asked, &question, facts.as_ref(), client).await?
    } else {
        asked.of_kubelet(&question, facts.as_ref(), root)?
    };
    output_options.print(&answer)
}

/// What is in a file, or in standard input.
fn read<T, E: Display>(path: &Path, parse: impl FnOnce(&str) -> Result<T, E>) -> Result<T, Failure> {
    let text = files::text(path, described::MAX_BYTES)?;
    parse(&text).map_err(|cause| Failure::about(path, &cause))
}

/// The minor version in `1.37`, `v1.37.2` or `v1.37.2+k3s1`.
fn minor(text: &str) -> Result<u32, String> {
    let parts = text.strip_prefix('v').unwrap_or(text).strip_prefix("1.");
    let minor = parts.and_then(|parts| parts.split('.').next()?.parse().ok());
    minor.ok_or_else(|| "expected a version of Kubernetes, such as 1.37".to_owned())
}

impl PlanOptions {
    fn question(&self) -> Result<Described, Failure> {
        let mut question = match &self.manifest {
            Some(path) => read(path, |text| manifest::described(text, self.pod.as_deref()))?,
            None => {
                let cpus = self.request.cpus.map(|cpus| format!("cpus={cpus},"));
                let alone = [cpus.unwrap_or_default() + "memory=1"];
                let words = if self.is_whole() { &self.containers[..] } else { &alone };
                let pod = manifest::in_words(words);
                let pod = pod.map_err(|cause| Failure::Usage(format!("--container: {cause}")))?;
                Described {
                    name: "pod".to_owned(),
                    pod,
                    ..Described::default()
                }
            }
        };
        question.assumed.extend(not_considered(&question.requirements));
        // The question is about one more pod: with a UID that kubelet knows the answer would be what that pod has.
        "plan".clone_into(&mut question.pod.uid);
        Ok(question)
    }

    /// Whether the pod is known as a whole, and not only by its number of CPUs.
    fn is_whole(&self) -> bool {
        self.manifest.is_some() || !self.containers.is_empty()
    }

    /// # Errors
    /// An option is given that means nothing where the other one assigns the CPUs.
    fn refuse_options_of_the_other(&self, by_steliad: bool) -> Result<(), Failure> {
        let no_more = AllocationRequest {
            cpus: self.request.cpus.filter(|_| !self.is_whole()),
            ..AllocationRequest::default()
        };
        let for_steliad = self.request != no_more || self.scoring_strategy.is_some();
        let for_kubelet = self.until_full || !self.devices.is_empty() || self.kubelet_version.is_some();
        let why = match by_steliad {
            true if for_kubelet => {
                "steliad assigns the CPUs: --until-full, --devices and --kubelet-version are for kubelet"
            }
            false if for_steliad => {
                "kubelet assigns the CPUs: the options for nodes whose cpu-source is steliad have no effect"
            }
            _ => return Ok(()),
        };
        Err(Failure::Usage(why.to_owned()))
    }

    fn of_kubelet(&self, question: &Described, facts: Option<&Facts>, root: &Path) -> Result<Answer, Failure> {
        let mut subject = match facts {
            Some(facts) => {
                let config = self.kubelet_config.as_deref().map(|path| read(path, configuration));
                let described = match config.transpose()? {
                    Some(config) => Subject::described_under(facts, &config),
                    None => Subject::described(facts),
                };
                let path = self.node.as_deref().unwrap_or(root);
                let described = described.map_err(|cause| Failure::about(path, &cause))?;
                described.with_version(self.kubelet_version)
            }
            None => match subject::here(root, self.kubelet_version) {
                Ok(subject) => subject,
                Err(why) => return Ok(Answer::about(question).refused(*why)),
            },
        };
        if !self.devices.is_empty() {
            subject = subject.with_devices(&self.devices).map_err(Failure::Other)?;
        }
        Ok(Answer::of_kubelet(question, &subject, self.until_full))
    }
}

/// The configuration in a file of kubelet's.
fn configuration(text: &str) -> Result<KubeletConfig, String> {
    let file = config::File::parse(text, "kubelet's configuration");
    let read = file.and_then(|file| KubeletConfig::new(Some(file), Vec::new(), config::Flags::default()));
    read.map_err(|cause| cause.in_full())
}

/// What KubeVirt requires of the node of a VM: kubelet does not decide by it.
fn not_considered(requirements: &NodeRequirements) -> Option<String> {
    let (labels, devices) = (requirements.labels_in_words(), requirements.devices_in_words());
    let parts = [("labels", labels), ("devices", devices)].into_iter();
    let parts = parts.filter(|(_, words)| !words.is_empty());
    let parts: Vec<String> = parts.map(|(what, words)| format!("the {what} {words}")).collect();
    let text = "whether the node has what KubeVirt also requires is not considered";
    (!parts.is_empty()).then(|| format!("{text}: {}", parts.join(" and ")))
}
