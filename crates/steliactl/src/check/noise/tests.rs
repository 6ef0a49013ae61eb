//! Nodes that are calm, that are not, and of which nothing is known.

use std::sync::Arc;

use serde_json::json;
use stelia_api::ledger::LedgerVm;
use stelia_api::{Reason, ReasonCode};

use super::*;
use crate::shared::daemon::node::testing::{PODS, instance_mut, node, quiet};
use crate::shared::output::manual::explained;
use crate::tests::fixtures::{columns, headings, holds, never_says, says, text, wide};

#[test]
fn every_column_is_explained() {
    let columns = |part| explained("COLUMNS", Some(part));
    assert_eq!(columns("noise: sources"), headings(&SOURCES));
}

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

/// With this many device interrupts a second, and by the ledger.
fn read(described: &Description, pod: Option<&str>, rate: Option<u64>, by_ledger: Option<u64>) -> Noise {
    let rates = PODS.iter().filter_map(|pod| Some(((*pod).to_owned(), rate?)));
    let mut described = described.clone();
    let sums = PODS.iter().filter_map(|pod| {
        let sums = LedgerVm {
            devices: by_ledger?,
            covered_us: 1,
            ..LedgerVm::default()
        };
        Some(((*pod).to_owned(), sums))
    });
    Arc::make_mut(&mut described.node.ledger).vms = sums.collect();
    let selected = pod.map(|pod| BTreeSet::from([pod.to_owned()]));
    noise(&described, selected.as_ref(), &rates.collect())
}

fn of(described: &Description) -> Noise {
    noise(described, None, &[(PODS[0].to_owned(), 12)].into())
}

#[test]
fn what_disturbs_vms_is_a_row_and_its_reason_and_fix_are_told_once() {
    let told = of(&noisy());
    insta::assert_snapshot!(told.text(columns(80)));
    assert_eq!(told.failure().unwrap(), "5 disturbances of VMs");
    holds(
        &json!(told),
        json!({
            "/vms/0/pod_uid": PODS[0], "/vms/0/interrupts_per_second": 12, "/vms/1/interrupts_per_second": null,
            "/sources/0/reason": "no-vector", "/sources/2/source": "thread 99", "/sources/2/count": null, "/problems/0/pod": "",
        }),
    );
}

#[test]
fn where_device_interrupts_cannot_be_counted_it_is_unknown_whether_they_fire() {
    let told = read(&calm(), None, None, None);
    assert!(told.failure().is_some());
    never_says(&text(&told), &["nothing that disturbs"]);
    // The ledger has counted them, or nothing is promised.
    assert_eq!(read(&calm(), None, None, Some(0)).failure(), None);
    assert_eq!(read(&off(), None, None, None).failure(), None);
    never_says(&text(&of(&off())), &["nothing that disturbs"]);
    says(
        &text(&of(&off())),
        &["NOTE  irq-steering: off", "systemctl reload steliad"],
    );
}

#[test]
fn of_one_vm_only_what_reaches_its_cpus_is_told() {
    let told = read(&noisy(), Some(PODS[1]), Some(0), None);
    let ([vm], [interrupt, _]) = (told.vms.as_slice(), told.sources.as_slice()) else {
        panic!("{told:?}")
    };
    assert_eq!(vm.pod.pod_uid.as_str(), PODS[1]);
    assert_eq!(interrupt.cpus.to_string(), "2");
    // Of the node's problems and of its own, not of another VM's.
    assert_eq!(told.failure().unwrap(), "3 disturbances of VMs");
}

