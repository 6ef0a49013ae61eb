//! Nodes that are calm, that are not, and of which nothing is known.

use std::sync::Arc;

use serde_json::json;
use stelia_api::{Reason, ReasonCode};

use super::*;
use crate::shared::daemon::node::testing::{PODS, instance_mut, node, quiet};
use crate::tests::fixtures::{columns, holds, never_says, says, text};

/// VM a has CPUs 4-5, VM b CPU 2; an NVMe queue and a NIC are left on CPUs of both, a thread on a's.
fn noisy() -> Description {
    let mut described = node();
    let text = r#"{"steering": "shared", "answered_us": 1735689599000000, "interrupts": 40, "moved": 12, "writes": 3,
        "remaining": [
            {"irq": 130, "name": "nvme0q3", "cpus": "2,4", "why": "managed", "text": "", "count": 17},
            {"irq": 31, "name": "eth0-TxRx-1", "cpus": "5", "why": "no-vector", "text": "No space left on device", "count": 900}],
        "irqbalance": "told", "threads_moved": 2,
        "threads_remaining": [{"id": 99, "name": "napi/eth0-1", "cpus": "0-7", "text": "Invalid argument"}],
        "problems": [{"pod": "", "text": "read /proc/irq: Permission denied"},
            {"pod": "aaaaaaaa-0000-4000-8000-000000000000", "text": "write \"20\" to pm_qos_resume_latency_us: I/O error"}]}"#;
    described.node.quiet = Arc::new(quiet(text));
    described
}

fn calm() -> Description {
    let mut described = noisy();
    let report = &mut Arc::make_mut(&mut described.node.quiet).report;
    (report.remaining, report.threads_remaining, report.problems) = Default::default();
    described
}

fn off() -> Description {
    let mut off = calm();
    Arc::make_mut(&mut off.node.quiet).steering = "off".to_owned();
    off
}

/// What the NVMe queue does on CPU 4 so often a second, and something on a shared CPU.
fn firing(rate: u64) -> Vec<Fired> {
    let fired = |irq, name: &str, cpu, rate| Fired {
        irq,
        name: name.to_owned(),
        per_second: vec![(cpu, rate)],
    };
    let all = [fired(130, "nvme0q3", 4, rate), fired(40, "ahci", 0, 7)];
    all.into_iter().filter(|one| one.per_second[0].1 > 0).collect()
}

/// With this many device interrupts a second.
fn read(described: &Description, pod: Option<&str>, rate: Option<u64>) -> Noise {
    let selected = pod.map(|pod| BTreeSet::from([pod.to_owned()]));
    noise(described, selected.as_ref(), rate.map(firing).as_deref())
}

fn of(described: &Description) -> Noise {
    read(described, None, Some(12))
}

#[test]
fn who_is_disturbed_by_what_and_how_often_is_told_with_the_reason_and_a_fix() {
    let shown = of(&noisy());
    insta::assert_snapshot!(shown.text(columns(80)));
    assert_eq!(shown.failure().unwrap(), "2 of 2 VMs disturbed");
    holds(
        &json!(shown),
        json!({
            "/vms/0/pod_uid": PODS[0], "/vms/0/interrupts_per_second": 12, "/vms/1/interrupts_per_second": 0,
            "/sources/0/reason": "managed", "/sources/0/per_second": 12, "/sources/2/source": "thread 99", "/sources/2/count": null, "/problems/0/pod": "",
        }),
    );
}

#[test]
fn what_is_not_measured_is_neither_called_calm_nor_broken() {
    let broken = |text: &str| {
        let mut described = calm();
        Arc::make_mut(&mut described.node.quiet).problem = Some(text.to_owned());
        described
    };
    // It answered before it had read the kernel's interrupts, or not at all.
    let (mut unread, mut waiting) = (calm(), calm());
    Arc::make_mut(&mut unread.node.quiet).report.interrupts = 0;
    let quiet = Arc::make_mut(&mut waiting.node.quiet);
    (quiet.answered_us, quiet.report) = Default::default();
    for (described, note, fix) in [
        (
            broken("steliad-quiet does not answer\x1b[2J"),
            "does not answer?[2J",
            "journalctl -eu steliad-quiet",
        ),
        (unread, NOT_REPORTED, "enable --now steliad-quiet"),
        (waiting, NOT_REPORTED, "enable --now steliad-quiet"),
        (node(), NOT_REPORTED, "enable --now steliad-quiet"),
        (off(), "irq-steering is off", "systemctl reload steliad"),
    ] {
        let shown = read(&described, None, Some(0));
        assert_eq!(shown.failure(), None, "{note}");
        says(
            &text(&shown),
            &["NOTE  node: ", note, fix, "No device interrupted 2 VMs for 1 s."],
        );
        never_says(&text(&shown), &["FAIL"]);
        // What fires is measured, whoever should have moved it.
        let shown = of(&described);
        assert!(shown.failure().is_some(), "{note}");
        says(
            &text(&shown),
            &["FAIL  aaaaaaaa", "12 interrupts/s on CPU 4 by nvme0q3 (irq 130); "],
        );
        assert_eq!(text(&shown).matches(fix).count(), 1);
    }
    let shown = read(&calm(), None, None);
    assert_eq!(shown.failure().as_deref(), Some(UNCOUNTED));
    says(&text(&shown), &["FAIL", UNCOUNTED, "Not counted: 2 VMs."]);
    never_says(&text(&shown), &["No device interrupted"]);
    // Nothing runs on CPUs that are offline.
    let mut offline = calm();
    instance_mut(&mut offline, PODS[0]).exclusive = "9".parse().unwrap();
    let shown = read(&offline, None, Some(0));
    assert_eq!((shown.failure(), shown.vms[1].interrupts_per_second), (None, None));
    says(
        &text(&shown),
        &[
            "NOTE  aaaaaaaa",
            "offline",
            "No device interrupted 1 VM for 1 s. Not counted: 1 VM.",
        ],
    );
}

