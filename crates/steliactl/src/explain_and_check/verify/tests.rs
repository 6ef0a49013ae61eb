use std::sync::Arc;

use serde_json::json;
use stelia_api::ledger::LedgerSummary;
use stelia_api::{Reason, State};
use stelia_kubelet::{PodName, PodUid};
use stelia_ledger::account::Range;
use stelia_model::PendingResize;

use super::findings::remote_memory;
use super::*;
use crate::shared::daemon::node::testing::{PODS, instance_mut, node};
use crate::shared::output::{Form, OutputOptions};
use crate::tests::fixtures::{holds, pod, says, text};

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

/// The daemon's answer: the steps of a pass, and the reasons of degradation.
fn preview(plan: &[String], reasons: &[[&str; 3]]) -> Map<String, Value> {
    let preview = json!({ "plan": plan, "reasons": reasons, "degraded": [] });
    preview.as_object().cloned().unwrap()
}

fn whole() -> Map<String, Value> {
    preview(&[], &[])
}

fn pin(uid: &str) -> String {
    format!("{uid}: pin thread 7 to CPU 4")
}

fn to_partition(uid: &str) -> String {
    format!("{uid}: write \"isolated\" to cpuset.cpus.partition of /stelia.slice/stelia-{uid}.scope/vcpu")
}

