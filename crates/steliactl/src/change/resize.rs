//! `resize`: another number of CPUs for a VM whose CPUs steliad assigned. Where kubelet assigned them nothing changes, and what to do instead
//! is said.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use stelia_api::ThreadRole;
use stelia_model::{Instance, PinnedThread};
use tokio::time::{Instant, sleep};

use crate::shared::daemon::{Client, Failure, Pod};
use crate::shared::output::{Meaning, Render, TextStyle, hanging, paragraph, printable};

/// How often the VM is looked at while its vCPUs are unplugged.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// The longest `unplug-timeout-s`, and time to follow.
const MAX_WAIT: Duration = Duration::from_secs(70);
/// How long the daemon may take until it shows what it does.
const MAX_FOLLOW: Duration = Duration::from_secs(5);

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
    /// Its CPUs afterwards; for a dry run those that it would have.
    to: String,
    outcome: Outcome,
    /// What was done or would be.
    text: String,
    /// What to do instead, where kubelet assigned the CPUs; else empty.
    fix: String,
    #[serde(skip)]
    dry_run: bool,
}

impl Render for Resized {
    fn names(&self) -> Vec<String> {
        vec![self.pod.to_string()]
    }

    fn text(&self, style: TextStyle) -> String {
        let mut text = paragraph(&printable(&format!("{}: {}", self.pod, self.text)), style);
        if !self.fix.is_empty() {
            text += &hanging("      fix", 14, Meaning::Plain, &self.fix, style);
        }
        text
    }

    fn failure(&self) -> Option<String> {
        let why = match self.outcome {
            Outcome::Refused => "the guest did not unplug enough vCPUs in time: the VM keeps its CPUs",
            Outcome::Planned if !self.dry_run => "nothing has changed: kubelet assigned the CPUs of this VM",
            _ => return None,
        };
        Some(why.to_owned())
    }
}

/// Gives the VM so many CPUs and waits until it has them; with a dry run only says what would happen.
///
/// # Errors
/// There is no such VM, or the daemon refuses.
pub(crate) async fn gather(client: &Client, vm: &str, cpus: u32, dry_run: bool) -> Result<Resized, Failure> {
    let pod = client.find_for_change(vm).await?.pod;
    let instance = read(client, &pod).await?;
    let base = Resized {
        pod: pod.clone(),
        from: instance.exclusive.to_string(),
        to: instance.exclusive.to_string(),
        dry_run,
        ..Resized::default()
    };
    if instance.allocation.is_none() {
        let (from, container) = (&base.from, &instance.container);
        return Ok(Resized {
            text: format!("kubelet assigned CPUs {from} and does not change them while the container runs"),
            fix: format!(
                "set {cpus} CPUs in requests and limits of container {container}, then kubectl replace --force -f MANIFEST"
            ),
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
            Outcome::Refused => base.to.clone(),
            Outcome::Planned | Outcome::Done => to,
        },
        outcome,
        ..base
    })
}

/// The instance as the daemon describes it.
async fn read(client: &Client, pod: &Pod) -> Result<Arc<Instance>, Failure> {
    let found = client.describe().await?.node.instances.remove(pod.pod_uid.as_str());
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

fn words(instance: &Instance, cpus: u32, to: &str, waits: bool, outcome: Outcome) -> String {
    // I/O threads that have a CPU are in the same list.
    let is_vcpu = |one: &&PinnedThread| matches!(one.thread.role, ThreadRole::Vcpu(_));
    let (vcpus, from) = (instance.vcpus.iter().filter(is_vcpu).count(), &instance.exclusive);
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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_refusal_fails_and_so_does_a_resize_that_is_not_steliads() {
        let fails = |outcome, dry_run| {
            let resized = Resized {
                outcome,
                dry_run,
                ..Resized::default()
            };
            resized.failure().is_some()
        };
        assert!(fails(Outcome::Refused, false) && fails(Outcome::Planned, false));
        assert!(!fails(Outcome::Planned, true) && !fails(Outcome::Done, false));
    }
}
