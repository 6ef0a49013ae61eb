//! `resize`: another number of CPUs for a VM whose CPUs steliad assigned. Where kubelet assigned them, a resize of the pod gives them: what
//! kubelet would do is said, with the command.

use std::path::Path;
use std::time::Duration;

use kubelet_planner::merge::Policy;
use kubelet_planner::{Cpus, admit, manifest};
use serde::Serialize;
use stelia_api::ThreadRole;
use stelia_model::{Instance, PinnedThread};
use stelia_node_plan::Subject;
use tokio::time::{Instant, sleep};

use crate::plan;
use crate::shared::daemon::{Client, Failure, Pod};
use crate::shared::output::{Render, TextStyle, paragraph, printable};

/// How often the VM is looked at while its vCPUs are unplugged.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// The longest `unplug-timeout-s`, and time to follow.
const MAX_WAIT: Duration = Duration::from_secs(70);
/// How long the daemon may take until it shows what it does.
const MAX_FOLLOW: Duration = Duration::from_secs(5);
/// Without this gate kubelet refuses to resize containers with exclusive CPUs.
const GATE: &str = "InPlacePodVerticalScalingExclusiveCPUs";
/// kubelet's minor versions up to this one admit the resize and leave the container's CPUs as they are.
const LAST_WITHOUT_RESIZE: u32 = 37;

/// What became of the resize.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Outcome {
    /// Nothing was asked of the daemon: a dry run, or kubelet assigned the CPUs.
    #[default]
    Planned,
    Done,
    /// The guest did not unplug enough vCPUs in time: the VM keeps its CPUs.
    Refused,
}

#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Resized {
    #[serde(flatten)]
    pod: Pod,
    /// Its CPUs before.
    from: String,
    /// Its CPUs afterwards; for a dry run those that it would have. Empty where kubelet would choose them and they are not known.
    to: String,
    outcome: Outcome,
    /// What was done or would be.
    text: String,
    /// The command that resizes the pod, where kubelet assigned the CPUs.
    command: Option<String>,
    #[serde(skip)]
    dry_run: bool,
}

impl Render for Resized {
    fn names(&self) -> Vec<String> {
        vec![self.pod.to_string()]
    }

    fn text(&self, style: TextStyle) -> String {
        let mut text = paragraph(&printable(&format!("{}: {}", self.pod, self.text)), style);
        if let Some(command) = &self.command {
            text += &format!("      fix: {}\n", printable(command));
        }
        text
    }

    fn failure(&self) -> Option<String> {
        let why = match (self.outcome, &self.command) {
            (Outcome::Refused, _) => "the guest did not unplug enough vCPUs in time: the VM keeps its CPUs",
            (Outcome::Planned, Some(_)) if !self.dry_run => {
                "kubelet assigned the CPUs of this VM: nothing has changed; resize its pod"
            }
            _ => return None,
        };
        Some(why.to_owned())
    }
}

/// Gives the VM so many CPUs and waits until it has them; with a dry run only says what would happen. `root` is the node's.
///
/// # Errors
/// There is no such VM, or the daemon refuses.
pub(crate) async fn gather(
    client: &Client,
    root: &Path,
    vm: &str,
    cpus: u32,
    dry_run: bool,
) -> Result<Resized, Failure> {
    let pod = client.find(vm).await?.pod;
    let instance = read(client, &pod).await?;
    let base = Resized {
        pod: pod.clone(),
        from: instance.exclusive.to_string(),
        dry_run,
        ..Resized::default()
    };
    if instance.allocation.is_none() {
        let subject = plan::subject(root);
        let (to, text) = by_kubelet(&instance, cpus, subject.as_ref());
        return Ok(Resized {
            to,
            text,
            command: Some(command(&pod, &instance.container, cpus)),
            ..base
        });
    }
    let (to, waits) = client.resize(&pod.pod_uid, cpus, dry_run).await?;
    let outcome = if dry_run {
        Outcome::Planned
    } else {
        followed(client, &pod, &to, waits).await?
    };
    Ok(Resized {
        text: words(&instance, cpus, &to, waits, outcome),
        to: match outcome {
            Outcome::Refused => base.from.clone(),
            Outcome::Planned | Outcome::Done => to,
        },
        outcome,
        ..base
    })
}

