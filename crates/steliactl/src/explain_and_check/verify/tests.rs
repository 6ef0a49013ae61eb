use std::sync::Arc;

use serde_json::json;
use stelia_api::ledger::LedgerSummary;
use stelia_api::{Reason, State};
use stelia_kernel::locality::Localities;
use stelia_kubelet::{PodName, PodUid};
use stelia_ledger::account::Range;
use stelia_model::PendingResize;

use super::findings::remote_memory;
use super::*;
use crate::shared::daemon::node::testing::{PODS, instance_mut, node};
use crate::shared::output::{Form, OutputOptions, TextStyle};

/// When it is, in these tests: 3 minutes after the second VM registered.
const NOW: u64 = 180_000_001;
/// 50 seconds after that.
const EARLY: u64 = 50_000_001;

fn required(required: Required) -> Demands {
    Demands {
        require: Some(required),
        ..Demands::default()
    }
}

/// All VMs, of which nothing is asked.
fn plain(described: &Description, preview: &Map<String, Value>, now: u64) -> Verified {
    verified(described, preview, None, Demands::default(), now)
}

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
    let verified = plain(&waiting(), &whole(), EARLY);
    insta::assert_snapshot!(printed(&verified, Form::Text).0, @"
    1 isolated, 1 floating (vCPUs not attached for 50 s: team-a/vm)
    Every promise of these states holds: CPU lists, partitions, pinning, limits, and the NUMA nodes of the memory
    ");
    assert_eq!(verified.failure(), None);
}

