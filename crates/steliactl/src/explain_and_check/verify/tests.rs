use std::sync::Arc;

use serde_json::json;
use stelia_api::State;
use stelia_kubelet::{PodName, PodUid};
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
    1 isolated, 1 floating (vCPUs not attached for 3 min: team-a/vm)
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
    1 isolated, 1 floating (vCPUs not attached for 3 min: team-a/vm)

    POD                                   PROBLEM                                                  CURE
    -                                     kubelet's state cannot be used (2 VMs)                   steliactl kubelet-state says more; the cure depends on the message
    aaaaaaaa-0000-4000-8000-000000000000  CPUs 4 are offline                                       echo 1 > /sys/devices/system/cpu/cpu4/online
    team-a/vm                             who knows                                                /usr/share/doc/steliad/troubleshooting.md
    -                                     differs: a pass would set CPUWeight=200 of stelia.slice  steliactl reconcile, or wait for the next pass
    aaaaaaaa-0000-4000-8000-000000000000  differs: a pass would pin thread 7 to CPU 4              steliactl reconcile, or wait for the next pass
    ");
    assert_eq!(failure.unwrap(), "5 promises do not hold");
    let of_a = verified(&node, &preview, Some(&BTreeSet::from([a.to_owned()])), None, NOW);
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
fn of_many_vms_below_what_is_required_the_message_names_few() {
    let mut node = waiting();
    let floating = node.node.instances.values().nth(1).unwrap().clone();
    for number in 0..40 {
        let mut instance = floating.clone();
        let name = format!("virt-launcher-customer-database-{number:03}-4hvbp");
        Arc::make_mut(&mut instance).pod_name = PodName::new("kubevirt-tenants", &name);
        let uid = PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap();
        node.node.instances.insert(uid, instance);
    }
    let verified = verified(&node, &whole(), None, Some(Required::Isolated), NOW);
    assert_eq!(
        verified.failure().unwrap(),
        "41 instances below what is required: kubevirt-tenants/virt-launcher-customer-database-000-4hvbp, …"
    );
    let (text, _) = printed(&verified, Form::Text);
    assert!(
        text.starts_with(
            "1 isolated, 41 floating (vCPUs not attached for 3 min: \
             kubevirt-tenants/virt-launcher-customer-database-000-4hvbp, "
        ),
        "{text}"
    );
}

#[test]
fn half_the_memory_away_is_a_finding_with_the_share_and_a_cure() {
    let memory = json!({"anon": 1 << 30, "file": 4096, "shmem": 0, "huge": 0});
    let vm = |own: &[u32]| json!({"nodes": own, "allowed": "", "memory": {"0": memory, "1": memory}, "devices": []});
    let all = json!({"devices_unknown": null, "instances": {"far": vm(&[0]), "near": vm(&[0, 1])}});
    let all: Localities = serde_json::from_value(all).unwrap();
    let found = remote_memory(&all);
    let [finding] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert_eq!(finding.pod.pod_uid, "far");
    assert!(finding.problem.starts_with("50 % (1.0 GiB of 2.0 GiB)"), "{finding:?}");
    assert!(finding.cure.contains("memoryManagerPolicy: Static"), "{finding:?}");
}

#[test]
fn equal_findings_are_one_row_and_as_json_one_each() {
    let node = waiting();
    let plan: Vec<String> = PODS[..2]
        .iter()
        .map(|pod| format!("{pod}: pin thread 7 to CPU 4"))
        .collect();
    let plan: Vec<&str> = plan.iter().map(String::as_str).collect();
    let verified = verified(&node, &preview(&plan, &[], &[]), None, None, NOW);
    let (text, failure) = printed(&verified, Form::Text);
    assert_eq!(text.matches("pin thread 7").count(), 1, "{text}");
    assert!(
        text.contains("2 VMs (aaaaaaaa-0000-4000-8000-000000000000, team-a/vm)"),
        "{text}"
    );
    assert_eq!(failure.unwrap(), "2 promises do not hold");
    let json: Value = serde_json::from_str(&printed(&verified, Form::Json).0).unwrap();
    assert_eq!(json["findings"].as_array().unwrap().len(), 2);
}

#[test]
fn steps_that_differ_only_in_what_is_a_vms_own_are_one_row() {
    let [a, b, _] = PODS;
    let step = |pod: &str| {
        format!("{pod}: write \"isolated\" to cpuset.cpus.partition of /stelia.slice/stelia-{pod}.scope/vcpu")
    };
    let plan = [step(a), step(b)];
    let plan = plan.each_ref().map(String::as_str);
    let verified = verified(&waiting(), &preview(&plan, &[], &[]), None, None, NOW);
    let (text, _) = printed(&verified, Form::Text);
    assert_eq!(text.matches("a pass would").count(), 1, "{text}");
    assert!(
        text.contains("a pass would write \"isolated\" to cpuset.cpus.partition of its cgroup vcpu"),
        "{text}"
    );
    // A program gets each with its path.
    let own = |one: &Finding| one.problem.contains(&one.pod.pod_uid);
    assert!(verified.findings.len() == 2 && verified.findings.iter().all(own));
}

#[test]
fn a_step_that_repairs_what_is_a_finding_already_is_its_cure() {
    let [a, b, _] = PODS;
    let reads = "the partition reads \"member\" instead of \"isolated\"";
    let plan = [
        format!("{a}: write \"isolated\" to cpuset.cpus.partition of /stelia.slice/{a}.scope/vcpu"),
        format!("{b}: write \"isolated\" to cpuset.cpus.partition of /stelia.slice/{b}.scope/vcpu"),
    ];
    let plan = plan.each_ref().map(String::as_str);
    let reasons = [[a, "partition-differs", reads]];
    let verified = verified(&waiting(), &preview(&plan, &reasons, &[]), None, None, NOW);
    let told: Vec<(&str, bool)> = verified
        .findings
        .iter()
        .map(|one| (one.pod.pod_uid.as_str(), one.kind == Kind::Differs))
        .collect();
    assert_eq!(told, [(a, false), (b, true)]);
    let cure = &verified.findings[0].cure;
    assert!(
        cure.starts_with(BY_A_PASS) && cure.contains("what else claims those CPUs"),
        "{cure}"
    );
}

#[test]
fn vms_that_wait_for_the_same_are_one_row_with_the_longest_wait() {
    let mut node = waiting();
    let first = instance_mut(&mut node, PODS[0]);
    first.state = State::Floating.into();
    (first.vcpus, first.isolated_us, first.registered_us) = (Vec::new(), 0, 120_000_001);
    let verified = verified(&node, &whole(), None, Some(Required::Isolated), NOW);
    let (text, _) = printed(&verified, Form::Text);
    assert_eq!(text.matches("isolated is required").count(), 1, "{text}");
    assert!(
        text.contains("isolated is required: vCPUs not attached for 3 min"),
        "{text}"
    );
}

#[test]
fn the_cure_of_kubelets_file_is_that_of_its_message() {
    let mut node = waiting();
    node.node.kubelet_problem = Some("the file has checksum 1, its content gives 2".to_owned());
    let verified = verified(&node, &whole(), None, None, NOW);
    assert_eq!(
        verified.findings[0].cure,
        "its content was changed after kubelet wrote it (an edit, a damaged disk): drain the node, stop kubelet, remove the file, start kubelet"
    );
}
