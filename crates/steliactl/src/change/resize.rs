//! `resize`: another number of CPUs for a VM whose CPUs steliad assigned. Where kubelet assigned them nothing changes, and what to do instead
//! is said.

use std::time::Duration;

use serde::Serialize;
use stelia_api::ThreadRole;
use stelia_model::{Instance, PinnedThread};
use tokio::time::{Instant, sleep};

use crate::shared::daemon::{Client, Description, Failure, Found, Mode, OnlineCpus, Pod, is_file_unusable, options};
use crate::shared::output::{Block, Meaning, Render, TextStyle, paragraph, printable};

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
    fn text(&self, style: TextStyle) -> String {
        let pod = self.pod.to_string();
        if self.fix.is_empty() {
            return paragraph(&printable(&format!("{pod}: {}", self.text)), style);
        }
        let steps = (1..).zip(self.fix.lines()).map(|(at, step)| format!("{at}. {step}\n"));
        let (label, steps) = (("NOTE", Meaning::Plain), steps.collect::<String>());
        Block::new(label, pod, &self.text, "a change restarts the VM", steps).text(style)
    }

    fn failure(&self) -> Option<String> {
        (self.outcome == REFUSED).then(|| "nothing has changed".to_owned())
    }
}

/// Gives the VM so many CPUs and waits until it has them; with a dry run only says what would happen.
///
/// # Errors
/// There is no such VM, the node has fewer CPUs, the daemon refuses, or the guest does not unplug vCPUs.
pub(crate) async fn resize(client: &Client, vm: &str, cpus: u32, mode: Mode) -> Result<Resized, Failure> {
    let found = client.find(vm).await?;
    has_room(&found.described, cpus)?;
    let (instance, pod) = (&found.instance, &found.pod);
    let from = instance.exclusive.to_string();
    let (done, refused) = match mode {
        Mode::Change => ("done", REFUSED),
        Mode::DryRun => ("planned", "planned"),
    };
    let mut resized = Resized {
        pod: pod.clone(),
        outcome: done,
        text: format!("has {cpus} CPUs already: {from}"),
        fix: String::new(),
        to: from.clone(),
        from,
    };
    if instance.allocation.is_some() {
        let resize = client.manager().resize(&pod.pod_uid, cpus, options(mode));
        let (to, waits) = client.answer_while_alive(resize).await?;
        if mode == Mode::Change {
            follow(client, pod, &to).await?;
        }
        resized.text = words(instance, cpus, &to, waits, mode);
        resized.to = to;
    } else if instance.exclusive.len() != cpus as usize {
        resized.outcome = refused;
        (resized.text, resized.fix) = advice(&found, cpus);
    }
    Ok(resized)
}

/// # Errors
/// The node has fewer CPUs than this that are not reserved.
fn has_room(described: &Description, cpus: u32) -> Result<(), Failure> {
    let all = described.node.topology.online().len();
    let reserved = OnlineCpus::of(described).reserved.len();
    if all == 0 || cpus as usize <= all - reserved {
        return Ok(());
    }
    let has = format!("this node has {all} CPUs, {reserved} of them reserved");
    Err(Failure::Other(format!("no VM can have {cpus} CPUs: {has}")))
}