#[test]
fn what_fires_and_is_reported_by_nobody_is_named() {
    let shown = of(&calm());
    let [source] = shown.sources.as_slice() else {
        panic!("{shown:?}")
    };
    assert_eq!((source.reason, source.fix), ("not-moved", "steliactl reconcile"));
    assert_eq!(read(&calm(), Some(PODS[1]), Some(12)).sources, []);
}

#[test]
fn of_one_vm_only_what_reaches_its_cpus_is_told() {
    let shown = read(&noisy(), Some(PODS[1]), Some(0));
    let ([vm], [interrupt, _]) = (shown.vms.as_slice(), shown.sources.as_slice()) else {
        panic!("{shown:?}")
    };
    assert_eq!(vm.pod.pod_uid.as_str(), PODS[1]);
    assert_eq!(interrupt.cpus.to_string(), "2");
    // Of the node's problems and of its own, not of another VM's.
    assert_eq!(shown.failure().unwrap(), "1 of 1 VM disturbed");
}

#[test]
fn what_the_kernel_keeps_there_and_never_ran_disturbs_nobody_and_is_shown_only_on_demand() {
    let mut described = calm();
    let remaining = r#"{"remaining": [{"irq": 34, "name": "virtio2-req.4", "cpus": "4", "why": "managed", "text": "", "count": 0}],
        "threads_remaining": [{"id": 23, "name": "kworker/R-xfs", "cpus": "4", "text": "Invalid argument"}]}"#;
    let quiet = quiet(remaining);
    let report = &mut Arc::make_mut(&mut described.node.quiet).report;
    (report.remaining, report.threads_remaining) = (quiet.report.remaining, quiet.report.threads_remaining);
    let shown = read(&described, None, Some(0));
    assert_eq!(shown.failure(), None);
    says(&text(&shown), &["No device interrupted", "2 harmless"]);
    never_says(&text(&shown), &["FAIL"]);
    let names = shown.sources.iter().map(|one| (one.name.as_str(), one.disturbs));
    let names: Vec<(&str, bool)> = names.collect();
    assert_eq!(names, [("virtio2-req.4", false), ("kworker/R-xfs", false)]);
}

#[test]
fn what_does_not_fire_while_it_is_counted_disturbs_nobody() {
    let disturbs = |described: &Description, rate| {
        let shown = read(described, None, rate);
        let sources = shown.disturbing().map(|one| one.source.clone());
        sources.filter(|one| one.starts_with("irq")).collect::<Vec<_>>()
    };
    // The daemon reports the second one, whose mask should have been written.
    assert_eq!(disturbs(&noisy(), Some(0)), ["irq 31"]);
    assert_eq!(disturbs(&noisy(), None), ["irq 31", "irq 130"]);
    // It fires again and again: the daemon reports it.
    let mut described = noisy();
    let text = "interrupt 130 (nvme0q3) reaches the CPUs 2,4: the kernel places it itself";
    instance_mut(&mut described, PODS[0]).degraded = vec![Reason::of_node(ReasonCode::Interrupts, text)];
    assert_eq!(disturbs(&described, Some(0)), ["irq 31", "irq 130"]);
}

#[test]
fn a_calm_node_says_so_and_succeeds() {
    let shown = read(&calm(), None, Some(0));
    assert_eq!(shown.failure(), None);
    assert_eq!(text(&shown), "No device interrupted 2 VMs for 1 s.\n");
    assert_eq!(shown.text(TextStyle::from(false)), "");
    let mut empty = calm();
    empty.node.instances.clear();
    let mut none = of(&empty);
    assert_eq!(text(&read(&empty, None, None)), text(&none));
    assert_eq!(text(&none), "No VM has CPUs of its own: nothing was counted.\n");
    none.former = Some(("team-a/web (5m ago)".to_owned(), "restart it".to_owned()));
    says(
        &text(&none),
        &[
            "NOTE  team-a/web (5m ago): released",
            "restart it",
            "nothing was counted",
        ],
    );
    assert_eq!(none.failure(), None);
}
