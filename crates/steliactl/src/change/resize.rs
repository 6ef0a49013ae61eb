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

/// What became of the VM, or would.
#[derive(Debug, Serialize)]
pub(crate) struct Resized {
    #[serde(flatten)]
    pod: Pod,
    /// Its CPUs before, and afterwards.
    from: String,
    to: String,
    /// `planned` or `done`.
    outcome: &'static str,
    text: String,
    /// What to do instead, where kubelet assigned the CPUs; else empty.
    fix: String,
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
}

/// Gives the VM so many CPUs and waits until it has them; with a dry run only says what would happen.
///
/// # Errors
/// There is no such VM, the daemon refuses, kubelet assigned the CPUs, or the guest does not unplug vCPUs.
pub(crate) async fn gather(client: &Client, vm: &str, cpus: u32, dry_run: bool) -> Result<Resized, Failure> {
    let pod = client.find(vm).await?.pod;
    let instance = read(client, &pod).await?;
    let (from, container) = (instance.exclusive.to_string(), &instance.container);
    let (to, text, fix) = if instance.allocation.is_none() {
        let text = format!("kubelet assigned CPUs {from} and does not change them while the container runs");
        let fix = format!(
            "set {cpus} CPUs in requests and limits of container {container}, then kubectl replace --force -f MANIFEST"
        );
        if !dry_run {
            return Err(Failure::Other(format!("nothing has changed: {text}; {fix}")));
        }
        (from.clone(), text, fix)
    } else {
        let (to, waits) = client.resize(&pod.pod_uid, cpus, dry_run).await?;
        if !dry_run {
            follow(client, &pod, &to).await?;
        }
        let text = words(&instance, cpus, &to, waits, dry_run);
        (to, text, String::new())
    };
    Ok(Resized {
        pod,
        from,
        to,
        outcome: if dry_run { "planned" } else { "done" },
        text,
        fix,
    })
}

/// The instance as the daemon describes it.
async fn read(client: &Client, pod: &Pod) -> Result<Arc<Instance>, Failure> {
    let found = client.describe().await?.node.instances.remove(pod.pod_uid.as_str());
    found.ok_or_else(|| Failure::NoSuchInstance(format!("{pod} is no VM any more")))
}

/// Waits until the instance has these CPUs. The daemon answers before it shows what it does.
///
/// # Errors
/// Its vCPUs are not unplugged in time, or the daemon does not do it.
async fn follow(client: &Client, pod: &Pod, to: &str) -> Result<(), Failure> {
    let begun = Instant::now();
    loop {
        let instance = read(client, pod).await?;
        if instance.exclusive.to_string() == to {
            return Ok(());
        }
        let most = match instance.pending_resize {
            Some(_) => MAX_WAIT,
            None => MAX_FOLLOW,
        };
        if begun.elapsed() > most {
            let cpus = &instance.exclusive;
            let why = "its guest has not unplugged enough vCPUs";
            return Err(Failure::Other(format!(
                "{pod} has CPUs {cpus}, not {to}: {why}, or see steliactl why {pod}"
            )));
        }
        sleep(POLL_INTERVAL).await;
    }
}

fn words(instance: &Instance, cpus: u32, to: &str, waits: bool, dry_run: bool) -> String {
    // I/O threads that have a CPU are in the same list.
    let is_vcpu = |one: &&PinnedThread| matches!(one.thread.role, ThreadRole::Vcpu(_));
    let (vcpus, from) = (instance.vcpus.iter().filter(is_vcpu).count(), &instance.exclusive);
    if dry_run && waits {
        let unplugged = vcpus.saturating_sub(cpus as usize);
        format!("would keep CPUs {to} of {from} once {unplugged} of its {vcpus} vCPUs are unplugged")
    } else if dry_run {
        format!("would have CPUs {to} instead of {from}")
    } else if cpus as usize > from.len() {
        format!("has CPUs {to} instead of {from}; stelia-runner plugs vCPUs if the VMM has free slots")
    } else {
        format!("has CPUs {to} instead of {from}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_or_would_be_is_said() {
        let vm = Instance {
            exclusive: "2-5".parse().unwrap(),
            vcpus: vec![Default::default(); 4],
            ..Instance::default()
        };
        let planned = words(&vm, 2, "2-3", true, true);
        assert_eq!(
            planned,
            "would keep CPUs 2-3 of 2-5 once 2 of its 4 vCPUs are unplugged"
        );
        let planned = words(&vm, 6, "2-7", false, true);
        assert_eq!(planned, "would have CPUs 2-7 instead of 2-5");
        assert!(words(&vm, 6, "2-7", false, false).contains("plugs vCPUs"));
        assert_eq!(words(&vm, 2, "2-3", true, false), "has CPUs 2-3 instead of 2-5");
    }
}