/// Why nothing changes, and what to do instead, a line each: kubelet chose the CPUs. Who owns the pod is not known on the node.
fn advice(found: &Found, cpus: u32) -> (String, String) {
    let (instance, pod) = (&found.instance, &found.pod);
    let (now, first) = if is_file_unusable(&found.described) {
        (
            "; the node isolates no new VM now",
            "repair the node (steliactl why node)\n",
        )
    } else {
        ("", "")
    };
    let name = if pod.is_named() {
        format!("-n {} {}", pod.pod_namespace, pod.pod_name)
    } else {
        "NAME".to_owned()
    };
    let (from, container) = (&instance.exclusive, &instance.container);
    let set = format!("set cpu: \"{cpus}\" in requests and limits of container {container}");
    let text = format!("kubelet assigned CPUs {from}, and a pod keeps its CPUs until it is deleted{now}");
    let fix = format!(
        "{first}kubectl describe pod {name} | grep Controlled\n\
         if that prints an owner: {set} in its template (KubeVirt: the VirtualMachine's CPUs), then restart the owner\n\
         if that prints nothing: {set} in MANIFEST, then kubectl replace --force -f MANIFEST"
    );
    (text, fix)
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

fn words(instance: &Instance, cpus: u32, to: &str, waits: bool, mode: Mode) -> String {
    // I/O threads that have a CPU are in the same list.
    let is_vcpu = |one: &&PinnedThread| matches!(one.thread.role, ThreadRole::Vcpu(_));
    let (vcpus, from) = (instance.vcpus.iter().filter(is_vcpu).count(), &instance.exclusive);
    match mode {
        Mode::DryRun if waits => {
            let unplugged = vcpus.saturating_sub(cpus as usize);
            format!("would keep CPUs {to} of {from} once {unplugged} of its {vcpus} vCPUs are unplugged")
        }
        Mode::DryRun => format!("would have CPUs {to} instead of {from}"),
        Mode::Change if cpus as usize > from.len() => {
            format!("has CPUs {to} instead of {from}; stelia-runner plugs vCPUs if the VMM has free slots")
        }
        Mode::Change => format!("has CPUs {to} instead of {from}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use stelia_api::{Reason, ReasonCode};

    use super::*;
    use crate::shared::daemon::node::testing::{PODS, node};
    use crate::tests::fixtures::{columns, pod, says};

    #[test]
    fn what_is_done_or_would_be_is_said() {
        let vm = Instance {
            exclusive: "2-5".parse().unwrap(),
            vcpus: vec![Default::default(); 4],
            ..Instance::default()
        };
        let said = |cpus: u32, to: &str, waits: bool, mode: Mode| words(&vm, cpus, to, waits, mode);
        assert_eq!(
            said(2, "2-3", true, Mode::DryRun),
            "would keep CPUs 2-3 of 2-5 once 2 of its 4 vCPUs are unplugged"
        );
        assert_eq!(
            said(6, "2-7", false, Mode::DryRun),
            "would have CPUs 2-7 instead of 2-5"
        );
        says(&said(6, "2-7", false, Mode::Change), &["plugs vCPUs"]);
        assert_eq!(said(2, "2-3", true, Mode::Change), "has CPUs 2-3 instead of 2-5");
    }

    #[test]
    fn no_vm_has_more_cpus_than_the_node_has_for_pods() {
        let refused = |cpus| has_room(&node(), cpus).map_err(|failure| failure.to_string());
        assert_eq!(refused(6), Ok(()));
        says(&refused(7).unwrap_err(), &["7 CPUs", "8 CPUs", "2 of them"]);
        assert_eq!(has_room(&Description::default(), 64), Ok(()));
    }

    #[test]
    fn where_kubelet_assigned_the_cpus_nothing_changes_and_the_commands_are_told() {
        let told = |outcome, problem: Option<ReasonCode>| {
            let mut described = node();
            described
                .problems
                .extend(problem.map(|code| Reason::of_node(code, "x")));
            let found = Found {
                pod: pod(PODS[0], "team-a/web"),
                instance: Arc::clone(&described.node.instances[PODS[0]]),
                described,
            };
            let (text, fix) = advice(&found, 6);
            let (from, to) = ("4-5".to_owned(), "4-5".to_owned());
            Resized {
                pod: found.pod,
                from,
                to,
                outcome,
                text,
                fix,
            }
        };
        let refused = told(REFUSED, None);
        insta::assert_snapshot!(refused.text(columns(80)));
        assert_eq!(refused.text(columns(80)), told("planned", None).text(columns(80)));
        assert!(refused.failure().is_some() && told("planned", None).failure().is_none());
        let damaged = told(REFUSED, Some(ReasonCode::KubeletUnusable)).text(columns(80));
        says(&damaged, &["fix     1. repair the node", " 4. if that prints nothing"]);
    }
}
