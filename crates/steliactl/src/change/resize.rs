//! `resize`: another number of CPUs for a VM whose CPUs steliad chose. Where kubelet chose them, a resize of the pod gives them: what kubelet
//! would do is said, with the command.

mod kubelet;

use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use stelia_api::ThreadRole;
use stelia_model::{Instance, PinnedThread};
use tokio::time::{Instant, sleep};

use crate::plan;
use crate::shared::daemon::{Client, Failure, Pod};
use crate::shared::output::{Render, TextStyle, paragraph, printable};

/// How often the instance is looked at while its vCPUs are unplugged.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// The longest `unplug-timeout-s`, and time to follow.
const MAX_WAIT: Duration = Duration::from_secs(70);

/// How long the daemon may take until it shows what it does.
const MAX_FOLLOW: Duration = Duration::from_secs(5);

/// What became of the resize.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Outcome {
    /// Nothing was asked of the daemon: a dry run, or kubelet chose the CPUs.
    #[default]
    Planned,
    Done,
    /// The guest did not give up enough vCPUs in time: the VM keeps its CPUs.
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
    /// What was done or would be, line by line.
    lines: Vec<String>,
    /// The command that resizes the pod, where kubelet chose the CPUs.
    command: Option<String>,
    #[serde(skip)]
    dry_run: bool,
}

impl Render for Resized {
    fn names(&self) -> Vec<String> {
        vec![self.pod.to_string()]
    }

    fn text(&self, style: TextStyle) -> String {
        let lines: Vec<String> = self
            .lines
            .iter()
            .map(|line| paragraph(&printable(line), style))
            .collect();
        let command = self
            .command
            .as_ref()
            .map(|command| format!("\n{}\n", printable(command)));
        lines.concat() + &command.unwrap_or_default()
    }

    fn failure(&self) -> Option<String> {
        match (self.outcome, &self.command) {
            (Outcome::Refused, _) => {
                Some("the guest did not give up enough vCPUs in time: the VM keeps its CPUs".to_owned())
            }
            (Outcome::Planned, Some(_)) if !self.dry_run => {
                Some("kubelet chose the CPUs of this VM: nothing has changed; resize its pod".to_owned())
            }
            _ => None,
        }
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
    let pod = client.find_for_change(vm).await?.pod;
    let instance = read(client, &pod).await?;
    let base = Resized {
        pod: pod.clone(),
        from: instance.exclusive.to_string(),
        dry_run,
        ..Resized::default()
    };
    if instance.allocation.is_none() {
        let subject = plan::subject(root);
        let answer = kubelet::answer(&instance, cpus, subject.as_ref().map_err(ToString::to_string));
        return Ok(Resized {
            to: answer.cpus,
            lines: answer.lines,
            command: Some(kubelet::command(&pod, &instance.container, cpus)),
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
        lines: vec![words(&instance, cpus, &to, waits, outcome)],
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
    found.ok_or_else(|| Failure::NoSuchInstance(format!("pod {pod} has no instance any more")))
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
            let text = format!("pod {pod} does not have the CPUs {to} yet; steliactl verify {pod} tells why");
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
    let is_more = cpus as usize > from.len();
    match outcome {
        Outcome::Planned if waits => format!(
            "It would keep the CPUs {to} of {from} when at least {} of its {vcpus} vCPUs are unplugged.",
            vcpus.saturating_sub(cpus as usize)
        ),
        Outcome::Planned => format!("It would have the CPUs {to} instead of {from}."),
        Outcome::Done if is_more => {
            format!(
                "It has the CPUs {to} instead of {from}. stelia-runner plugs vCPUs for them if the VMM has free slots."
            )
        }
        Outcome::Done => format!("It has the CPUs {to} instead of {from}."),
        Outcome::Refused => format!("It keeps the CPUs {from} and its {vcpus} vCPUs."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance() -> Instance {
        Instance {
            exclusive: "2-5".parse().unwrap(),
            vcpus: vec![Default::default(); 4],
            ..Instance::default()
        }
    }

    #[test]
    fn every_outcome_is_said() {
        let say = |cpus, to, waits, outcome| words(&instance(), cpus, to, waits, outcome);
        assert_eq!(
            say(2, "2-3", true, Outcome::Planned),
            "It would keep the CPUs 2-3 of 2-5 when at least 2 of its 4 vCPUs are unplugged."
        );
        assert_eq!(
            say(6, "2-7", false, Outcome::Planned),
            "It would have the CPUs 2-7 instead of 2-5."
        );
        assert!(say(6, "2-7", false, Outcome::Done).contains("stelia-runner plugs vCPUs"));
        assert_eq!(
            say(2, "2-3", true, Outcome::Done),
            "It has the CPUs 2-3 instead of 2-5."
        );
        assert_eq!(
            say(2, "2-3", true, Outcome::Refused),
            "It keeps the CPUs 2-5 and its 4 vCPUs."
        );
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
}