/// The instance as the daemon describes it.
async fn read(client: &Client, pod: &Pod) -> Result<Instance, Failure> {
    let description = client.describe().await?;
    let found = description
        .node
        .instances
        .iter()
        .find(|(uid, _)| uid.as_str() == pod.pod_uid);
    let found = found.map(|(_, instance)| Instance::clone(instance));
    found.ok_or_else(|| Failure::NoSuchInstance(format!("{pod} is no VM any more")))
}

/// Waits until the instance has these CPUs or, where it waits for its vCPUs to be unplugged, until it waits no longer.
async fn followed(client: &Client, pod: &Pod, to: &str, waits: bool) -> Result<Outcome, Failure> {
    let begun = Instant::now();
    let mut has_waited = false;
    loop {
        let instance = read(client, pod).await?;
        if instance.exclusive.to_string() == to {
            return Ok(Outcome::Done);
        }
        // The daemon answers before it shows what it does.
        let is_pending = instance.pending_resize.is_some();
        has_waited |= is_pending;
        let is_late = begun.elapsed() > if waits { MAX_WAIT } else { MAX_FOLLOW };
        if waits && !is_pending && (has_waited || begun.elapsed() > MAX_FOLLOW) {
            return Ok(Outcome::Refused);
        }
        if is_late {
            let text = format!("{pod} does not have CPUs {to} yet; see steliactl why {pod}");
            return Err(Failure::Other(text));
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// How many vCPUs the VM has. I/O threads that have a CPU are in the same list.
fn vcpu_count(instance: &Instance) -> usize {
    let is_vcpu = |one: &&PinnedThread| matches!(one.thread.role, ThreadRole::Vcpu(_));
    instance.vcpus.iter().filter(is_vcpu).count()
}

fn words(instance: &Instance, cpus: u32, to: &str, waits: bool, outcome: Outcome) -> String {
    let (vcpus, from) = (vcpu_count(instance), &instance.exclusive);
    match outcome {
        Outcome::Planned if waits => format!(
            "would keep CPUs {to} of {from} once {} of its {vcpus} vCPUs are unplugged",
            vcpus.saturating_sub(cpus as usize)
        ),
        Outcome::Planned => format!("would have CPUs {to} instead of {from}"),
        Outcome::Done if cpus as usize > from.len() => {
            format!("has CPUs {to} instead of {from}; stelia-runner plugs vCPUs if the VMM has free slots")
        }
        Outcome::Done => format!("has CPUs {to} instead of {from}"),
        Outcome::Refused => format!("keeps CPUs {from} and its {vcpus} vCPUs"),
    }
}

/// The CPUs that the VM would have if its pod is resized, empty where that is not known, and what kubelet would do. `subject`: this node, or
/// why it cannot be read.
fn by_kubelet(instance: &Instance, cpus: u32, subject: Result<&Subject, &Failure>) -> (String, String) {
    let unchanged = instance.exclusive.to_string();
    if cpus as usize == instance.exclusive.len() {
        return (unchanged.clone(), format!("has CPUs {unchanged} already"));
    }
    let subject = match subject {
        Ok(subject) => subject,
        Err(cause) => {
            return (
                String::new(),
                format!("kubelet's answer to a resize is not known: {cause}"),
            );
        }
    };
    if let Some(refusal) = refusal(instance, cpus, subject) {
        return (unchanged, refusal);
    }
    let admits = format!(
        "kubelet up to 1.{LAST_WITHOUT_RESIZE} admits the resize, and the container keeps its CPUs; whether a later one changes them is not known"
    );
    let text = match has_gate(subject) {
        Some(_) => admits,
        None => format!("without the feature gate {GATE}, which is not known, kubelet refuses; with it {admits}"),
    };
    (String::new(), text)
}

/// Whether kubelet has the feature gate for exclusive CPUs; `None` if that is not known.
fn has_gate(subject: &Subject) -> Option<bool> {
    let gates = subject.gates.as_ref()?;
    Some(gates.get(GATE).copied().unwrap_or(false))
}

/// Why kubelet would not resize the pod, or not now.
fn refusal(instance: &Instance, cpus: u32, subject: &Subject) -> Option<String> {
    if has_gate(subject) == Some(false) {
        return Some(format!(
            "kubelet would refuse the resize (Infeasible): its feature gate {GATE} is off"
        ));
    }
    let assignable = subject.topology.online().difference(&subject.reserved).len();
    if cpus as usize > assignable {
        return Some(format!(
            "the resize would be refused (Infeasible): containers can have {assignable} CPUs of this node"
        ));
    }
    let policy = subject.node.settings().topology_policy;
    if matches!(policy, Policy::Restricted | Policy::SingleNumaNode) {
        return Some(format!(
            "kubelet would defer the resize: version 1.36 changes no running container's CPUs under the Topology Manager's policy {}",
            policy.name()
        ));
    }
    let rejection = new_container(cpus, &subject.node.without(instance.pod.as_str())).err()?;
    Some(format!("kubelet would defer the resize: {rejection}"))
}

/// Whether kubelet would give a new container so many CPUs.
fn new_container(cpus: u32, node: &kubelet_planner::Node) -> Result<(), String> {
    let mut pod = manifest::in_words(&[format!("cpus={cpus},memory=1")]).map_err(|cause| cause.to_string())?;
    "resize".clone_into(&mut pod.uid);
    let admitted = admit(node, &pod).map_err(|rejection| rejection.to_string())?;
    match admitted.containers.first().map(|one| &one.cpus) {
        Some(Cpus::Exclusive(_)) => Ok(()),
        _ => Err("kubelet's CPU manager policy gives no exclusive CPUs".to_owned()),
    }
}

/// The command that resizes the pod.
fn command(pod: &Pod, container: &str, cpus: u32) -> String {
    let (namespace, name) = if pod.pod_name.is_empty() {
        ("NAMESPACE", "POD")
    } else {
        (pod.pod_namespace.as_str(), pod.pod_name.as_str())
    };
    let amounts = format!("{{\"cpu\":\"{cpus}\"}}");
    format!(
        "kubectl patch pod {name} -n {namespace} --subresource resize --patch \
         '{{\"spec\":{{\"containers\":[{{\"name\":\"{container}\",\"resources\":{{\"requests\":{amounts},\"limits\":{amounts}}}}}]}}}}'"
    )
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::tests::fixtures;

    fn vm() -> Instance {
        Instance {
            pod: stelia_kubelet::PodUid::parse("3ceda12c-3ee9-40fa-9f42-61428fe654a6").unwrap(),
            exclusive: "2-5".parse().unwrap(),
            vcpus: vec![Default::default(); 4],
            ..Instance::default()
        }
    }

    #[test]
    fn every_outcome_is_said() {
        let say = |cpus, to, waits, outcome| words(&vm(), cpus, to, waits, outcome);
        let planned = say(2, "2-3", true, Outcome::Planned);
        assert_eq!(
            planned,
            "would keep CPUs 2-3 of 2-5 once 2 of its 4 vCPUs are unplugged"
        );
        assert_eq!(
            say(6, "2-7", false, Outcome::Planned),
            "would have CPUs 2-7 instead of 2-5"
        );
        assert!(say(6, "2-7", false, Outcome::Done).contains("plugs vCPUs"));
        assert_eq!(say(2, "2-3", true, Outcome::Done), "has CPUs 2-3 instead of 2-5");
        assert_eq!(say(2, "2-3", true, Outcome::Refused), "keeps CPUs 2-5 and its 4 vCPUs");
    }

    #[test]
    fn a_refusal_fails_and_so_does_a_resize_that_is_kubelets() {
        let of = |outcome, command: Option<&str>, dry_run| Resized {
            outcome,
            command: command.map(str::to_owned),
            dry_run,
            ..Resized::default()
        };
        assert!(of(Outcome::Refused, None, false).failure().is_some());
        assert!(of(Outcome::Planned, Some("kubectl"), false).failure().is_some());
        assert_eq!(of(Outcome::Planned, Some("kubectl"), true).failure(), None);
        assert_eq!(of(Outcome::Done, None, false).failure(), None);
    }

    #[test]
    fn the_command_is_whole() {
        let line = command(&fixtures::pod("u", "default/vm"), "instance", 6);
        let patch = line.split('\'').nth(1).unwrap();
        let patch: serde_json::Value = serde_json::from_str(patch).unwrap();
        let container = &patch["spec"]["containers"][0];
        assert_eq!(container["name"], "instance");
        assert_eq!(container["resources"]["limits"], container["resources"]["requests"]);
        assert_eq!(container["resources"]["limits"]["cpu"], "6");
        assert!(line.starts_with("kubectl patch pod vm -n default --subresource resize"));
    }

    /// A node of 8 CPUs: 0 is reserved, 6-7 are another pod's, and 1 is free.
    fn subject(gate: Option<bool>, policy: &str, whole_cores: bool) -> Subject {
        let mut facts = stelia_koordinator::report::testing::facts();
        for (allocation, cpus) in facts.allocations.iter_mut().zip(["2-5", "6-7"]) {
            allocation.cpus = cpus.parse().unwrap();
        }
        (facts.exclusive, facts.shared) = ("2-7".parse().unwrap(), "0-1".parse().unwrap());
        facts.kubelet.alignment.as_mut().unwrap().policy = policy.to_owned();
        facts.kubelet.cpu_options = [("full-pcpus-only".to_owned(), whole_cores.to_string())].into();
        let mut subject = Subject::described(&facts).unwrap();
        subject.gates = gate.map(|on| [(GATE.to_owned(), on)].into());
        subject
    }

    #[rstest]
    #[case::no_gate(5, Some(false), "none", false, "2-5", "its feature gate")]
    #[case::no_gate_for_fewer(2, Some(false), "none", false, "2-5", "Infeasible")]
    #[case::more_than_there_are(8, Some(true), "none", false, "2-5", "containers can have 7 CPUs of this node")]
    #[case::more_than_are_free(6, Some(true), "best-effort", false, "2-5", "defer")]
    #[case::restricted(2, Some(true), "restricted", false, "2-5", "policy restricted")]
    #[case::single(5, Some(true), "single-numa-node", false, "2-5", "policy single-numa-node")]
    #[case::half_a_core_more(5, Some(true), "none", true, "2-5", "SMT Alignment Error: requested 5")]
    #[case::half_a_core_less(3, Some(true), "none", true, "2-5", "SMT Alignment Error: requested 3")]
    #[case::as_many_as_it_has(4, Some(false), "none", false, "2-5", "already")]
    #[case::admitted(
        5,
        Some(true),
        "none",
        false,
        "",
        "admits the resize, and the container keeps its CPUs"
    )]
    #[case::unknown_gate(5, None, "none", false, "", "which is not known")]
    fn what_kubelet_would_do(
        #[case] cpus: u32,
        #[case] gate: Option<bool>,
        #[case] policy: &str,
        #[case] whole_cores: bool,
        #[case] stays: &str,
        #[case] reason: &str,
    ) {
        let (to, text) = by_kubelet(&vm(), cpus, Ok(&subject(gate, policy, whole_cores)));
        assert!(to == stays && text.contains(reason), "{to} {text}");
    }

    #[test]
    fn a_node_that_cannot_be_read_is_no_failure() {
        let cause = Failure::Other("read /var/lib/kubelet: Permission denied".to_owned());
        let (to, text) = by_kubelet(&vm(), 2, Err(&cause));
        assert!(
            to.is_empty() && text.contains("not known: read /var/lib/kubelet"),
            "{text}"
        );
    }
}
