//! `resize`: another number of CPUs for a VM whose CPUs steliad assigned. Where kubelet assigned them nothing changes, and what to do instead
//! is said.

use std::time::Duration;

use serde::Serialize;
use stelia_api::ThreadRole;
use stelia_model::{Instance, PinnedThread};
use tokio::time::{Instant, sleep};

use crate::shared::daemon::{Client, Failure, Pod, is_file_unusable, options};
use crate::shared::output::{Meaning, Render, TextStyle, paragraph, printable, stacked};

/// How often the VM is looked at while its vCPUs are unplugged.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// The longest `unplug-timeout-s`, and time to follow.
const MAX_WAIT: Duration = Duration::from_secs(70);
/// How long the daemon may take until it shows what it does.
const MAX_FOLLOW: Duration = Duration::from_secs(5);
/// The outcome where kubelet assigned the CPUs and there is no dry run.
const REFUSED: &str = "refused";

/// What became of the VM, or would.
#[derive(Debug, Serialize)]
pub(crate) struct Resized {
    #[serde(flatten)]
    pod: Pod,
    /// Its CPUs before, and afterwards.
    from: String,
    to: String,
    /// `planned`, `done` or [`REFUSED`].
    outcome: &'static str,
    text: String,
    /// What to do instead, where kubelet assigned the CPUs, a line each; else empty.
    fix: String,
}

impl Render for Resized {
    fn names(&self) -> Vec<String> {
        vec![self.pod.to_string()]
    }

    fn text(&self, style: TextStyle) -> String {
        let pod = self.pod.to_string();
        if self.fix.is_empty() {
            return paragraph(&printable(&format!("{pod}: {}", self.text)), style);
        }
        let label = match self.outcome {
            REFUSED => ("FAIL", Meaning::Broken),
            _ => ("NOTE", Meaning::Plain),
        };
        let effect = "kubectl replace --force deletes the pod: the VM restarts";
        let steps = (1..).zip(self.fix.lines()).map(|(at, step)| format!("{at}. {step}\n"));
        stacked(label, &pod, &self.text, effect, &steps.collect::<String>(), style)
    }

    fn failure(&self) -> Option<String> {
        (self.outcome == REFUSED).then(|| "nothing has changed: kubelet assigned the CPUs".to_owned())
    }
}

/// Gives the VM so many CPUs and waits until it has them; with a dry run only says what would happen.
///
/// # Errors
/// There is no such VM, the daemon refuses, or the guest does not unplug vCPUs.
pub(crate) async fn resize(client: &Client, vm: &str, cpus: u32, dry_run: bool) -> Result<Resized, Failure> {
    let found = client.find(vm).await?;
    let instance = &found.instance;
    let from = instance.exclusive.to_string();
    let mut resized = Resized {
        pod: found.pod,
        outcome: if dry_run { "planned" } else { "done" },
        text: format!("has {cpus} CPUs already: {from}"),
        fix: String::new(),
        to: from.clone(),
        from,
    };
    if instance.allocation.is_some() {
        let resize = client.manager().resize(&resized.pod.pod_uid, cpus, options(dry_run));
        let (to, waits) = client.answer_while_alive(resize).await?;
        if !dry_run {
            follow(client, &resized.pod, &to).await?;
        }
        resized.text = words(instance, cpus, &to, waits, dry_run);
        resized.to = to;
    } else if instance.exclusive.len() != cpus as usize {
        let is_node_damaged = is_file_unusable(&found.described);
        resized.refuse(&instance.container, cpus, dry_run, is_node_damaged);
    }
    Ok(resized)
}

impl Resized {
    /// Says why nothing changes, and what to do instead: kubelet chose the CPUs.
    fn refuse(&mut self, container: &str, cpus: u32, dry_run: bool, is_node_damaged: bool) {
        if !dry_run {
            self.outcome = REFUSED;
        }
        let (now, first) = if is_node_damaged {
            (
                "; the node isolates no new VM now",
                "repair the node: steliactl why node\n",
            )
        } else {
            ("", "")
        };
        let from = &self.from;
        self.text = format!("kubelet assigned CPUs {from}, and a pod keeps its CPUs until it is deleted{now}");
        self.fix = format!(
            "{first}set cpu: \"{cpus}\" in requests and limits of container {container} in MANIFEST\n\
             kubectl replace --force -f MANIFEST"
        );
    }
}

/// Waits until the instance has these CPUs. The daemon answers before it shows what it does.
///
/// # Errors
/// Its vCPUs are not unplugged in time, or the daemon does not do it.
async fn follow(client: &Client, pod: &Pod, to: &str) -> Result<(), Failure> {
    let begun = Instant::now();
    loop {
        let described = client.describe().await?;
        let instance = described.node.instances.get(pod.pod_uid.as_str());
        let instance = instance.ok_or_else(|| Failure::NoSuchInstance(format!("{pod} is no longer a VM")))?;
        let cpus = instance.exclusive.to_string();
        if cpus == to {
            return Ok(());
        }
        let most = instance.pending_resize.as_ref().map_or(MAX_FOLLOW, |_| MAX_WAIT);
        if begun.elapsed() > most {
            return Err(Failure::Other(format!(
                "{pod} still has CPUs {cpus}, not {to}: steliactl why {pod}"
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
    use crate::tests::fixtures::{columns, pod, says};

    fn vm() -> Instance {
        Instance {
            exclusive: "2-5".parse().unwrap(),
            vcpus: vec![Default::default(); 4],
            container: "vm".to_owned(),
            ..Instance::default()
        }
    }

    #[test]
    fn what_is_done_or_would_be_is_said() {
        let said = |cpus: u32, to: &str, waits: bool, dry_run: bool| words(&vm(), cpus, to, waits, dry_run);
        assert_eq!(
            said(2, "2-3", true, true),
            "would keep CPUs 2-3 of 2-5 once 2 of its 4 vCPUs are unplugged"
        );
        assert_eq!(said(6, "2-7", false, true), "would have CPUs 2-7 instead of 2-5");
        assert!(said(6, "2-7", false, false).contains("plugs vCPUs"));
        assert_eq!(said(2, "2-3", true, false), "has CPUs 2-3 instead of 2-5");
    }

    #[test]
    fn where_kubelet_assigned_the_cpus_nothing_changes_and_the_commands_are_told() {
        let told = |dry_run: bool, is_node_damaged: bool| {
            let mut told = Resized {
                pod: pod("u", "team-a/web"),
                from: "2-5".to_owned(),
                to: "2-5".to_owned(),
                outcome: "planned",
                text: String::new(),
                fix: String::new(),
            };
            told.refuse("vm", 6, dry_run, is_node_damaged);
            told
        };
        let planned = told(true, false);
        insta::assert_snapshot!(planned.text(columns(80)), @r#"
        NOTE  team-a/web: kubelet assigned CPUs 2-5, and a pod keeps its CPUs until it
              is deleted
              effect  kubectl replace --force deletes the pod: the VM restarts
              fix     1. set cpu: "6" in requests and limits of container vm in MANIFEST
                      2. kubectl replace --force -f MANIFEST
        "#);
        assert_eq!((planned.outcome, planned.failure()), ("planned", None));
        let refused = told(false, false);
        assert_eq!(
            refused.text(columns(80)),
            planned.text(columns(80)).replace("NOTE", "FAIL")
        );
        assert!(refused.failure().unwrap().starts_with("nothing has changed"));
        let damaged = told(true, true).text(columns(80));
        says(
            &damaged,
            &[
                "fix     1. repair the node: steliactl why node\n",
                " 2. set cpu: ",
                " 3. kubectl ",
            ],
        );
    }
}