#[test]
fn what_the_kernel_keeps_there_and_never_ran_disturbs_nobody_and_is_shown_only_on_demand() {
    let mut described = calm();
    let remaining = r#"{"remaining": [{"irq": 34, "name": "virtio2-req.4", "cpus": "4", "why": "managed", "text": "", "count": 0}],
        "threads_remaining": [{"id": 23, "name": "kworker/R-xfs", "cpus": "4", "text": "Invalid argument"}]}"#;
    let quiet = quiet(remaining);
    let report = &mut Arc::make_mut(&mut described.node.quiet).report;
    (report.remaining, report.threads_remaining) = (quiet.report.remaining, quiet.report.threads_remaining);
    let told = of(&described);
    assert_eq!(told.failure(), None);
    says(&text(&told), &["nothing that disturbs VMs, 2 harmless"]);
    let wide = told.text(wide());
    says(&wide, &["virtio2-req.4", "kworker/R-xfs", "harmless"]);
    never_says(&wide, &["FAIL", "2 harmless"]);
}

#[test]
fn what_the_ledger_has_not_seen_disturbs_nobody() {
    let disturbs = |described: &Description, by_ledger| {
        let told = read(described, None, Some(0), by_ledger);
        let sources = told.disturbing().map(|one| one.source.clone());
        sources.filter(|one| one.starts_with("irq")).collect::<Vec<_>>()
    };
    // The daemon reports the second one, whose mask should have been written.
    assert_eq!(disturbs(&noisy(), Some(0)), ["irq 31"]);
    for by_ledger in [Some(1), None] {
        assert_eq!(disturbs(&noisy(), by_ledger), ["irq 31", "irq 130"], "{by_ledger:?}");
    }
    // It fires again and again: the daemon reports it.
    let mut described = noisy();
    let text = "interrupt 130 (nvme0q3) reaches the CPUs 2,4: the kernel places it itself";
    instance_mut(&mut described, PODS[0]).degraded = vec![Reason::of_node(ReasonCode::Interrupts, text)];
    assert_eq!(disturbs(&described, Some(0)), ["irq 31", "irq 130"]);
}

#[test]
fn a_calm_node_says_so_and_succeeds() {
    let told = read(&calm(), None, Some(0), None);
    assert_eq!(told.failure(), None);
    says(
        &text(&told),
        &[
            "12 of 40 device interrupts, 2 kernel threads.",
            "nothing that disturbs VMs.\n",
        ],
    );
    never_says(&told.text(TextStyle::from(false)), &["nothing"]);
    let mut empty = calm();
    empty.node.instances.clear();
    assert!(text(&of(&empty)).starts_with("No VM has CPUs of its own.\n"));
}

#[test]
fn what_is_not_known_is_not_called_calm() {
    let mut described = calm();
    Arc::make_mut(&mut described.node.quiet).problem = Some("steliad-quiet does not answer\x1b[2J".to_owned());
    let told = of(&described);
    says(&told.failure().unwrap(), &["does not answer"]);
    says(
        &text(&told),
        &["FAIL  noise: steliad-quiet does not answer?[2J\n", "fix     systemctl "],
    );

    // It answered before it had read the kernel's interrupts.
    let mut described = calm();
    Arc::make_mut(&mut described.node.quiet).report.interrupts = 0;
    assert!(read(&described, None, Some(0), Some(0)).failure().is_some());

    // No daemon says when the answer comes: that it is missing is all that is known.
    let mut waiting = calm();
    let quiet = Arc::make_mut(&mut waiting.node.quiet);
    (quiet.answered_us, quiet.report) = Default::default();
    for described in [node(), waiting] {
        let silent = of(&described);
        assert_eq!(silent.failure().unwrap(), "No interrupt data yet from steliad-quiet");
        assert_eq!(text(&silent).lines().count(), 2, "{}", text(&silent));
    }
}

#[test]
fn the_vm_that_is_disturbed_most_is_the_first() {
    let rates = [(PODS[0].to_owned(), 0), (PODS[1].to_owned(), 3)].into();
    let first = |rates: &Counts| noise(&noisy(), None, rates).vms[0].pod.pod_uid.clone();
    assert_eq!(first(&rates), PODS[1]);
    assert_eq!(first(&Counts::new()), PODS[0]);
}
