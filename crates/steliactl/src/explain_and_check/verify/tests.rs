use serde_json::json;
use stelia_kubelet::PodName;
use stelia_ledger::account::Range;

use super::*;
use crate::shared::daemon::node::testing::{PODS, instance_mut, node};
use crate::shared::output::{Form, OutputOptions, TextStyle};

/// When it is, in these tests: 3 minutes after the second VM registered.
const NOW: u64 = 180_000_001;

/// A node with an isolated VM, and one whose QEMU is not attached.
fn waiting() -> Description {
    let mut node = node();
    let second = instance_mut(&mut node, PODS[1]);
    second.degraded.clear();
    second.registered_us = 1;
    second.pod_name = PodName::new("team-a", "vm");
    node
}

fn preview(plan: &[&str], reasons: &[[&str; 3]], degraded: &[&str]) -> Map<String, Value> {
    let preview = json!({ "plan": plan, "reasons": reasons, "degraded": degraded });
    preview.as_object().cloned().unwrap()
}

fn whole() -> Map<String, Value> {
    preview(&[], &[], &[])
}

fn printed(verified: &Verified, form: Form) -> (String, Option<String>) {
    match (OutputOptions {
        form,
        style: TextStyle::from(true),
    }
    .print(verified))
    {
        Ok(text) => (text, None),
        Err(Failure::Partial { printed, reason }) => (printed, Some(reason)),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn where_every_promise_holds_the_states_are_counted_and_a_wait_is_told() {
    let verified = verified(&waiting(), &whole(), None, None, NOW);
    insta::assert_snapshot!(printed(&verified, Form::Text).0, @"
    1 isolated, 1 floating (vCPUs not attached for 3 min)
    Every promise of these states holds: CPU lists, partitions, pinning, limits, and the NUMA nodes of the memory
    ");
    assert_eq!(verified.failure(), None);
}

#[test]
fn the_last_day_of_the_ledger_is_below_what_holds() {
    let web = Brief {
        pod: Pod {
            pod_uid: PODS[0].to_owned(),
            pod_namespace: "team-a".to_owned(),
            pod_name: "web".to_owned(),
        },
        other_tasks: Range { least: 3, most: 7 },
        devices: 1200,
        promised_us: 8,
        covered_us: 6,
    };
    let unread = Brief {
        pod: Pod::unnamed(PODS[1]),
        covered_us: 0,
        ..web.clone()
    };
    let verified = Verified {
        ledger: Some(vec![web, unread]),
        ..verified(&waiting(), &whole(), None, None, NOW)
    };
    let (text, failure) = printed(&verified, Form::Text);
    let (_, below) = text.split_once("\n\n").unwrap();
    insta::assert_snapshot!(below, @"
    The last 24 hours by the ledger:
    team-a/web: other tasks 3…7, other devices' interrupts 1,200, 75.00% covered
    ");
    assert_eq!(failure, None);
}

#[test]
fn without_a_vm_nothing_is_said_to_hold() {
    let mut node = node();
    node.node.instances.clear();
    assert_eq!(
        printed(&verified(&node, &whole(), None, None, NOW), Form::Text),
        ("No instances.\n".to_owned(), None)
    );
    node.node.kubelet_problem = Some("no file".to_owned());
    let (text, failure) = printed(&verified(&node, &whole(), None, None, NOW), Form::Text);
    assert!(text.contains("kubelet's state cannot be used: no file"), "{text}");
    assert_eq!(failure.unwrap(), "1 promise does not hold");
}

#[test]
fn each_finding_has_a_problem_and_a_cure_and_a_fault_of_the_node_is_one() {
    let mut node = waiting();
    node.node.kubelet_problem = Some("no file".to_owned());
    let [a, b, _] = PODS;
    let (unusable, offline) = ("kubelet's state cannot be used", "CPUs 4 are offline");
    let preview = preview(
        &[
            "-: set CPUWeight=200 of stelia.slice",
            &format!("{a}: pin thread 7 to CPU 4"),
        ],
        &[
            ["-", "kubelet-unusable", unusable],
            [a, "cpus-offline", offline],
            [b, "newer", "who knows"],
        ],
        &[
            &format!("{a}: {unusable}"),
            &format!("{a}: {offline}"),
            &format!("{b}: {unusable}"),
            &format!("{b}: who knows"),
        ],
    );
    let all = verified(&node, &preview, None, None, NOW);
    let (text, failure) = printed(&all, Form::Text);
    insta::assert_snapshot!(text, @"
    1 isolated, 1 floating (vCPUs not attached for 3 min)

    POD                                   PROBLEM                                                  CURE
    -                                     kubelet's state cannot be used (2 VMs)                   steliactl kubelet-state says more; the cure depends on the message
    aaaaaaaa-0000-4000-8000-000000000000  CPUs 4 are offline                                       echo 1 > /sys/devices/system/cpu/cpuN/online
    team-a/vm                             who knows                                                docs/troubleshooting.md
    -                                     differs: a pass would set CPUWeight=200 of stelia.slice  steliactl reconcile, or wait for the next pass
    aaaaaaaa-0000-4000-8000-000000000000  differs: a pass would pin thread 7 to CPU 4              steliactl reconcile, or wait for the next pass
    ");
    assert_eq!(failure.unwrap(), "5 promises do not hold");
    let of_a = verified(&node, &preview, Some(a), None, NOW);
    let whose: Vec<&str> = of_a.findings.iter().map(|one| one.pod.pod_uid.as_str()).collect();
    assert_eq!(whose, ["-", a, "-", a]);
    assert_eq!(of_a.instances.len(), 1);
}

#[test]
fn a_state_below_what_is_required_fails_and_names_the_vm() {
    let require = |required| verified(&waiting(), &whole(), None, Some(required), NOW);
    assert_eq!(require(Required::Floating).failure(), None);
    for required in [Required::Contained, Required::Isolated] {
        let verified = require(required);
        assert_eq!(
            verified.failure().unwrap(),
            "1 instance below what is required: team-a/vm"
        );
        let finding = &verified.findings[0];
        assert!(
            finding.problem.starts_with("floating, ") && finding.problem.contains("for 3 min"),
            "{finding:?}"
        );
        assert!(finding.cure.contains("container's log"), "{finding:?}");
    }
    let json: Value = serde_json::from_str(&printed(&require(Required::Isolated), Form::Json).0).unwrap();
    assert_eq!(
        (&json["required"], &json["findings"][0]["kind"]),
        (&json!("isolated"), &json!("below-required"))
    );
    assert_eq!(json["findings"][0]["pod_name"], "vm");
    assert_eq!(
        (&json["instances"][1]["state"], &json["instances"][1]["waits_since_us"]),
        (&json!("floating"), &json!(1))
    );
}

#[test]
fn half_the_memory_away_is_a_finding_with_the_share_and_a_cure() {
    let memory = json!({"anon": 1 << 30, "file": 4096, "shmem": 0, "huge": 0});
    let vm = |own: &[u32]| json!({"nodes": own, "allowed": "", "memory": {"0": memory, "1": memory}, "devices": []});
    let all = json!({"devices_unknown": null, "instances": {"far": vm(&[0]), "near": vm(&[0, 1])}});
    let all: Localities = serde_json::from_value(all).unwrap();
    let found = remote_memory(&all, None);
    let [finding] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert_eq!(finding.pod.pod_uid, "far");
    assert!(finding.problem.starts_with("50 % (1.0 GiB of 2.0 GiB)"), "{finding:?}");
    assert!(finding.cure.contains("memoryManagerPolicy: Static"), "{finding:?}");
    assert_eq!(
        (remote_memory(&all, Some("near")), remote_memory(&all, Some("far"))),
        (vec![], found)
    );
}