#[test]
fn a_vm_that_waits_for_its_vcpus_for_more_than_a_minute_fails_unless_that_is_allowed() {
    let at = |now: u64| plain(&waiting(), &whole(), now).failure();
    assert_eq!(at(60_000_001), None);
    assert_eq!(at(60_000_002).unwrap(), "1 VM waits for its vCPUs: team-a/vm");
    let verified_with = |demands: Demands, now| verified(&waiting(), &whole(), None, demands, now);
    let (text, failure) = printed(&verified_with(Demands::default(), NOW), Form::Text);
    insta::assert_snapshot!(text, @"
    1 isolated, 1 floating (vCPUs not attached for 3 min: team-a/vm)

    WAIT  team-a/vm: floating: vCPUs not attached for 3 min, since 1970-01-01T00:00:00.000001Z
          fix: the container's log: the runner attaches the vCPUs once the VMM's socket answers, and tries every 5 s
    ");
    assert!(failure.is_some());
    let allowing = |require| Demands {
        require,
        allow_waiting: true,
        now: false,
    };
    for require in [None, Some(Required::Isolated)] {
        let allowed = verified_with(allowing(require), NOW);
        assert_eq!((allowed.failure(), allowed.names().len()), (None, 0), "{require:?}");
        let text = printed(&allowed, Form::Text).0;
        assert!(
            text.contains("WAIT  team-a/vm") && text.contains("Every promise"),
            "{text}"
        );
        assert_eq!(verified_with(allowing(require), EARLY).failure(), None);
    }
    // Its CPUs are another matter.
    let mut lost = waiting();
    let evicted = Reason::of(&PodUid::default(), ReasonKind::Evicted, "");
    instance_mut(&mut lost, PODS[1]).degraded.push(evicted);
    let demands = allowing(Some(Required::Isolated));
    let failure = verified(&lost, &whole(), None, demands, NOW).failure();
    assert_eq!(failure.unwrap(), "1 VM is below what is required: team-a/vm");
    let json: Value = serde_json::from_str(&printed(&verified_with(Demands::default(), NOW), Form::Json).0).unwrap();
    assert_eq!(json["findings"][0]["kind"], json!("waiting"));
}

#[test]
fn an_account_of_the_last_day_above_its_promise_fails() {
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
    let with = |accounts: &[&Brief]| {
        let mut verified = plain(&waiting(), &whole(), EARLY);
        verified.add_ledger(Ok(accounts.iter().map(|one| (*one).clone()).collect()));
        verified
    };
    let (text, failure) = printed(&with(&[&web, &unread]), Form::Text);
    insta::assert_snapshot!(text, @"
    1 isolated, 1 floating (vCPUs not attached for 50 s: team-a/vm)

    FAIL  team-a/web: other tasks 3…7, other devices' interrupts 1,200 in the last 24 hours, 0 is promised
          fix: steliactl ledger VM: when; steliactl quiet VM: which interrupts remain

    The last 24 hours by the ledger:
    team-a/web: other tasks 3…7, other devices' interrupts 1,200, 75.00% covered
    ");
    assert_eq!(failure.unwrap(), "1 promise does not hold");
    let one_interrupt = Brief {
        other_tasks: Range::default(),
        devices: 1,
        ..web.clone()
    };
    let perhaps = Brief {
        other_tasks: Range { least: 0, most: 9 },
        devices: 0,
        ..web.clone()
    };
    assert!(with(&[&one_interrupt]).failure().is_some());
    // For whoever asks for the present alone it is past.
    let mut at_present = with(&[&one_interrupt]);
    at_present.demands.now = true;
    assert_eq!(at_present.failure(), None);
    assert!(
        printed(&at_present, Form::Text)
            .0
            .contains("NOTE  team-a/web: other devices' interrupts 1")
    );
    // It may have been none.
    assert_eq!(with(&[&perhaps, &unread]).failure(), None);
    let another = Brief {
        pod: Pod::unnamed(PODS[1]),
        devices: 7,
        ..web.clone()
    };
    let several = with(&[&web, &another]);
    let text = printed(&several, Form::Text).0;
    assert!(
        text.contains("FAIL  2 VMs (") && text.contains("more than the promised 0"),
        "{text}"
    );
}

#[test]
fn a_ledger_that_cannot_be_read_or_kept_fails() {
    let mut unread = plain(&waiting(), &whole(), EARLY);
    unread.add_ledger(Err(Failure::Other("the ring is damaged".to_owned())));
    let (text, failure) = printed(&unread, Form::Text);
    assert!(
        text.contains("FAIL  node: the ledger's last 24 hours cannot be read: the ring is damaged"),
        "{text}"
    );
    assert_eq!(failure.unwrap(), "1 promise does not hold");
    unread.demands.now = true;
    assert_eq!(unread.failure(), None, "it is about the past");

    let mut node = waiting();
    for enabled in [true, false] {
        node.node.ledger = Arc::new(LedgerSummary {
            enabled,
            problem: Some("No space left on device".to_owned()),
            ..LedgerSummary::default()
        });
        let verified = plain(&node, &whole(), EARLY);
        assert_eq!(verified.failure().is_some(), enabled);
        let text = printed(&verified, Form::Text).0;
        assert_eq!(
            text.contains("the ledger is not kept: No space left"),
            enabled,
            "{text}"
        );
    }
}

#[test]
fn without_a_vm_nothing_is_said_to_hold() {
    let mut node = node();
    node.node.instances.clear();
    assert_eq!(
        printed(&plain(&node, &whole(), NOW), Form::Text),
        ("No instances.\n".to_owned(), None)
    );
    node.node.kubelet_problem = Some("no file".to_owned());
    let (text, failure) = printed(&plain(&node, &whole(), NOW), Form::Text);
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
    let shown = Reason::of_node(ReasonKind::CpusOffline, offline);
    instance_mut(&mut node, a).degraded.push(shown);
    let all = plain(&node, &preview, EARLY);
    let (text, failure) = printed(&all, Form::Text);
    insta::assert_snapshot!(text, @"
    1 isolated, 1 floating (vCPUs not attached for 50 s: team-a/vm)

    FAIL  node: kubelet's state cannot be used (2 VMs)
          fix: steliactl doctor says more; the cure depends on the message
    FAIL  aaaaaaaa-0000-4000-8000-000000000000: CPUs 4 are offline
          fix: echo 1 > /sys/devices/system/cpu/cpu4/online
    FAIL  team-a/vm: who knows
          fix: steliad has not seen this yet: steliactl reconcile; if it stays: /usr/share/doc/steliad/troubleshooting.md
    FAIL  node: differs: a pass would set CPUWeight=200 of stelia.slice
          fix: steliad has not seen this yet: steliactl reconcile
    FAIL  aaaaaaaa-0000-4000-8000-000000000000: differs: a pass would pin thread 7 to CPU 4
          fix: steliad has not seen this yet: steliactl reconcile
    ");
    assert_eq!(failure.unwrap(), "5 promises do not hold");
    let wide = TextStyle {
        wide: true,
        width: Some(60),
        ..TextStyle::from(true)
    };
    let text = all.text(wide);
    assert!(
        text.contains("FAIL  team-a/vm (bbbbbbbb-0000-4000-8000-000000000000):"),
        "{text}"
    );
    assert!(
        text.contains("\n      fix: steliad has not seen this yet: steliactl\n      reconcile\n"),
        "{text}"
    );
    let of_a = verified(
        &node,
        &preview,
        Some(&BTreeSet::from([a.to_owned()])),
        Demands::default(),
        EARLY,
    );
    let whose: Vec<&str> = of_a.findings.iter().map(|one| one.pod.pod_uid.as_str()).collect();
    assert_eq!(whose, ["-", a, "-", a]);
    assert_eq!(of_a.instances.len(), 1);
}

#[test]
fn a_state_below_what_is_required_fails_and_names_the_vm() {
    let require = |least| verified(&waiting(), &whole(), None, required(least), EARLY);
    assert_eq!(require(Required::Floating).failure(), None);
    for least in [Required::Contained, Required::Isolated] {
        let verified = require(least);
        assert_eq!(verified.failure().unwrap(), "1 VM is below what is required: team-a/vm");
        let finding = &verified.findings[0];
        assert!(
            finding.problem.starts_with("floating, ") && finding.problem.contains("for 50 s"),
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
    let verified = verified(&node, &whole(), None, required(Required::Isolated), NOW);
    assert_eq!(
        verified.failure().unwrap(),
        "41 VMs are below what is required: kubevirt-tenants/virt-launcher-customer-database-000-4hvbp, …"
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
    let vm = |own: &[u32]| json!({"nodes": own, "cpus": {}, "allowed": "", "memory": {"0": memory, "1": memory}, "devices": [], "pci": [], "memory_only": {}});
    let mut node = node();
    let [far, near, _] = PODS;
    let read = |own: &[u32]| -> Localities {
        let all = json!({"devices_unknown": null, "instances": {far: vm(own), near: vm(&[0, 1])}});
        serde_json::from_value(all).unwrap()
    };
    instance_mut(&mut node, near).exclusive = "2,6".parse().unwrap();
    node.locality = read(&[1]);
    let found = remote_memory(&node);
    let [finding] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert_eq!(finding.pod.pod_uid, far);
    assert!(finding.problem.starts_with("50 % (1.0 GiB of 2.0 GiB)"), "{finding:?}");
    assert!(finding.cure.contains("memoryManagerPolicy: Static"), "{finding:?}");
    // Read while the VM had CPUs of another NUMA node.
    node.locality = read(&[0]);
    assert_eq!(remote_memory(&node), []);
}

#[test]
fn equal_findings_are_one_row_and_as_json_one_each() {
    let node = waiting();
    let plan: Vec<String> = PODS[..2]
        .iter()
        .map(|pod| format!("{pod}: pin thread 7 to CPU 4"))
        .collect();
    let plan: Vec<&str> = plan.iter().map(String::as_str).collect();
    let verified = plain(&node, &preview(&plan, &[], &[]), EARLY);
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
    let verified = plain(&waiting(), &preview(&plan, &[], &[]), EARLY);
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
    let mut shown = waiting();
    let unseen = plain(&shown, &preview(&plan, &reasons, &[]), EARLY);
    let reason = Reason::of(&PodUid::default(), ReasonKind::PartitionDiffers, reads);
    instance_mut(&mut shown, a).degraded.push(reason);
    let verified = plain(&shown, &preview(&plan, &reasons, &[]), EARLY);
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
    assert!(unseen.findings[0].cure.starts_with(NOT_REPORTED), "{unseen:?}");
}

#[test]
fn what_the_daemon_tries_again_it_has_seen() {
    let [a, b, _] = PODS;
    let plan = [a, b].map(|uid| format!("{uid}: pin thread 7 to CPU 4"));
    let plan = plan.each_ref().map(String::as_str);
    let reasons = [[a, "not-done", "pin thread 7 to CPU 4: Invalid argument"]];
    let verified = plain(&waiting(), &preview(&plan, &reasons, &[]), EARLY);
    let steps = verified.findings.iter().filter(|one| one.kind == Kind::Differs);
    let steps: Vec<(bool, &str)> = steps.map(|one| (one.seen, one.cure.as_str())).collect();
    assert_eq!(steps, [(true, BY_A_PASS), (false, NOT_REPORTED)]);
}

#[test]
fn what_is_gone_at_the_next_reading_does_not_count() {
    let [a, b, gone] = PODS;
    let pin = |uid: &str| format!("{uid}: pin thread 7 to CPU 4");
    let ended = |uid| [uid, "thread-ended", "the thread 7 of vCPU 2 ended"];
    let first = plain(&waiting(), &preview(&[&pin(a), &pin(b)], &[ended(a)], &[]), NOW);
    // Another thread is no other finding.
    let second = [format!("{b}: pin thread 8 to CPU 4"), pin(gone)];
    let second = second.each_ref().map(String::as_str);
    let confirmed = plain(&waiting(), &preview(&second, &[ended(b)], &[]), NOW).confirmed_by(&first);
    let kept: Vec<(&str, &Kind)> = confirmed
        .findings
        .iter()
        .map(|one| (one.pod.pod_uid.as_str(), &one.kind))
        .collect();
    assert_eq!(kept, [(b, &Kind::Differs), (b, &Kind::Waiting)]);
}

#[test]
fn threads_of_unplugged_vcpus_are_no_finding_while_the_vm_gives_up_cpus() {
    let mut node = waiting();
    let ended = preview(&[], &[[PODS[0], "thread-ended", "the thread 7 of vCPU 2 ended"]], &[]);
    assert!(plain(&node, &ended, EARLY).failure().is_some());
    instance_mut(&mut node, PODS[0]).pending_resize = Some(PendingResize::default());
    assert_eq!(plain(&node, &ended, EARLY).failure(), None);
}

#[test]
fn vms_that_wait_for_the_same_are_one_row_with_the_longest_wait() {
    let mut node = waiting();
    let first = instance_mut(&mut node, PODS[0]);
    first.state = State::Floating;
    (first.vcpus, first.isolated_us, first.registered_us) = (Vec::new(), 0, 120_000_001);
    let verified = verified(&node, &whole(), None, required(Required::Isolated), NOW);
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
    let verified = plain(&node, &whole(), NOW);
    assert_eq!(
        verified.findings[0].cure,
        "its content was changed after kubelet wrote it (an edit, a damaged disk): drain the node, stop kubelet, remove the file, start kubelet"
    );
}