/// The answer for programs.
fn json_of(verified: &Verified) -> Value {
    let options = OutputOptions {
        form: Form::Json,
        style: TextStyle::from(true),
    };
    match options.print(verified) {
        Ok(printed) | Err(Failure::Partial { printed, .. }) => serde_json::from_str(&printed).unwrap(),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn where_every_promise_holds_the_states_are_counted_and_a_wait_is_told() {
    let verified = plain(&waiting(), &whole(), EARLY);
    insta::assert_snapshot!(text(&verified), @"
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
    let late = verified_with(Demands::default(), NOW);
    insta::assert_snapshot!(text(&late), @"
    1 isolated, 1 floating (vCPUs not attached for 3 min: team-a/vm)

    WAIT  team-a/vm: floating: vCPUs not attached for 3 min, since 1970-01-01T00:00:00.000001Z
          fix: the container's log: the runner attaches the vCPUs once the VMM's socket answers, and tries every 5 s
    ");
    holds(&json_of(&late), json!({"/findings/0/kind": "waiting"}));
    assert!(late.failure().is_some());
    let allowing = |require| Demands {
        require,
        allow_waiting: true,
        now: false,
    };
    for require in [None, Some(Required::Isolated)] {
        let allowed = verified_with(allowing(require), NOW);
        assert_eq!((allowed.failure(), allowed.names().len()), (None, 0), "{require:?}");
        says(&text(&allowed), &["WAIT  team-a/vm", "Every promise"]);
        assert_eq!(verified_with(allowing(require), EARLY).failure(), None);
    }
    // Its CPUs are another matter.
    let mut lost = waiting();
    let evicted = Reason::of(&PodUid::default(), ReasonKind::Evicted, "");
    instance_mut(&mut lost, PODS[1]).degraded.push(evicted);
    let demands = allowing(Some(Required::Isolated));
    let failure = verified(&lost, &whole(), None, demands, NOW).failure();
    assert_eq!(failure.unwrap(), "1 VM is below what is required: team-a/vm");
}

#[test]
fn an_account_of_the_last_day_above_its_promise_fails() {
    let web = Brief {
        pod: pod(PODS[0], "team-a/web"),
        other_tasks: Range { least: 3, most: 7 },
        devices: 1200,
        promised_us: 8,
        covered_us: 6,
    };
    let of = |uid: &str, least: u64, devices: u64, covered_us: u64| Brief {
        pod: if uid == PODS[0] {
            web.pod.clone()
        } else {
            Pod::unnamed(uid)
        },
        other_tasks: Range { least, most: 9 },
        devices,
        covered_us,
        ..web
    };
    let unread = || of(PODS[1], 3, 1200, 0);
    let with = |accounts: Vec<Brief>| {
        let mut verified = plain(&waiting(), &whole(), EARLY);
        verified.add_ledger(Ok(accounts));
        verified
    };
    let above = with(vec![web.clone(), unread()]);
    insta::assert_snapshot!(text(&above), @"
    1 isolated, 1 floating (vCPUs not attached for 50 s: team-a/vm)

    FAIL  team-a/web: other tasks 3–7, other devices' interrupts 1,200 in the last 24 hours, 0 is promised
          fix: steliactl ledger VM: when; steliactl quiet VM: which interrupts remain

    The last 24 hours by the ledger:
    team-a/web: other tasks 3–7, other devices' interrupts 1,200, 75.00% covered
    ");
    assert_eq!(above.failure().unwrap(), "1 promise does not hold");
    let mut one_interrupt = with(vec![of(PODS[0], 0, 1, 6)]);
    assert!(one_interrupt.failure().is_some());
    // For whoever asks for the present alone it is past.
    one_interrupt.demands.now = true;
    assert_eq!(one_interrupt.failure(), None);
    says(
        &text(&one_interrupt),
        &["NOTE  team-a/web: other devices' interrupts 1"],
    );
    // It may have been none.
    assert_eq!(with(vec![of(PODS[0], 0, 0, 6), unread()]).failure(), None);
    let several = with(vec![web.clone(), of(PODS[1], 3, 7, 6)]);
    says(&text(&several), &["FAIL  2 VMs (", "more than the promised 0"]);
}

#[test]
fn a_ledger_that_cannot_be_read_or_kept_fails() {
    let mut unread = plain(&waiting(), &whole(), EARLY);
    unread.add_ledger(Err(Failure::Other("the ring is damaged".to_owned())));
    let failing = "FAIL  node: the ledger's last 24 hours cannot be read: the ring is damaged";
    says(&text(&unread), &[failing]);
    assert_eq!(unread.failure().unwrap(), "1 promise does not hold");
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
        let is_told = text(&verified).contains("the ledger is not kept: No space left");
        assert_eq!(is_told, enabled);
    }
}

#[test]
fn without_a_vm_nothing_is_said_to_hold() {
    let mut node = node();
    node.node.instances.clear();
    let empty = plain(&node, &whole(), NOW);
    assert_eq!((text(&empty).as_str(), empty.failure()), ("No instances.\n", None));
    node.node.kubelet_problem = Some("no file".to_owned());
    let damaged = plain(&node, &whole(), NOW);
    says(&text(&damaged), &["kubelet's state cannot be used: no file"]);
    assert_eq!(damaged.failure().unwrap(), "1 promise does not hold");
}

#[test]
fn each_finding_has_a_problem_and_a_cure_and_a_fault_of_the_node_is_one() {
    let mut node = waiting();
    node.node.kubelet_problem = Some("no file".to_owned());
    let [a, b, _] = PODS;
    let (unusable, offline) = ("kubelet's state cannot be used", "CPUs 4 are offline");
    let mut preview = preview(
        &["-: set CPUWeight=200 of stelia.slice".to_owned(), pin(a)],
        &[
            ["-", "kubelet-unusable", unusable],
            [a, "cpus-offline", offline],
            [b, "newer", "who knows"],
        ],
    );
    let degraded = [(a, unusable), (a, offline), (b, unusable), (b, "who knows")];
    preview["degraded"] = degraded.map(|(uid, reason)| format!("{uid}: {reason}")).to_vec().into();
    let shown = Reason::of_node(ReasonKind::CpusOffline, offline);
    instance_mut(&mut node, a).degraded.push(shown);
    let all = plain(&node, &preview, EARLY);
    insta::assert_snapshot!(text(&all), @"
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
    assert_eq!(all.failure().unwrap(), "5 promises do not hold");
    let wide = TextStyle {
        wide: true,
        width: Some(60),
        ..TextStyle::from(true)
    };
    let expected = [
        "FAIL  team-a/vm (bbbbbbbb-0000-4000-8000-000000000000):",
        "\n      fix: steliad has not seen this yet: steliactl\n      reconcile\n",
    ];
    says(&all.text(wide), &expected);
    let selected = BTreeSet::from([a.to_owned()]);
    let of_a = verified(&node, &preview, Some(&selected), Demands::default(), EARLY);
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
        says(&finding.problem, &["floating, ", "for 50 s"]);
        says(&finding.cure, &["container's log"]);
    }
    holds(
        &json_of(&require(Required::Isolated)),
        json!({
            "/required": "isolated", "/findings/0/kind": "below-required", "/findings/0/pod_name": "vm",
            "/instances/1/state": "floating", "/instances/1/waits_since_us": 1,
        }),
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
    let first = "kubevirt-tenants/virt-launcher-customer-database-000-4hvbp";
    let failure = format!("41 VMs are below what is required: {first}, …");
    assert_eq!(verified.failure().unwrap(), failure);
    let summary = format!("1 isolated, 41 floating (vCPUs not attached for 3 min: {first}, ");
    assert!(text(&verified).starts_with(&summary), "{}", text(&verified));
}

#[test]
fn half_the_memory_away_is_a_finding_with_the_share_and_a_cure() {
    let memory = json!({"anon": 1 << 30, "file": 4096, "shmem": 0, "huge": 0});
    let vm = |own: &[u32]| json!({"nodes": own, "cpus": {}, "allowed": "", "memory": {"0": memory, "1": memory}, "devices": [], "pci": [], "memory_only": {}});
    let [far, near, _] = PODS;
    let read = |own: &[u32]| {
        let all = json!({"devices_unknown": null, "instances": {far: vm(own), near: vm(&[0, 1])}});
        serde_json::from_value(all).unwrap()
    };
    let mut node = node();
    instance_mut(&mut node, near).exclusive = "2,6".parse().unwrap();
    node.locality = read(&[1]);
    let found = remote_memory(&node);
    let [finding] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert_eq!(finding.pod.pod_uid, far);
    assert!(finding.problem.starts_with("50 % (1.0 GiB of 2.0 GiB)"), "{finding:?}");
    says(&finding.cure, &["memoryManagerPolicy: Static"]);
    // Read while the VM had CPUs of another NUMA node.
    node.locality = read(&[0]);
    assert_eq!(remote_memory(&node), []);
}

#[test]
fn findings_that_differ_only_in_what_is_a_vms_own_are_one_row_and_as_json_one_each() {
    let [a, b, _] = PODS;
    for (step, told) in [
        (pin as fn(&str) -> String, "differs: a pass would pin thread 7 to CPU 4"),
        (
            to_partition,
            "a pass would write \"isolated\" to cpuset.cpus.partition of its cgroup vcpu",
        ),
    ] {
        let verified = plain(&waiting(), &preview(&[step(a), step(b)], &[]), EARLY);
        let text = text(&verified);
        assert_eq!(text.matches("a pass would").count(), 1, "{text}");
        says(
            &text,
            &["2 VMs (aaaaaaaa-0000-4000-8000-000000000000, team-a/vm)", told],
        );
        assert_eq!(verified.failure().unwrap(), "2 promises do not hold");
        // A program gets each as it is of its VM.
        let findings = json_of(&verified)["findings"].clone();
        for (finding, uid) in findings.as_array().unwrap().iter().zip([a, b]) {
            let own = &step(uid)[uid.len() + 2..];
            assert_eq!(finding["problem"], format!("differs: a pass would {own}"));
        }
        assert_eq!(verified.findings.len(), 2);
    }
}

#[test]
fn a_step_that_repairs_what_is_a_finding_already_is_its_cure() {
    let [a, b, _] = PODS;
    let reads = "the partition reads \"member\" instead of \"isolated\"";
    let preview = preview(&[to_partition(a), to_partition(b)], &[[a, "partition-differs", reads]]);
    let mut shown = waiting();
    let unseen = plain(&shown, &preview, EARLY);
    let reason = Reason::of(&PodUid::default(), ReasonKind::PartitionDiffers, reads);
    instance_mut(&mut shown, a).degraded.push(reason);
    let verified = plain(&shown, &preview, EARLY);
    let findings = verified.findings.iter();
    let told: Vec<(&str, bool)> = findings
        .map(|one| (one.pod.pod_uid.as_str(), one.kind == Kind::Differs))
        .collect();
    assert_eq!(told, [(a, false), (b, true)]);
    says(&verified.findings[0].cure, &[BY_A_PASS, "what else claims those CPUs"]);
    assert!(unseen.findings[0].cure.starts_with(NOT_REPORTED), "{unseen:?}");
}

#[test]
fn what_the_daemon_tries_again_it_has_seen() {
    let [a, b, _] = PODS;
    let reasons = [[a, "not-done", "pin thread 7 to CPU 4: Invalid argument"]];
    let verified = plain(&waiting(), &preview(&[pin(a), pin(b)], &reasons), EARLY);
    let steps = verified.findings.iter().filter(|one| one.kind == Kind::Differs);
    let steps: Vec<(bool, &str)> = steps.map(|one| (one.seen, one.cure.as_str())).collect();
    assert_eq!(steps, [(true, BY_A_PASS), (false, NOT_REPORTED)]);
}

#[test]
fn what_is_gone_at_the_next_reading_does_not_count() {
    let [a, b, gone] = PODS;
    let ended = |uid| [uid, "thread-ended", "the thread 7 of vCPU 2 ended"];
    let first = plain(&waiting(), &preview(&[pin(a), pin(b)], &[ended(a)]), NOW);
    // Another thread is no other finding.
    let second = preview(&[format!("{b}: pin thread 8 to CPU 4"), pin(gone)], &[ended(b)]);
    let confirmed = plain(&waiting(), &second, NOW).confirmed_by(&first);
    let kept = confirmed.findings.iter();
    let kept: Vec<(&str, &Kind)> = kept.map(|one| (one.pod.pod_uid.as_str(), &one.kind)).collect();
    assert_eq!(kept, [(b, &Kind::Differs), (b, &Kind::Waiting)]);
}

#[test]
fn threads_of_unplugged_vcpus_are_no_finding_while_the_vm_gives_up_cpus() {
    let mut node = waiting();
    let ended = preview(&[], &[[PODS[0], "thread-ended", "the thread 7 of vCPU 2 ended"]]);
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
    let text = text(&verified);
    assert_eq!(text.matches("isolated is required").count(), 1, "{text}");
    says(&text, &["isolated is required: vCPUs not attached for 3 min"]);
}

#[test]
fn the_cure_of_kubelets_file_is_that_of_its_message_and_every_other_kind_keeps_its_own() {
    let mut node = waiting();
    let message = "the file has checksum 1, its content gives 2";
    node.node.kubelet_problem = Some(message.to_owned());
    let verified = plain(&node, &whole(), NOW);
    says(
        &verified.findings[0].cure,
        &["its content was changed after kubelet wrote it"],
    );
    for kind in ReasonKind::ALL {
        let cure = Finding::degraded(Pod::unnamed("-"), kind.name(), message.to_owned()).cure;
        assert_eq!(
            cure == kind.cure().text,
            kind != ReasonKind::KubeletUnusable,
            "{kind:?}"
        );
    }
}
